"""Cross entropies that share log-probabilities with their gradient: which, and that values stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
import torch.nn.functional as F

import onnxtrain
from onnxtrain.autodiff import differentiate_model, registry
from onnxtrain.compile import Plan, gradients
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
from tests.rules.harness import run_ort

LOSS = "SoftmaxCrossEntropyLoss"
LABELS = np.array([1, 3, -1, 0, 2, -1])


def model_of(body: str, *, classes: str = "4", outputs: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[N,{classes}] x, int64[N] t, float[{classes}] w) => (float loss{outputs}) "
        f"{{ {body} }}"
    )


def plain(*attributes: str) -> str:
    return f"loss = {LOSS}<{', '.join(('ignore_index=-1', *attributes))}>(x, t)"


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 4)), rng.uniform(0.5, 2, 4)
    return {"x": x.astype(np.float32), "t": LABELS, "w": w.astype(np.float32)}


def expected(reduction: str, *, weighted: bool) -> tuple[Any, Any]:
    given = feeds()
    x = torch.tensor(given["x"], requires_grad=True)
    weight = torch.tensor(given["w"]) if weighted else None
    loss = F.cross_entropy(x, torch.tensor(LABELS), weight, ignore_index=-1, reduction=reduction)
    loss.backward()
    assert x.grad is not None
    return loss.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("classes", ["4", "C"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_values_and_gradients(reduction: str, weighted: bool, classes: str) -> None:
    body = plain(f'reduction="{reduction}"').replace(
        "(x, t)", "(x, t, w)" if weighted else "(x, t)"
    )
    graph = onnxtrain.differentiate(model_of(body, classes=classes), wrt=["x"])
    assert LOSS not in {n.op_type for n in graph.graph.node}
    for found, wanted in zip(run_ort(graph, feeds()), expected(reduction, weighted=weighted)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [4, 40])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_several_axes_of_positions(reduction: str, weighted: bool, classes: int) -> None:
    """They are one for the LogSoftmax, and what they were for everybody else."""
    result = "float[5,2,3] loss" if reduction == "none" else "float loss"
    operands = "x, t, w" if weighted else "x, t"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[5,{classes},2,3] x, int64[5,2,3] t, float[{classes}] w) => ({result}) "
        f'{{ loss = {LOSS}<ignore_index=-1, reduction="{reduction}">({operands}) }}'
    )
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, classes, 2, 3)), rng.uniform(0.5, 2, classes)
    given = {"x": x.astype(np.float32), "w": w.astype(np.float32)}
    given["t"] = rng.integers(-1, classes, (5, 2, 3))
    wrt = ["x", "w"] if weighted else ["x"]
    graph = onnxtrain.differentiate(model, wrt=wrt, vjp=True)
    (softmax,) = [n for n in graph.graph.node if n.op_type == "LogSoftmax"]
    assert softmax.input[0] != "x"
    tensors = {name: torch.tensor(given[name], requires_grad=True) for name in wrt}
    t, weight = torch.tensor(given["t"]), tensors.get("w", torch.ones(classes))
    picked = torch.log_softmax(tensors["x"], 1).gather(1, t.clamp(0)[:, None])[:, 0]
    share = weight[t.clamp(0)] * (t >= 0)
    loss = -picked * share if reduction == "none" else -(picked * share).sum()
    loss = loss / share.sum() if reduction == "mean" else loss
    dy = rng.normal(size=tuple(loss.shape)).astype(np.float32)
    gradients_of = torch.autograd.grad(loss, list(tensors.values()), torch.tensor(dy))
    wanted = [loss.detach().numpy(), *(g.numpy() for g in gradients_of)]
    for a, b in zip(run_ort(graph, {**given, "loss_grad": dy}), wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [(), (7,), (2, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-1, None])
def test_what_picks_from_logarithms_is_spelled_out(
    sizes: tuple[int, ...], weighted: bool, reduction: str, ignored: int | None
) -> None:
    at = ",".join(map(str, (5, *sizes)))
    result = f"float[{at}] loss" if reduction == "none" else "float loss"
    said = f'reduction="{reduction}"' + (f", ignore_index={ignored}" if ignored else "")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[{','.join(map(str, (5, 4, *sizes)))}] x, int64[{at}] t, float[4] w) => "
        f"({result}) {{ loss = NegativeLogLikelihoodLoss<{said}>"
        f"({'x, t, w' if weighted else 'x, t'}) }}"
    )
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(5, 4, *sizes)), "w": rng.uniform(0.5, 2, 4)}
    given = {name: values.astype(np.float32) for name, values in given.items()}
    t = rng.integers(0 if ignored is None else -1, 4, (5, *sizes))
    wrt = ["x", "w"] if weighted else ["x"]
    graph = onnxtrain.differentiate(model, wrt=wrt, vjp=True)
    assert "NegativeLogLikelihoodLoss" not in {n.op_type for n in graph.graph.node}
    tensors = {name: torch.tensor(given[name], requires_grad=True) for name in wrt}
    labels, weight = torch.tensor(t), tensors.get("w", torch.ones(4))
    share = weight[labels.clamp(0)] * (labels >= 0)
    picked = -tensors["x"].gather(1, labels.clamp(0)[:, None])[:, 0] * share
    loss = picked if reduction == "none" else picked.sum()
    loss = loss / share.sum() if reduction == "mean" else loss
    dy = rng.normal(size=tuple(loss.shape)).astype(np.float32)
    gradients_of = torch.autograd.grad(loss, list(tensors.values()), torch.tensor(dy))
    wanted = [loss.detach().numpy(), *(g.numpy() for g in gradients_of)]
    for a, b in zip(run_ort(graph, {**given, "t": t, "loss_grad": dy}), wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_few_checked_labels_are_compared_with_all_classes() -> None:
    plan = Plan(model_of(plain()), inputs=["x"], labels_are_checked=True)
    graph = to_proto(gradients(plan).model)
    operators = {n.op_type for n in graph.graph.node}
    assert "ReduceL1" in operators
    assert "GatherElements" not in operators
    for found, wanted in zip(run_ort(graph, feeds()), expected("mean", weighted=False)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def trusted(body: str, given: dict[str, Any]) -> list[Any]:
    """Loss and gradient for labels that were checked."""
    plan = Plan(model_of(body), inputs=["x"], labels_are_checked=True)
    return run_ort(to_proto(gradients(plan).model), given)


@pytest.mark.parametrize("ignored", [-100, -1, 2, 255, 10**6])
def test_any_label_can_be_ignored(ignored: int) -> None:
    given = {**feeds(), "t": np.array([1, 3, ignored, 0, 1, ignored])}
    x = torch.tensor(given["x"], requires_grad=True)
    loss = F.cross_entropy(x, torch.tensor(given["t"]), ignore_index=ignored)
    loss.backward()
    assert x.grad is not None
    found = trusted(plain().replace("=-1", f"={ignored}"), given)
    np.testing.assert_allclose(found[0], loss.item(), rtol=1e-6)
    np.testing.assert_allclose(found[1], x.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_a_class_that_is_ruled_out() -> None:
    """Its score is −∞, and where it is not the label its probability is 0, not NaN."""
    given = feeds()
    given["x"][:, 3] = -np.inf
    given["t"] = np.array([1, 2, -1, 0, 2, -1])
    loss, dx = trusted(plain(), given)
    left = F.cross_entropy(torch.tensor(given["x"]), torch.tensor(given["t"]), ignore_index=-1)
    np.testing.assert_allclose(loss, left.item(), rtol=1e-6)
    assert np.isfinite(dx).all()
    assert not dx[:, 3].any()


@pytest.mark.parametrize("body", [plain(), "y = MatMul(x, e) " + plain().replace("(x", "(y")])
def test_if_all_are_ignored_nothing_is_learnt(body: str) -> None:
    eye = "e = EyeLike<dtype=1>(s) " if "MatMul" in body else ""
    shape = "s = Constant<value=float[4,4]{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>() " if eye else ""
    loss, dx = trusted(shape + eye + body, {**feeds(), "t": np.full(6, -1)})
    assert np.isnan(loss)
    assert not dx.any()


def test_no_more_operators_than_without_a_label_to_ignore() -> None:
    """The default costs a step of microseconds nothing: one look into a table says it all."""
    head = "y = Gemm(x, k) " + plain().replace("(x", "(y")
    values = ", ".join("0" * 16)
    counts = []
    for body in (head, head.replace("ignore_index=-1", 'reduction="mean"')):
        model = model_of(f"k = Constant<value=float[4,4]{{{values}}}>() {body}")
        plan = Plan(model, inputs=["x"], labels_are_checked=True)
        counts.append(len(list(gradients(plan).model.graph)))
    assert counts[0] <= counts[1]


def test_that_labels_are_checked_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another operator is replaced by its function body in between."""
    monkeypatch.delitem(registry._RULES, ("", "Mish"))
    model = model_of(f"y = Mish(x) loss = {LOSS}<ignore_index=-1>(y, t)")
    plan = Plan(model, inputs=["x"], labels_are_checked=True)
    operators = {n.op_type for n in gradients(plan).model.graph}
    assert "Mish" not in operators
    assert "ReduceL1" in operators


def test_a_rule_of_the_user_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", registry.rules())

    def rule(op: Any, dys: Any, ys: Any, scores: Any, target: Any, weights: Any) -> Any:
        return op.Mul(scores, 7.0)

    registry.register([LOSS], rule, kind="multi", replace=True)
    graph = onnxtrain.differentiate(model_of(f"loss = {LOSS}(x, t)"), wrt=["x"])
    assert LOSS in {n.op_type for n in graph.graph.node}
    given = {**feeds(), "t": np.abs(LABELS)}
    np.testing.assert_allclose(run_ort(graph, given)[1], given["x"] * 7)


def test_only_where_a_gradient_passes() -> None:
    body = f"a = {LOSS}(x, t) b = Mul(x, w) c = {LOSS}(b, t) loss = Add(a, c)"
    graph = onnxtrain.differentiate(model_of(body), wrt=["w"])
    assert [n.input[0] for n in graph.graph.node if n.op_type == LOSS] == ["x"]


def test_log_probabilities_that_are_read() -> None:
    body = f"loss, p = {LOSS}<ignore_index=-1>(x, t)"
    graph = onnxtrain.differentiate(model_of(body, outputs=", float[N,4] p"), wrt=["x"])
    assert LOSS in {n.op_type for n in graph.graph.node}
    found = run_ort(graph, feeds())
    np.testing.assert_allclose(found[2], expected("mean", weighted=False)[1], rtol=1e-5, atol=1e-6)
    unread = onnxtrain.differentiate(model_of(body), wrt=["x"])
    assert LOSS not in {n.op_type for n in unread.graph.node}


def test_inside_a_body() -> None:
    body = (
        "yes = Constant<value=bool{1}>() loss = If(yes)<"
        f"then_branch = one () => (a) {{ a = {LOSS}<ignore_index=-1>(x, t) }}, "
        "else_branch = two () => (b) { b = ReduceSum<keepdims=0>(x) }>"
    )
    graph = onnxtrain.differentiate(model_of(body), wrt=["x"])
    for found, wanted in zip(run_ort(graph, feeds()), expected("mean", weighted=False)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_rule_needs_no_pass() -> None:
    """It asks the operator for its log-probabilities."""
    model, _ = differentiate_model(normalize(load(model_of(plain()))), ["x"], ["loss"])
    graph = to_proto(model)
    node = next(n for n in graph.graph.node if n.op_type == LOSS)
    assert len(node.output) == 2
    for found, wanted in zip(run_ort(graph, feeds()), expected("mean", weighted=False)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
