"""What onnxruntime is spared while it creates a session, and what must not be lost by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.infer import infer_shapes
from onnxtrain.operators import IDLE_OPTIMIZERS
from onnxtrain.passes.idle import DUPLICATES, FOLDING, TRANSPOSING, note_idle_optimizers
from onnxtrain.passes.transposed import mark_transposed
from onnxtrain.runtime.files.onnxfile import ModelFile, tensor_type
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session import cutting
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.optimizers import NEEDS, OF_OTHER_DEVICES, SHARING
from onnxtrain.runtime.session.optimizers import TRANSPOSING as TRANSPOSING_PRODUCTS
from onnxtrain.runtime.session.optimizers import idle_optimizers as idle_of
from onnxtrain.runtime.session.products import fuse_transposed

HEAD = '<ir_version: 9, opset_import: ["" : 18, "local" : 1]>'

PATTERNS = {
    "gelu": (
        "d = Div(x, r) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
        "Gelu",
    ),
    "layer norm": (
        """u = ReduceMean<keepdims = 1>(x, last) c = Sub(x, u) p = Pow(c, two)
        v = ReduceMean<keepdims = 1>(p, last) a = Add(v, eps) s = Sqrt(a) n = Div(c, s)
        g = Mul(n, scale) y = Add(g, bias)""",
        "LayerNormalization",
    ),
    "gelu of a sum": (
        """s = Add(x, bias) d = Div(s, r) e = Erf(d) a = Add(e, one) m = Mul(s, a)
        y = Mul(m, half)""",
        "BiasGelu",
    ),
    "quick gelu": ("k = Mul(x, factor) s = Sigmoid(k) y = Mul(x, s)", "QuickGelu"),
    "transposed product": (
        "t = Transpose<perm = [1, 0]>(x) y = MatMul(t, x)",
        "FusedMatMul",
    ),
    "scaled product": ("m = MatMul(x, w) y = Mul(m, half)", "FusedMatMul"),
    "product with a bias": ("m = MatMul(x, w) y = Add(m, bias)", "Gemm"),
    "activation": (
        "i = Reshape(x, image) c = Conv(i, kernel) f = Relu(c) y = Identity(f)",
        "FusedConv",
    ),
    "quantised": (
        """q = QuantizeLinear(x, step, zero) d = DequantizeLinear(q, step, zero)
        f = DequantizeLinear(codes, step, zero) m = MatMul(d, f)
        o = QuantizeLinear(m, step, zero) y = DequantizeLinear(o, step, zero)""",
        "QLinearMatMul",
    ),
}
"""Bodies, and the operator that onnxruntime makes of each."""

CONSTANTS: dict[str, object] = {
    "r": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "two": np.float32(2),
    "eps": np.float32(1e-5), "factor": np.float32(1.702), "last": np.array([-1]),
    "scale": np.ones(8, np.float32), "bias": np.ones(8, np.float32),
    "row": np.ones((1, 8), np.float32), "w": np.ones((8, 8), np.float32),
    "image": np.array([1, 1, 8, 8]), "kernel": np.ones((1, 1, 3, 3), np.float32),
    "zero64": np.array([0]), "four": np.array([4]), "eight": np.array([8]),
    "cubic": np.float32(0.044715), "root": np.float32(0.7978845834732056),
    "batch": np.array([2, 4, 8]), "large": np.ones((80, 80), np.float32),
    "row80": np.array([1, 6400]),
    "step": np.float32(0.1), "zero": np.uint8(128), "codes": np.ones((8, 8), np.uint8),
}  # fmt: skip


def noted(model: onnx.ModelProto) -> bytes:
    """The model with what the last passes say of it."""
    return to_proto(
        note_idle_optimizers(mark_transposed(infer_shapes(load(model))))
    ).SerializeToString()


def optimized(content: bytes, folder: Path) -> list[str]:
    """The operators that a session of ours runs."""
    options = session_options(threads=1, weights_change=True)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    create_session(content, options)
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def idle_optimizers(content: bytes) -> list[str]:
    return idle_of(Outline.of(content))


def pattern(body: str) -> onnx.ModelProto:
    """A model of x [8, 8] with those constants that its body reads."""
    model = parser.parse_model(f"{HEAD} g (float[8, 8] x) => (y) {{ {body} }}")
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(CONSTANTS[n]), n)
        for n in sorted(read & CONSTANTS.keys())
    )
    return model


MARKED = {
    "left operand": ("t = Transpose<perm = [1, 0]>(x) y = MatMul(t, w)", 1),
    "right operand": ("t = Transpose<perm = [1, 0]>(x) y = MatMul(w, t)", 1),
    "both": ("t = Transpose<perm = [1, 0]>(x) u = Transpose<perm = [1, 0]>(w) y = MatMul(t, u)", 2),
    "twice read": (
        "t = Transpose<perm = [1, 0]>(x) a = MatMul(t, w) b = MatMul(w, t) y = Mul(a, b)",
        1,
    ),
    "of four axes": (
        """i = Reshape(x, image) t = Transpose<perm = [0, 1, 3, 2]>(i) m = MatMul(i, t)
        y = Tanh(m)""",
        1,
    ),
    "scaled after": ("m = MatMul(x, w) y = Mul(m, half)", 1),
    "divided after": ("m = MatMul(x, w) y = Div(m, two)", 1),
    "scaled before": ("s = Mul(x, half) y = MatMul(s, w)", 1),
    "both sides and after": (
        """s = Mul(x, half) t = Transpose<perm = [1, 0]>(w) m = MatMul(s, t) d = Div(m, r)
        y = Tanh(d)""",
        3,
    ),
}
"""Bodies, and how many of their nodes go into products."""


@pytest.mark.parametrize("name", MARKED)
def test_marked_products_are_what_onnxruntime_would_make_of_them(name: str, tmp_path: Path) -> None:
    body, gone = MARKED[name]
    plain = pattern(body)
    content = noted(plain)
    outline = Outline.of(content)
    assert outline is not None
    fused = fuse_transposed(outline)
    assert fused is not None
    assert len(onnx.ModelProto.FromString(fused).graph.node) == len(plain.graph.node) - gone
    assert TRANSPOSING_PRODUCTS in idle_optimizers(content)
    made, stock = optimized(content, tmp_path), optimized(plain.SerializeToString(), tmp_path)
    assert sorted(made) == sorted(stock)
    feeds = {"x": np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(plain.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(create_session(content).run(None, feeds)[0], expected[0], rtol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose<perm = [1, 0]>(x) m = MatMul(t, w) y = Add(m, t)",  # others read it
        "t = Transpose<perm = [0, 1]>(x) y = MatMul(t, w)",
        "m = MatMul(x, w) y = Mul(m, scale)",
        "m = MatMul(x, w) s = Mul(m, half) y = Add(s, m)",
        "s = Mul(x, half) t = MatMul(s, w) y = Add(s, t)",
    ],
)
def test_what_others_read_too_is_not_marked(body: str) -> None:
    outline = Outline.of(noted(pattern(body)))
    assert outline is not None
    assert fuse_transposed(outline) is None


def test_a_model_that_was_changed_since_it_was_marked_is_taken_as_it_is() -> None:
    model = onnx.ModelProto.FromString(noted(pattern(MARKED["left operand"][0])))
    model.graph.node.append(helper.make_node("Neg", ["t"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    y, z = create_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, x.T @ np.ones((8, 8)), rtol=1e-6)
    np.testing.assert_array_equal(z, -x.T)


def test_a_transposed_operand_that_is_an_output_stays() -> None:
    model = onnx.ModelProto.FromString(noted(pattern(MARKED["left operand"][0])))
    model.graph.output.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, None))
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    fused = onnx.ModelProto.FromString(fuse_transposed(outline) or b"")
    assert [node.op_type for node in fused.graph.node] == ["Transpose", "FusedMatMul"]


def test_another_order_of_axes_than_the_marked_one_is_seen() -> None:
    model = onnx.ModelProto.FromString(noted(pattern(MARKED["left operand"][0])))
    del model.graph.node[0].attribute[0].ints[:]
    model.graph.node[0].attribute[0].ints.extend([0, 1])
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (y,) = create_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ np.ones((8, 8)), rtol=1e-6)


def test_another_number_than_the_marked_one_is_seen() -> None:
    model = onnx.ModelProto.FromString(noted(pattern(MARKED["scaled after"][0])))
    number = next(i for i in model.graph.initializer if i.name == "half")
    number.CopyFrom(helper.make_tensor("half", TensorProto.FLOAT, [], [3.0]))
    x = np.ones((8, 8), np.float32)
    (y,) = create_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, np.full((8, 8), 24.0))


def test_what_is_known_of_values_is_left_out_where_nobody_reads_it() -> None:
    gradients = onnxtrain.differentiate(
        pattern("t = Tanh(x) s = Sin(t) y = Mul(s, t)"), wrt=["x"], of="y", vjp=True
    )
    assert gradients.graph.value_info
    outline = Outline.of(gradients.SerializeToString())
    assert outline is not None
    bare = onnx.ModelProto.FromString(fuse_transposed(outline, with_types=False) or b"")
    del gradients.graph.value_info[:]
    assert bare.graph == gradients.graph


def test_a_user_who_wants_no_fusions_gets_none(tmp_path: Path) -> None:
    content = noted(pattern(MARKED["left operand"][0]))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    create_session(content, options)
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Transpose", "MatMul"]


FOUND = {
    **{name: body for name, (body, _) in PATTERNS.items() if name != "quantised"},
    "gemm with an activation": "m = Gemm(x, w, bias) f = Relu(m) y = Identity(f)",
    "parts": "a = Slice(x, zero64, four) b = Slice(x, four, eight) y = Concat<axis = 0>(b, a)",
    "a transposition of batches": (
        """i = Reshape(x, batch) t = Transpose<perm = [1, 0, 2]>(i) m = MatMul(t, w)
        y = Identity(m)"""
    ),
    "a transposed operand and a bias": (
        "t = Transpose<perm = [1, 0]>(x) m = MatMul(t, w) y = Add(m, bias)"
    ),
    "softmax of a sum": "a = Add(x, row) y = Softmax<axis = -1>(a)",
    "fast gelu": (
        """k = Mul(x, cubic) q = Mul(k, x) o = Add(q, one) f = Mul(x, root) z = Mul(f, o)
        t = Tanh(z) a = Add(t, one) h = Mul(x, half) y = Mul(a, h)"""
    ),
    "root mean square norm": (
        """p = Pow(x, two) v = ReduceMean<keepdims = 1>(p, last) a = Add(v, eps) s = Sqrt(a)
        n = Div(x, s) y = Mul(n, scale)"""
    ),
    "a constant": "e = Exp(large) s = ReduceMean<keepdims = 0>(e) y = Mul(x, s)",
}
"""Bodies in which onnxruntime finds something, or might."""


@pytest.mark.parametrize("name", FOUND)
def test_an_optimizer_that_finds_something_is_not_left_out(name: str, tmp_path: Path) -> None:
    plain = pattern(FOUND[name])
    made = optimized(noted(plain), tmp_path)
    assert sorted(made) == sorted(optimized(plain.SerializeToString(), tmp_path))


@pytest.mark.parametrize("name", PATTERNS)
def test_what_onnxruntime_fuses_it_still_fuses(name: str, tmp_path: Path) -> None:
    body, fused = PATTERNS[name]
    content = pattern(body).SerializeToString()
    target = tmp_path / "optimized.onnx"

    def options() -> onnxruntime.SessionOptions:
        options = session_options(threads=1, weights_change=True)
        options.optimized_model_filepath = str(target)
        return options

    onnxruntime.InferenceSession(content, options(), providers=["CPUExecutionProvider"])
    stock = [node.op_type for node in onnx.load(target).graph.node]
    create_session(content, options())
    assert [node.op_type for node in onnx.load(target).graph.node] == stock
    assert fused in stock
    assert len(idle_optimizers(content)) > 10


def test_optimizers_without_their_operators_are_left_out() -> None:
    idle = idle_optimizers(pattern("y = Add(x, x)").SerializeToString())
    assert set(idle) == {*NEEDS, SHARING, *OF_OTHER_DEVICES}
    with_norm = idle_optimizers(pattern(PATTERNS["layer norm"][0]).SerializeToString())
    assert "LayerNormFusionL1" not in with_norm
    assert "QDQSelectorActionTransformer" in with_norm


@pytest.mark.parametrize(
    ("body", "folds"),
    [
        ("y = MatMul(x, w)", False),  # its gradient reads w transposed
        ("e = Exp(w) y = MatMul(x, e)", True),
        ("y = Mul(x, w)", False),
    ],
)
def test_a_differentiated_model_says_what_is_done(body: str, folds: bool) -> None:
    model = pattern(body)
    assert not {DUPLICATES, FOLDING}.intersection(idle_optimizers(model.SerializeToString()))
    gradients = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    idle = idle_optimizers(gradients.SerializeToString())
    assert DUPLICATES in idle
    assert (FOLDING in idle) != folds


@pytest.mark.parametrize(("others", "found"), [(10, True), (300, False)])
def test_one_activation_among_many_nodes_is_no_reason(others: int, found: bool) -> None:
    sines = " ".join(f"t{i + 1} = Sin(t{i})" for i in range(others))
    model = pattern(f"m = Gemm(x, w, bias) t0 = Relu(m) {sines} y = Identity(t{others})")
    assert ("GemmActivationFusion" not in idle_optimizers(noted(model))) == found


@pytest.mark.parametrize(
    ("operator", "folds"), [("Reshape(large, row80)", False), ("Exp(large)", True)]
)
def test_a_constant_in_another_shape_is_no_work(operator: str, folds: bool) -> None:
    tanhs = " ".join(f"t{i + 1} = Tanh(t{i})" for i in range(9))
    model = pattern(f"c = {operator} t0 = MatMul(x, w) {tanhs} s = ReduceSum(t9) y = Mul(s, c)")
    assert (FOLDING in idle_optimizers(noted(model))) != folds


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (PATTERNS["gelu"][0], True),  # its gradient is that of the whole, which stays in one piece
        ("t = Tanh(x) s = Mul(t, x) y = Add(s, one)", False),
        ("e = Erf(x) a = Add(e, one) y = Mul(a, a)", False),
    ],
)
def test_only_a_gelu_in_one_piece_is_looked_for(body: str, found: bool) -> None:
    gradients = onnxtrain.differentiate(pattern(body), wrt=["x"], of="y", vjp=True)
    idle = idle_optimizers(gradients.SerializeToString())
    assert "FastGeluFusion" in idle
    assert {"BiasGeluFusion", "GeluFusionL1", "GeluFusionL2"}.isdisjoint(idle) == found


@pytest.mark.parametrize(("wrt", "moves"), [("kernel", False), ("x", True)])
def test_a_frozen_network_in_another_layout_has_its_transpositions_moved(
    wrt: str, moves: bool
) -> None:
    model = pattern(
        """i = Reshape(x, image) l = Transpose<perm = [0, 2, 3, 1]>(i) f = Relu(l)
        b = Transpose<perm = [0, 3, 1, 2]>(f) c = Conv(b, kernel) y = Tanh(c)"""
    )
    gradients = onnxtrain.differentiate(model, wrt=[wrt], of="y", vjp=True)
    idle = idle_optimizers(gradients.SerializeToString())
    assert set(TRANSPOSING).isdisjoint(idle) == moves


def test_a_branch_that_reads_constants_is_folded_by_onnxruntime() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (bool b, float[9000] x) => (float[9000] y) {{
            c = If (b) <then_branch = t () => (float[9000] p) {{ p = Exp(k) }},
                        else_branch = e () => (float[9000] q) {{ q = Tanh(x) }}>
            y = Mul(x, c)
        }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(9000, np.float32), "k"))
    gradients = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert FOLDING not in idle_optimizers(gradients.SerializeToString())


def test_a_model_cannot_say_that_other_optimizers_are_idle() -> None:
    model = pattern(PATTERNS["quantised"][0])
    names = f"QDQSelectorActionTransformer;{FOLDING};nonsense"
    helper.set_model_props(model, {IDLE_OPTIMIZERS: names})
    idle = idle_optimizers(model.SerializeToString())
    assert FOLDING in idle
    assert not {"QDQSelectorActionTransformer", "nonsense"}.intersection(idle)


def test_operators_of_inner_graphs_count() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (bool b, float[2] x) => (float[2] y) {{
            y = If (b) <then_branch = t () => (float[2] p) {{ p = Erf(x) }},
                        else_branch = e () => (float[2] q) {{ q = Tanh(x) }}>
        }}"""
    )
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    assert outline.operators() >= {"If", "Erf", "Tanh"}
    assert len(outline.nodes) == 1


def test_a_model_with_functions_has_all_optimizers_of_patterns() -> None:
    model = parser.parse_model(
        f"""{HEAD} g (float[2] x) => (float[2] y) {{ y = local.f(x) }}
        <domain: "local", opset_import: ["" : 18]> f (a) => (b) {{ b = Erf(a) }}"""
    )
    assert idle_optimizers(model.SerializeToString()) == sorted([*OF_OTHER_DEVICES, SHARING])


@pytest.mark.parametrize(
    "content", [b"", b"\x3a", b"\x3a\xff\x01", b"\xff" * 40, b"\x3b\x01", b"ORTM"]
)
def test_damaged_bytes_have_no_outline(content: bytes) -> None:
    assert Outline.of(content) is None
    assert idle_optimizers(content) == []


def test_fields_of_all_kinds_are_passed_over() -> None:
    content = pattern("y = Add(x, x)").SerializeToString()
    extra = b"\xd0\x0f\xff\x01" + b"\xd1\x0f" + bytes(8) + b"\xd5\x0f" + bytes(4)  # field 250
    outline = Outline.of(extra + content)
    assert outline is not None
    assert outline.operators() == {"Add"}


def test_a_long_model_is_known_by_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pattern("a = Add(x, x) b = Add(a, x) y = Add(b, w)").SerializeToString()
    monkeypatch.setattr(cutting, "MANY_NODES", 3)
    assert not cutting.may_be_long(Outline.of(content))
    monkeypatch.setattr(cutting, "MANY_NODES", 2)
    assert cutting.may_be_long(Outline.of(content))


def test_a_user_may_have_buffers_planned() -> None:
    options = onnxruntime.SessionOptions()
    assert options.enable_mem_reuse  # what onnxruntime does by itself
    assert not session_options().enable_mem_reuse
    assert not session_options(options).enable_mem_reuse


def test_every_piece_knows_which_optimizers_have_nothing_to_do() -> None:
    body = "a = Relu(x) b = Relu(a) c = Relu(b) y = Relu(c)"
    model = to_proto(note_idle_optimizers(load(pattern(body))))
    file = ModelFile.load(model.SerializeToString())
    pieces = cutting.cut_by_nodes(file, [], ["y"], 2)
    assert len(pieces) == 2
    template, types = cutting.Template(file), {"b": tensor_type(TensorProto.FLOAT, [8, 8])}
    noted_by = {p.key: p.value for p in model.metadata_props}[IDLE_OPTIMIZERS]
    for piece in pieces:
        content = onnx.load_from_string(template.piece(piece, types))
        assert {p.key: p.value for p in content.metadata_props}[IDLE_OPTIMIZERS] == noted_by


def test_products_of_a_trained_convolution_are_marked_once_shapes_are_known() -> None:
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "k")
    body = "c = Conv(x, k) y = ReduceSum<keepdims = 0>(c)"
    model = parser.parse_model(f"{HEAD} g (float[n, 3, 12, 10] x) => (float y) {{ {body} }}")
    model.graph.initializer.append(weights)
    gradients = onnxtrain.differentiate(model, wrt=["k"], of="y")
    content = gradients.SerializeToString()
    assert any(node.op_type == "MatMul" for node in gradients.graph.node)
    assert TRANSPOSING_PRODUCTS in idle_optimizers(content)
