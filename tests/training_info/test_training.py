"""Models that say themselves how they are trained, in ``TrainingInfoProto``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import losses, optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.errors import InputError, LabelError, NonFiniteError, RunError, StateError
from onnxtrain.training_info import Training, TrainingInfoError, add, read
from tests.sklearn.models import mlp, regression

X, Y = regression(32, 4)
Y = Y[:, None]


def model() -> onnx.ModelProto:
    return mlp()[0]


OPTIMIZERS = {
    "SGD": optim.sgd(), "momentum": optim.sgd(momentum=0.9), "AdamW": optim.adamw(),
    "clipped": optim.adam(clip=optim.ClipNorm(0.5)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_module_and_optimizer(tmp_path: Path, name: str) -> None:
    generate_artifacts(
        model(), loss=losses.MSELoss(), optimizer=OPTIMIZERS[name], artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    training = Training(add(model(), losses.MSELoss(), OPTIMIZERS[name], learning_rate=0.01))
    for _ in range(5):
        expected = module(X, Y)
        optimizer.step()
        module.lazy_reset_grad()
        results = training.step({"X": X, "target": Y})
        np.testing.assert_allclose(results["loss"], expected, rtol=1e-5)
    for parameter, value in state.parameters:
        np.testing.assert_allclose(training.state[parameter], value.data, rtol=1e-4, atol=1e-6)


def test_the_written_model_goes_on(tmp_path: Path) -> None:
    feeds = {"X": X, "target": Y}
    through, cut = (Training(add(model(), losses.MSELoss())) for _ in range(2))
    for _ in range(2):
        through.step(feeds), cut.step(feeds)
    cut.save(tmp_path / "half.onnx")
    again = Training(tmp_path / "half.onnx")
    assert again.state["step"] == 2
    for _ in range(2):
        expected, got = through.step(feeds), again.step(feeds)
        np.testing.assert_array_equal(got["loss"], expected["loss"])
    plain = onnx.load(tmp_path / "half.onnx")
    del plain.training_info[:]
    onnx.checker.check_model(plain, full_check=True)


def test_a_file_is_a_sound_model_for_others() -> None:
    written = add(model(), losses.MSELoss())
    onnx.checker.check_model(written)
    before = {t.name: onnx.numpy_helper.to_array(t) for t in model().graph.initializer}
    for tensor in written.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), before[tensor.name])
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in model().graph.node]


def test_a_fresh_start() -> None:
    training = Training(add(model(), losses.MSELoss()))
    training.step({"X": X, "target": Y})
    trained = training.state["bias"]
    training.initialize()
    assert training.state["step"] == 0
    moments = [n for n in training.state if n.startswith("bias.")]
    assert moments
    assert not any(training.state[n].any() for n in moments)
    np.testing.assert_array_equal(training.state["bias"], trained)


def test_only_what_is_named_is_trained() -> None:
    training = Training(add(model(), losses.MSELoss(), optim.sgd(), trainable=["bias"]))
    assert set(training.algorithm.updates) == {"bias", "step"}
    with pytest.raises(Exception, match="'bios'"):
        add(model(), losses.MSELoss(), trainable=["bios"])


def by_hand() -> onnx.ModelProto:
    """As the standard draws it: the operators of ai.onnx.preview.training, and a count."""
    header = '<ir_version: 8, opset_import: ["": 18, "ai.onnx.preview.training": 1]>'
    whole = onnx.parser.parse_model(f"""{header} g (float[N,4] x) => (float[N,1] y) {{
        y = MatMul(x, w)
    }}""")
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 1), np.float32), "w"))
    step = onnx.parser.parse_graph("""step (float[N,1] target)
        => (float loss, float[4,1] w_new, float[4,1] v_new, int64 t_new)
        <float rate = {0.05}, int64 t = {0}, int64 one = {1}> {
        d = Sub(y, target)  s = Mul(d, d)  loss = ReduceMean<keepdims = 0>(s)
        dw = ai.onnx.preview.training.Gradient<xs = ["w"], zs = ["x", "target"], y = "loss">
            (w, x, target)
        w_new, v_new = ai.onnx.preview.training.Momentum
            <alpha = 0.9, beta = 1.0, norm_coefficient = 0.0, mode = "standard">(rate, t, w, dw, v)
        t_new = Add(t, one)
    }""")
    step.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 1), np.float32), "v"))
    info = whole.training_info.add(algorithm=step)
    for name in ("w", "v", "t"):
        info.update_binding.add(key=name, value=f"{name}_new")
    return whole


def test_the_operators_of_the_standard_train() -> None:
    training = Training(by_hand())
    w, v = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    for _ in range(5):
        gradient = 2 * X.T @ (X @ w - Y) / len(X)
        loss = np.mean((X @ w - Y) ** 2)
        v = 0.9 * v + gradient
        w = w - 0.05 * v
        np.testing.assert_allclose(training.step({"x": X, "target": Y})["loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(training.state["w"], w, rtol=1e-4)
    assert training.state["t"] == 5


def without_binding(whole: onnx.ModelProto, old: str, new: str) -> onnx.ModelProto:
    entry = next(e for e in whole.training_info[0].update_binding if e.key == "w")
    setattr(entry, old, new)
    return whole


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(TrainingInfoError, match="no training_info"):
        read(model())
    with pytest.raises(TrainingInfoError, match="'u'"):
        read(without_binding(by_hand(), "key", "u"))
    with pytest.raises(TrainingInfoError, match="'w_newer'"):
        read(without_binding(by_hand(), "value", "w_newer"))
    with pytest.raises(TrainingInfoError, match="more than once"):
        read(without_binding(by_hand(), "key", "v"))
    training = Training(by_hand())
    with pytest.raises(InputError, match="'target' is missing"):
        training.step({"x": X})
    with pytest.raises(InputError, match="'u' is unknown"):
        training.step({"x": X, "target": Y, "u": Y})
    with pytest.raises(RunError, match=r"with x float32\[\d+, 9\], target"):
        training.step({"x": np.zeros((len(Y), 9), np.float32), "target": Y})
    with pytest.raises(StateError, match="no initialization"):
        training.initialize()


@pytest.mark.parametrize("label", [-1, 3])
def test_labels_that_are_no_class_are_told(label: int) -> None:
    """The last one is what a negative index of ONNX would mean."""
    network = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 2] x) => (float[N, 3] scores) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> {
            scores = MatMul (x, w)
        }
    """)
    training = Training(add(network, losses.CrossEntropyLoss()))
    x = np.ones((2, 2), np.float32)
    training.step({"x": x, "labels": np.array([0, 2])})
    with pytest.raises(LabelError, match=f"the label {label} in row 1"):
        training.step({"x": x, "labels": np.array([0, label])})


def test_data_beside_the_file_are_checked_and_taken_along(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "m.onnx"
    written: Any = add(model(), losses.MSELoss())
    onnx.save(written, path, save_as_external_data=True, location="weights", size_threshold=0)
    training = Training(path)
    training.step({"X": X, "target": Y})
    training.save(tmp_path / "elsewhere.onnx")
    assert Training(tmp_path / "elsewhere.onnx").state["step"] == 1
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 4096)
    moved = onnx.load(path, load_external_data=False)
    for tensor in (*moved.graph.initializer, *moved.training_info[0].algorithm.initializer):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    path.write_bytes(moved.SerializeToString())
    with pytest.raises(Exception, match="secret"):
        Training(path)


def test_fit_is_its_steps(tmp_path: Path) -> None:
    fitted, stepped = (Training(add(model(), losses.MSELoss())) for _ in range(2))
    seen: list[tuple[int, float]] = []
    history = fitted.fit(
        (X, Y), 2, 8, shuffle=False, on_epoch=lambda n, means: seen.append((n, means["loss"]))
    )
    for epoch in history:
        batches = [slice(i, i + 8) for i in range(0, len(X), 8)]
        steps = [stepped.step({"X": X[rows], "target": Y[rows]})["loss"] for rows in batches]
        assert epoch == {"loss": pytest.approx(float(np.mean(steps)))}
    assert seen == [(n + 1, epoch["loss"]) for n, epoch in enumerate(history)]
    for name, value in stepped.state.items():
        np.testing.assert_array_equal(fitted.state[name], value)
    assert fitted.algorithm.targets == ["target"]


def test_rows_come_in_an_order_of_the_seed() -> None:
    made = [Training(add(model(), losses.MSELoss())) for _ in range(3)]
    for training, seed in zip(made, (1, 1, 2)):
        training.fit({"X": X, "target": Y}, batch_size=8, seed=seed)
    np.testing.assert_array_equal(made[0].state["bias"], made[1].state["bias"])
    assert (made[0].state["bias"] != made[2].state["bias"]).any()


def test_what_fit_refuses() -> None:
    training = Training(add(model(), losses.MSELoss()))
    before = dict(training.state)
    with pytest.raises(InputError, match="epochs"):
        training.fit((X, Y), 0)
    with pytest.raises(InputError, match=r"a step takes \['X', 'target'\]"):
        training.fit([(X,)])
    with pytest.raises(InputError, match="target"):
        training.fit({"X": X})
    bad = Y.copy()
    bad[0] = np.inf
    with pytest.raises(NonFiniteError, match="It changed nothing"):
        training.fit((X, bad))
    for name, value in before.items():
        np.testing.assert_array_equal(training.state[name], value)
    training.fit((X, bad), check_finite=False)
    assert not np.isfinite(training.state["bias"]).all()
