"""A SequenceMap over tensors that are known one by one is written out."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

import onnxtrain

from .compare import assert_same, normalized, operators

X, K = np.array([0.5, -2.0], np.float32), np.array([1.0, 3.0], np.float32)
BODY = """
    m = SequenceMap(s) <body = each (float[n] t) => (float[i, j] u) {
        shape = Shape(t) rank = Size(shape) few = LessOrEqual(rank, one)
        u = If(few) <then_branch = a () => (float[a, b] p) { r = Tanh(t) p = Reshape(r, row) },
                     else_branch = b () => (float[c] q) { q = Identity(t) }>
    }>
"""


def model(inputs: str, nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g ({inputs}) => (float[P, Q] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[2] row = {{1, -1}}> {{ {nodes} }}
    """)


STACKED = model(
    "float[2] x, float[2] k",
    f"s = SequenceConstruct(x, k) {BODY} c = SequenceAt(m, zero) d = SequenceAt(m, one) "
    "y = Concat<axis = 0>(c, d)",
)


def test_branches_by_rank_are_decided() -> None:
    after = normalized(STACKED)
    assert not operators(after) & {"SequenceMap", "If"}
    assert_same(STACKED, after, {"x": X, "k": K})


def test_its_gradient_is_right() -> None:
    """With the map inside the graph onnxruntime refused the gradient of the branches."""
    assert onnxtrain.check_gradient(STACKED, {"x": X, "k": K}, wrt=["x", "k"]).ok


def test_a_sequence_from_elsewhere_is_mapped() -> None:
    split = model(
        "float[n] x", f"s = SplitToSequence(x) {BODY} y = ConcatFromSequence<axis = 0>(m)"
    )
    after = normalized(split)
    assert "SequenceMap" in operators(after)
    assert_same(split, after, {"x": X})
