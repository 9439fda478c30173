"""Each private operator against the kernel of the real 1.19.2."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain.compat.ort.lowerings import FIRST, TABLE
from onnxtrain.compat.ort.old_artifacts import standard_operators
from onnxtrain.graph import load, to_proto
from onnxtrain.normalize.contrib import CONTRIB

from .recorded import DATA, FAMILIES

with np.load(DATA / "ops.npz") as _stored:
    STORED = dict(_stored)
NAMES = sorted({key.split("/")[0] for key in STORED})
NO_KERNEL = {"BatchScale", "ConvTransposeGrad", "ResizeGrad", "ScaledSum"}
"""Operators that the CPU build of 1.19.2 could not run; tested against their definition below."""


def _part(name: str, kind: str) -> dict[str, np.ndarray]:
    prefix = f"{name}/{kind}/"
    return {k.removeprefix(prefix): v for k, v in STORED.items() if k.startswith(prefix)}


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    known = {i.name for i in session.get_inputs()}
    return dict(zip(names, session.run(None, {k: v for k, v in feeds.items() if k in known})))


@pytest.mark.parametrize("name", NAMES)
def test_same_as_the_kernel(name: str) -> None:
    model = to_proto(standard_operators(load(bytes(STORED[f"{name}/model"]))))
    assert {n.domain for n in model.graph.node} <= {""}
    found = _run(model, _part(name, "in"))
    for key, expected in _part(name, "out").items():
        assert found[key].dtype == expected.dtype
        if name.startswith("broadcast_args"):  # a set of axes
            expected = np.sort(expected)
        np.testing.assert_allclose(
            found[key].reshape(expected.shape), expected, rtol=1e-5, atol=2e-6, err_msg=key
        )


def test_every_lowering_is_shown_to_be_right() -> None:
    seen = set()
    for name in NAMES:
        model = onnx.load_from_string(bytes(STORED[f"{name}/model"]))
        seen.update(n.op_type for n in model.graph.node)
    for family in FAMILIES:
        model = onnx.load(DATA / family / "training_model.onnx")
        seen.update(n.op_type for n in model.graph.node)
    private = {kind for _, kind in {**TABLE, **FIRST}.keys() - CONTRIB.keys()}
    assert private - seen == NO_KERNEL


def _model(text: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    return onnx.parser.parse_model(f"{head} {text}")


def test_dropout_that_is_off_has_gradient_one() -> None:
    # 1.19.2's kernel ignores the last input and scales the gradient all the same.
    model = _model("""g (float[2] dy, bool[2] mask) => (float[2] dx)
        <float ratio = {0.5}, bool on = {0}> {
        dx = com.microsoft.DropoutGrad(dy, mask, ratio, on)
    }""")
    dy = np.array([1, 2], np.float32)
    feeds = {"dy": dy, "mask": np.array([True, True])}
    found = _run(to_proto(standard_operators(load(model))), feeds)
    np.testing.assert_array_equal(found["dx"], dy)


def test_scaled_sum_and_batch_scale() -> None:
    model = _model("""g (float[2] a, float[2] b, float[2] c)
        => (float[2] y, float[2] u, float[2] w) {
        y = com.microsoft.ScaledSum <scale_0 = 2.0, scale_1 = 3.0, scale_2 = 4.0> (a, b, c)
        u, v, w = com.microsoft.BatchScale <scale0 = 2.0, scale1 = 3.0, scale2 = 4.0> (a)
    }""")
    a, b, c = (np.array(v, np.float32) for v in ([1, 2], [3, 4], [5, 6]))
    found = _run(to_proto(standard_operators(load(model))), {"a": a, "b": b, "c": c})
    np.testing.assert_allclose(found["y"], 2 * a + 3 * b + 4 * c)
    np.testing.assert_allclose(found["u"], 2 * a)
    np.testing.assert_allclose(found["w"], 4 * a)


def test_conv_transpose_and_resize_against_torch() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shapes = [(1, 2, 4, 4), (2, 3, 3, 3), (1, 3, 6, 6)]
    x, w, dy = (rng.normal(size=s).astype(np.float32) for s in shapes)
    model = _model("""g (float[1,3,6,6] dy, float[1,2,4,4] x, float[2,3,3,3] w)
        => (float[1,2,4,4] dx, float[2,3,3,3] dw, float[3] db) {
        dx, dw, db = com.microsoft.ConvTransposeGrad <kernel_shape = [3, 3]> (dy, x, w)
    }""")
    found = _run(to_proto(standard_operators(load(model))), {"dy": dy, "x": x, "w": w})
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    tb = torch.zeros(3, requires_grad=True)
    torch.nn.functional.conv_transpose2d(tx, tw, tb).backward(torch.tensor(dy))
    for key, tensor in (("dx", tx), ("dw", tw), ("db", tb)):
        np.testing.assert_allclose(found[key], tensor.grad.numpy(), rtol=1e-4, atol=1e-5)
    model = _model("""g (float[1,2,8,8] dy, float[1,2,4,4] x) => (float[1,2,4,4] dx)
        <float[4] scales = {1, 1, 2, 2}> {
        dx = com.microsoft.ResizeGrad <mode = "linear"> (dy, x, , scales)
    }""")
    dy = rng.normal(size=(1, 2, 8, 8)).astype(np.float32)
    found = _run(to_proto(standard_operators(load(model))), {"dy": dy, "x": x})
    tx = torch.tensor(x, requires_grad=True)
    torch.nn.functional.interpolate(tx, scale_factor=2, mode="bilinear").backward(torch.tensor(dy))
    np.testing.assert_allclose(found["dx"], tx.grad.numpy(), rtol=1e-4, atol=1e-5)
