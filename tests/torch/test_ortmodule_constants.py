"""Frozen convolutions are constants of the graphs, and a change of them is never missed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper
import pytest
import torch
from torch import nn

from onnxtrain.torch import DebugOptions, ORTModule
from onnxtrain.torch import _ortmodule_cache as cache
from onnxtrain.torch import _ortmodule_constants as constants
from onnxtrain.torch import _ortmodule_run as run
from onnxtrain.torch._ortmodule_cache import Kind
from onnxtrain.torch.fallback import ORTModuleONNXModelException

X = torch.randn(2, 3, 8, 8)


class Backbone(nn.Module):
    """Frozen layers with a head that is trained; the whole is in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(5)
        self.up = nn.ConvTranspose2d(5, 4, 2)
        self.head = nn.Linear(4, 2)
        for part in (self.conv, self.norm, self.up):
            part.requires_grad_(False)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.up(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


def wrapped(module: nn.Module) -> ORTModule:
    """The module after two steps: those in eval mode are trained at once from the second on."""
    ort_module = ORTModule(module, exporter="torchscript")
    for _ in range(2):
        ort_module(X).sum().backward()
    return ort_module


def used(module: ORTModule) -> Kind:
    return module._graphs.used[module.training]


def check(module: ORTModule, x: torch.Tensor = X) -> None:
    """Result and gradients are those of the wrapped module, as it is now."""
    twin = copy.deepcopy(module.module)
    module.zero_grad()
    twin.zero_grad()
    mine, right = module(x), twin(x)
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    mine.square().sum().backward()
    right.square().sum().backward()
    for (name, p), q in zip(module.named_parameters(), twin.parameters()):
        if q.grad is None:
            assert p.grad is None, name
        else:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)


def test_frozen_convolutions_and_their_norm_are_constants() -> None:
    module = wrapped(Backbone())
    kind = used(module)
    assert kind.constants is not None
    assert set(kind.constants.values) == {
        "conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
        "up.weight", "up.bias",
    }  # fmt: skip
    inputs = {i.name for i in kind.graphs.halves.forward.graph.input}
    assert inputs >= {"head.weight", "head.bias"}
    assert not inputs & set(kind.constants.values)
    assert not any(t.raw_data for t in kind.graphs.halves.forward.graph.initializer
                   if t.name in kind.constants.values)  # fmt: skip
    check(module)


@torch.no_grad()
def by_load(module: Backbone) -> None:
    module.load_state_dict({k: v + 0.5 for k, v in module.state_dict().items()})


def by_data(module: Backbone) -> None:
    module.conv.weight.data[0, 0, 0, 0] += 1.0  # no version of torch's changes


def by_numpy(module: Backbone) -> None:
    module.up.bias.numpy()[1] -= 2.0


def by_new_data(module: Backbone) -> None:
    module.conv.weight.data = module.conv.weight.data * 0.5


def by_new_parameter(module: Backbone) -> None:
    module.up.weight = nn.Parameter(module.up.weight * 2, requires_grad=False)


def by_statistics(module: Backbone) -> None:
    module.norm.train()
    module.norm(torch.randn(4, 5, 3, 3) * 3)  # written by the operator itself
    module.norm.eval()


def by_swap(module: Backbone) -> None:
    weight = module.conv.weight.data
    weight[0], weight[1] = weight[1].clone(), weight[0].clone()


@pytest.mark.parametrize(
    "change", [by_load, by_data, by_numpy, by_new_data, by_new_parameter, by_statistics, by_swap]
)
def test_any_change_is_seen_by_the_next_call(change: Callable[[Backbone], None]) -> None:
    module = wrapped(Backbone())
    change(module.module)
    check(module)
    change(module.module)
    check(module)


def test_weights_that_keep_changing_become_inputs_for_good() -> None:
    module = wrapped(Backbone())
    for _ in range(constants.MAX_CHANGES + 1):
        assert used(module).constants is not None
        by_data(module.module)
        check(module)
    kind = used(module)
    assert kind.constants is None
    by_data(module.module)
    check(module)
    assert used(module) is kind


def test_backward_after_a_change_is_that_of_the_forward_pass() -> None:
    module = wrapped(Backbone())
    module.zero_grad()
    module(X).sum().backward()
    expected = module.head.weight.grad.clone()
    module.zero_grad()
    result = module(X)
    by_data(module.module)
    result.sum().backward()
    torch.testing.assert_close(module.head.weight.grad, expected)


def test_a_copy_sees_its_own_changes_only() -> None:
    module = wrapped(Backbone())
    twin = copy.deepcopy(module)
    by_data(twin.module)
    check(twin)
    check(module)
    assert used(module).constants is not None


def test_what_is_trained_again_is_no_constant() -> None:
    module = wrapped(Backbone())
    module.module.conv.requires_grad_(True)
    check(module)
    assert used(module).constants is None  # its gradient passes the layers behind it


def test_layers_before_the_first_that_is_trained_are_constants() -> None:
    module = Backbone()
    module.up.requires_grad_(True)
    ort_module = wrapped(module)
    kind = used(ort_module)
    assert kind.constants is not None
    assert {name.split(".")[0] for name in kind.constants.values} == {"conv", "norm"}
    check(ort_module)
    by_load(module)
    check(ort_module)


def test_where_an_argument_has_a_gradient_they_stay_inputs() -> None:
    module = wrapped(Backbone())
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    module(x).square().sum().backward()
    assert used(module).constants is None
    module.module(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_statistics_that_the_call_updates_are_no_constants() -> None:
    module = ORTModule(Backbone().train(), exporter="torchscript")
    module(X).sum().backward()
    kind = used(module)
    assert kind.constants is not None
    assert set(kind.constants.values) == {"conv.weight", "up.weight", "up.bias"}
    before = module.norm.running_mean.clone()
    module(X)
    assert not torch.equal(module.norm.running_mean, before)


def test_inference_after_training_steps_follows_the_weights() -> None:
    module = ORTModule(Backbone().requires_grad_(True), exporter="torchscript")
    with torch.no_grad():
        module(X)
    assert used(module).constants is None
    by_data(module.module)
    with torch.no_grad():
        torch.testing.assert_close(module(X), module.module(X), rtol=1e-4, atol=1e-5)


def test_weights_in_another_layout_are_compared_too() -> None:
    module = wrapped(Backbone().to(memory_format=torch.channels_last))
    assert used(module).constants is not None
    check(module)
    by_data(module.module)
    check(module)
    module.module.to(memory_format=torch.contiguous_format)
    check(module)


class Shared(Backbone):
    """Tensors of two of the layers are read by other operators too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.norm.weight.sum() * self.up.weight.sum()


LINEAR = (nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 8))


@pytest.mark.parametrize(
    ("module", "x", "limit", "expected"),
    [
        (Shared(), X, 10_000, {"conv.weight"}),
        (Backbone(), X, 100, set()),
        (nn.Sequential(*LINEAR).eval(), X[0, 0], 10_000, set()),
        (nn.Sequential(nn.BatchNorm2d(3).requires_grad_(False), nn.Conv2d(3, 3, 1)).eval(), X,
         10_000, set()),
    ],
    ids=["shared", "large", "linear", "norm alone"],
)  # fmt: skip
def test_where_they_stay_inputs(
    module: nn.Module,
    x: torch.Tensor,
    limit: int,
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", limit)
    ort_module = ORTModule(module, exporter="torchscript")
    for _ in range(2):
        ort_module(x).sum().backward()
    kind = used(ort_module)
    assert set(kind.constants.values if kind.constants else ()) == expected
    check(ort_module, x)


def test_values_are_dropped_and_shapes_stay() -> None:
    tensor = onnx.numpy_helper.from_array(X.numpy(), "x")
    other = onnx.numpy_helper.from_array(X.numpy(), "other")
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor, other]))
    dropped, kept = constants.without_values(model, {"x"}).graph.initializer
    assert dropped == model.graph.initializer[0]
    assert list(dropped.dims) == list(X.shape)
    assert dropped.data_type == onnx.TensorProto.FLOAT
    assert not dropped.raw_data
    assert kept == other


# --- numbers that no model has a copy of ---------------------------------------------------------


def test_sessions_share_the_memory_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the bytes of a model nor what is kept of it have the numbers, derived ones included.

    A convolution of a few pixels becomes a product with a large matrix.
    """
    sizes = list[int]()
    open_session = run.open_session

    def opened(model: bytes, *args: object) -> object:
        sizes.append(len(model))
        return open_session(model, *args)

    monkeypatch.setattr(run, "open_session", opened)
    frozen = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()).requires_grad_(False)
    module = ORTModule(
        nn.Sequential(frozen, nn.Flatten(), nn.Linear(512, 2)).eval(), exporter="torchscript"
    )
    x = torch.randn(16, 128, 2, 2)
    check(module, x)
    check(module, x)
    halves = used(module).graphs.halves
    assert sizes
    assert max(sizes) < 65_536
    for model in (halves.forward, halves.backward, halves.whole):
        assert model.ByteSize() < 65_536
    assert not halves.lent


def test_saved_graphs_have_their_numbers(tmp_path: Path) -> None:
    options = DebugOptions(save_onnx=True, onnx_prefix=str(tmp_path / "saved"))
    module = ORTModule(Backbone(), options, exporter="torchscript")
    module(X).sum().backward()
    files = sorted(tmp_path.glob("saved*"))
    assert files
    for path in files:
        onnx.checker.check_model(str(path))
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            assert onnx.numpy_helper.to_array(tensor).size == math.prod(tensor.dims)


def test_a_head_on_frozen_layers_is_trained_at_once() -> None:
    """Eval mode with some parameters frozen and others not is training, from the first call on."""
    module = ORTModule(Backbone(), exporter="torchscript")
    module(X).sum().backward()
    assert len(module._graphs._kinds) == 1
    assert used(module).later is None


def test_a_module_that_was_trained_is_evaluated_in_eval_mode() -> None:
    module = ORTModule(Backbone().train(), exporter="torchscript")
    module(X).sum().backward()
    module.eval()
    module(X)
    assert used(module).later is not None
    check(module)


def test_what_has_no_gradient_may_still_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen and trained parameters in eval mode are a guess only."""

    def built(*args: Any, **options: Any) -> Any:
        if args[4]:
            raise ORTModuleONNXModelException("There is no gradient.")
        return build(*args, **options)

    build = cache.build
    monkeypatch.setattr(cache, "build", built)
    module = ORTModule(Backbone(), exporter="torchscript")
    torch.testing.assert_close(module(X), module.module(X), rtol=1e-4, atol=1e-5)
    with pytest.raises(ORTModuleONNXModelException, match="no gradient"):
        module(X).sum().backward()
