"""Pools with `ceil_mode`: as many windows as onnxruntime has, wherever sizes are known."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize import normalize


def model(nodes: str, shape: str = "2, 1, 6, 7") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
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


def test_other_pools_stay_as_they_are() -> None:
    all_windows = "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(p)"
    symbolic = model(f"y = MaxPool{POOL}(p)", "2, 1, h, w")
    for given in (model(all_windows), symbolic):
        (pool,) = [n for n in normalize(load(given)).graph if n.op_type == "MaxPool"]
        assert pool.attributes.get_int("ceil_mode", 0) == 1
