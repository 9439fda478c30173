"""Resize of a region that the model computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

from .compare import normalized, operators, run_ort

RNG = np.random.default_rng(5)
INSIDE = [0.1, 0.23, 0.83, 0.71]
OUTSIDE = [-0.21, 0.32, 1.13, 0.87]


def crop(dynamic: bool, by: str, **attributes: object) -> onnx.ModelProto:
    """x, and a region that is an input."""
    how = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    how |= {"axes": [2, 3], **attributes}
    constants = {"sizes": np.array([4, 3]), "scales": np.array([0.8, 1.5], np.float32)}
    inputs = ["x", "roi", "scales"] if by == "scales" else ["x", "roi", "", "sizes"]
    shape = ["n", "c", "h", "w"] if dynamic else [1, 2, 5, 6]
    graph = helper.make_graph(
        [helper.make_node("Resize", inputs, ["y"], **how)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("roi", TensorProto.FLOAT, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(a, n) for n, a in constants.items() if n == by],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("by", ["sizes", "scales"])
@pytest.mark.parametrize("region", [INSIDE, OUTSIDE])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_region_has_a_gradient(by: str, region: list[float], dynamic: bool) -> None:
    model = crop(dynamic, by, extrapolation_value=0.4)
    x = RNG.uniform(-1, 1, (1, 2, 5, 6)).astype(np.float32)
    feeds = {"x": x, "roi": np.array(region, np.float32)}
    after = normalized(model)
    assert "Resize" not in operators(after)
    np.testing.assert_allclose(run_ort(after, feeds)[0], run_ort(model, feeds)[0], atol=1e-5)
    report = onnxtrain.check_gradient(model, feeds, wrt=["x", "roi"]).raise_if_wrong()
    assert abs(report.checks[1].numeric) > 1e-3


def test_other_modes_keep_the_operator() -> None:
    for attributes in ({"mode": "nearest"}, {"coordinate_transformation_mode": "half_pixel"}):
        assert "Resize" in operators(normalized(crop(False, "sizes", **attributes)))
