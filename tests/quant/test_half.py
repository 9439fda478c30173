"""Frozen weights in half precision: the same numbers, cast where a product reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime as ort
import pytest

from onnxtrain import artifacts, lora, losses, optim, quant
from onnxtrain.api import Trainer
from onnxtrain.errors import QuantizationError

Array = np.ndarray[Any, Any]
F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
WIDTH, OUT = 640, 420
"""1.1 MB of floats: a weight that stays in half precision while the model runs."""


def numbers(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def model() -> onnx.ModelProto:
    """A table, a layer, and the table again as the last layer."""
    nodes = [
        oh.make_node("Gather", ["table.weight", "x"], ["h"]),
        oh.make_node("MatMul", ["h", "fc.weight"], ["a"], name="/fc/MatMul"),
        oh.make_node("Tanh", ["a"], ["t"]),
        oh.make_node("MatMul", ["t", "back.weight"], ["b"], name="/back/MatMul"),
        oh.make_node("Transpose", ["table.weight"], ["turned"], perm=[1, 0]),
        oh.make_node("MatMul", ["b", "turned"], ["y"], name="/head/MatMul"),
    ]
    arrays = {"table.weight": numbers(OUT, WIDTH, seed=1), "fc.weight": numbers(WIDTH, OUT, seed=2),
              "back.weight": numbers(OUT, WIDTH, seed=3)}  # fmt: skip
    graph = oh.make_graph(
        nodes, "g", [oh.make_tensor_value_info("x", I64, ["N"])],
        [oh.make_tensor_value_info("y", F, ["N", OUT])],
        [onh.from_array(a, n) for n, a in arrays.items()],
    )  # fmt: skip
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)


def run(built: onnx.ModelProto, x: Array) -> Array:
    result: Array = ort.InferenceSession(built.SerializeToString()).run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 2e-2)])
def test_weights_are_half_as_large_and_nearly_the_same(dtype: str, tolerance: float) -> None:
    base, x = model(), np.arange(7)
    small = quant.half_weights(base, dtype)
    assert set(small.layers) == {"table", "fc", "back"}
    assert small.bytes_after * 2 == small.bytes_before
    assert small.model.ByteSize() < 0.51 * base.ByteSize()
    onnx.checker.check_model(small.model, full_check=True)
    expected = run(base, x)
    assert np.abs(run(small.model, x) - expected).max() < tolerance * np.abs(expected).max()


def test_adapters_train_on_it_and_floats_wait_for_the_product(tmp_path: Path) -> None:
    small = quant.half_weights(model())
    adapted = lora.add(small.model, targets=["fc", "back"], rank=2)
    artifacts.generate_artifacts(
        adapted, loss=losses.CrossEntropyLoss(), optimizer=optim.adamw(),
        artifact_directory=tmp_path,
    )  # fmt: skip
    training = onnx.load(tmp_path / "training_model.onnx")
    producers = {o: n for n in training.graph.node for o in n.output}
    halves = {i.name for i in training.graph.initializer if i.data_type == onnx.TensorProto.FLOAT16}
    assert {"fc.weight", "back.weight", "table.weight"} <= halves
    casts = [n for n in training.graph.node if n.op_type == "Cast" and n.attribute[0].i == F]
    of_weights = [n for n in casts if n.input[0] not in halves and n.input[0] in producers]
    waiting = [n for n in of_weights if producers[n.input[0]].input[0] in halves]
    assert len(waiting) >= 4  # each product of the forward half, and of the backward half
    assert not [n for n in casts if n.input[0] in halves]  # none that a runtime makes beforehand
    x, y = np.arange(32) % OUT, np.arange(32) % 5
    trainer = Trainer.from_directory(tmp_path, learning_rate=1e-2)
    before = trainer.evaluate((x, y))["loss"]
    trainer.fit((x, y), 3, 8, progress=False)
    assert trainer.evaluate((x, y))["loss"] < before


def test_mistakes_are_told() -> None:
    with pytest.raises(QuantizationError, match="not 'float8'"):
        quant.half_weights(model(), "float8")
    with pytest.raises(QuantizationError, match="nothing to store"):
        quant.half_weights(quant.half_weights(model()).model)
    large = model()
    large.graph.initializer[1].CopyFrom(onh.from_array(numbers(WIDTH, OUT) * 1e7, "fc.weight"))
    with pytest.raises(QuantizationError, match="no room"):
        quant.half_weights(large)
    quant.half_weights(large, "bfloat16")
    quant.half_weights(large, exclude="fc")
