"""Gradients that several parameters share: computed once, and no memory of each other's."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import ORTModule  # noqa: E402
from onnxtrain.torch._ortmodule_gradients import share, without_views  # noqa: E402


class ManyBiases(nn.Module):
    """What is added to one sum has one gradient; of one parameter something else is read too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(5) + 1)
        self.biases = nn.ParameterList([nn.Parameter(torch.randn(5)) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x * self.scale
        for bias in self.biases:
            total = total + bias
        return torch.tanh(total + self.biases[0] * x)


def gradients(module: nn.Module, x: torch.Tensor, times: int) -> list[torch.Tensor]:
    module.zero_grad()
    for _ in range(times):
        module(x).square().sum().backward()
    return [p.grad for p in module.parameters()]


@pytest.mark.parametrize("times", [1, 3])
def test_every_parameter_has_memory_of_its_own(times: int) -> None:
    torch.manual_seed(0)
    module, x = ManyBiases(), torch.randn(3, 5)
    expected = [g.clone() for g in gradients(module, x, times)]
    ours = gradients(ORTModule(module), x, times)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert len({g.data_ptr() for g in ours}) == len(ours)
    ours[2].zero_()
    torch.testing.assert_close(ours[3], expected[3])


def test_gradients_that_are_asked_for_may_be_changed_one_by_one() -> None:
    torch.manual_seed(0)
    module, x = ManyBiases(), torch.randn(3, 5, requires_grad=True)
    wrapped = ORTModule(module)
    loss = wrapped(x).sum()
    once = torch.autograd.grad(loss, [*wrapped.parameters(), x], retain_graph=True)
    again = torch.autograd.grad(loss, [*wrapped.parameters(), x])
    expected = torch.autograd.grad(module(x).sum(), [*module.parameters(), x])
    for values in (once, again):
        for one, other in zip(values, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_copies_leave_the_graph() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[2] seed, bool c)
            => (float[2] a, float[2] b, float[2] d, float[2] e, float[2] f, float[2] h) {
        a = Neg (seed)
        b = Identity (a)
        d = Identity (seed)
        e = Identity (seed)
        f = Identity (b)
        h = If (c) <then_branch = yes () => (float[2] y) { y = Abs (e) },
                    else_branch = no () => (float[2] z) { z = Neg (e) }>
    }""")
    named = share(model, {"p": "a", "q": "b", "r": "d", "s": "e", "t": "f", "u": "h"})
    assert named == {"p": "a", "q": "a", "r": "d", "s": "d", "t": "a", "u": "h"}
    assert [o.name for o in model.graph.output] == ["a", "d", "h"]
    made = [(n.output[0], n.input[0]) for n in model.graph.node]
    assert made == [("a", "seed"), ("d", "seed"), ("e", "d"), ("h", "c")]  # a branch reads e
    onnx.checker.check_model(model, full_check=True)


def test_views_leave_the_graph() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[64,64] seed, int64[1] flat, int64[2] matrix, float[N] open)
            => (float[4096] a, float[64,64] b, float[4096] d, float[64,64,1] e, float[M] f,
                float[2,2] h, float[64,64] j) {
        one = Neg (seed) a = Reshape (one, flat)
        two = Abs (seed) b = Reshape (two, matrix) d = Reshape (two, flat)
        e = Reshape (seed, flat)
        five = Neg (open) f = Reshape (five, flat)
        six = Neg (open) h = Reshape (six, matrix)
        j = Exp (seed)
    }""")
    gradients = {name: name for name in "abdefhj"}
    named, shapes = without_views(model, gradients)
    assert named == {**gradients, "a": "one", "b": "two", "h": "six"}
    assert shapes == {"a": (4096,), "b": (64, 64), "h": (2, 2)}
    assert [o.name for o in model.graph.output] == ["one", "two", *"def", "six", "j"]
    assert "a" not in {n.output[0] for n in model.graph.node}


class Flattened(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.reshape(-1) * self.weight.reshape(-1))


def test_gradients_of_another_shape() -> None:
    """Twice, with a gradient that is kept and added to, and changed in place."""
    module = Flattened()
    ours = ORTModule(copy.deepcopy(module))
    for _ in range(2):
        x = torch.randn(64, 128)
        for one in (module, ours):
            given = x.clone().requires_grad_()
            one(given).square().sum().backward()
            (weight,) = one.parameters()
            assert given.grad.shape == x.shape
            assert weight.grad.is_contiguous()
            weight.grad.mul_(0.5)
        pairs = zip(module.parameters(), ours.parameters(), strict=True)
        for expected, got in pairs:
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


class Convolutions(nn.Module):
    """Weights whose gradients are products of matrices; one of them is in two places."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        if tied:
            self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_gradients_have_the_sizes_of_their_parameters(tied: bool, times: int) -> None:
    torch.manual_seed(0)
    module, x = Convolutions(tied=tied), torch.randn(4, 16, 8, 8)
    expected = [g.clone() for g in gradients(module, x, times)]
    wrapped = ORTModule(module)
    ours = gradients(wrapped, x, times)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len({g.data_ptr() for g in ours}) == len(ours)
    halves = wrapped._graphs.used[True].graphs.halves
    last = {name: n.op_type for n in halves.backward.graph.node for name in n.output}
    if not tied:  # else they are added up, as parameters have them
        assert "Reshape" not in {last[name] for name in halves.gradients.values()}
        assert {"first.weight", "second.weight"} <= set(halves.views)


def reshaped(*results: tuple[str, str]) -> onnx.ModelProto:
    """Reshapes of what a graph computes, and of what it reads."""
    make = onnx.helper.make_node
    nodes = [make("Neg", ["x"], ["y"])]
    nodes += [make("Reshape", [source, "sizes"], [name]) for source, name in results]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", 1, [6])], [value(name, 1, [2, 3]) for _, name in results]
    )
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "sizes"))
    return onnx.helper.make_model(graph)


def test_one_reshape_of_a_value_is_left_to_torch() -> None:
    model = reshaped(("y", "a_grad"), ("y", "b_grad"), ("x", "c_grad"), ("y", "d_grad"))
    gradients = {n: f"{n}_grad" for n in "abcd"}
    names, views = without_views(model, gradients)
    assert names == {**gradients, "a": "y"}
    assert views == {"a": (2, 3)}
    assert [o.name for o in model.graph.output] == ["y", "b_grad", "c_grad", "d_grad"]
    assert [n.output[0] for n in model.graph.node] == ["y", "b_grad", "c_grad", "d_grad"]


def test_what_several_parameters_have_is_reshaped_by_the_graph() -> None:
    model = reshaped(("y", "both"))
    gradients = {"a": "both", "b": "both"}
    assert without_views(model, gradients) == (gradients, {})
    assert len(model.graph.node) == 2
