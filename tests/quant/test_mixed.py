"""Products in half precision and a scaled loss, on the CPU, where onnxruntime casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxtrain
from onnxtrain import artifacts, losses, optim, quant
from onnxtrain.api import Trainer
from onnxtrain.artifacts.choose import ArtifactError
from onnxtrain.artifacts.device import device_file
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits
from onnxtrain.errors import ModelError, NonFiniteError, QuantizationError
from onnxtrain.graph import parameters
from onnxtrain.runtime.step.loss_scale import LOSS_SCALE

Array = np.ndarray[Any, Any]


def trainer(folder: Path, model: onnx.ModelProto, optimizer: Any = None, **options: Any) -> Trainer:
    folder.mkdir()
    artifacts.generate_artifacts(
        model, loss=losses.CrossEntropyLoss(), optimizer=optimizer or optim.adamw(),
        artifact_directory=folder, step_model=True,
    )  # fmt: skip
    return Trainer.from_directory(folder, **options)


def rows() -> tuple[Array, Array]:
    x, y = digits()
    return x[:128], y[:128]


def scale_of(trained: Trainer) -> Array:
    return np.array(trained.state.parameters[LOSS_SCALE].data)


def halves(training: onnx.ModelProto, kind: int) -> int:
    """How many products give numbers of a type."""
    inferred = onnx.shape_inference.infer_shapes(training)
    kinds = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
    products = [n for n in training.graph.node if n.op_type in {"Gemm", "MatMul", "Conv"}]
    return sum(kinds.get(n.output[0]) == kind for n in products)


def test_products_and_their_gradients_are_half_and_the_curve_is_near(tmp_path: Path) -> None:
    x, y = rows()
    model = quant.mixed_precision(digits_network())
    plain = ort.InferenceSession(digits_network().SerializeToString()).run(None, {"image": x})[0]
    half = ort.InferenceSession(model.SerializeToString()).run(None, {"image": x})[0]
    assert 0 < np.abs(half - plain).max() < 0.01
    ends = [
        trainer(tmp_path / str(i), m, learning_rate=2e-3).fit((x, y), 3, 32, progress=False)["loss"]
        for i, m in enumerate((digits_network(), model))
    ]
    np.testing.assert_allclose(ends[1], ends[0], rtol=0.05)
    assert halves(onnx.load(tmp_path / "1" / "training_model.onnx"), 10) >= 8


def test_bfloat16_needs_no_scale(tmp_path: Path) -> None:
    """onnxruntime's CPU provider does not run it; the graph is that of a GPU."""
    model = quant.mixed_precision(digits_network(), "bfloat16")
    assert LOSS_SCALE not in {i.name for i in model.graph.initializer}
    gradients = onnxtrain.differentiate(model, of="scores", vjp=True)
    assert halves(gradients, 16) >= 4


def test_the_scale_is_divided_out_of_the_update(tmp_path: Path) -> None:
    x, y = rows()
    ends = []
    for i, scale in enumerate((1.0, 1024.0)):
        model = quant.mixed_precision(digits_network(), loss_scale=scale)
        made = trainer(tmp_path / str(i), model, optim.sgd(), learning_rate=0.1)
        made.fit((x, y), 1, 32, progress=False)
        ends.append(np.array(made.state.parameters["fc2.weight"].data))
    np.testing.assert_allclose(ends[0], ends[1], atol=2e-4)
    assert np.abs(ends[0] - digits_start()).max() > 0.01


def digits_start() -> Array:
    (weight,) = [t for t in digits_network().graph.initializer if t.name == "fc2.weight"]
    return onnx.numpy_helper.to_array(weight)


def test_an_overflow_skips_the_update_and_halves_the_scale(tmp_path: Path) -> None:
    x, y = rows()
    made = trainer(tmp_path / "a", quant.mixed_precision(digits_network(), loss_scale=2.0**24))
    made.fit((x[:32] * 300, y[:32]), 1, 32, progress=False)
    assert made.step == 0
    assert scale_of(made).tolist() == [2.0**23, 0.0]
    np.testing.assert_array_equal(made.state.parameters["fc2.weight"].data, digits_start())
    made.fit((x, y), 30, 32, progress=False)
    assert made.step > 0
    made.save(tmp_path / "saved")
    again = Trainer.from_directory(tmp_path / "a", checkpoint=tmp_path / "saved")
    np.testing.assert_array_equal(scale_of(again), scale_of(made))


def test_it_grows_after_many_good_updates_and_gives_up_at_one(tmp_path: Path) -> None:
    made = trainer(tmp_path / "a", quant.mixed_precision(digits_network(), loss_scale=4.0))
    x, y = rows()
    made.state.parameters[LOSS_SCALE].data = np.array([4.0, 1999.0], np.float32)
    made.fit((x[:32], y[:32]), 1, 32, progress=False)
    assert scale_of(made).tolist() == [8.0, 0.0]
    made.state.parameters[LOSS_SCALE].data = np.array([1.0, 0.0], np.float32)
    with pytest.raises(NonFiniteError):
        made.fit((np.full_like(x[:32], 1e30), y[:32]), 2, 32, progress=False)


def test_both_sides_have_one_name() -> None:
    assert parameters.LOSS_SCALE == LOSS_SCALE


def test_mistakes_are_told(tmp_path: Path) -> None:
    half = quant.mixed_precision(digits_network())
    for message, call in (
        ("not 'float8'", lambda: quant.mixed_precision(digits_network(), "float8")),
        ("from 1 to", lambda: quant.mixed_precision(digits_network(), loss_scale=0.0)),
        ("already", lambda: quant.mixed_precision(half)),
    ):
        with pytest.raises(QuantizationError, match=message):
            call()
    with pytest.raises(ModelError, match="undo"):
        onnxtrain.differentiate(half, of="scores", vjp=True)
    trainer(tmp_path / "a", half)
    assert not (tmp_path / "a" / "step_model.onnx").exists()
    with pytest.raises(ArtifactError, match="JavaScript"):
        device_file(tmp_path / "a")
