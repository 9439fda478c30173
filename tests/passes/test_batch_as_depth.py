"""Trained convolutions on small maps: all images at once, and where they stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.passes import batch_as_depth

from .test_few_pixels import feeds_of, model_of

SAME = [1, 1, 1, 1]
W33 = (14, 5, 3, 3)

CASES = {
    "padded": ((3, 5, 4, 3), W33, {"pads": SAME}),
    "strides": ((2, 5, 9, 8), W33, {"strides": [3, 2], "pads": SAME}),
    "dilations": ((2, 5, 6, 6), (14, 5, 2, 2), {"dilations": [2, 3]}),
    "uneven padding": ((2, 5, 5, 2), W33, {"pads": [0, 2, 1, 1]}),
    "VALID": ((2, 5, 5, 6), W33, {"auto_pad": "VALID"}),
    "one dimension": ((2, 3, 12), (14, 3, 3), {"pads": [1, 1]}),
    "no attributes": ((2, 3, 6, 5), (14, 3, 3, 3), {}),
}
STAY = {
    "one image": ((1, 5, 4, 3), W33, {"pads": SAME}),
    "more pixels than filters": ((2, 5, 4, 4), W33, {"pads": SAME}),
    "1×1": ((2, 5, 4, 3), (14, 5, 1, 1), {}),
    "groups": ((2, 4, 4, 3), (14, 2, 3, 3), {"pads": SAME, "group": 2}),
    "SAME_UPPER": ((2, 5, 4, 3), W33, {"auto_pad": "SAME_UPPER"}),
    "three dimensions": ((2, 3, 2, 3, 2), (14, 3, 3, 3, 3), {"pads": [1] * 6}),
}


def forward_ranks(proto):
    """Ranks of the kernels of the convolutions whose bias is the model's."""
    convolutions = [n for n in proto.graph.node if n.op_type == "Conv" and "b" in n.input]
    attributes = [a for n in convolutions for a in n.attribute if a.name == "kernel_shape"]
    return [len(a.ints) for a in attributes]


def run(model, feeds, names):
    gradient = onnxtrain.differentiate(model, wrt=names, of="loss")
    proto = onnx.ModelProto.FromString(gradient.SerializeToString())
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return proto, session.run(None, feeds)


@pytest.mark.parametrize("batch", [None, "N"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, batch, monkeypatch):
    shape, kernel, attributes = CASES[name]
    model = model_of(shape, kernel, attributes, batch=batch)
    feeds = feeds_of(model, shape)
    proto, ours = run(model, feeds, ["x", "w", "b"])
    assert forward_ranks(proto) == [len(kernel) - 1]
    monkeypatch.setattr(batch_as_depth, "MOST_AXES", 0)
    plain, expected = run(model, feeds, ["x", "w", "b"])
    assert forward_ranks(plain) in ([], [len(kernel) - 2])
    for a, b in zip(ours, expected):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("name", STAY)
def test_others_stay_as_they_are(name):
    shape, kernel, attributes = STAY[name]
    model = model_of(shape, kernel, attributes)
    proto, _ = run(model, feeds_of(model, shape), ["x", "w", "b"])
    assert forward_ranks(proto) in ([], [len(kernel) - 2])


def test_twice_differentiated(monkeypatch):
    """The gradient of a gradient goes through the convolution with an axis more."""
    shape, kernel, attributes = CASES["padded"]
    results = []
    for limit in (batch_as_depth.MOST_AXES, 0):
        monkeypatch.setattr(batch_as_depth, "MOST_AXES", limit)
        model = model_of(shape, kernel, attributes)
        first = onnxtrain.differentiate(model, wrt=["w"], of="loss")
        name = first.graph.output[-1].name
        first.graph.node.append(helper.make_node("ReduceSumSquare", [name], ["norm"], keepdims=0))
        first.graph.output.append(helper.make_tensor_value_info("norm", TensorProto.FLOAT, []))
        second = onnxtrain.differentiate(first, wrt=["x"], of="norm")
        session = onnxruntime.InferenceSession(second.SerializeToString())
        results += session.run([second.graph.output[-1].name], feeds_of(model, shape))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4 * np.abs(results[1]).max())
