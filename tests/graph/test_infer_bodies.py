"""Shapes of what a Loop carries."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

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


def test_a_state_that_is_computed_from_one_that_is_handed_on() -> None:
    """Nothing is said of shapes in the body, as where a file's own were taken away."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N,4] x, float[4,4] w) => (float[N,4] y) <int64 count = {3}, bool go = {1}> {
            y, z = Loop (count, go, x, w) <
                body = b (int64 i, bool c, float h, float k) => (bool again, float more, float k) {
                    again = Identity(c)
                    m = MatMul(h, k)
                    more = Tanh(m)
                } >
        }""")
    body = model.graph.node[0].attribute[0].g
    for value in (*body.input[2:], *body.output[1:]):
        value.type.tensor_type.ClearField("shape")
    normal = normalize(load(model))
    loop = next(n for n in normal.graph if n.op_type == "Loop")
    carried = loop.attributes["body"].as_graph().inputs[2:]
    assert [dims_of(v) for v in (*carried, loop.outputs[0])] == [("N", 4), (4, 4), ("N", 4)]


def test_ranks_that_a_body_forgets_are_not_filled_for_ever() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2,3] x, int64[M] s) => (float y) <int64 count = {3}, bool go = {1}> {
            y = Loop (count, go, x) <
                body = b (int64 i, bool c, float h) => (bool again, float more) {
                    again = Identity(c)
                    t = Reshape(h, s)
                    u = Transpose<perm = [1, 0]>(t)
                    more = Reshape(u, s)
                } >
        }""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    body = model.graph.node[0].attribute[0].g
    for value in (body.input[2], body.output[1]):
        value.type.tensor_type.ClearField("shape")
    normal = normalize(load(model))
    loop = next(n for n in normal.graph if n.op_type == "Loop")
    ranks = [len(dims_of(n.outputs[0]) or ()) for n in loop.attributes["body"].as_graph()]
    assert 2 in ranks


def test_a_state_whose_open_size_a_weight_may_change_keeps_its_rank() -> None:
    """onnx names the forgotten size anew each time it is asked."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[1,N] x) => (float loss)
        <float[1,3] w = {1, 2, 3}, int64 count = {3}, bool go = {1}> {
            y = Loop (count, go, x) <
                body = b (int64 i, bool c, float h) => (bool again, float more) {
                    again = Identity(c)
                    more = Mul(h, w)
                } >
            s = Softplus(y) loss = ReduceSum<keepdims = 0>(s)
        }""")
    body = model.graph.node[0].attribute[0].g
    for value in (body.input[2], body.output[1]):
        value.type.tensor_type.ClearField("shape")
    normal = normalize(load(model))
    loop = next(n for n in normal.graph if n.op_type == "Loop")
    assert [len(dims_of(v) or ()) for v in (loop.outputs[0], body_state(loop))] == [2, 2]


def body_state(loop: ir.Node) -> ir.Value:
    return loop.attributes["body"].as_graph().inputs[2]
