"""Products with a bias are written as onnxruntime would write them, and compute the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.infer import infer_shapes
from onnxtrain.passes.biases import biases_in_products
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session.optimizers import idle_optimizers

CONSTANTS = {
    "w": (8, 3), "turned": (3, 8), "many": (2, 8, 3), "b": (3,), "row": (1, 3), "column": (4, 1),
    "all": (4, 3),
}  # fmt: skip


def model(shape: str, body: str) -> onnx.ModelProto:
    proto = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]> g (float[{shape}] x) => (y) {{ {body} }}"""
    )
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    read = {name for node in proto.graph.node for name in node.input}
    rng = np.random.default_rng(0)
    proto.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=CONSTANTS[n]).astype(np.float32), n)
        for n in sorted(read & CONSTANTS.keys())
    )
    return proto


def run(proto: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (x,) = session.get_inputs()
    shape = [d if isinstance(d, int) else 4 for d in x.shape]
    numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 10
    return np.asarray(session.run(None, {"x": numbers})[0])


def written(proto: onnx.ModelProto) -> onnx.ModelProto:
    return to_proto(biases_in_products(infer_shapes(load(proto))))


RESHAPED = ["Reshape", "Gemm", "Reshape"]
CASES = {
    "a vector": ("4, 8", "m = MatMul(x, w) y = Add(m, b)", ["Gemm"]),
    "a vector on the left": ("N, 8", "m = MatMul(x, w) y = Add(b, m)", ["Gemm"]),
    "a row": ("N, 8", "m = MatMul(x, w) y = Add(m, row)", ["Gemm"]),
    "a transposed weight": (
        "N, 8",
        "t = Transpose<perm = [1, 0]>(turned) m = MatMul(x, t) y = Add(m, b)",
        ["Gemm"],
    ),
    "two transposed operands": (
        "8, N",
        """s = Transpose<perm = [1, 0]>(x) t = Transpose<perm = [1, 0]>(turned) m = MatMul(s, t)
        y = Add(m, b)""",
        ["Gemm"],
    ),
    "a weight that others read too": (
        "3, 8",
        """t = Transpose<perm = [1, 0]>(turned) m = MatMul(x, t) a = Add(m, b) c = MatMul(x, t)
        y = Mul(a, c)""",
        ["Transpose", "Gemm", "MatMul", "Mul"],
    ),
    "more axes": ("2, 5, 8", "m = MatMul(x, w) y = Add(m, b)", RESHAPED),
    "more axes and a transposed weight": (
        "2, 5, 8",
        "t = Transpose<perm = [1, 0]>(turned) m = MatMul(x, t) y = Add(m, b)",
        RESHAPED,
    ),
    "more axes, one open": ("N, 5, 8", "m = MatMul(x, w) y = Add(m, b)", ["MatMul", "Add"]),
    "many weights": ("2, 5, 8", "m = MatMul(x, many) y = Add(m, b)", ["MatMul", "Add"]),
    "a column": ("4, 8", "m = MatMul(x, w) y = Add(m, column)", ["MatMul", "Add"]),
    "a matrix": ("4, 8", "m = MatMul(x, w) y = Add(m, all)", ["MatMul", "Add"]),
    "a product that others read": (
        "4, 8",
        "m = MatMul(x, w) a = Add(m, b) y = Mul(a, m)",
        ["MatMul", "Add", "Mul"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_with_a_bias(name: str) -> None:
    shape, body, operators = CASES[name]
    given = model(shape, body)
    proto = written(given)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == operators
    np.testing.assert_allclose(run(proto), run(given), rtol=1e-5)


def test_inside_of_a_branch() -> None:
    branch = "g2 () => (z) { m = MatMul(x, w) z = Add(m, b) }"
    other = "g3 () => (z2) { z2 = MatMul(x, w) }"
    given = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g (float[4, 8] x, bool c, float[8, 3] w, float[3] b) => (float[4, 3] y)
        {{ y = If(c) <then_branch = {branch}, else_branch = {other}> }}"""
    )
    node = written(given).graph.node[0]
    assert [[n.op_type for n in a.g.node] for a in node.attribute] == [["Gemm"], ["MatMul"]]


def test_a_weight_of_few_bits_keeps_its_product() -> None:
    given = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[4, 8] x, uint8[3, 8] codes, float s, float[3] b) => (float[4, 3] y) {
            d = DequantizeLinear(codes, s) t = Transpose<perm = [1, 0]>(d) m = MatMul(x, t)
            y = Add(m, b) }"""
    )
    assert "MatMul" in [node.op_type for node in written(given).graph.node]


@pytest.mark.parametrize("shape", ["4, 8", "N, 8", "2, 5, 8", "N, 5, 8"])
def test_onnxruntime_has_nothing_left_to_do(shape: str) -> None:
    given = model(shape, "m = MatMul(x, w) a = Add(m, b) y = Tanh(a)")
    gradients = onnxtrain.differentiate(given, wrt=["x", "w", "b"], of="y", vjp=True)
    idle = idle_optimizers(Outline.of(gradients.SerializeToString()))
    assert {"MatMulAddFusion", "GemmActivationFusion"}.issubset(idle)
