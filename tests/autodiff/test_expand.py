"""Operators whose rule is taken away are differentiated through their schema's function body."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.autodiff import registry
from onnxtrain.errors import NoGradientError
from tests.rules.harness import Case, case, check, const, fixed, run_ort, x

LABELS = [0, 2, 1, 3, 2]

CASES = [
    case("LayerNormalization", x(2, 3, 4), x(4), x(4)),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), axis=-2),
    case("LayerNormalization", x(2, 4), x(4), x(4), _outputs=3, _reference=False),
    case("GroupNormalization", x(2, 4, 3), x(2), x(2), num_groups=2),
    case("Gelu", x(2, 3), _opset=20, _reference=False),
    case("Gelu", x(2, 3), _opset=21, approximate="tanh"),
    case("Elu", x(2, 3, spread=True), alpha=1.5),
    case("Celu", x(2, 3, spread=True), _reference=False),
    case("HardSwish", x(2, 3)),
    case("Mish", x(2, 3)),
    case("Softplus", x(2, 3), _opset=18),
    case("Clip", x(2, 3, spread=True), const(-0.5, np.float64), None),
    case("Softmax", x(2, 3, 4), axis=1),
    case("LogSoftmax", x(2, 3), axis=-1),
    case("MeanVarianceNormalization", x(2, 3, 2, 2), axes=[0, 2, 3], _reference=False),
    case("ReduceLogSumExp", x(2, 3, 4), const([1]), keepdims=0),
    case("NegativeLogLikelihoodLoss", x(5, 4), fixed(LABELS), ignore_index=2),
    case("SoftmaxCrossEntropyLoss", x(5, 4), fixed(LABELS), reduction="sum"),
    case("SoftmaxCrossEntropyLoss", x(5, 4), fixed(LABELS), ignore_index=2),
]


@pytest.mark.parametrize("c", CASES, ids=[c.id for c in CASES])
def test_gradient_through_the_body(c: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", c.op))
    check(c)


def forward(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


def test_only_nodes_on_the_path_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", "Mish"))
    model = forward("""g (float[3] x, float[3] c) => (float loss) {
        a = Mish (x)
        b = Mish (c)
        d = Mul (a, b)
        loss = ReduceSum <keepdims = 0> (d)
    }""")
    gradient = onnxtrain.differentiate(model, wrt=["x"])
    mish = [n for n in gradient.graph.node if n.op_type == "Mish"]
    assert [n.input[0] for n in mish] == ["c"]
    gradient = onnxtrain.differentiate(model, wrt=["x"], no_gradient=["Mish"], allow_unused=True)
    assert sum(n.op_type == "Mish" for n in gradient.graph.node) == 2


def test_inside_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = forward("""g (float[3] x, bool c) => (float loss) {
        y = If (c) <
            then_branch = t () => (float[3] o) { o = Mish (x) },
            else_branch = e () => (float[3] o) { o = Elu <alpha = 2.0> (x) }
        >
        loss = ReduceSum <keepdims = 0> (y)
    }""")
    expected = onnxtrain.differentiate(model, wrt=["x"])
    for op in ("Mish", "Elu"):
        monkeypatch.delitem(registry._RULES, ("", op))
    expanded = onnxtrain.differentiate(model, wrt=["x"])
    for c in (True, False):
        feeds = {"x": np.array([-1, 0.5, 2], np.float32), "c": np.array(c)}
        for a, b in zip(run_ort(expanded, feeds), run_ort(expected, feeds)):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_twice_the_same_operator_gets_distinct_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", "Softplus"))
    model = forward("""g (float[3] x) => (float loss) {
        a = Softplus (x)
        b = Softplus (a)
        loss = ReduceSum <keepdims = 0> (b)
    }""")
    gradient = onnxtrain.differentiate(model, wrt=["x"])
    onnx.checker.check_model(gradient, full_check=True)
    x0 = np.array([-1, 0, 2], np.float32)
    _, dx = run_ort(gradient, {"x": x0})
    inner = np.log1p(np.exp(x0))
    np.testing.assert_allclose(dx, 1 / (1 + np.exp(-inner)) / (1 + np.exp(-x0)), rtol=1e-5)


def test_an_operator_without_rule_and_body_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._RULES, ("", "Tanh"))
    model = forward("""g (float[3] x) => (float loss) {
        a = Tanh (x)
        loss = ReduceSum <keepdims = 0> (a)
    }""")
    with pytest.raises(NoGradientError, match="Tanh"):
        onnxtrain.differentiate(model, wrt=["x"])
