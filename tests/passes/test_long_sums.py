"""Long sums are taken by rows: right to a millionth, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain import CheckpointState, Module, losses
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.infer import infer_shapes
from onnxtrain.passes.long_sums import long_sums_by_rows

EXPECTED = {
    "ReduceSum": lambda x, axes, keeps: x.sum(axes, keepdims=keeps),
    "ReduceMean": lambda x, axes, keeps: x.mean(axes, keepdims=keeps),
    "ReduceL1": lambda x, axes, keeps: np.abs(x).sum(axes, keepdims=keeps),
    "ReduceSumSquare": lambda x, axes, keeps: (x * x).sum(axes, keepdims=keeps),
}


def model(
    op_type: str, dims: list[int | str], axes: list[int] | None, *, keeps: bool, opset: int = 18
) -> onnx.ModelProto:
    operands, attributes, constants = ["x"], {"keepdims": int(keeps)}, []
    if axes is not None and (opset >= 18 or op_type == "ReduceSum"):
        operands, constants = ["x", "axes"], [numpy_helper.from_array(np.array(axes), "axes")]
    elif axes is not None:
        attributes["axes"] = axes
    node = helper.make_node(op_type, operands, ["y"], name="node", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def written(proto: onnx.ModelProto) -> onnx.ModelProto:
    result = to_proto(long_sums_by_rows(infer_shapes(load(proto))))
    onnx.checker.check_model(result, full_check=True)
    return result


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.asarray(
        onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    )


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


LARGE = (4, 3, 512, 256)
SPLIT = {
    "all axes": ("ReduceMean", LARGE, None, False, ["ReduceMean", "ReduceMean"]),
    "all axes, kept": ("ReduceMean", LARGE, None, True, ["ReduceMean", "ReduceMean"]),
    "all axes by number": ("ReduceSum", (1024, 512), [-1, 0], False, ["ReduceSum", "ReduceSum"]),
    "squares": ("ReduceSumSquare", LARGE, None, False, ["ReduceSumSquare", "ReduceSum"]),
    "sizes": ("ReduceL1", LARGE, None, True, ["ReduceL1", "ReduceSum"]),
    "the last axes": ("ReduceSum", (2, 1024, 1024), [1, 2], False, ["ReduceSum", "ReduceSum"]),
    "the last axes, kept": ("ReduceSum", (2, 1024, 1024), [1, 2], True, ["ReduceSum"] * 2),
    "one axis": ("ReduceSum", (1 << 18,), None, False, ["Reshape", "ReduceSum", "ReduceSum"]),
    "one axis, kept": ("ReduceMean", (300_000,), [0], True, ["Reshape"] + ["ReduceMean"] * 2),
    "short rows": ("ReduceMean", (1 << 17, 3), None, False, ["Reshape"] + ["ReduceMean"] * 2),
    "behind an axis": ("ReduceSum", (2, 1 << 20), [1], False, ["Reshape"] + ["ReduceSum"] * 2),
}  # fmt: skip


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("name", SPLIT)
def test_long_sums(name: str, opset: int) -> None:
    op_type, shape, axes, keeps, expected = SPLIT[name]
    proto = written(model(op_type, list(shape), axes, keeps=keeps, opset=opset))
    assert operators(proto) == expected
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) ** 2
    right = EXPECTED[op_type](x.astype(np.float64), None if axes is None else tuple(axes), keeps)
    np.testing.assert_allclose(run(proto, x), right, rtol=3e-6)


def test_without_rows_a_sum_of_squares_is_off() -> None:
    """What this is for; when onnxruntime adds up otherwise one day, the pass can go."""
    proto = model("ReduceSumSquare", [1 << 22], None, keeps=False)
    x = np.random.default_rng(0).standard_normal(1 << 22).astype(np.float32)
    right = np.sum(x.astype(np.float64) ** 2)
    assert abs(run(proto, x) / right - 1) > 3e-5
    assert abs(run(written(proto), x) / right - 1) < 3e-6


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean"])
@pytest.mark.parametrize("keeps", [False, True])
def test_an_open_number_of_rows(op_type: str, rows: int, keeps: bool) -> None:
    given = model(op_type, ["N", 4, 256], None, keeps=keeps)
    proto = written(given)
    assert operators(proto) == [op_type, op_type]
    x = np.random.default_rng(0).standard_normal((rows, 4, 256)).astype(np.float32)
    np.testing.assert_allclose(run(proto, x), run(given, x), rtol=1e-4, atol=1e-3)


SHORT = {
    "few numbers": ("ReduceSum", [4, 256], None),
    "few squares": ("ReduceSumSquare", [512, 512], None),
    "open squares": ("ReduceSumSquare", ["N", 1024], None),
    "open rows of few": ("ReduceMean", ["N", 10], None),
    "an open last axis": ("ReduceMean", ["N", 300, "T"], None),
    "an open vector": ("ReduceMean", ["N"], None),
    "not the last axes": ("ReduceSum", [1024, 8, 1024], [0, 1]),
    "axes apart": ("ReduceSum", [1024, 2, 1024], [0, 2]),
    "maps of an open batch": ("ReduceMean", ["N", 3, "H", 512], [2, 3]),
    "a prime number": ("ReduceSum", [1_000_003], None),
    "nothing": ("ReduceSum", [0, 1024], None),
}


@pytest.mark.parametrize("name", SHORT)
def test_others_stay(name: str) -> None:
    op_type, dims, axes = SHORT[name]
    assert operators(written(model(op_type, dims, axes, keeps=False))) == [op_type]


@pytest.mark.parametrize("batch", [16, "N"])
def test_the_loss_of_images_is_right(batch: int | str, tmp_path: Path) -> None:
    """Through artifacts: the mean of squares of three million differences."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 256, 256])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3, 256, 256])
    weight = numpy_helper.from_array(np.ones(1, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])], "g", [image], [result], [weight]
    )
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnxtrain.generate_artifacts(
        given, loss=losses.MSELoss(), requires_grad=["w"], artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    rng = np.random.default_rng(0)
    x, target = (rng.standard_normal((16, 3, 256, 256)).astype(np.float32) for _ in "xt")
    right = np.mean((x.astype(np.float64) - target) ** 2)
    assert abs(float(np.asarray(module(x, target))) / right - 1) < 3e-6


def test_a_gradient_does_not_change() -> None:
    proto = model("ReduceMean", [1024, 512], None, keeps=False)
    gradients = onnxtrain.differentiate(proto, wrt=["x"], of="y")
    x = np.ones((1024, 512), np.float32)
    found = onnxruntime.InferenceSession(gradients.SerializeToString()).run(None, {"x": x})
    assert any(np.allclose(f, 1 / x.size, rtol=1e-6) for f in found)
