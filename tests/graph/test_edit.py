"""Changes of a graph."""

from __future__ import annotations

import onnx
import onnx.parser

from onnxtrain.graph import load, to_proto
from onnxtrain.graph.edit import name_apart


def test_names_that_two_have_are_given_to_one() -> None:
    """Also inside a subgraph; inputs, outputs and weights of the model keep theirs."""
    model = load(
        onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            a = Mul(x, w) b = Tanh(a) d = Add(b, w)
            y = If(c) <then_branch = t () => (float[2] e) { e = Neg(d) },
                       else_branch = f () => (float[2] h) { h = Abs(d) }> }
    """)
    )
    for node in model.graph.all_nodes():
        node.name = "n"
        if node.op_type in ("Tanh", "Neg", "Abs"):
            node.outputs[0].name = "w"
    proto = to_proto(name_apart(model))
    nodes = [*proto.graph.node, *(n for a in proto.graph.node[-1].attribute for n in a.g.node)]
    assert len({n.name for n in nodes}) == len(nodes)
    assert len({o for n in nodes for o in n.output} | {"x", "c", "w"}) == len(nodes) + 3
    assert [o.name for o in proto.graph.output] == ["y"]
    onnx.checker.check_model(proto, full_check=True)
