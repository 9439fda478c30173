"""A case from export to steps; with a wrong rule it is called wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import onnxtrain
from conformance import steps, weighted
from conformance.cases import OnnxCase, TorchCase
from conformance.check import check
from conformance.torch_function import OtherSizes, TorchFunction


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 5)
        self.last = torch.nn.Linear(5, 2)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.last(hidden), hidden


def torch_case(**more) -> TorchCase:
    torch.manual_seed(0)
    return TorchCase(Small(), (torch.randn(3, 4),), exporters=("torchscript",), **more)


def onnx_case(**more) -> OnnxCase:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, -3, 4}>
        { h = MatMul(x, w) y = Tanh(h) }
    """)
    return OnnxCase(model, {"x": np.array([[0.1, -0.2], [0.3, 0.2]], np.float32)}, **more)


def row_of(case):
    (row,) = check("case", case)
    return row


@pytest.fixture
def wrong_rule(monkeypatch):
    """Every gradient comes out by 3 % too large in one entry."""
    right = onnxtrain.differentiate

    def wrong(*args, **kwargs):
        model = right(*args, **kwargs)
        name = next(iter(weighted.gradient_names(model).values()))
        for node in model.graph.node:
            node.output[:] = [f"{o}.right" if o == name else o for o in node.output]
        model.graph.node.append(onnx.helper.make_node("Mul", [f"{name}.right", "by"], [name]))
        by = onnx.numpy_helper.from_array(np.array(1.03, np.float32), "by")
        model.graph.initializer.append(by)
        return model

    monkeypatch.setattr(onnxtrain, "differentiate", wrong)


def test_a_module_is_right() -> None:
    row = row_of(torch_case(second_order=True))
    assert row["outcome"] == "right", row
    assert (row["gradients"], row["second"], row["steps"]) == ("right", "right", "right")
    assert row["nodes_after"] > row["nodes"] > 0
    assert row["to_eager"] > 0


def test_a_model_is_right() -> None:
    row = row_of(onnx_case())
    assert (row["outcome"], row["gradients"]) == ("right", "right"), row
    assert row_of(onnx_case(differences_on="float32"))["outcome"] == "right"


@pytest.mark.usefixtures("wrong_rule")
def test_a_wrong_gradient_is_called_wrong() -> None:
    row = row_of(torch_case(timing=False))
    assert (row["outcome"], row["gradients"]) == ("wrong", "wrong"), row
    assert "first.weight" in row["reason"]
    assert row_of(onnx_case(timing=False))["outcome"] == "wrong"


def test_wrong_steps_are_called_wrong(monkeypatch) -> None:
    monkeypatch.setattr(steps, "DECAY", 0.5)
    right = steps.our_steps

    def undecayed(model, feeds, names, eps, *rest):
        return right(model, feeds, names, 2 * eps, *rest)

    monkeypatch.setattr(steps, "our_steps", undecayed)
    row = row_of(torch_case(timing=False))
    assert (row["outcome"], row["steps"]) == ("wrong", "wrong"), row


class Bent(torch.nn.Module):
    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(weights))

    def forward(self, x):
        return (x * self.w).abs()


@pytest.mark.parametrize(("side", "word"), [(1.0, "right"), (50.0, "wrong")])
def test_steps_may_leave_a_kink_on_either_side(monkeypatch, side, word) -> None:
    monkeypatch.setattr(steps, "DECAY", 0.0)
    case = TorchCase(Bent(0.001), (torch.ones(1),), inputs_have_gradients=False)
    case.module.w.data -= torch.from_numpy(_torch_steps(case, 1)["w"])  # the first step ends at 0
    case.steps = 2
    first = _torch_steps(case, 1)
    last = _torch_steps(case, 2)
    ours = {"w": first["w"] - side * (last["w"] - first["w"])}
    monkeypatch.setattr(steps, "our_steps", lambda *_: [first, ours])
    monkeypatch.setattr(steps, "is_another_function", lambda *_: False)
    function = _function(case)
    verdict = steps.compare_steps(onnx.ModelProto(), {}, {"w": "w"}, function, case)
    assert verdict.word == word


class Chooses(torch.nn.Module):
    """Its weight decides which of two functions it is; tracing fixes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1e-4, 2e-4, -2e-4]))

    def forward(self, x):
        return x * self.w if self.w.sum() > 0 else (5 * x * self.w).exp()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::onnxtrain.torch.value_reads.FixedValueWarning")
def test_a_choice_that_tracing_fixed_is_the_exporters_fault() -> None:
    case = TorchCase(
        Chooses(), (torch.tensor([0.5, -0.5, -0.5]),), exporters=("torchscript",), timing=False,
        inputs_have_gradients=False,
    )  # fmt: skip
    row = row_of(case)
    assert (row["outcome"], row["gradients"]) == ("not exported", "right"), row
    assert "after a step" in row["reason"]


class Longer(torch.nn.Module):
    """Says as much as its weight tells it to."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.4995]))

    def forward(self, x):
        return (x * self.w).repeat_interleave(torch.round(self.w).long())


def test_steps_after_which_outputs_have_other_sizes_are_not_compared() -> None:
    case = TorchCase(Longer(), (-torch.ones(3),), inputs_have_gradients=False)
    function = TorchFunction(case)
    function.weights = [np.ones(3, np.float32)]
    with pytest.raises(OtherSizes):
        steps.torch_steps(function, ["w"], 1e-3, 3)
    assert np.isnan(function.value({"w": np.array([1.51])}))


def test_a_mask_that_leaves_nothing_in_float32_is_rounding() -> None:
    """Every position of the first row is masked: what float32 adds to −1e10 is lost."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2,4] x) => (float[2,4] y)
        <float[4,4] w = {1, 2, -3, 4, 2, 1, 1, -1, 0, 2, 1, 3, 1, 1, -2, 2},
         float[2,1] mask = {-10000000000, 0}>
        { h = MatMul(x, w) masked = Add(h, mask) p = Softmax(masked) y = Mul(p, p) }
    """)
    x = np.array([[0.1, -0.2, 0.5, 0.3], [0.3, 0.2, -0.1, 0.4]], np.float32)
    row = row_of(OnnxCase(model, {"x": x}, timing=False))
    assert (row["outcome"], row["gradients"]) == ("right", "rounding"), row


def test_what_stands_for_minus_infinity_counts_nothing() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4] x) => (float[4] y) <float[4] mask = {0, -3.0e38, 0, -3.0e38}>
        { t = Tanh(x) y = Add(t, mask) }
    """)
    row = row_of(OnnxCase(model, {"x": np.array([0.1, -0.2, 0.5, 0.3], np.float32)}, timing=False))
    assert row["outcome"] == "right", row


def _function(case: TorchCase) -> TorchFunction:
    function = TorchFunction(case)
    function.weights = [np.ones(1, np.float32)]
    return function


def _torch_steps(case: TorchCase, count: int) -> dict[str, np.ndarray]:
    return steps.torch_steps(_function(case), ["w"], 1e-3, count)


def test_of_several_exporters_one_can_be_tried_alone() -> None:
    case = torch_case(timing=False, steps=0)
    case.exporters = ("dynamo", "torchscript")
    rows = list(check("small", case, lambda _: None, "torchscript"))
    assert [(r["exporter"], r["outcome"]) for r in rows] == [("torchscript", "right")]


@pytest.mark.usefixtures("wrong_rule")
def test_gradients_judged_together_are_called_wrong(monkeypatch) -> None:
    monkeypatch.setattr("conformance.torch_check.BY_THEMSELVES", 0)
    row = row_of(torch_case(timing=False, steps=0))
    assert (row["outcome"], row["gradients"]) == ("wrong", "wrong"), row


def test_a_refusal_has_its_reason() -> None:
    case = onnx_case()
    case.model.graph.node[1].op_type = "Elsewhere"
    case.model.graph.node[1].domain = "custom"
    case.model.opset_import.append(onnx.helper.make_opsetid("custom", 1))
    assert row_of(case)["outcome"] == "not run forward"

    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            return dy.flip(-1) * 3

    class Own(Small):
        def forward(self, x):
            return Cut.apply(self.first(x))

    row = row_of(TorchCase(Own(), (torch.randn(2, 4),), exporters=("torchscript",)))
    assert row["outcome"] == "refused", row["reason"]
    assert "backward of its own" in row["reason"]


def test_without_a_gradient_in_torch_nothing_is_compared() -> None:
    class Whole(torch.nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    row = row_of(TorchCase(Whole(), (torch.randn(2, 3),), exporters=("torchscript",)))
    assert row["outcome"] == "no gradient"


def test_the_next_exporter_is_tried_where_one_cannot_export() -> None:
    def none(case):
        raise onnxtrain.errors.ModelError("The module cannot be exported to ONNX.")

    case = torch_case(first_that_exports=True, steps=0, timing=False)
    case.exporters = (none, "torchscript", "dynamo")
    row = row_of(case)
    assert (row["exporter"], row["outcome"]) == ("torchscript", "right")
    case.exporters = (none,)
    assert row_of(case)["outcome"] == "not exported"


def root_case() -> OnnxCase:
    """√x below zero is NaN, and so is its slope; where it has a value the slope counts."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4] x) => (float[4] y) { y = Sqrt(x) }""")
    return OnnxCase(model, {"x": np.array([1.0, -1.0, 2.0, -3.0], np.float32)})


def test_what_has_no_value_has_no_gradient() -> None:
    assert row_of(root_case())["outcome"] == "right"


@pytest.mark.usefixtures("wrong_rule")
def test_what_has_a_value_counts_beside_what_has_none() -> None:
    assert row_of(root_case())["outcome"] == "wrong"
