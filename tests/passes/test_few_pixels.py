"""Trained convolutions that give few pixels: the product over the batch, and where it must not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.passes import few_pixels
from onnxtrain.passes.few_pixels import FEW_PIXELS

SAME = [1, 1, 1, 1]

CASES = {
    "padded": ((3, 5, 3, 3), (4, 5, 3, 3), {"pads": SAME}),
    "one pixel": ((3, 5, 3, 2), (4, 5, 3, 2), {}),
    "strides": ((2, 3, 7, 6), (4, 3, 3, 3), {"strides": [3, 2]}),
    "dilations": ((2, 3, 6, 7), (4, 3, 3, 2), {"dilations": [2, 3], "strides": [1, 2]}),
    "uneven padding": ((2, 3, 3, 2), (4, 3, 3, 3), {"pads": [0, 2, 1, 0]}),
    "SAME_UPPER": ((2, 3, 5, 4), (4, 3, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "SAME_LOWER": ((2, 3, 5, 4), (4, 3, 2, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "VALID": ((2, 3, 4, 4), (4, 3, 2, 2), {"auto_pad": "VALID"}),
    "1×1": ((2, 3, 3, 3), (4, 3, 1, 1), {}),
    "1×1 with stride": ((2, 3, 5, 5), (4, 3, 1, 1), {"strides": [2, 2]}),
    "one dimension": ((2, 3, 7), (4, 3, 3), {"pads": [1, 1]}),
    "three dimensions": ((2, 3, 2, 2, 2), (4, 3, 3, 2, 2), {"pads": [1, 0, 1, 1, 1, 0]}),
    "one image": ((1, 3, 2, 2), (4, 3, 3, 3), {"pads": SAME}),
}


def model_of(shape, kernel, attributes, *, bias=True, batch=None):
    """y = relu(x)⋆w + b, and the loss that weighs its elements."""
    names = {"x": [batch or shape[0], *shape[1:]], "w": kernel}
    if bias:
        names["b"] = kernel[:1]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Conv", ["r", *list(names)[1:]], ["y"], **attributes),
        helper.make_node("Sin", ["y"], ["s"]),
        helper.make_node("ReduceSumSquare", ["s"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in names.items()],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def gradients(model, feeds, names):
    result = onnxtrain.differentiate(model, wrt=names, of="loss")
    proto = onnx.ModelProto.FromString(result.SerializeToString())
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return {_kind(n) for n in proto.graph.node}, session.run(None, feeds)


def _kind(node):
    """Its operator; products with turned weights, as the form has them, are apart."""
    return node.op_type + "".join("ᵀ" for a in node.attribute if a.name == "transB" and a.i)


def feeds_of(model, shape):
    rng = np.random.default_rng(1)
    sizes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {
        n: rng.normal(size=shape if n == "x" else s).astype(np.float32) for n, s in sizes.items()
    }


@pytest.fixture
def compare(monkeypatch):
    """What the form computes against the rule of Conv, which has tables of its own."""

    def run(shape, kernel, attributes, names, *, bias=True, batch=None):
        model = model_of(shape, kernel, attributes, bias=bias, batch=batch)
        feeds = feeds_of(model, shape)
        kinds, ours = gradients(model, feeds, names)
        monkeypatch.setattr(few_pixels, "FEW_PIXELS", 0)
        kinds_of_rule, expected = gradients(model, feeds, names)
        assert "Gemmᵀ" not in kinds_of_rule
        for a, b in zip(ours, expected):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())
        return kinds

    return run


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, compare):
    kinds = compare(*CASES[name], ["x", "w", "b"])
    assert "Gemmᵀ" in kinds


@pytest.mark.parametrize("names", [["x"], ["w"], ["w", "x"]])
def test_some_gradients_without_a_bias(names, compare):
    assert "Gemmᵀ" in compare(*CASES["padded"], names, bias=False)


def test_the_number_of_images_may_be_open(compare):
    assert "Gemmᵀ" in compare(*CASES["padded"], ["x", "w", "b"], batch="N")


@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((2, 3, 4, FEW_PIXELS // 4 + 1), (4, 3, 1, 1), {}),
        ((2, 4, 2, 2), (4, 2, 3, 3), {"pads": SAME, "group": 2}),
    ],
    ids=["many pixels", "groups"],
)
def test_others_stay_convolutions(shape, kernel, attributes, compare):
    kinds = compare(shape, kernel, attributes, ["x", "w", "b"])
    assert "Gemmᵀ" not in kinds
    assert "Conv" in kinds


def test_twice_differentiated(monkeypatch):
    """The gradient of a gradient goes through the product as well."""
    shape, kernel, attributes = CASES["padded"]
    results = []
    for limit in (FEW_PIXELS, 0):
        monkeypatch.setattr(few_pixels, "FEW_PIXELS", limit)
        model = model_of(shape, kernel, attributes)
        first = onnxtrain.differentiate(model, wrt=["w"], of="loss")
        name = first.graph.output[-1].name
        first.graph.node.append(helper.make_node("ReduceSumSquare", [name], ["norm"], keepdims=0))
        first.graph.output.append(helper.make_tensor_value_info("norm", TensorProto.FLOAT, []))
        second = onnxtrain.differentiate(first, wrt=["x"], of="norm")
        session = onnxruntime.InferenceSession(second.SerializeToString())
        results += session.run([second.graph.output[-1].name], feeds_of(model, shape))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4 * np.abs(results[1]).max())


def test_one_image_of_open_length_stays_a_convolution():
    """Its batch is known and its length is not: it may have any number of pixels."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[1, 3, L] x, float[1, 3, 1] w) => (float loss) {
            y = Conv(x, w) s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }""")
    graded = onnxtrain.differentiate(model, wrt=["x", "w"], of="loss")
    assert "Conv" in {node.op_type for node in graded.graph.node}
