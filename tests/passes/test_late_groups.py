"""Groups of elementwise nodes that are computed again where gradients are due, and less waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.passes import fusion
from onnxtrain.passes.late_groups import Apart
from onnxtrain.runtime.session.devices import open_session

ROWS, WIDTH = 64, 256
Array = np.ndarray[Any, Any]


def gelu(x: str, y: str) -> str:
    """By a sigmoid, which its slope reads too."""
    return (
        f"c = Mul({x}, {x}) d = Mul(c, part) e = Add(d, one) k = Mul({x}, e) t = Sigmoid(k)"
        f" {y} = Mul({x}, t)"
    )


BACK = "r = Reshape(w3, two) o = MatMul(p, r) y = Reshape(o, flat)"
GELU, OF_GELU = gelu("h", "y"), {"Add", "Mul", "Sigmoid", "Sub"}
CASES = {
    "gelu": (GELU, OF_GELU),
    "gelu behind a view": (
        f"{gelu('h', 'v')} p = Reshape(v, half) {BACK}",
        {*OF_GELU, "Reshape"},
    ),
    "gelu of a view": (f"v = Reshape(h, flat) {gelu('v', 'y')}", OF_GELU),
    "gated by silu": ("s = Sigmoid(h) a = Mul(h, s) y = Mul(a, u)", OF_GELU),
    "gelu that somebody else reads, too": (f"{GELU} also = ReduceMax(y)", OF_GELU),
    "its slope is of its result": ("y = Tanh(h)", {"Mul", "Sub"}),
    "its mask waits for the gradient": ("y = Relu(h)", set[str]()),
    "its slope is of what waits anyway": (gelu("x", "y"), set[str]()),
}
"""Nodes from h and u, which are products of x, to y; operators that are computed late."""


def network(nodes: str, rows: str) -> onnx.ModelProto:
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[{rows}, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w1, float[{WIDTH}, {WIDTH}] w2,
           float[{WIDTH}, {WIDTH}] w3) => (float loss)
        <float one = {{1.0}}, float part = {{0.0447}}, int64[2] flat = {{-1, {WIDTH}}},
         int64[2] half = {{-1, {WIDTH // 2}}}, int64[2] two = {{{WIDTH // 2}, {2 * WIDTH}}}>
        {{ h = MatMul(x, w1) u = MatMul(x, w3) {nodes} z = MatMul(y, w2) q = Mul(z, z)
           loss = ReduceMean<keepdims = 0>(q) }}"""
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


def differentiated(nodes: str, rows: str = "N") -> onnx.ModelProto:
    model = network(nodes, rows)
    return onnxtrain.differentiate(model, wrt=["w1", "w2", "w3"], allow_unused=True)


def again(model: onnx.ModelProto) -> set[str]:
    """Operators that are carried out once more."""
    return {node.op_type for node in model.graph.node if node.name.endswith("_again")}


@pytest.mark.parametrize("rows", [str(ROWS), "N"])
@pytest.mark.parametrize("case", CASES)
def test_what_would_have_to_wait_is_computed_again(case: str, rows: str) -> None:
    nodes, expected = CASES[case]
    assert again(differentiated(nodes, rows)) == expected


def test_small_tensors_may_wait() -> None:
    assert not again(differentiated(GELU, "2"))


def test_nothing_is_repeated_where_activations_are_recomputed_anyway() -> None:
    model = onnxtrain.differentiate(network(GELU, "N"), wrt=["w1", "w2"], recompute="cheap")
    assert not any(n.name.endswith("Erf_again_again") for n in model.graph.node)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 7, ROWS])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_before(
    case: str, rows: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With infinite and very large ones, too; to the bit, where all of it was in kernels and is.

    A Tanh that is alone now is onnxruntime's, and onnxruntime puts together what it knows.
    """
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "" if fused else "1")
    late = differentiated(CASES[case][0])
    monkeypatch.setattr(fusion, "compute_late", lambda *_: Apart())
    before = differentiated(CASES[case][0])
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32) for n in ("w1", "w2", "w3")}
    feeds["x"] = rng.normal(0, 1, (rows, WIDTH)).astype(np.float32)
    feeds["x"][:1, :2] = np.inf, 1e30
    results = [open_session(m.SerializeToString()).run(None, feeds) for m in (late, before)]
    for ours, theirs in zip(*results, strict=True):
        if fused and "Tanh" not in CASES[case][0]:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
