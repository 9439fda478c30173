"""How nodes hang together, read from the bytes of a model."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper, parser

from onnxtrain.errors import ModelFileError
from onnxtrain.operators import ACTIVATED, BIASED, BLOCKED, COLUMN_LOOP, FUSED, KERNEL, TRANSPOSED
from onnxtrain.runtime.files.onnxfile import MAX_NESTING, Node, uses
from onnxtrain.runtime.files.outline import MARKS, Outline
from onnxtrain.runtime.files.wire import Message
from onnxtrain.runtime.session.edits import connections_of, marked, with_bodies

LONG = "n" * 200
MODEL = f"""<ir_version: 9, opset_import: ["" : 18]>
g (float[2] x, bool c, float[2] {LONG}) => (float[2] y, float[2] z)
<float[2] w = {{1, 2}}, float[1] unread = {{0}}> {{
    a = Add(x, {LONG})
    b = If(c) <
        then_branch = yes () => (float[2] t) <float[2] k = {{3, 4}}> {{
            s = Mul(a, k)
            t = If(c) <
                then_branch = inner () => (float[2] i) {{ i = Add(s, w) }},
                else_branch = other () => (float[2] o) {{ o = Identity(x) }}>
        }},
        else_branch = no () => (float[2] a) {{ }}>
    y = Clip(b, , w)
    z = Mul(a, w)
}}"""


def opened(text: str) -> Outline:
    outline = Outline.of(parser.parse_model(text).SerializeToString())
    assert outline is not None
    return outline


def test_names_are_those_of_opened_nodes() -> None:
    outline = opened(MODEL)
    operands, makers, readers = connections_of(outline)
    for (begin, end), (inputs, outputs) in zip(outline.nodes, operands, strict=True):
        node = Node(Message.parse(outline.model[begin:end]))
        assert {name.decode() for name in inputs if name} == uses(node)
        assert [name.decode() for name in outputs] == list(node.outputs)
    assert set(operands[1][0]) == {b"c", b"a", b"w", b"x"}
    assert makers == {b"a": 0, b"b": 1, b"y": 2, b"z": 3}
    assert readers[b"a"] == 3  # of the two branches, and of the last node
    assert b"s" not in readers


def test_fields_in_another_order() -> None:
    node = Message().add(4, "Add").add(3, "name").add(2, "y").add(1, "a").add(1, "b")
    last = Message().add(3, "name").add(2, "z").add(1, LONG).add(4, "Relu")
    graph = Message().add(1, node).add(1, last)
    outline = Outline.of(Message().add(7, graph).encode())
    assert outline is not None
    operands, _, _ = connections_of(outline)
    assert operands == [([b"a", b"b"], [b"y"]), ([LONG.encode()], [b"z"])]


def test_graphs_that_are_nested_too_deep() -> None:
    node = Message().add(1, "x").add(2, "y").add(4, "Relu")
    for _ in range(MAX_NESTING + 2):
        body = Message().add(1, "then_branch").add(6, Message().add(1, node))
        node = Message().add(1, "c").add(2, "y").add(4, "If").add(5, body)
    outline = Outline.of(Message().add(7, Message().add(1, node)).encode())
    assert outline is not None
    with pytest.raises(ModelFileError, match="nested"):
        connections_of(outline)


def test_a_node_that_ends_too_early() -> None:
    content = parser.parse_model(MODEL).SerializeToString()
    assert onnx.load_from_string(content)
    outline = opened(MODEL)
    begin = outline.nodes[1][0]
    damaged = bytearray(content)
    damaged[begin + 1] = 0x7F  # its first name would be longer than that
    broken = Outline.of(bytes(damaged))
    assert broken is not None
    with pytest.raises((IndexError, ModelFileError)):
        connections_of(broken)


def test_bodies_are_changed_where_they_are() -> None:
    outline = opened(MODEL)
    begin, end = outline.nodes[1]
    node = outline.model[begin:end]
    longer = Message().add(1, "a").add(2, "t" * 300).add(4, "Relu").encode()

    def change(body: Outline) -> dict[int, list[bytes]]:
        return {0: [longer, longer]}

    content = with_bodies(node, change)
    assert content is not None
    expected = onnx.NodeProto.FromString(node)
    relu = onnx.NodeProto.FromString(longer)
    graph = expected.attribute[0].g  # the other branch has no nodes
    others = list(graph.node)[1:]
    del graph.node[:]
    graph.node.extend([relu, relu, *others])
    assert onnx.NodeProto.FromString(content) == expected
    assert with_bodies(node, lambda body: {}) is None


def test_all_that_passes_say_of_nodes_is_found() -> None:
    """`Outline.marked` looks for one beginning, whatever the mark."""
    marks = (ACTIVATED, BIASED, BLOCKED, COLUMN_LOOP, FUSED, KERNEL, TRANSPOSED)
    assert all(mark.encode().startswith(MARKS) for mark in marks)
    nodes = [helper.make_node("Neg", ["x"], ["y"], doc_string=f"{mark} 1") for mark in marks]
    nodes.append(helper.make_node("Neg", ["x"], ["z"], doc_string=f"see {marks[0]}"))
    nodes.append(helper.make_node("Own", ["x"], ["w"], domain="own", doc_string=marks[0]))
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    for place, mark in enumerate(marks):
        assert [node.place for node in marked(outline, mark)] == [place]
