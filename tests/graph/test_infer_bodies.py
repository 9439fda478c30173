"""Shapes of what a Loop carries."""

from __future__ import annotations

import onnx.parser

from onnxtrain.graph import load
from onnxtrain.graph.tensor import dims_of
from onnxtrain.normalize import normalize


def test_a_state_that_is_handed_on_keeps_its_shape_beside_one_that_changes() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2,3] x, float[3,4] w) => (float[2,4] y, float[n,3] z)
            <int64 count = {3}, bool go = {1}> {
            v, z = Loop (count, go, w, x) <
                body = b (int64 i, bool c, float[3,4] kept, float[m,3] rows)
                        => (bool again, float[3,4] kept, float[k,3] more) {
                    again = Identity(c)
                    more = Concat<axis=0>(rows, x)
                } >
            y = MatMul(x, v)
        }""")
    normal = normalize(load(model))
    loop = next(n for n in normal.graph if n.op_type == "Loop")
    body = loop.attributes["body"].as_graph()
    assert dims_of(body.inputs[2]) == (3, 4)
    assert dims_of(loop.outputs[0]) == (3, 4)
    assert dims_of(body.inputs[3]) not in {(2, 3), None}
