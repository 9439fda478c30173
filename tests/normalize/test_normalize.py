"""Functions, constants, checks, and what must pass through unharmed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain.autodiff import registry
from onnxtrain.errors import ModelError, ShapeInferenceError
from onnxtrain.graph import load
from onnxtrain.graph.parameters import float_initializers
from onnxtrain.normalize import normalize

from .compare import assert_same, normalized, op_model, operators, run_ort

RNG = np.random.default_rng(4)


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


# --- functions -----------------------------------------------------------------------------------

NESTED = """
    <ir_version: 8, opset_import: ["": 18, "local": 1]>
    g (float[N, 2] x) => (float[N, 2] y) {
        a = local.outer <k = 3.0> (x)
        b = local.outer (a)
        y = local.same (b)
    }
    <domain: "local", opset_import: ["": 18, "local": 1]>
    outer <k: float = 0.5> (x) => (z) {
        s = local.scale <by: float = @k> (x)
        w = Constant <value = float[2] {1.0, 2.0}> ()
        z = Add (s, w)
    }
    <domain: "local", opset_import: ["": 18]>
    scale <by> (x) => (z) {
        c = Constant <value_float: float = @by> ()
        z = Mul (x, c)
    }
    <domain: "local", opset_import: ["": 18]>
    same (x) => (x) { }
"""


def test_local_functions_are_inlined_with_attributes_and_defaults() -> None:
    model = parse(NESTED)
    after = normalized(model)
    assert not after.functions
    assert operators(after) <= {"Mul", "Add", "Identity"}
    x = f(3, 2)
    w = np.array([1, 2], np.float32)
    np.testing.assert_allclose(run_ort(after, {"x": x})[0], (x * 3 + w) * 0.5 + w, rtol=1e-6)
    assert len(float_initializers(normalize(load(model)))) == 2  # the two copies of w


def test_a_function_with_a_rule_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = registry.lookup("", "Relu")
    assert rule is not None
    monkeypatch.setitem(registry._RULES, ("local", "scale"), rule)
    after = normalize(load(parse(NESTED)))
    assert [f.name for f in after.functions.values()] == ["scale"]
    assert "scale" in {n.op_type for n in after.graph}


def test_functions_of_another_opset_are_converted() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 18, "local": 1]>
        g (float[2, 3] x) => (float[2] y) { y = local.total (x) }
        <domain: "local", opset_import: ["": 12]>
        total (x) => (z) { z = ReduceSum <axes = [1], keepdims = 0> (x) }
    """)
    after = normalized(model)
    x = f(2, 3)
    np.testing.assert_allclose(run_ort(after, {"x": x})[0], x.sum(1), rtol=1e-6)


def test_functions_inside_branches() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 18, "local": 1]>
        g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] o) { o = local.twice (x) },
                else_branch = e () => (float[2] o) { h = local.twice (x) o = local.twice (h) }
            >
        }
        <domain: "local", opset_import: ["": 18]>
        twice (x) => (z) { two = Constant <value = float {2.0}> () z = Mul (x, two) }
    """)
    after = normalized(model)
    x = f(2)
    for c, factor in ((True, 2), (False, 4)):
        np.testing.assert_allclose(run_ort(after, {"x": x, "c": np.array(c)})[0], x * factor)


def test_recursive_functions_are_refused() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 18, "local": 1]>
        g (float[2] x) => (float[2] y) { y = local.again (x) }
        <domain: "local", opset_import: ["": 18, "local": 1]>
        again (x) => (z) { z = local.again (x) }
    """)
    with pytest.raises(ModelError, match="'again' calls itself"):
        normalized(model)


# --- constants -----------------------------------------------------------------------------------


def test_every_kind_of_constant_is_lifted() -> None:
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, [2], [5.0, 6.0]),
        helper.make_tensor("i", TensorProto.INT64, [2], [1, 2]),
        [3],
    )
    nodes = [
        helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(f(3))),
        helper.make_node("Constant", [], ["f"], value_float=2.0),
        helper.make_node("Constant", [], ["fs"], value_floats=[1.0, 2.0, 3.0]),
        helper.make_node("Constant", [], ["i"], value_int=1),
        helper.make_node("Constant", [], ["is"], value_ints=[3, 1]),
        helper.make_node("Constant", [], ["s"], value_strings=["a", "b"]),
        helper.make_node("Constant", [], ["sp"], sparse_value=sparse),
        helper.make_node("Sum", ["x", "t", "f", "fs", "sp"], ["a"]),
        helper.make_node("Reshape", ["a", "is"], ["b"]),
        helper.make_node("Gather", ["s", "i"], ["c"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [3])],
        [helper.make_tensor_value_info("b", 1, [3, 1]), helper.make_tensor_value_info("c", 8, []),
         helper.make_tensor_value_info("t", 1, [3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    after = normalized(model)
    x = {"x": f(3)}
    got = run_ort(after, x)
    t = numpy_helper.to_array(nodes[0].attribute[0].t)
    np.testing.assert_allclose(
        got[0].ravel(), x["x"] + t + 2 + np.array([1, 7, 9], np.float32), rtol=1e-6
    )
    assert got[1] == "b"
    np.testing.assert_array_equal(got[2], t)


def test_a_constant_weight_in_a_branch_can_be_trained() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[3] x, bool c) => (float loss) {
            y = If (c) <
                then_branch = t () => (float[3] o) {
                    weight = Constant <value = float[3] {1.0, 2.0, 3.0}> ()
                    o = Mul (x, weight)
                },
                else_branch = e () => (float[3] o) { o = Neg (x) }
            >
            loss = ReduceSum <keepdims = 0> (y)
        }""")
    gradient = onnxtrain.differentiate(model)
    assert [o.name for o in gradient.graph.output] == ["loss", "weight_grad"]
    x = f(3)
    np.testing.assert_allclose(run_ort(gradient, {"x": x, "c": np.array(True)})[1], x)
    np.testing.assert_allclose(run_ort(gradient, {"x": x, "c": np.array(False)})[1], 0 * x)


def test_numbers_of_a_formula_are_not_weights() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 9]>
        g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}, float[1] b = {4}> {
            half = Constant <value = float {0.5}> ()
            h = Mul (x, half)
            k = Clip <min = -0.5, max = 0.5> (h)
            m = Mul (k, w)
            y = Add (m, b)
        }""")
    assert float_initializers(normalize(load(model))) == ["w", "b"]


def test_a_name_used_in_a_branch_and_outside() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {7.0, 8.0}> {
            z = If (c) <
                then_branch = t () => (float[2] o) {
                    k = Constant <value = float[2] {1.0, 2.0}> () o = Mul (x, k)
                },
                else_branch = e () => (float[2] o) {
                    k = Constant <value = float[2] {3.0, 4.0}> () o = Mul (x, k)
                }
            >
            y = Mul (z, w)
        }""")
    after = normalized(model)
    for c in (True, False):
        assert_same(model, after, {"x": f(2), "c": np.array(c)})
    assert [t.name for t in after.graph.initializer] == ["w", "k", "k_1"]


# --- what must not change ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_float_types_pass(dtype: type) -> None:
    x, w = f(2, 3).astype(dtype), f(3, 4).astype(dtype)
    model, _ = op_model("MatMul", [x, w], opset=13, constants=(1,))
    after = normalized(model)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert after.graph.output[0].type.tensor_type.elem_type == kind
    assert after.graph.initializer[0].data_type == kind
    np.testing.assert_array_equal(numpy_helper.to_array(after.graph.initializer[0]), w)


def test_quantize_and_dequantize_stay() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 13]>
        g (float[2, 3] x) => (float[2, 3] y)
        <float s = {0.1}, uint8 z = {128}> {
            q = QuantizeLinear (x, s, z)
            y = DequantizeLinear (q, s, z)
        }""")
    after = normalized(model)
    assert operators(after) == {"QuantizeLinear", "DequantizeLinear"}
    assert_same(model, after, {"x": f(2, 3)})


def test_sequences_and_optionals_keep_their_types() -> None:
    model = parse("""
        <ir_version: 8, opset_import: ["": 15]>
        g (seq(float[N]) s, float[N] x) => (seq(float[N]) t, float[N] y) {
            t = SequenceInsert (s, x)
            o = Optional (x)
            y = OptionalGetElement (o)
        }""")
    after = normalized(model)
    assert after.graph.output[0].type.HasField("sequence_type")
    got = run_ort(after, {"s": [f(2)], "x": f(2)})
    assert len(got[0]) == 2


def test_the_model_given_is_not_changed() -> None:
    model, _ = op_model("Softmax", [f(2, 3, 4)], opset=9)
    before = model.SerializeToString()
    normalized(model)
    assert model.SerializeToString() == before


def test_large_weights_never_meet_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Converter and inference see the graph only."""
    sizes = []
    infer = onnx.shape_inference.infer_shapes

    def spy(proto: onnx.ModelProto, **options: object) -> onnx.ModelProto:
        sizes.append(proto.ByteSize())
        return infer(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", spy)
    model, _ = op_model("MatMul", [f(2, 500), f(500, 500)], opset=11, constants=(1,))
    normalized(model)
    assert sizes
    assert max(sizes) < 5000


# --- refusals ------------------------------------------------------------------------------------


def test_a_cycle_is_named() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="second"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [2])], [info("b", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ModelError, match="cycle"):
        normalized(model)


def test_nodes_out_of_order_are_put_into_order() -> None:
    nodes = [helper.make_node("Neg", ["a"], ["y"]), helper.make_node("Abs", ["x"], ["a"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [2])], [info("y", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert [n.op_type for n in normalized(model).graph.node] == ["Abs", "Neg"]


def broken(**changes: object) -> onnx.ModelProto:
    model, _ = op_model("Relu", [f(2)], opset=18)
    if "opset" in changes:
        model.opset_import[0].version = changes["opset"]
    if "ir_version" in changes:
        model.ir_version = changes["ir_version"]
    return model


def test_unusable_versions_are_refused() -> None:
    with pytest.raises(ModelError, match="Upgrade onnx"):
        normalized(broken(opset=999))
    with pytest.raises(ModelError, match=r"no ai\.onnx opset 0"):
        normalized(broken(opset=0))
    with pytest.raises(ModelError, match="IR version 99"):
        normalized(broken(ir_version=99))
    with pytest.raises(ModelError, match="IR version 1"):
        normalized(broken(ir_version=1))
    model = broken()
    del model.opset_import[:]
    with pytest.raises(ModelError, match="no opset import"):
        normalized(model)


def test_both_spellings_of_the_domain() -> None:
    model = broken()
    model.opset_import[0].domain = "ai.onnx"
    assert normalized(model).opset_import[0].domain == ""


def test_an_operand_from_nowhere_is_named() -> None:
    model = broken()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match=r"'node'.*'nowhere'"):
        normalized(model)


def test_contradicting_shapes_raise() -> None:
    model, _ = op_model("MatMul", [f(2, 3), f(4, 5)], opset=18)
    with pytest.raises(ShapeInferenceError, match="MatMul"):
        normalized(model)


def test_dynamic_transposed_convolution_has_a_rank() -> None:
    model, _ = op_model("ConvTranspose", [f(1, 2, 4, 4), f(2, 3, 3, 3)], opset=18, dynamic=True)
    shape = normalized(model).graph.output[0].type.tensor_type.shape
    assert len(shape.dim) == 4


def test_dimensions_written_as_minus_one_are_symbolic() -> None:
    model, _ = op_model("Add", [f(2, 3), f(3)], opset=11, constants=(1,))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    info = helper.make_tensor_value_info("y0", 1, [-1, 3])
    model.graph.output[0].CopyFrom(info)
    after = normalized(model)
    for value in (after.graph.input[0], after.graph.output[0]):
        first, second = value.type.tensor_type.shape.dim
        assert first.HasField("dim_param")
        assert second.dim_value == 3


def test_a_scale_a_little_below_a_fraction_gives_the_size_that_onnxruntime_gives():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,12,10] x) => (float[N,3,h,w] y)
        <float[4] scales = {1, 1, 0.5833333, 1.5}, float[0] roi = {}>
        { r = Resize<mode = "linear">(x, roi, scales) y = Tanh(r) }""")
    x = np.ones((2, 3, 12, 10), np.float32)
    (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    normal = normalize(load(model))
    assert tuple(normal.graph.outputs[0].shape)[2:] == y.shape[2:] == (7, 15)
