"""Drawings of graphs: halves, lines, shapes, scopes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from onnxtrain.drawing.boxes import HEIGHT, NodeBox
from onnxtrain.drawing.edges import routes
from onnxtrain.drawing.facts import node_facts, value_texts
from onnxtrain.drawing.kinds import node_kinds
from onnxtrain.drawing.layout import Drawing, arrange
from onnxtrain.drawing.scene import Arrow, Line, Scene, Text
from onnxtrain.drawing.scopes import by_depth, by_patterns

HEAD = '<ir_version: 8, opset_import: ["": 18]>'


def graph(nodes: list[tuple[str, str, str, str]], inputs: str = "x", outputs: str = "y"):
    """A model from names, operators, operands and results."""
    floats = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4])
              for n in f"{inputs} {outputs}".split()}  # fmt: skip
    made = [helper.make_node(op, reads.split(), writes.split(), name)
            for name, op, reads, writes in nodes]  # fmt: skip
    whole = helper.make_graph(
        made, "g", [floats[n] for n in inputs.split()], [floats[n] for n in outputs.split()]
    )
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


NETWORK = [
    ("/encoder/layer.0/fc/MatMul", "Relu", "x", "a"),
    ("/encoder/layer.0/act/Relu", "Relu", "a", "b"),
    ("/encoder/layer.1/fc/MatMul", "Relu", "b", "c"),
    ("/encoder/layer.1/act/Relu", "Add", "c a", "d"),
    ("/head/Gemm", "Relu", "d", "y"),
    ("/head/Gemm_grad/Mul", "Mul", "y d", "y_grad"),
    ("/encoder/layer.1/act/Relu_grad/Mul", "Mul", "y_grad c", "d_grad"),
    ("/encoder/layer.0/fc/MatMul_grad/Mul", "Mul", "d_grad a", "x_grad"),
]


def network():
    return graph(NETWORK, outputs="y x_grad")


# --- halves ---------------------------------------------------------------------------------------


def test_names_of_exporters_begin_with_a_slash():
    assert node_kinds(network().graph, None) == ["forward"] * 5 + ["backward"] * 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [("fc_grad/Gemm", "backward"), ("gradient/Identity", "backward"), ("update/w/Mul", "update"),
     ("my_grad", "forward"), ("", "forward"), ("a/b", "forward")],
)  # fmt: skip
def test_kind_of_a_name(name, kind):
    """A node of one's own that is called like a gradient is none: it is in no scope of one."""
    model = graph([("n", "Relu", "x", "y"), (name, "Relu", "x", "z")], outputs="y z")
    assert node_kinds(model.graph, None)[1] == kind


def test_what_the_loss_needs_is_forward_whatever_its_name():
    model = graph([("h_grad/Exp", "Exp", "x", "h"), ("loss", "Relu", "h", "y")])
    assert node_kinds(model.graph, None) == ["forward", "forward"]


# --- lines ----------------------------------------------------------------------------------------


def random_drawing(seed: int) -> Drawing:
    rng = np.random.default_rng(seed)
    names = ["x"]
    nodes = []
    for i in range(40):
        reads = rng.choice(names[-12:], size=min(len(names), int(rng.integers(1, 4))))
        half = "_grad/Mul" if i > 20 else ""
        nodes.append((f"n{i}{half}", "Sum", " ".join(reads), f"v{i}"))
        names.append(f"v{i}")
    return arrange(graph(nodes, outputs="v20 v39"))


@pytest.mark.parametrize("seed", range(3))
def test_boxes_stand_apart_and_lines_go_between_them(seed):
    drawing = random_drawing(seed)
    places = {(b.layer, round(b.column, 6)) for b in drawing.boxes}
    assert len(places) == len(drawing.boxes)
    for layer in {b.layer for b in drawing.boxes}:
        columns = sorted(b.column for b in drawing.boxes if b.layer == layer)
        assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(columns))
    for route in routes(drawing.boxes, drawing.width):
        for (x0, y0), (x1, y1) in zip(route.points, route.points[1:]):
            assert y1 >= y0, "lines run downwards"
            for at in np.linspace(0, 1, 15):
                assert not inside(x0 + at * (x1 - x0), y0 + at * (y1 - y0), drawing), route


def inside(x: float, y: float, drawing: Drawing) -> bool:
    return any(
        b.left(drawing.width) + 1 < x < b.left(drawing.width) + drawing.width - 1
        and b.top + 1 < y < b.top + HEIGHT - 1
        for b in drawing.boxes
    )


def test_every_line_has_an_arrowhead_at_its_end():
    scene = arrange(network()).scene("net")
    lines = [s for s in scene.shapes if isinstance(s, Line) and s.mark]
    tips = [s.tip for s in scene.shapes if isinstance(s, Arrow)]
    assert len(lines) == sum(len(set(reads.split())) for _, _, reads, _ in NETWORK)
    assert [line.points[-1] for line in lines] == tips
    assert scene.svg().count("<polygon") == len(tips)


def test_values_of_one_node_are_told_apart():
    model = onnx.parser.parse_model(
        HEAD + "g (float[N, 4] x) => (float[N, 2] y)"
        "{ a, b = Split<axis = 1, num_outputs = 2>(x) y = Sub(b, a) }"
    )
    drawing = arrange(model)
    assert drawing.lines()[-1][0] == "▶ y = Sub(b, a)"
    first, second = [r for r in routes(drawing.boxes, drawing.width) if r.value in "ab"]
    assert first.points[0] != second.points[0]


def test_shapes_stand_on_the_lines():
    model = onnx.parser.parse_model(
        HEAD + "g (float[N, 4] x, int64 i) => (float y)"
        "<float[N, 4] h, float s> { h = Relu(x) s = ReduceSum<keepdims = 0>(h) y = Identity(s) }"
    )
    texts = value_texts(model.graph)
    assert texts == {"x": "N×4", "i": "int64 scalar", "h": "N×4", "s": "scalar", "y": "scalar"}
    shown = [s.text for s in arrange(model, labels=texts).scene("m").shapes
             if isinstance(s, Text) and s.halo]  # fmt: skip
    assert shown == ["N×4", "N×4", "scalar"], "of what is read by somebody"


# --- scopes ---------------------------------------------------------------------------------------


def collapsed(group, model=None) -> list[NodeBox]:
    boxes = arrange(model or network(), group=group).boxes
    for i, box in enumerate(boxes):
        assert all(source < i for source in box.inputs), "each follows what it reads"
        assert all(boxes[source].layer < box.layer for source in box.inputs)
    return boxes


def test_a_depth_of_one():
    boxes = collapsed(by_depth(1))
    assert [(b.name, b.kind, b.nodes) for b in boxes] == [
        ("x", "input", 1),
        ("encoder", "forward", 4),
        ("/head/Gemm", "forward", 1),
        ("/head/Gemm_grad/Mul", "backward", 1),
        ("encoder", "backward", 2),
    ]
    assert boxes[1].outputs == ["c", "d"], "what others read of it, one value for each"
    assert [(i, v) for i, v in zip(boxes[4].inputs, boxes[4].values)] == [(3, "y_grad"), (1, "c")]
    assert ("consists of", "3 Relu, 1 Add") in boxes[1].facts


def test_scopes_by_name():
    boxes = collapsed(by_patterns(["encoder/layer.*"]))
    names = [b.name for b in boxes if b.nodes > 1]
    assert names == ["encoder/layer.0", "encoder/layer.1"]
    assert sum(b.nodes for b in boxes) == len(NETWORK) + 1


def test_a_scope_that_would_read_itself_is_drawn_twice():
    """Two steps of one module with another between them."""
    model = graph([
        ("a/1", "Relu", "x", "p"), ("b/1", "Relu", "p", "q"), ("a/2", "Relu", "q", "r"),
        ("a/3", "Relu", "r", "y"),
    ])  # fmt: skip
    boxes = collapsed(by_depth(1), model)
    assert [(b.name, b.nodes) for b in boxes[1:]] == [("a/1", 1), ("b/1", 1), ("a", 2)]


def test_two_scopes_that_read_each_other():
    """No path leads through both nodes of b, and still the two groups would be a circle."""
    model = graph([
        ("a/1", "Relu", "x", "p"), ("b/1", "Relu", "p", "q"), ("b/2", "Relu", "x", "r"),
        ("a/2", "Relu", "r", "s"), ("c", "Sum", "q s", "y"),
    ])  # fmt: skip
    boxes = collapsed(by_depth(1), model)
    assert sum(b.nodes for b in boxes) == 6
    assert sorted(b.nodes for b in boxes) == [1, 1, 1, 1, 2]


def test_scopes_in_the_metadata():
    """PyTorch's newer exporter names nodes without them, and the gradient has the node's name."""
    model = graph([("node_a", "Relu", "x", "p"), ("node_b", "Relu", "p", "y"),
                   ("node_a_grad/Mul", "Mul", "y p", "x_grad")], outputs="y x_grad")  # fmt: skip
    for node, scope in zip(model.graph.node, ("encoder.layer.0", "encoder.layer.0.fc")):
        entry = node.metadata_props.add()
        entry.key, entry.value = (
            "namespace",
            (f": Net/encoder: Encoder/{scope}: Layer/relu: aten.relu.default"),
        )
    boxes = arrange(model, group=by_depth(1)).boxes
    assert [(b.name, b.kind, b.nodes) for b in boxes[1:2]] == [("encoder", "forward", 2)]
    assert [b.scopes for b in arrange(model).boxes][1:] == [
        ["encoder", "layer.0"], ["encoder", "layer.0.fc"], ["encoder", "layer.0"],
    ]  # fmt: skip


# --- facts and pixels -----------------------------------------------------------------------------


def test_facts_of_a_node_are_bounded():
    node = helper.make_node(
        "Op", ["x"], ["y"], "n", domain="com.example", numbers=list(range(1000)), text="a" * 5000,
        tensor=onnx.numpy_helper.from_array(np.zeros((3, 4), np.float32)), rate=0.1,
    )  # fmt: skip
    facts = dict(node_facts(node, "forward", {"x": "N×4"}))
    assert facts["operator"] == "com.example.Op"
    assert facts["input"] == "x  N×4"
    assert facts["attribute numbers"].endswith("… 1000 in all")
    assert facts["attribute tensor"] == "a tensor, 3×4"
    assert facts["attribute rate"] == "0.1"
    assert max(map(len, facts.values())) <= 200


def test_a_png_has_every_kind_of_shape():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    import io

    scene = arrange(network(), labels={"a": "N×4"}).scene("net\nwith \x1b[2J")
    with image.open(io.BytesIO(scene.png())) as picture:
        assert picture.size == (round(scene.width * 2), round(scene.height * 2))
        colours = {c for _, c in picture.convert("RGB").getcolors(1 << 20)}
    assert {(0xDB, 0xEA, 0xFE), (0xFF, 0xED, 0xD5), (0xEA, 0x58, 0x0C)} <= colours


def test_a_picture_that_no_program_opens_is_refused():
    pytest.importorskip("PIL", reason="Pillow is not installed")
    with pytest.raises(ValueError, match="more pixels"):
        Scene(100_000, 10_000, "huge").png()
