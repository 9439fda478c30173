"""Trained convolutions with many weights: columns of windows, and where they stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.passes import few_pixels, window_columns
from onnxtrain.passes.window_columns import MANY_POINTS, MANY_WEIGHTS, WINDOWS

from .test_few_pixels import CASES, feeds_of, model_of

SAME = [1, 1, 1, 1]
ALL = ["x", "w", "b"]
MANY = {
    "3×3": ((2, 128, 4, 4), (256, 128, 3, 3), {"pads": SAME}),
    "stride": ((2, 128, 8, 8), (256, 128, 3, 3), {"pads": SAME, "strides": [2, 2]}),
    "stride of 1×1": ((2, 128, 8, 8), (256, 128, 1, 1), {"strides": [2, 2]}),
    "one dimension": ((2, 128, 12), (256, 128, 3), {"pads": [2, 2], "dilations": [2]}),
    "points": ((2, 512, 9, 9), (512, 512, 1, 1), {}),
}
STAY = {
    "fewer weights": ((2, 127, 4, 4), (256, 127, 3, 3), {"pads": SAME}),
    "few pixels": ((2, 128, 3, 3), (256, 128, 3, 3), {"pads": SAME}),
    "more windows": ((2, 128, 9, 9), (256, 128, 3, 3), {"pads": SAME}),
    "fewer weights of 1×1": ((2, 256, 4, 4), (512, 256, 1, 1), {}),
    "groups": ((2, 512, 4, 4), (512, 256, 3, 3), {"pads": SAME, "group": 2}),
    "three dimensions": ((2, 128, 4, 2, 2), (256, 128, 1, 3, 3), {"pads": [0, 1, 1] * 2}),
}


def is_in_columns(proto):
    """Whether a convolution lays out windows: one channel, and a filter for each position."""
    constants = {i.name: list(i.dims) for i in proto.graph.initializer}
    kernels = [constants.get(n.input[1], [0]) for n in proto.graph.node if n.op_type == "Conv"]
    return any(dims[1:2] == [1] and dims[0] == np.prod(dims[1:]) for dims in kernels)


def run(model, feeds, names=ALL):
    gradient = onnxtrain.differentiate(model, wrt=names, of="loss")
    proto = onnx.ModelProto.FromString(gradient.SerializeToString())
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return proto, session.run(None, feeds)


@pytest.fixture
def for_all_sizes(monkeypatch):
    monkeypatch.setattr(window_columns, "MANY_WEIGHTS", 1)
    monkeypatch.setattr(window_columns, "MANY_POINTS", 1)
    monkeypatch.setattr(window_columns, "WINDOWS", range(1, 1000))


def without(monkeypatch, model, feeds, names=ALL):
    """What the rule of Conv computes."""
    monkeypatch.setattr(window_columns, "MOST_AXES", 0)
    monkeypatch.setattr(few_pixels, "FEW_PIXELS", 0)
    proto, expected = run(model, feeds, names)
    assert not is_in_columns(proto)
    return expected


def assert_same(ours, expected):
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * np.abs(b).max())


@pytest.mark.parametrize("batch", [None, "N"])
@pytest.mark.parametrize("name", [n for n in CASES if n != "three dimensions"])
def test_values_and_gradients(name, batch, for_all_sizes, monkeypatch):
    shape, kernel, attributes = CASES[name]
    model = model_of(shape, kernel, attributes, batch=batch)
    feeds = feeds_of(model, shape)
    proto, ours = run(model, feeds)
    # one pixel needs no columns, and those of four pixels are a product (`small_maps`)
    assert is_in_columns(proto) or name in ("1×1", "one image")
    assert_same(ours, without(monkeypatch, model, feeds))


@pytest.mark.parametrize("names", [["x"], ["w"], ["w", "x"]])
def test_some_gradients_without_a_bias(names, for_all_sizes, monkeypatch):
    shape, kernel, attributes = CASES["padded"]
    model = model_of(shape, kernel, attributes, bias=False)
    feeds = feeds_of(model, shape)
    proto, ours = run(model, feeds, names)
    assert is_in_columns(proto)
    assert_same(ours, without(monkeypatch, model, feeds, names))


@pytest.mark.parametrize("name", MANY)
def test_where_it_applies(name, monkeypatch):
    shape, kernel, attributes = MANY[name]
    pairs, pixels = np.prod(kernel[:2]), np.prod(shape[2:])
    assert pairs >= (MANY_POINTS if name == "points" else MANY_WEIGHTS)
    model = model_of(shape, kernel, attributes, batch="N")
    feeds = {n: 0.1 * v for n, v in feeds_of(model, shape).items()}
    proto, ours = run(model, feeds)
    kinds = [n.op_type for n in proto.graph.node]
    assert is_in_columns(proto) or (name == "points" and pixels > WINDOWS.stop)
    assert kinds.count("Gemm") == 3
    assert_same(ours, without(monkeypatch, model, feeds))


@pytest.mark.parametrize("name", STAY)
def test_others_stay_as_they_are(name):
    shape, kernel, attributes = STAY[name]
    model = model_of(shape, kernel, attributes, batch="N")
    gradient = onnxtrain.differentiate(model, wrt=ALL, of="loss")
    assert not is_in_columns(gradient)
    products = [n.op_type for n in gradient.graph.node].count("Gemm")
    assert products < 3 or name == "few pixels"


def test_sizes_that_are_open(for_all_sizes):
    """The number of windows may be any."""
    model = model_of((2, 3, 4, 4), (4, 3, 3, 3), {"pads": SAME}, batch="N")
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "W"
    assert not is_in_columns(onnxtrain.differentiate(model, wrt=ALL, of="loss"))


def test_twice_differentiated(for_all_sizes, monkeypatch):
    """The gradient of a gradient goes through the columns."""
    shape, kernel, attributes = CASES["padded"]
    model = model_of(shape, kernel, attributes)

    def second():
        first = onnxtrain.differentiate(model, wrt=["w"], of="loss")
        name = first.graph.output[-1].name
        first.graph.node.append(helper.make_node("ReduceSumSquare", [name], ["norm"], keepdims=0))
        first.graph.output.append(helper.make_tensor_value_info("norm", TensorProto.FLOAT, []))
        twice = onnxtrain.differentiate(first, wrt=["x"], of="norm")
        session = onnxruntime.InferenceSession(twice.SerializeToString())
        return session.run([twice.graph.output[-1].name], feeds_of(model, shape))[0]

    ours = second()
    monkeypatch.setattr(window_columns, "MOST_AXES", 0)
    monkeypatch.setattr(few_pixels, "FEW_PIXELS", 0)
    expected = second()
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("recompute", ["cheap", "auto", 2])
def test_computed_again(recompute, for_all_sizes):
    shape, kernel, attributes = CASES["padded"]
    model = model_of(shape, kernel, attributes, batch="N")
    feeds = feeds_of(model, shape)
    _, expected = run(model, feeds)
    again = onnxtrain.differentiate(model, wrt=ALL, of="loss", recompute=recompute)
    session = onnxruntime.InferenceSession(again.SerializeToString())
    assert_same(session.run(None, feeds), expected)
