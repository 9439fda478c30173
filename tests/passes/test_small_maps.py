"""Frozen convolutions on small maps: the product that replaces them, and where it must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxtrain
from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.parameters import to_inputs
from onnxtrain.normalize import normalize
from onnxtrain.passes import small_maps_as_products

PRODUCT = ["Reshape", "Gemm", "Reshape"]
CONDITION = ["Shape", "GreaterOrEqual", "Squeeze"]
SAME = "pads=[1,1,1,1]"


def model_of(
    body: str, size: tuple[int | str, ...], kernel: tuple[int, ...], *, batch: str = "5"
) -> onnx.ModelProto:
    """`body` computes y from x of (batch, 3, *size) with four kernels and constants by name."""
    rng = np.random.default_rng(0)
    x = ",".join(map(str, (batch, 3, *size)))
    y = ",".join("ABCDE"[: 2 + len(size)])
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]>\ng (float[{x}] x) => (float[{y}] y) {{ {body} }}'
    )
    constants = {
        "w": rng.normal(size=(4, 3, *kernel)),
        "b": rng.normal(size=4),
        "scale": rng.normal(size=4),
        "mean": rng.normal(size=4),
        "variance": rng.random(4) + 0.1,
    }
    used = {name for node in model.graph.node for name in node.input}
    for name, values in constants.items():
        if name in used:
            tensor = numpy_helper.from_array(values.astype(np.float32), name)
            model.graph.initializer.append(tensor)
    return model


def check(
    model: onnx.ModelProto, expected: list[str], size: tuple[int, ...], rows: tuple[int, ...] = (5,)
) -> onnx.ModelProto:
    result = small_maps_as_products(normalize(load(model)))
    assert [n.op_type for n in result.graph] == expected
    after = to_proto(result)
    onnx.checker.check_model(after, full_check=True)
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (model, after)]
    for count in rows:
        x = np.random.default_rng(1).normal(size=(count, 3, *size)).astype(np.float32)
        outputs = [session.run(["y"], {"x": x})[0] for session in sessions]
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)
    return after


@pytest.mark.parametrize(
    ("attributes", "size", "kernel"),
    [
        (SAME, (2, 2), (3, 3)),
        (SAME, (1, 1), (3, 3)),
        ("pads=[0,1,2,0], strides=[2,1]", (2, 2), (3, 3)),
        ("pads=[2,1,2,1], dilations=[2,1]", (2, 2), (3, 3)),
        ('auto_pad="VALID"', (5, 5), (5, 5)),
        ("pads=[1,1]", (2,), (3,)),
        ("pads=[1,1,1,1,1,1]", (1, 2, 2), (3, 3, 3)),
        ("pads=[2,2,2,2]", (2, 3), (5, 5)),
    ],
)
def test_conv(attributes: str, size: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    model = model_of(f"y = Conv<{attributes}>(x, w, b)", size, kernel)
    check(model, PRODUCT, size)


@pytest.mark.parametrize("normalized", [False, True])
def test_an_open_batch_size_decides_when_it_runs(normalized: bool) -> None:
    body = f"a = Conv<{SAME}>(x, w) y = Relu(a)"
    if normalized:
        body = body.replace("Relu(a)", "BatchNormalization(a, scale, b, mean, variance)")
    model = model_of(body, (2, 2), (3, 3), batch="N")
    rest = [] if normalized else ["Relu"]
    after = check(model, [*CONDITION, "If", *rest], (2, 2), rows=(0, 1, 2, 5))
    branches = [[n.op_type for n in a.g.node] for a in after.graph.node[3].attribute]
    assert branches == [PRODUCT, ["Conv"]]


def test_one_question_for_all_maps_of_a_batch() -> None:
    body = f"a = Conv<{SAME}>(x, w, b) c = Neg(x) d = Conv<{SAME}>(c, w, b) y = Add(a, d)"
    model = model_of(body, (2, 2), (3, 3), batch="N")
    after = check(model, [*CONDITION, "If", "Neg", "If", "Add"], (2, 2), rows=(1, 5))
    assert len([t for t in after.graph.initializer if list(t.dims) == [12, 16]]) == 1


def test_frozen_normalization_goes_into_it() -> None:
    body = f"a = Conv<{SAME}>(x, w) c = BatchNormalization(a, scale, b, mean, variance) y = Relu(c)"
    after = check(model_of(body, (2, 2), (3, 3)), [*PRODUCT, "Relu"], (2, 2))
    assert "w" not in {t.name for t in after.graph.initializer}
    assert after.graph.node[3].input == ["c"]  # the name that others may ask for


def test_a_normalization_beside_other_readers_stays() -> None:
    body = (
        f"a = Conv<{SAME}>(x, w) c = BatchNormalization(a, scale, b, mean, variance) y = Add(a, c)"
    )
    check(model_of(body, (2, 2), (3, 3)), [*PRODUCT, "BatchNormalization", "Add"], (2, 2))


@pytest.mark.parametrize(
    ("attributes", "size", "kernel", "batch"),
    [
        (SAME, (4, 4), (3, 3), "N"),  # the matrix would be 28 times as large
        (SAME, (2, 2), (3, 3), "1"),  # and with one row slower
        (SAME, ("H", 2), (3, 3), "N"),
        ('auto_pad="SAME_UPPER"', (2, 2), (3, 3), "N"),
        ("group=1", (1, 1), (1, 1), "N"),
    ],
)
def test_stays_a_conv(
    attributes: str, size: tuple[int | str, ...], kernel: tuple[int, ...], batch: str
) -> None:
    model = model_of(f"y = Conv<{attributes}>(x, w, b)", size, kernel, batch=batch)
    assert [n.op_type for n in small_maps_as_products(normalize(load(model))).graph] == ["Conv"]


def test_weights_that_change_stay() -> None:
    loaded = load(model_of(f"y = Conv<{SAME}>(x, w, b)", (2, 2), (3, 3)))
    to_inputs(loaded, ["b"])
    assert [n.op_type for n in small_maps_as_products(normalize(loaded)).graph] == ["Conv"]


def test_one_matrix_for_the_same_weights() -> None:
    body = f"a = Conv<{SAME}>(x, w, b) c = Neg(x) d = Conv<{SAME}>(c, w, b) y = Add(a, d)"
    after = check(model_of(body, (2, 2), (3, 3)), [*PRODUCT, "Neg", *PRODUCT, "Add"], (2, 2))
    matrices = [t for t in after.graph.initializer if list(t.dims) == [12, 16]]
    assert len(matrices) == 1


def test_the_same_weights_elsewhere_are_another_matrix() -> None:
    wide = "pads=[1,2,1,0]"
    body = f"a = Conv<{SAME}>(x, w, b) c = Conv<{wide}>(x, w, b) y = Add(a, c)"
    after = check(model_of(body, (2, 2), (3, 3)), [*PRODUCT, *PRODUCT, "Add"], (2, 2))
    assert len([t for t in after.graph.initializer if list(t.dims) == [12, 16]]) == 2


@pytest.mark.parametrize("batch", ["5", "N"])
def test_gradients_go_through_what_was_a_conv(tmp_path: Path, batch: str) -> None:
    body = f"z = Sigmoid(scales) s = Mul(x, z) a = Conv<{SAME}>(s, w, b) c = Relu(a) "
    body += "y = ReduceMean<keepdims=1>(c)"
    model = model_of(body, (2, 2), (3, 3), batch=batch)
    scales = np.random.default_rng(2).normal(size=(1, 3, 2, 2)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    artifacts.generate_artifacts(model, requires_grad=["scales"], artifact_directory=tmp_path)
    trained = onnx.load(tmp_path / "training_model.onnx")
    assert {n.op_type for n in trained.graph.node}.isdisjoint({"Conv"})
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    x = np.random.default_rng(1).normal(size=(5, 3, 2, 2)).astype(np.float32)
    loss = module(x)
    plain = onnxtrain.differentiate(model, wrt=["scales"])
    expected = ort.InferenceSession(plain.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    found = state.parameters["scales"].grad
    np.testing.assert_allclose(found, expected[1], rtol=1e-4, atol=1e-7)
