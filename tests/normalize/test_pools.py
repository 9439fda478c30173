"""Pools: as many windows as onnxruntime has, wherever sizes are known."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.errors import ModelError
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize


def model(nodes: str, shape: str = "2, 1, 6, 7", opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        g (float[{shape}] x) => (float loss) <float[1] w = {{2}}> {{
            p = Mul(x, w) {nodes} s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}
    """)


POOL = "<kernel_shape = [2, 2], strides = [3, 2], ceil_mode = 1>"
"""Along the first axis a third window would start at 6, of six elements."""

SMALL = "<kernel_shape = [1, 1], strides = [3, 3], ceil_mode = 1>"


@pytest.mark.parametrize(
    "nodes",
    [
        f"y = MaxPool{POOL}(p)",
        f"y = AveragePool{POOL}(p)",
        f"y = LpPool{POOL}(p)",
        f"q = MaxPool{POOL}(p) y = MaxPool{SMALL}(q)",
    ],
)
def test_a_last_window_that_is_dropped(nodes: str) -> None:
    given = model(nodes)
    values = np.random.default_rng(0).permutation(84).reshape(2, 1, 6, 7).astype(np.float32) / 9
    plain = to_proto(normalize(load(given)))
    results = []
    for proto in (given, plain):
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        results.append(session.run(None, {"x": values})[0])
    np.testing.assert_allclose(*results, rtol=1e-6)
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs={"x": values}).raise_if_wrong()


def test_sizes_behind_it_follow() -> None:
    """onnxruntime itself takes its own inference at its word and refuses this one."""
    average = "AveragePool<kernel_shape = [2, 2], strides = [3, 2], pads = [0, 0, 0, 1]>(p)"
    given = model(f"q = MaxPool{POOL}(p) r = {average} y = Concat<axis = 1>(q, r)")
    values = np.random.default_rng(0).permutation(84).reshape(2, 1, 6, 7).astype(np.float32) / 9
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs={"x": values}).raise_if_wrong()


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("shape", ["2, 1, 6, w", "n, 1, h, 7"])
def test_a_last_window_that_is_dropped_where_one_size_is_open(kind: str, shape: str) -> None:
    padded = "<kernel_shape = [2, 2], strides = [3, 3], pads = [0, 0, 1, 1], ceil_mode = 1>"
    given = model(f"y = {kind}{padded}(p)", shape)
    values = np.random.default_rng(0).permutation(84).reshape(2, 1, 6, 7).astype(np.float32) / 9
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs={"x": values}).raise_if_wrong()


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("way", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", ["1, 1", "2, 3"])
@pytest.mark.parametrize("shape", ["2, 1, 6, 7", "2, 1, h, w"])
def test_padding_of_dilated_kernels_is_onnxruntimes(
    kind: str, way: str, strides: str, shape: str
) -> None:
    """It pads as if they were not dilated."""
    window = f'kernel_shape = [2, 3], dilations = [2, 2], strides = [{strides}], auto_pad = "{way}"'
    given = model(f"y = {kind}<{window}>(p)", shape, opset=19)
    values = np.random.default_rng(0).permutation(84).reshape(2, 1, 6, 7).astype(np.float32) / 9
    onnxtrain.check_gradient(given, wrt=["w", "x"], inputs={"x": values}).raise_if_wrong()


def test_padding_of_dilated_kernels_that_nobody_can_tell() -> None:
    window = 'kernel_shape = [2, 3], dilations = [2, 2], strides = [2, 2], auto_pad = "SAME_UPPER"'
    with pytest.raises(ModelError, match=r"MaxPool.*count its windows differently.*explicit pads"):
        onnxtrain.differentiate(model(f"y = MaxPool<{window}>(p)", "2, 1, 6, w"), wrt=["w"])


def test_other_pools_stay_as_they_are() -> None:
    all_windows = "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(p)"
    symbolic = model(f"y = MaxPool{POOL}(p)", "2, 1, h, w")
    for given in (model(all_windows), symbolic):
        (pool,) = [n for n in normalize(load(given)).graph if n.op_type == "MaxPool"]
        assert pool.attributes.get_int("ceil_mode", 0) == 1
