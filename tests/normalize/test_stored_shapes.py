"""Shapes in the file are hints: what onnxruntime runs with a warning is differentiated, right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.errors import ShapeInferenceError
from onnxtrain.graph import load
from onnxtrain.graph.tensor import dims_of
from onnxtrain.normalize import normalize

RNG = np.random.default_rng(0)
WEIGHT = f"<float[4, 11] w = {{{', '.join(str(i % 7 - 3) for i in range(44))}}}>"


def model(
    text: str, stored: dict[str, Sequence[int | str]], result: str = "float loss"
) -> onnx.ModelProto:
    """A model with shapes written into it that onnx did not infer."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] x, float[1, 11] b) => ({result}) '
        f"{WEIGHT} {{ {text} }}"
    )
    for name, shape in stored.items():
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        proto.graph.value_info.append(info)
    return proto


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def feeds(rows: int = 5) -> dict[str, np.ndarray]:
    return {
        "x": RNG.uniform(-1, 1, (rows, 4)).astype(np.float32),
        "b": RNG.uniform(-1, 1, (1, 11)).astype(np.float32),
    }


LOSS = "h = MatMul(x, w) t = Add(h, b) s = Mul(t, t) loss = ReduceSum<keepdims = 0>(s)"


@pytest.mark.parametrize(
    "stored",
    [
        {"h": [1, 4, 11]},  # another rank than inferred
        {"h": ["N", 12]},  # another number
        {"t": ["N", 3], "s": [3]},
        {"h": [1, 11], "t": [1, 11], "s": [1, 11]},  # written when the batch was 1
        {"h": ["N", 11], "t": ["M", 11]},
    ],
)
def test_what_contradicts_inference_is_dropped(stored: dict[str, Sequence[int | str]]) -> None:
    given, values = model(LOSS, stored), feeds()
    session(given).run(None, values)
    onnxtrain.check_gradient(given, wrt=["w", "x", "b"], inputs=values).raise_if_wrong()
    gradient = onnxtrain.differentiate(given, wrt=["w", "x", "b"])
    shapes = [g.shape for g in session(gradient).run(None, values)[1:]]
    assert shapes == [(4, 11), (5, 4), (1, 11)]


def test_a_contradiction_inside_a_branch() -> None:
    branch = "t = Add(h, b)"
    text = (
        "h = MatMul(x, w) c = Constant<value = bool {1}>() k = Identity(c) "
        f"t0 = If(k) <then_branch = t () => (float[N, 11] t) {{ {branch} }}, "
        "else_branch = e () => (float[N, 11] u) { u = Neg(h) }> "
        "s = Mul(t0, t0) loss = ReduceSum<keepdims = 0>(s)"
    )
    given = model(text, {})
    (node,) = [n for n in given.graph.node if n.op_type == "If"]
    body = node.attribute[0].g
    body.output[0].type.tensor_type.shape.dim.add(dim_value=2)
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs=feeds()).raise_if_wrong()


def test_a_contradiction_that_folding_brings_to_light() -> None:
    """Of the repeats of a Tile an exporter pads a branch that is never taken, by nothing."""
    given = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[5, 4] x) => (float loss) '
        f"{WEIGHT[:-1]}, int64[1] one = {{1}}, int64[2] sizes = {{1, 2}}> {{ "
        "h = MatMul(x, w) shape = Shape(w) rank = Size(shape) wanted = Size(sizes) "
        "missing = Sub(wanted, rank) k = Greater(missing, wanted) "
        "repeats = If(k) <then_branch = t () => (int64[3] longer) { "
        "count = Reshape(missing, one) ones = Expand(one, count) "
        "longer = Concat<axis = 0>(ones, sizes) }, "
        "else_branch = e () => (int64[2] same) { same = Identity(sizes) }> "
        "y = Tile(h, repeats) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }"
    )
    values = {"x": feeds()["x"]}
    session(given).run(None, values)
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs=values).raise_if_wrong()


def test_in_a_branch_the_number_of_repeats_is_a_constant() -> None:
    """onnx follows the lengths of vectors in a graph and not in its bodies."""
    given = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] x, bool k) => (float loss) '
        f"{WEIGHT[:-1]}, int64[1] zero = {{0}}, int64[1] two = {{2}}> {{ h = MatMul(x, w) "
        "t = If(k) <then_branch = a () => (float[P, Q] y) { "
        "sizes = Shape(x) rows = Gather(sizes, zero) twice = Concat<axis = 0>(rows, two) "
        "rank = Shape(twice) ones = ConstantOfShape<value = int64[1] {1}>(rank) "
        "same = Expand(h, ones) y = Tile(same, twice) }, "
        "else_branch = b () => (float[P, Q] z) { z = Neg(h) }> "
        "s = Mul(t, t) loss = ReduceSum<keepdims = 0>(s) }"
    )
    for chosen in (True, False):
        values = {"x": feeds()["x"], "k": np.array(chosen)}
        onnxtrain.check_gradient(given, wrt=["w", "x"], inputs=values).raise_if_wrong()
    operators = [node.op_type for node in normalize(load(given)).graph.all_nodes()]
    assert "ConstantOfShape" not in operators


@pytest.mark.parametrize("rows", [1, 64])
def test_a_declared_output_smaller_than_what_flows(rows: int) -> None:
    given = model("h = MatMul(x, w) y = Add(h, b)", {}, "float[1, 11] y")
    gradient = onnxtrain.differentiate(given, wrt=["w", "x", "b"], vjp=True)
    values = {**feeds(rows), "y_grad": RNG.uniform(-1, 1, (rows, 11)).astype(np.float32)}
    _, dw, dx, db = session(gradient).run(None, values)
    np.testing.assert_allclose(dw, values["x"].T @ values["y_grad"], rtol=1e-5, atol=1e-6)
    assert dx.shape == (rows, 4)
    np.testing.assert_allclose(db, values["y_grad"].sum(0, keepdims=True), rtol=1e-5, atol=1e-6)


def test_an_output_that_nothing_is_known_of_has_its_declared_rank_only() -> None:
    text = "i = NonZero(x) f = Cast<to = 1>(i) r = ReduceSum<keepdims = 0>(f) y = Reshape(x, n)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[N, 4] x, int64[k] n) => '
        f"(float[7, 5] y) {{ {text} }}"
    )
    (output,) = normalize(load(proto)).graph.outputs
    dims = dims_of(output)
    assert dims is not None
    assert len(dims) == 2
    assert not any(isinstance(d, int) for d in dims)


def test_stored_shapes_fill_the_gaps_of_inference() -> None:
    """A Reshape whose target is an input: only the file can tell."""
    text = "r = Reshape(x, n) t = Tanh(r) loss = ReduceSum<keepdims = 0>(t)"
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[6, 4] x, int64[3] n) => (float loss) '
        f"{{ {text} }}"
    )
    proto.graph.value_info.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3, 4]))
    (tanh,) = [n for n in normalize(load(proto)).graph if n.op_type == "Tanh"]
    assert dims_of(tanh.outputs[0]) == (2, 3, 4)


def test_types_that_contradict_are_an_error() -> None:
    given = model(LOSS, {})
    given.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT64, [1, 11]))
    with pytest.raises(ShapeInferenceError):
        onnxtrain.differentiate(given, wrt=["w"])


def test_a_declared_output_of_another_rank_that_only_a_newer_opset_tells() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 7, opset_import: ["": 12]>
        g (float[1,N] x) => (float[1,seqlen] y) <int64 one = {1}, int64[1] minus = {-1}> {
            s = Shape(x)
            n = Gather(s, one)
            a = Unsqueeze<axes=[0]>(n)
            b = Unsqueeze<axes=[0]>(one)
            c = Concat<axis=0>(b, a, minus)
            y = Reshape(x, c)
        }""")
    assert dims_of(normalize(load(proto)).graph.outputs[0]) == (1, "N", 1)
    result = onnxtrain.differentiate(proto, wrt=["x"], vjp=True)
    assert [o.name for o in result.graph.output] == ["y", "x_grad"]


def test_symbols_of_onnx_in_the_file_are_not_those_of_a_new_inference() -> None:
    """onnx numbers what it does not know; the file's unk__0 is another than ours."""
    proto = model(
        "h = MatMul(x, w) i = NonZero(h) f = Cast<to = 1>(i) s = ReduceMean<keepdims = 0>(f) "
        "p = Sigmoid(h) t = Add(p, s) loss = ReduceSum<keepdims = 0>(t)",
        {"h": ["N", "unk__0"], "p": ["N", "unk__0"]},
    )
    normal = normalize(load(proto))
    values = {v.name: dims_of(v) for n in normal.graph for v in n.outputs}
    assert values["h"] == ("N", 11)
    assert values["i"][1] not in values["p"]


def test_a_question_mark_is_no_symbol() -> None:
    """Files of PaddlePaddle have it for the height and for the width."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 2, h, w] x) => (float loss) {
            s = Shape<start = 2>(x) f = Flatten<axis = 2>(x) y = Mul(f, f)
            loss = ReduceSum<keepdims = 0>(y) }""")
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "?"
    height, width = (dims_of(normalize(load(model)).graph.inputs[0]) or ())[2:]
    assert height != width
    graded = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    x = np.ones((1, 2, 3, 5), np.float32)
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    assert session.run(["x_grad"], {"x": x})[0].shape == x.shape
