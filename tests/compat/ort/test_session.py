"""The first API: parameters, one-graph sessions, their state and their bindings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import _pybind_state as C

import onnxtrain
from onnxtrain import TrainingParameters, TrainingSession
from onnxtrain.errors import InputError, ModelError, UnknownNameError
from onnxtrain.training import ParameterError
from tests.compat.ort.models import CPU, mlp_with_loss, parse

RNG = np.random.default_rng(3)


def parameters(optimizer: str = "SGDOptimizer", **fields: Any) -> TrainingParameters:
    made = TrainingParameters()
    made.training_optimizer_name = optimizer
    made.loss_output_name = "loss"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def batches(count: int, size: int = 6) -> list[tuple[Any, Any]]:
    return [
        (
            RNG.normal(size=(size, 4)).astype(np.float32),
            RNG.normal(size=(size, 1)).astype(np.float32),
        )
        for _ in range(count)
    ]


def feeds(x: Any, y: Any, rate: float) -> dict[str, Any]:
    return {"X": x, "label": y, "Learning_Rate": np.array([rate], np.float32)}


class Torch:
    """The same model in PyTorch."""

    def __init__(self, weights: dict[str, Any], make: Any) -> None:
        self.weights = {n: torch.tensor(a, requires_grad=True) for n, a in weights.items()}
        self.optimizer = make(list(self.weights.values()))

    def loss(self, x: Any, y: Any) -> Any:
        w = self.weights
        hidden = torch.relu(torch.tensor(x) @ w["w_first"] + w["bias"])
        return ((hidden @ w["w_second"] - torch.tensor(y)) ** 2).mean()

    def step(self, x: Any, y: Any, clip: float | None = None) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), clip)
        self.optimizer.step()
        return float(loss.detach())

    def check(self, state: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> None:
        for name, tensor in self.weights.items():
            np.testing.assert_allclose(state[name], tensor.detach().numpy(), rtol, atol)


ADAM_CASES: list[tuple[str, dict[str, Any], dict[str, Any], float | None, dict[str, Any]]] = [
    ("plain", {}, {}, None, {}),
    ("rates", {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-6}, {}, None,
     {"betas": (0.8, 0.95), "eps": 1e-6}),
    ("decay", {"lambda": 0.1}, {"weight_decay_mode": 0}, None, {"weight_decay": 0.1}),
    ("clip", {"max_norm_clip": 0.5}, {}, 0.5, {}),
    ("default clip", {}, {}, 1.0, {}),
]  # fmt: skip


@pytest.mark.parametrize("case", ADAM_CASES, ids=[c[0] for c in ADAM_CASES])
def test_adam_follows_torch(case: Any) -> None:
    _, floats, ints, clip, options = case
    model, weights = mlp_with_loss()
    made = parameters("AdamOptimizer", enable_grad_norm_clip=clip is not None)
    made.optimizer_attributes_map = dict.fromkeys(weights, floats)
    made.optimizer_int_attributes_map = dict.fromkeys(weights, ints)
    session = TrainingSession(model.SerializeToString(), made)
    other = Torch(
        weights, lambda w: torch.optim.AdamW(w, lr=0.01, **{"weight_decay": 0.0, **options})
    )
    for x, y in batches(50):
        (loss,) = session.run(["loss"], feeds(x, y, 0.01))
        np.testing.assert_allclose(loss, other.step(x, y, clip), rtol=1e-4)
    other.check(session.get_state())


def test_sgd_follows_torch() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.02))
    for x, y in batches(100):
        (loss, prediction) = session.run(None, feeds(x, y, 0.02))
        assert prediction.shape == y.shape
        np.testing.assert_allclose(loss, other.step(x, y), rtol=1e-5, atol=1e-6)
    other.check(session.get_state(), 1e-5, 1e-5)


def numpy_gradients(weights: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.0))
    other.step(x, y)
    return {n: t.grad.numpy() for n, t in other.weights.items()}


@pytest.mark.parametrize("correct", [0, 1])
def test_adam_with_decay_after_the_update(correct: int) -> None:
    model, weights = mlp_with_loss()
    made = parameters("AdamOptimizer", enable_grad_norm_clip=False)
    made.optimizer_attributes_map = {n: {"lambda": 0.05, "epsilon": 1e-6} for n in weights}
    made.optimizer_int_attributes_map = {
        n: {"weight_decay_mode": 1, "do_bias_correction": correct} for n in weights
    }
    session = TrainingSession(model.SerializeToString(), made)
    now = {n: a.copy() for n, a in weights.items()}
    m = {n: np.zeros_like(a) for n, a in weights.items()}
    v = {n: np.zeros_like(a) for n, a in weights.items()}
    for t, (x, y) in enumerate(batches(10), 1):
        session.run(["loss"], feeds(x, y, 0.01))
        for n, g in numpy_gradients(now, x, y).items():
            m[n] = 0.9 * m[n] + 0.1 * g
            v[n] = 0.999 * v[n] + 0.001 * g * g
            scale = np.sqrt(1 - 0.999**t) / (1 - 0.9**t) if correct else 1.0
            now[n] = (now[n] - 0.01 * scale * m[n] / (np.sqrt(v[n]) + 1e-6)).astype(np.float32)
            now[n] -= np.float32(0.01 * 0.05) * now[n]
    for n, expected in now.items():
        np.testing.assert_allclose(session.get_state()[n], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", [{}, {"ratio_min": 0.5, "ratio_max": 2.0}])
def test_lamb(limits: dict[str, float]) -> None:
    model, weights = mlp_with_loss()
    made = parameters("LambOptimizer", enable_grad_norm_clip=False)
    made.optimizer_attributes_map = {n: {"lambda": 0.01, **limits} for n in weights}
    session = TrainingSession(model.SerializeToString(), made)
    now = {n: a.astype(np.float64) for n, a in weights.items()}
    m = {n: np.zeros(a.shape) for n, a in weights.items()}
    v = {n: np.zeros(a.shape) for n, a in weights.items()}
    for x, y in batches(10):
        session.run(["loss"], feeds(x, y, 0.01))
        gradients = numpy_gradients({n: a.astype(np.float32) for n, a in now.items()}, x, y)
        for n, g in gradients.items():
            m[n] = 0.9 * m[n] + 0.1 * g
            v[n] = 0.999 * v[n] + 0.001 * g * g
            u = m[n] / (np.sqrt(v[n]) + 1e-6) + 0.01 * now[n]
            ratio = np.linalg.norm(now[n]) / np.linalg.norm(u)
            if limits:
                ratio = np.clip(ratio, 0.5, 2.0)
            now[n] = now[n] - 0.01 * ratio * u
    for n, expected in now.items():
        np.testing.assert_allclose(session.get_state()[n], expected, rtol=1e-4, atol=1e-5)


def test_attributes_per_weight() -> None:
    """A rate of 0 for the second moment and an enormous epsilon freeze one weight only."""
    model, weights = mlp_with_loss()
    made = parameters("AdamOptimizer", optimizer_attributes_map={"bias": {"epsilon": 1e12}})
    session = TrainingSession(model.SerializeToString(), made)
    for x, y in batches(3):
        session.run(["loss"], feeds(x, y, 0.01))
    state = session.get_state()
    np.testing.assert_allclose(state["bias"], weights["bias"], atol=1e-6)
    assert np.abs(state["w_first"] - weights["w_first"]).max() > 1e-3


@pytest.mark.parametrize("steps", [1, 2])
def test_one_vector_or_one_update_each(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are updated together; that changes nothing but the number of nodes."""
    model, _ = mlp_with_loss()
    made = parameters("AdamOptimizer", gradient_accumulation_steps=steps)
    together = TrainingSession(model.SerializeToString(), made)
    monkeypatch.setattr("onnxtrain.compat.ort.step.TOGETHER", 0)
    apart = TrainingSession(model.SerializeToString(), made)
    counts = [len(list(s.runner.steps[True].model.graph)) for s in (together, apart)]
    assert counts[0] < counts[1]
    for x, y in batches(6):
        losses = [s.run(["loss"], feeds(x, y, 0.01))[0] for s in (together, apart)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
    assert list(together.get_state()) == list(apart.get_state())
    for name, value in apart.get_state().items():
        found = together.get_state()[name]
        assert found.shape == value.shape
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-7)
    apart.load_state(together.get_state(), strict=True)  # states do not depend on the layout
    np.testing.assert_array_equal(
        apart.get_optimizer_state()["bias"]["Moment_1"],
        together.get_optimizer_state()["bias"]["Moment_1"],
    )


def test_only_chosen_weights_move() -> None:
    model, weights = mlp_with_loss()
    for fields in (
        {"weights_to_train": {"bias", "w_second"}},
        {"weights_not_to_train": {"w_first"}},
    ):
        session = TrainingSession(model.SerializeToString(), parameters(**fields))
        assert list(session.get_state()) == ["w_second", "bias"]
        x, y = batches(1)[0]
        session.run(None, feeds(x, y, 0.1))
        assert np.abs(session.get_state()["bias"] - weights["bias"]).max() > 0


def test_immutable_weights() -> None:
    model = parse(
        """g (float[N] x) => (float loss) {
            h = Div(x, eight)
            y = Mul(h, w)
            loss = ReduceSum<keepdims=0>(y)
        }""",
        {"eight": np.array([8], np.float32), "w": np.array([1], np.float32)},
    )
    for given in ({"Div": [(1, 8.0)]}, {"Div": {1: 8.0}}):
        session = TrainingSession(model.SerializeToString(), parameters(immutable_weights=given))
        assert list(session.get_state()) == ["w"]
    other = TrainingSession(
        model.SerializeToString(), parameters(immutable_weights={"Div": [(1, 7.0)]})
    )
    assert list(other.get_state()) == ["eight", "w"]


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_accumulated_gradients_equal_one_large_batch(optimizer: str) -> None:
    model, _ = mlp_with_loss()
    fields = {"gradient_accumulation_steps": 3, "enable_grad_norm_clip": False}
    small = TrainingSession(model.SerializeToString(), parameters(optimizer, **fields))
    large = TrainingSession(
        model.SerializeToString(), parameters(optimizer, enable_grad_norm_clip=False)
    )
    for _ in range(4):
        parts = batches(3)
        before = small.get_state()
        for i, (x, y) in enumerate(parts):
            if i:
                for name in ("bias", "w_first"):
                    np.testing.assert_array_equal(small.get_state()[name], before[name])
            small.run(["loss"], feeds(x, y, 0.05))
        whole = [np.concatenate(p) for p in zip(*parts)]
        large.run(["loss"], feeds(*whole, 0.05))
    for name, value in large.get_state().items():
        np.testing.assert_allclose(small.get_state()[name], value, rtol=1e-4, atol=1e-5)


def test_accumulation_through_a_binding() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters(gradient_accumulation_steps=2))
    other = TrainingSession(model.SerializeToString(), parameters())
    x, y = batches(1)[0]
    binding = session.io_binding()
    for name, value in feeds(x, y, 0.1).items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("loss")
    for i in range(4):
        session.run_with_iobinding(binding)
        if i == 0:
            np.testing.assert_array_equal(session.get_state()["bias"], weights["bias"])
    for _ in range(2):
        other.run(None, feeds(x, y, 0.1))
    for name, value in other.get_state().items():
        np.testing.assert_allclose(session.get_state()[name], value, rtol=1e-5, atol=1e-6)


def test_gradients_as_outputs() -> None:
    model, weights = mlp_with_loss()
    x, y = batches(1)[0]
    for extra in ({}, {"use_mixed_precision": True, "loss_scale": 256.0}):
        session = TrainingSession(
            model.SerializeToString(), parameters(set_gradients_as_graph_outputs=True, **extra)
        )
        names = [o.name for o in session.get_outputs()]
        assert names[:5] == ["loss", "Y", "w_second_grad", "w_first_grad", "bias_grad"]
        results = dict(zip(names, session.run(None, feeds(x, y, 0.0))))
        for name, gradient in numpy_gradients(weights, x, y).items():
            np.testing.assert_allclose(results[f"{name}_grad"], gradient, rtol=1e-4, atol=1e-6)


def test_without_optimizer_nothing_moves() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters(""))
    assert [i.name for i in session.get_inputs()] == ["X", "label"]
    x, y = batches(1)[0]
    assert session.run(["loss"], {"X": x, "label": y}) == session.run(
        ["loss"], {"X": x, "label": y}
    )
    np.testing.assert_array_equal(session.get_state()["bias"], weights["bias"])


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_loss_scaling_skips_steps_that_overflow(optimizer: str) -> None:
    model, _ = mlp_with_loss()
    made = parameters(optimizer, use_mixed_precision=True)
    session = TrainingSession(model.SerializeToString(), made)
    plain = TrainingSession(model.SerializeToString(), parameters(optimizer))
    assert session.loss_scale_input_name == "loss_scale"
    assert plain.loss_scale_input_name == ""
    assert [i.name for i in session.get_inputs()][-2:] == ["Learning_Rate", "loss_scale"]
    assert session.get_outputs()[-1].name == "all_gradients_finite"
    for x, y in batches(5):
        given = feeds(x, y, 0.01)
        before = session.get_state()
        *_, finite = session.run(None, {**given, "loss_scale": np.array([3e38], np.float32)})
        assert not finite
        for name, value in session.get_state().items():
            np.testing.assert_array_equal(value, before[name])
        *_, finite = session.run(None, {**given, "loss_scale": np.array([1024], np.float32)})
        assert finite
        plain.run(None, given)
    for name, value in plain.get_state().items():
        np.testing.assert_allclose(session.get_state()[name], value, rtol=1e-4, atol=1e-5)


def test_batch_normalization_statistics_are_state() -> None:
    rng = np.random.default_rng(0)
    model = parse(
        """g (float[N,3] X, float[N,3] label) => (float loss) {
            Y, running_mean, running_var = BatchNormalization<training_mode=1, momentum=0.9>
                (X, scale, bias, mean, var)
            d = Sub(Y, label)
            s = Mul(d, d)
            loss = ReduceMean<keepdims=0>(s)
        }""",
        {
            "scale": np.ones(3, np.float32),
            "bias": np.zeros(3, np.float32),
            "mean": np.zeros(3, np.float32),
            "var": np.ones(3, np.float32),
        },
    )
    x = rng.normal(2.0, 3.0, size=(32, 3)).astype(np.float32)
    y = np.zeros((32, 3), np.float32)
    for steps in (1, 2):
        session = TrainingSession(
            model.SerializeToString(), parameters(gradient_accumulation_steps=steps)
        )
        assert list(session.get_state()) == ["scale", "bias", "mean", "var"]
        mean = np.zeros(3)
        for _ in range(4):
            session.run(["loss"], feeds(x, y, 0.1))
            mean = 0.9 * mean + 0.1 * x.mean(0)
        np.testing.assert_allclose(session.get_state()["mean"], mean, rtol=1e-4)
        assert session.get_state()["scale"][0] < 1


# -- the binding contract --------------------------------------------------------------------------


def test_plain_run_with_iobinding_is_a_step() -> None:
    """What onnxcustom does, call by call."""
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters(), None, None, None)
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.02))
    assert isinstance(session, onnxruntime.InferenceSession)
    bind = session.io_binding()._iobinding
    assert isinstance(bind, C.SessionIOBinding)
    names = [i.name for i in session.get_inputs()]
    assert names == ["X", "label", "Learning_Rate"]
    assert "loss" in [o.name for o in session.get_outputs()]
    rate = np.array([0.02], np.float32)
    for x, y in batches(20):
        for name, array in zip(names, (x, y, rate)):
            pointer = array.__array_interface__["data"][0]
            bind.bind_input(name, CPU, np.float32, array.shape, pointer)
        bind.bind_output("loss", CPU)
        session._sess.run_with_iobinding(bind, None)
        outputs = bind.get_outputs()
        assert len(outputs) == 1
        np.testing.assert_allclose(outputs[0].numpy(), other.step(x, y), rtol=1e-5)
    assert set(session.get_state()) == set(weights)
    other.check(session.get_state(), 1e-5, 1e-5)


def test_bound_once_and_mixed_with_run() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.02))
    x, y = batches(1)[0]
    given = feeds(x, y, 0.02)
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    binding.bind_output("Y")
    binding.bind_output("loss")
    for i in range(9):
        expected = other.step(x, y)
        if i % 3 == 2:
            (loss,) = session.run(["loss"], given)
        elif i % 3 == 1:
            values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(v) for n, v in given.items()}
            (value,) = session.run_with_ort_values(["loss"], values)
            loss = value.numpy()
        else:
            session.run_with_iobinding(binding)
            prediction, loss = binding.copy_outputs_to_cpu()
            assert prediction.shape == (6, 1)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    other.check(session.get_state(), 1e-5, 1e-5)
    binding.clear_binding_outputs()
    binding.bind_output("loss")
    session.run_with_iobinding(binding)
    assert len(binding.get_outputs()) == 1
    binding.clear_binding_inputs()
    with pytest.raises(Exception, match="X"):
        session.run_with_iobinding(binding)


def test_foreign_binding_is_refused() -> None:
    model, _ = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    plain = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with pytest.raises(InputError, match="io_binding"):
        session._sess.run_with_iobinding(plain.io_binding()._iobinding, None)
    with pytest.raises(Exception, match="nobody"):
        session.io_binding().bind_output("nobody")


def test_results_are_not_overwritten_by_the_next_run() -> None:
    model, _ = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    x, y = batches(1)[0]
    first = session.run(None, feeds(x, y, 0.05))
    kept = [r.copy() for r in first]
    session.run(None, feeds(x, y, 0.05))
    session.run(None, feeds(x, y, 0.05))
    for now, before in zip(first, kept):
        np.testing.assert_array_equal(now, before)


def test_batches_of_changing_size() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.02))
    for size in (3, 3, 5, 3, 9000, 2, 2):  # 9000 rows are too many to be copied into place
        x, y = batches(1, size)[0]
        (loss,) = session.run(["loss"], feeds(x, y, 0.02))
        np.testing.assert_allclose(loss, other.step(x, y), rtol=1e-4)


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"])
def test_state_round_trip_resumes_exactly(optimizer: str) -> None:
    model, _ = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters(optimizer))
    data = batches(7)
    for x, y in data[:3]:
        session.run(None, feeds(x, y, 0.01))
    state = session.get_state()
    copies = [TrainingSession(model.SerializeToString(), parameters(optimizer)) for _ in range(2)]
    copies[0].load_state(state, strict=True)
    made = parameters(optimizer)
    made.set_optimizer_initial_state(session.get_optimizer_state())
    copies[1] = TrainingSession(model.SerializeToString(), made)
    copies[1].load_state(session.get_model_state()["full_precision"])
    for x, y in data[3:]:
        expected = session.run(["loss"], feeds(x, y, 0.01))
        assert all(c.run(["loss"], feeds(x, y, 0.01)) == expected for c in copies)
    for name, value in session.get_state().items():
        for copy in copies:
            np.testing.assert_array_equal(copy.get_state()[name], value)


def test_optimizer_state_names() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters("AdamOptimizer"))
    state = session.get_optimizer_state()
    assert set(state) == set(weights)
    assert set(state["bias"]) == {"Moment_1", "Moment_2", "Update_Count"}
    assert state["bias"]["Update_Count"].tolist() == [1]
    x, y = batches(1)[0]
    session.run(None, feeds(x, y, 0.01))
    assert session.get_optimizer_state()["bias"]["Update_Count"].tolist() == [2]
    assert session.get_optimizer_state()["bias"]["Moment_2"].max() > 0
    assert "Moment_1_bias" in session.get_state()
    plain = TrainingSession(model.SerializeToString(), parameters())
    assert plain.get_optimizer_state() == {}
    assert plain.get_model_state(True)["mixed_precision"] == {}
    assert plain.get_partition_info_map() == {}
    assert plain.is_output_fp32_node("loss")


def test_bad_states_are_refused_and_change_nothing() -> None:
    model, weights = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters("AdamOptimizer"))
    with pytest.raises(InputError, match="shape"):
        session.load_state({"w_first": np.zeros((4, 8), np.float32), "bias": np.zeros(3)})
    np.testing.assert_array_equal(session.get_state()["w_first"], weights["w_first"])
    with pytest.raises(UnknownNameError, match="nobody"):
        session.load_state({"nobody": np.zeros(3)}, strict=True)
    with pytest.raises(ModelError, match="lacks"):
        session.load_state(weights, strict=True)
    session.load_state({"nobody": np.zeros(3)})
    made = parameters("AdamOptimizer")
    made.set_optimizer_initial_state({"bias": {"Moment_3": np.zeros(8)}})
    with pytest.raises(UnknownNameError, match="Moment_3"):
        TrainingSession(model.SerializeToString(), made)
    made.set_optimizer_initial_state(
        {"bias": {"Update_Count": np.array([3])}, "w_first": {"Update_Count": np.array([4])}}
    )
    with pytest.raises(InputError, match="differs"):
        TrainingSession(model.SerializeToString(), made)


# -- files and fields ------------------------------------------------------------------------------


def test_graphs_are_written(tmp_path: Path) -> None:
    model, weights = mlp_with_loss()
    source = tmp_path / "model.onnx"
    onnx.save(model, source)
    made = parameters(
        "AdamOptimizer",
        model_after_graph_transforms_path=str(tmp_path / "transformed.onnx"),
        model_with_gradient_graph_path=str(tmp_path / "gradient.onnx"),
        model_with_training_graph_path=str(tmp_path / "training.onnx"),
    )
    session = TrainingSession(source, made)
    x, y = batches(1)[0]
    expected = session.run(["loss"], feeds(x, y, 0.01))
    for name in ("transformed", "gradient", "training"):
        onnx.checker.check_model(tmp_path / f"{name}.onnx", full_check=True)
    for name in ("transformed", "gradient"):
        other = onnxruntime.InferenceSession(
            tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"]
        )
        np.testing.assert_allclose(other.run(["loss"], {"X": x, "label": y}), expected, rtol=1e-6)
    (gradient,) = other.run(["bias_grad"], {"X": x, "label": y})
    np.testing.assert_allclose(
        gradient, numpy_gradients(weights, x, y)["bias"], rtol=1e-4, atol=1e-6
    )
    training = onnx.load(tmp_path / "training.onnx")
    assert {n.domain for n in training.graph.node} == {""}
    assert "onnxtrain.weights.updated" in [o.name for o in training.graph.output]


DEFAULTS = {
    "loss_output_name": "", "weights_to_train": set(), "weights_not_to_train": set(),
    "training_optimizer_name": "", "lr_params_feed_name": "Learning_Rate",
    "optimizer_attributes_map": {}, "optimizer_int_attributes_map": {}, "loss_scale": 0.0,
    "world_rank": 0, "world_size": 1, "gradient_accumulation_steps": 1, "data_parallel_size": 1,
    "horizontal_parallel_size": 1, "pipeline_parallel_size": 1, "num_pipeline_micro_batches": 1,
    "pipeline_cut_info_string": "", "deepspeed_zero_stage": 0, "enable_grad_norm_clip": True,
    "propagate_cast_ops_level": 1, "propagate_cast_ops_allow": [],
    "model_after_graph_transforms_path": "", "model_with_gradient_graph_path": "",
    "model_with_training_graph_path": "", "use_mixed_precision": False,
    "allreduce_post_accumulation": False, "set_gradients_as_graph_outputs": False,
}  # fmt: skip


def test_defaults() -> None:
    made = TrainingParameters()
    assert {name: getattr(made, name) for name in DEFAULTS} == DEFAULTS
    assert TrainingParameters().weights_to_train is not made.weights_to_train


BAD = {
    "world_size": 2, "world_rank": 1, "data_parallel_size": 2, "horizontal_parallel_size": 2,
    "pipeline_parallel_size": 2, "num_pipeline_micro_batches": 4, "deepspeed_zero_stage": 1,
    "pipeline_cut_info_string": "a:b", "enable_adasum": True, "sliced_schema": {"a": [1]},
    "sliced_axes": {"a": 0}, "sliced_tensor_names": ["a"], "use_fp16_moments": True,
    "gradient_accumulation_steps": 0, "loss_scale": -1.0,
    "training_optimizer_name": "AdagradOptimizer",
}  # fmt: skip


@pytest.mark.parametrize("field", BAD)
def test_values_that_cannot_be_honoured(field: str) -> None:
    model, _ = mlp_with_loss()
    with pytest.raises(ParameterError, match=field):
        TrainingSession(model.SerializeToString(), parameters(**{field: BAD[field]}))


def test_mistakes_are_named() -> None:
    model, _ = mlp_with_loss()
    content = model.SerializeToString()
    made = TrainingParameters()
    with pytest.raises(AttributeError, match="Did you mean 'loss_output_name'"):
        made.loss_output = "loss"
    with pytest.raises(AttributeError, match="Did you mean 'weights_to_train'"):
        _ = made.weight_to_train
    with pytest.raises(UnknownNameError, match="cost"):
        TrainingSession(content, parameters(loss_output_name="cost"))
    with pytest.raises(UnknownNameError, match="w9"):
        TrainingSession(content, parameters(weights_to_train={"w9"}))
    with pytest.raises(ParameterError, match="and in weights_not_to_train"):
        TrainingSession(
            content, parameters(weights_to_train={"bias"}, weights_not_to_train={"bias"})
        )
    with pytest.raises(ParameterError, match="Did you mean 'alpha'"):
        TrainingSession(
            content, parameters("AdamOptimizer", optimizer_attributes_map={"bias": {"alfa": 1.0}})
        )
    with pytest.raises(UnknownNameError, match="w9"):
        TrainingSession(content, parameters(optimizer_attributes_map={"w9": {}}))
    with pytest.raises(ModelError, match="lr_params_feed_name"):
        TrainingSession(content, parameters(lr_params_feed_name="X"))
    with pytest.raises(InputError, match="TrainingParameters"):
        TrainingSession(content, {"loss_output_name": "loss"})  # type: ignore[arg-type]
    session = TrainingSession(content, parameters())
    x, y = batches(1)[0]
    with pytest.raises(InputError, match="Learning_Rate"):
        session.run(None, {"X": x, "label": y})
    with pytest.raises(InputError, match="more"):
        session.run(None, {**feeds(x, y, 0.1), "more": x})
    with pytest.raises(InputError, match="float32"):
        session.run(None, feeds(x.astype(np.float64), y, 0.1))
    with pytest.raises(InputError, match="axis 1"):
        session.run(None, feeds(x[:, :2], y, 0.1))
    with pytest.raises(UnknownNameError, match="cost"):
        session.run(["cost"], feeds(x, y, 0.1))


def test_public_names() -> None:
    assert onnxtrain.TrainingSession is TrainingSession


# -- Dropout ---------------------------------------------------------------------------------------


def dropout_model() -> bytes:
    return parse(
        """g (float[N,4] X, float[N,1] label) => (float loss, bool[N,32] mask)
            <float ratio = {0.5}, bool on = {1}> {
            h = MatMul(X, w)
            [drop] d, mask = Dropout(h, ratio, on)
            y = MatMul(d, v)
            e = Sub(y, label)
            s = Mul(e, e)
            loss = ReduceMean<keepdims=0>(s)
        }""",
        {
            "w": np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32),
            "v": np.full((32, 1), 0.1, np.float32),
        },
    ).SerializeToString()


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_dropout_goes_on_exactly_from_a_state(optimizer: str, accumulation: int) -> None:
    fields = {"gradient_accumulation_steps": accumulation, "weights_to_train": {"w", "v"}}

    def make() -> TrainingSession:
        return TrainingSession(dropout_model(), parameters(optimizer, **fields))

    data = batches(12)

    def run(session: TrainingSession, part: Any) -> list[Any]:
        return [session.run(None, feeds(x, y, 0.01)) for x, y in part]

    whole, first, again = make(), make(), make()
    first.load_state(whole.get_state(), strict=True)  # the same seed
    expected = run(whole, data)
    found = run(first, data[:6])
    state = first.get_state()
    assert state["onnxtrain.random"][1] == 6
    assert "onnxtrain.random" not in {i.name for i in first.get_inputs()}
    again.load_state(state, strict=True)
    found += run(again, data[6:])
    for a, b in zip(found, expected):
        assert all(np.array_equal(p, q) for p, q in zip(a, b))
    assert len({mask.tobytes() for _, mask in expected}) == 12
    for name, value in whole.get_state().items():
        assert np.array_equal(value, again.get_state()[name]), name
    without = {n: v for n, v in state.items() if n != "onnxtrain.random"}
    make().load_state(without, strict=True)  # of an earlier release


def test_dropout_follows_the_seed_of_onnxruntime() -> None:
    def run(seed: int) -> Any:
        onnxruntime.set_seed(seed)
        session = TrainingSession(dropout_model(), parameters(weights_to_train={"w"}))
        x, y = np.ones((6, 4), np.float32), np.ones((6, 1), np.float32)
        return session.run(["mask"], feeds(x, y, 0.0))[0]

    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


def test_dropout_with_a_binding_counts_too() -> None:
    session = TrainingSession(dropout_model(), parameters(weights_to_train={"w"}))
    x, y = np.ones((6, 4), np.float32), np.ones((6, 1), np.float32)
    binding = session.io_binding()
    for name, value in feeds(x, y, 0.0).items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("mask")
    masks = []
    for _ in range(3):
        session.run_with_iobinding(binding)
        masks.append(binding.copy_outputs_to_cpu()[0].tobytes())
    assert len(set(masks)) == 3
    assert session.get_state()["onnxtrain.random"][1] == 3
