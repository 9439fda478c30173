"""BatchNormalization in training mode: which nodes are split, and that nothing else changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.autodiff import differentiate_model, registry
from onnxtrain.compile import Plan, gradients
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize
from onnxtrain.passes.batch_norm import split_batch_norms
from tests.rules.harness import run_ort

C = 3
VECTORS = ["s", "b", "m", "v", "s2", "b2", "m2", "v2"]
NORM = "BatchNormalization<training_mode=1, momentum=0.7>"
ONE = f"y, m_new, v_new = {NORM}(x, s, b, m, v) e = Exp(y) loss = ReduceSum<keepdims=0>(e)"


def model_of(body: str, *, rows: str = "N", outputs: str = "") -> onnx.ModelProto:
    inputs = ", ".join(f"float[{C}] {n}" for n in VECTORS)
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[{rows},{C},4,5] x, {inputs}) => (float loss{outputs}) {{ {body} }}"
    )


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    given = {n: rng.uniform(0.5, 1.5, C).astype(np.float32) for n in VECTORS}
    return {"x": rng.normal(size=(6, C, 4, 5)).astype(np.float32), **given}


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in model.graph.node)


def training_nodes(graph: onnx.GraphProto) -> list[str]:
    """Names of what the nodes in training mode read, in the graph and in its bodies."""
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "training_mode" and attribute.i:
                found.append(node.input[1])
            if attribute.HasField("g"):
                found += training_nodes(attribute.g)
    return found


@pytest.mark.parametrize("rows", ["6", "N"])
def test_values_and_statistics_stay(rows: str) -> None:
    model = model_of(ONE, rows=rows, outputs=f", float[{C}] m_new, float[{C}] v_new")
    graph = onnxtrain.differentiate(model, wrt=["x", "s", "b"])
    assert not training_nodes(graph.graph)
    assert [o.name for o in graph.graph.output][:3] == ["loss", "m_new", "v_new"]
    for found, expected in zip(run_ort(graph, feeds()), run_ort(model, feeds())):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_only_where_a_gradient_passes() -> None:
    body = (
        f"h, hm, hv = {NORM}(x, s, b, m, v) y, ym, yv = {NORM}(h, s2, b2, m2, v2) "
        "e = Exp(y) loss = ReduceSum<keepdims=0>(e)"
    )
    model = model_of(body)
    assert training_nodes(onnxtrain.differentiate(model, wrt=["s2", "b2"]).graph) == ["s"]
    assert training_nodes(onnxtrain.differentiate(model, wrt=["s"]).graph) == []
    model.graph.node[1].name = "second"
    stopped = onnxtrain.differentiate(model, wrt=["s"], no_gradient=["second"], allow_unused=True)
    assert training_nodes(stopped.graph) == ["s", "s2"]


def test_inside_a_body() -> None:
    branch = (
        f"yes = Constant<value=bool{{1}}>() h = If(yes)<then_branch = one () => (t) {{ "
        f"t, tm, tv = {NORM}(x, s, b, m, v) }}, else_branch = two () => (u) {{ u = Neg(x) }}> "
        "e = Exp(h) loss = ReduceSum<keepdims=0>(e)"
    )
    wrt = ["x", "s", "b"]
    graph = onnxtrain.differentiate(model_of(branch), wrt=wrt)
    assert not training_nodes(graph.graph)
    plain = onnxtrain.differentiate(model_of(ONE), wrt=wrt)
    for found, expected in zip(run_ort(graph, feeds()), run_ort(plain, feeds())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_statistics_carry_no_gradient() -> None:
    """Also where the loss depends on them; then the operator stays whole."""
    body = (
        f"y, m_new, v_new = {NORM}(x, s, b, m, v) t = Mul(m_new, v_new) "
        "e = Exp(y) a = ReduceSum<keepdims=0>(e) c = ReduceSum<keepdims=0>(t) loss = Add(a, c)"
    )
    graph = onnxtrain.differentiate(model_of(body), wrt=["x", "s"])
    assert training_nodes(graph.graph) == ["s"]
    plain = onnxtrain.differentiate(model_of(ONE), wrt=["x", "s"])
    for found, expected in zip(run_ort(graph, feeds())[1:], run_ort(plain, feeds())[1:]):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_rule_needs_no_pass() -> None:
    """The rule works on the operator as it is; the pass only shares what both halves compute."""
    wrt = ["x", "s", "b"]
    model, _ = differentiate_model(normalize(load(model_of(ONE))), wrt, ["loss"])
    alone = to_proto(model)
    assert training_nodes(alone.graph) == ["s"]
    shared = onnxtrain.differentiate(model_of(ONE), wrt=wrt)
    assert sum(operators(shared).values()) < sum(operators(alone).values())
    for found, expected in zip(run_ort(shared, feeds()), run_ort(alone, feeds())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_rule_of_the_user_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", registry.rules())

    def rule(op: Any, dys: Any, ys: Any, x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
        return op.Mul(x, 7.0)

    registry.register(["BatchNormalization"], rule, kind="multi", replace=True)
    graph = onnxtrain.differentiate(model_of(ONE), wrt=["x"])
    assert training_nodes(graph.graph) == ["s"]
    np.testing.assert_allclose(run_ort(graph, feeds())[1], feeds()["x"] * 7)


def test_a_copy_is_differentiated_by_its_own_nodes() -> None:
    """What a pass declares of nodes does not hold for copies of them."""
    wrt = ["x", "s", "b"]
    model = split_batch_norms(normalize(load(model_of(ONE))), wrt, ["loss"], ())
    copied, _ = differentiate_model(model.clone(), wrt, ["loss"])
    whole, _ = differentiate_model(model, wrt, ["loss"])
    results = [run_ort(to_proto(m), feeds()) for m in (copied, whole)]
    for found, expected in zip(*results):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(list(copied.graph)) > len(list(whole.graph))


def test_the_pass_is_in_the_record() -> None:
    plan = Plan(model_of(ONE), inputs=["x"], update_statistics=False)
    gradients(plan)
    record = next(r for r in plan.trace.records if r.name == "batch statistics")
    assert record.nodes_after > record.nodes_before
