"""What inference-minded passes do to a model that is being trained, each kept from happening."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

import onnxtrain
from onnxtrain.autodiff.composites import Composite, declare, find_composites


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\n{text}')


def run(model: onnx.ModelProto, **feeds) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


def test_two_equal_biases_stay_two() -> None:
    model = parse("""g (float[N,2] x) => (float y) <float[2] a = {0,0}, float[2] b = {0,0}>
        { h = Add(x, a) t = Tanh(h) u = Add(t, b) y = ReduceSum<keepdims=0>(u) }""")
    got = onnxtrain.differentiate(model)
    assert {i.name for i in got.graph.initializer} >= {"a", "b"}
    x = np.ones((3, 2), np.float32)
    result = run(got, x=x)
    np.testing.assert_allclose(result["b_grad"], [3, 3])
    np.testing.assert_allclose(result["a_grad"], 3 * (1 - np.tanh(1) ** 2) * np.ones(2), rtol=1e-5)


def test_a_scale_of_one_and_a_bias_of_zero_are_trained() -> None:
    model = parse("""g (float[N,2] x) => (float y) <float s = {1}, float z = {0}>
        { h = Mul(x, s) u = Add(h, z) y = ReduceSum<keepdims=0>(u) }""")
    result = run(onnxtrain.differentiate(model, wrt=["s", "z"]), x=np.full((3, 2), 2, np.float32))
    assert (result["s_grad"], result["z_grad"]) == (12, 6)


def test_parameters_are_not_folded() -> None:
    model = parse("""g (float[N,2] x) => (float y) <float[2,2] w = {1,2,3,4}>
        { t = Transpose<perm=[1,0]>(w) h = MatMul(x, t) y = ReduceSum<keepdims=0>(h) }""")
    result = run(onnxtrain.differentiate(model, wrt=["w"]), x=np.ones((3, 2), np.float32))
    np.testing.assert_allclose(result["w_grad"], np.full((2, 2), 3))


def test_two_dropouts_on_one_input_are_two_draws() -> None:
    model = parse("""g (float[1000] x) => (float y) <float r = {0.5}, bool t = {1}>
        { a = Dropout(x, r, t) b = Dropout(x, r, t) c = Add(a, b) y = ReduceSum<keepdims=0>(c) }""")
    got = onnxtrain.differentiate(model, wrt=["x"])
    assert [n.op_type for n in got.graph.node].count("Dropout") == 2
    gradient = run(got, x=np.ones(1000, np.float32))["x_grad"]
    assert set(np.unique(gradient)) == {0, 2, 4}, "two independent masks"


def test_the_gradient_uses_the_mask_that_was_drawn() -> None:
    model = parse("""g (float[1000] x) => (float y, float[1000] d) <float r = {0.5}, bool t = {1}>
        { d = Dropout(x, r, t) y = ReduceSum<keepdims=0>(d) }""")
    result = run(onnxtrain.differentiate(model, wrt=["x"], of="y"), x=np.ones(1000, np.float32))
    np.testing.assert_array_equal(result["d"], result["x_grad"])


def test_a_declared_gradient_does_not_outlive_what_its_nodes_read() -> None:
    """A pass that comes later and lets one of them read another value makes it another function."""
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[3] x, float[3] z) => (float[3] y) { h = Neg(x) y = Exp(h) }""")
    first, last = model.graph
    declare(Composite(last, (first.outputs[0],), lambda walk, dys: [], (first, last)))
    assert last in find_composites(model.graph)
    first.replace_input_with(0, model.graph.inputs[1])
    assert last not in find_composites(model.graph)
