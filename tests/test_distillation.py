"""A teacher in the same graph: its answers are right, it is not trained, and it is not exported."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain import artifacts, losses
from onnxtrain.api import Trainer
from onnxtrain.distillation import with_teacher
from onnxtrain.errors import ModelError, UnknownNameError
from tests.onnxblock.harness import run

RNG = np.random.default_rng(0)


def net(hidden: int, name: str = "x", opset: int = 18, dropout: bool = False) -> onnx.ModelProto:
    """Two layers to the scores of three classes."""
    drop = "d = Dropout (r, ratio, on)" if dropout else "d = Identity (r)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]>'
        f"g (float[N, 4] {name}) => (float[N, 3] scores)"
        f"<float ratio = {{0.5}}, bool on = {{1}}>"
        f"{{ h = MatMul ({name}, w1) r = Relu (h) {drop} scores = MatMul (d, w2) }}"
    )
    for weight, shape in {"w1": (4, hidden), "w2": (hidden, 3)}.items():
        value = RNG.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, weight))
    return model


X = RNG.normal(size=(64, 4)).astype(np.float32)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_the_teacher_answers_as_alone(opset: int) -> None:
    student, teacher = net(4), net(32, "image", opset, dropout=True)
    both = with_teacher(student, teacher, inputs={"image": "x"})
    assert [o.name for o in both.graph.output] == ["scores"]
    assert sorted(onnxtrain.summarize(both).trainable) == ["w1", "w2"]
    both.graph.output.append(onnx.helper.make_tensor_value_info("teacher.scores", 1, ["N", 3]))
    got = run(both, {"x": X})
    teacher.graph.node[2].input[2] = ""  # in use nothing is dropped
    np.testing.assert_allclose(got[0], run(student, {"x": X})[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], run(teacher, {"image": X})[0], rtol=1e-5, atol=1e-5)


def test_a_student_comes_to_say_what_its_teacher_says(tmp_path) -> None:
    student, teacher = net(8), net(32)
    artifacts.generate_artifacts(
        with_teacher(student, teacher),
        loss=losses.DistillationLoss(temperature=2.0, alpha=0.0),
        loss_input_names=["scores", "teacher.scores"],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    trainer = Trainer.from_directory(tmp_path, learning_rate=0.03)
    assert sorted(n for n, _ in trainer.state.parameters) == ["w1", "w2"]
    history = trainer.fit({"x": X}, 60, 16, progress=False)
    assert history["loss"][-1] < 0.1 * history["loss"][0]
    trainer.export(tmp_path / "student.onnx")
    exported = onnx.load(tmp_path / "student.onnx")
    assert len(exported.graph.initializer) == 2
    got, want = run(exported, {"x": X})[0], run(teacher, {"x": X})[0]
    assert (got.argmax(1) == want.argmax(1)).mean() > 0.9


def test_mistakes_are_told() -> None:
    with pytest.raises(ModelError, match="no input 'image'"):
        with_teacher(net(4), net(4, "image"))
    with pytest.raises(UnknownNameError, match="logits"):
        with_teacher(net(4), net(4), ["logits"])
    other = net(4)
    other.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(ModelError, match="DOUBLE"):
        with_teacher(net(4), other)
