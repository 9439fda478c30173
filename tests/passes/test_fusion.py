"""Which nodes are computed together: groups of one shape that one place will do for."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxtrain
from onnxtrain.operators import FUSED, OUTSIDE
from onnxtrain.passes.fusion import mark_fusable, mark_where_shapes_are_inferred

INPUTS = "float[64, 256] x, float[64, 256] z, float[128, 128] sq, float[4, 8, 16, 32] im"


def parse(nodes: str, inputs: str = INPUTS, **sizes: Any) -> ir.Model:
    outputs = sizes.get("outputs", "float[64, 256] y")
    constants = (
        "<float two = {2.0}, float half = {0.5}, int64[1] last = {-1}, int64[1] first = {0},"
        " int64[2] map = {2, -1}>"
    )
    text = f"""<ir_version: 9, opset_import: ["": 18]>
        g ({inputs}) => ({outputs}) {constants} {{ {nodes} }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    return mark_fusable(ir.from_proto(model))


def groups(graph: ir.Graph) -> list[set[str]]:
    """Names of the results of each group."""
    members = defaultdict[str, set[str]](set)
    for node in graph:
        if (node.doc_string or "").startswith(FUSED):
            number = (node.doc_string or "")[len(FUSED) :].split()[0]
            members[number].add(node.outputs[0].name or "")
    return list(members.values())


def marks(graph: ir.Graph) -> dict[str, list[str]]:
    return {
        node.outputs[0].name or "": (node.doc_string or "")[len(FUSED) :].split()
        for node in graph
        if (node.doc_string or "").startswith(FUSED)
    }


SOFTMAX = (
    "s = Add(x, z) p = Softmax(s) t = Transpose(p) m = MatMul(p, t) n = MatMul(m, z)"
    " g = Mul(n, p) r = ReduceSum(g, last) d = Sub(n, r) y = Mul(p, d)"
)
SPLITTING = (
    "a = Neg(x) e = Exp(a) c = Concat<axis = 0>(e, e) s, t = Split<axis = 0, num_outputs = 2>(c)"
    " f = Mul(s, e) y = Add(f, t)"
)
LOST = (
    "p = Neg(sq) s = ReduceSum<keepdims = 0>(p, last) d = Sub(sq, s) e = Exp(d) t = Transpose(e)"
    " y = Add(x, z)"
)
TRUE_ROWS = (
    "s = ReduceMean(x, last) h = ReduceMax(z, last) t = Transpose(h) u = Transpose(t)"
    " o = Cast<to = 9>(u) r = Where(o, s, two) y = Mul(x, r)"
)
GROUPS = {
    "a chain": ("a = Neg(x) b = Exp(a) y = Mul(b, z)", [{"a", "b", "y"}]),
    "one node is none": ("y = Neg(x)", []),
    "a slow one is": ("y = Cosh(x)", [{"y"}]),
    "slow ones are several": (
        "a = Sinh(x) t = Transpose(a) b = Tan(t) u = Transpose(b) y = Atanh(u)",
        [{"a"}, {"b"}, {"y"}],
    ),
    "a product ends it": (
        "a = Neg(x) b = Exp(a) t = Transpose(b) m = MatMul(b, t) n = MatMul(m, z) y = Neg(n)",
        [{"a", "b"}],
    ),
    "somebody else may read it": (
        "a = Neg(x) t = Transpose(a) m = MatMul(a, t) b = Exp(a) y = Add(b, z) w = ReduceSum(m)",
        [{"a", "b", "y"}],
    ),
    "not what depends on that reader": (
        SPLITTING,
        [{"a", "e"}, {"f", "y"}],
    ),
    "rows are reduced": (
        "p = Mul(x, z) s = ReduceSum(p, last) d = Sub(x, s) y = Mul(z, d)",
        [{"p", "s", "d", "y"}],
    ),
    "columns are not": (
        "p = Mul(x, z) q = Neg(p) s = ReduceSum(q, first) d = Sub(x, s) y = Mul(z, d)",
        [{"p", "q"}, {"d", "y"}],
    ),
    "a number for each row": (
        "s = ReduceMean(x, last) r = Sqrt(s) q = Reciprocal(r) y = Mul(x, q)",
        [{"s", "r", "q", "y"}],
    ),
    "axes are dropped": (
        "p = Mul(x, z) s = ReduceSum<keepdims = 0>(p, last) q = Neg(s) t = Sqrt(q) y = Add(p, z)",
        [{"p", "s", "y"}],
    ),
    "what has lost its axes is not a number for each row": (
        LOST,
        [{"p", "s"}, {"d", "e"}],
    ),
    "several axes": (
        "p = Mul(im, im) s = ReduceSum(p, map) r = Sqrt(s) d = Div(im, r) y = Transpose(d)",
        [{"p", "s", "r", "d"}],
    ),
    "several axes, and one": (
        "p = Mul(im, im) s = ReduceSum(p, map) d = Div(im, s) t = ReduceSum(d, last) y = Add(x, z)",
        [{"p", "s", "d"}],
    ),
    "a truth value for each row": (
        TRUE_ROWS,
        [],
    ),
    "a square is a power": ("a = Pow(x, two) y = Add(a, z)", [{"a", "y"}]),
    "a root is a power": ("a = Pow(x, half) y = Add(a, z)", [{"a", "y"}]),
    "other powers are not": ("a = Pow(x, z) b = Neg(a) y = Exp(b)", [{"b", "y"}]),
    "a softmax and its gradient": (SOFTMAX, [{"s", "p"}, {"g", "r", "d", "y"}]),
    "a softmax that is read once": (
        "s = Add(x, z) p = Softmax(s) t = Transpose(p) y = Add(x, z)", [],
    ),
    "a softmax of columns": (
        "p = Softmax<axis = 0>(x) t = Transpose(p) u = Neg(p) y = Exp(u)", [{"u", "y"}],
    ),
    "two groups meet": (
        "a = Neg(x) b = Exp(a) c = Neg(z) d = Exp(c) y = Add(b, d)", [{"a", "b", "c", "d", "y"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_groups(case: str) -> None:
    nodes, expected = GROUPS[case]
    model = parse(nodes)
    assert sorted(map(sorted, groups(model.graph))) == sorted(map(sorted, expected))
    onnx.checker.check_model(ir.to_proto(model))  # which asks for an order that can be run


def test_small_tensors_are_left_alone() -> None:
    small = "float[8, 8] x, float[8, 8] z"
    model = parse("a = Neg(x) b = Exp(a) y = Mul(b, z)", small, outputs="float[8, 8] y")
    assert not groups(model.graph)


@pytest.mark.parametrize(
    ("x", "z", "is_slow"),
    [
        ("9000, 2", "9000, 1", True), ("9000, 9", "9000, 1", False), ("9000, 9", "9", True),
        ("9000, 33", "33", False), ("9000, 1", "1", True), ("9000, 2", "1", False),
        ("9000, 2", "1, 1", False), ("900, 2, 7", "900, 1, 7", True), ("9000, 1", "", False),
        ("9000, 2", "9000, 2", False), ("900, 8, 2", "8, 1", True), ("99, 99, 9", "99, 1", False),
    ],
)  # fmt: skip
def test_a_lone_product_with_an_operand_that_is_repeated(x: str, z: str, is_slow: bool) -> None:
    """onnxruntime begins anew after a few elements there."""
    inputs = f"float[{x}] x, float[{z}] z".replace("[]", "")
    model = parse("y = Mul(x, z)", inputs, outputs=f"float[{x}] y")
    assert groups(model.graph) == ([{"y"}] if is_slow else [])


def test_open_sizes_count() -> None:
    shape = "float[N, 256]"
    model = parse("a = Neg(x) y = Mul(a, z)", f"{shape} x, {shape} z", outputs=f"{shape} y")
    assert groups(model.graph) == [{"a", "y"}]


def test_unknown_shapes_and_integers_are_left_alone() -> None:
    integers = "int64[64, 256] x, int64[64, 256] z"
    assert not groups(parse("a = Neg(x) y = Mul(a, z)", integers, outputs="int64[64, 256] y").graph)
    model = parse("a = Neg(x) b = Exp(a) y = Mul(b, z)")
    for node in model.graph:
        node.outputs[0].shape = None
    assert not groups(mark_fusable(model).graph)


def test_a_mark_says_who_reads_and_what_shapes_operands_have() -> None:
    model = parse(
        "a = Mul(x, two) s = ReduceSum(a, last) b = Sub(a, r) y = Add(b, s)",
        "float[64, 256] x, float[64, 1] r",
        outputs="float[64, 256] y, float[64, 256] a",
    )
    found = marks(model.graph)
    assert {name: OUTSIDE in words for name, words in found.items()} == {
        "a": True, "s": False, "b": False, "y": True,
    }  # fmt: skip
    assert found["a"][1:5] == ["4", "2", "1", "-n"]
    assert found["b"][4] == "-r"


def test_images_are_rows_where_channels_have_a_number_each() -> None:
    model = parse(
        "a = Sub(x, c) y = Mul(a, s)",
        "float[N, 8, 16, 16] x, float[8, 1, 1] c, float[N, 8, 1, 1] s",
        outputs="float[N, 8, 16, 16] y",
    )
    assert {n: m[2:5] for n, m in marks(model.graph).items()} == {
        "a": ["4", "2", "-r"], "y": ["4", "2", "-r"],
    }  # fmt: skip


def test_marks_of_another_time_go() -> None:
    model = parse("a = Neg(x) b = Exp(a) y = Mul(b, z)")
    before = marks(model.graph)
    assert marks(mark_fusable(model).graph) == before
    next(iter(model.graph)).op_type = "Selu"  # has no fused form
    assert set(marks(mark_fusable(model).graph)) == {"b", "y"}


def test_other_marks_stay() -> None:
    model = parse("a = Neg(x) b = Exp(a) y = Mul(b, z)")
    next(iter(model.graph)).doc_string = "onnxtrain: something else"
    assert set(marks(mark_fusable(model).graph)) == {"b", "y"}
    assert next(iter(model.graph)).doc_string == "onnxtrain: something else"


def test_gradients_are_marked_and_files_know_no_more_shapes() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]> g (float[64, 256] x) => (float[64, 256] y)
        { s = Sigmoid(x) y = Mul(x, s) }""")
    graded = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    gradients = [n for n in graded.graph.node if any(o.endswith("x_grad") for o in n.output)]
    assert all(n.doc_string.startswith(FUSED) for n in gradients)
    shaped = {v.name for v in graded.graph.value_info if v.type.tensor_type.HasField("shape")}
    assert shaped <= {"s", *(t.name for t in graded.graph.initializer)}


def test_long_vectors_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx would keep an entry for each of their elements: 21 GB for 25 million parameters."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]> g (float[5000] w, int64[1] n) => (float y)
        <int64[1] zero = {0}, int64[2] two = {50, -1}> {
            part = Slice(w, zero, n) m = Reshape(part, two) e = Exp(m) s = Mul(e, m)
            y = ReduceSum<keepdims = 0>(s) }""")
    infer = onnx.shape_inference.infer_shapes
    followed = list[bool]()

    def watched(proto: onnx.ModelProto, *arguments: Any, **options: Any) -> onnx.ModelProto:
        followed.append(bool(options.get("data_prop")))
        return infer(proto, *arguments, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", watched)
    mark_where_shapes_are_inferred(ir.from_proto(model))
    assert followed
    assert not any(followed)


CHANNELS = "float[n, 16, 32, 32] x, float[16] w, float[16] v, float[n, 16, 32, 32] z"
IMAGES = "float[n, 16, 32, 32] y"
NORMALIZED = {
    "alone": ("i = BatchNormalization(x, w, w, w, v) y = Transpose<perm=[0,1,2,3]>(i)", []),
    "with what follows": (
        "i = BatchNormalization(x, w, w, w, v) a = Add(i, z) y = Relu(a)", [{"i", "a", "y"}]
    ),
    "not with what is before": (
        "e = Exp(x) n = Neg(e) i = BatchNormalization(n, w, w, w, v) y = Relu(i)",
        [{"e", "n"}, {"i", "y"}],
    ),
    "two of them": (
        "i = BatchNormalization(x, w, w, w, v) j = BatchNormalization(z, w, w, w, v) y = Sub(i, j)",
        [{"i", "j", "y"}],
    ),
    "constants go into a convolution": (
        "i = BatchNormalization(x, c, c, c, c) a = Relu(i) y = Neg(a)", [{"a", "y"}]
    ),
    "a mask is computed where it is read": (
        "r = Relu(x) p = Greater(r, half) t = Transpose<perm=[0,1,2,3]>(r) y = Where(p, t, half)",
        [{"p", "y"}],
    ),
    "or with what it is a mask of": (
        "n = Neg(x) p = Greater(n, half) y = Where(p, n, half)", [{"n", "p", "y"}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalizations_and_masks(name: str) -> None:
    nodes, expected = NORMALIZED[name]
    ones = ", ".join(["1"] * 16)
    text = f"""<ir_version: 9, opset_import: ["": 18]> g ({CHANNELS}) => ({IMAGES})
        <float half = {{0.5}}, float[16] c = {{{ones}}}> {{ {nodes} }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    assert groups(mark_fusable(ir.from_proto(model)).graph) == expected
