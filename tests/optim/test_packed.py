"""Moments in fewer bits: near the float32 ones, exact on resume, refused where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxtrain import artifacts, losses, optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.artifacts.choose import ArtifactError
from onnxtrain.artifacts.device import device_file
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.data import digits
from onnxtrain.errors import CheckpointError, ModelFileError
from onnxtrain.optim import OptimizerError, packed
from onnxtrain.runtime.step import kernels
from onnxtrain.runtime.step.update import load_optimizer

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
SIZE = 700
"""Two full blocks and a part of one."""


def update(optimizer: optim.Optimizer) -> ort.InferenceSession:
    model = ir.to_proto(optim.flat_model(optimizer))
    return ort.InferenceSession(model.SerializeToString())


def states_of(kind: str, size: int = SIZE) -> dict[str, Array]:
    types = {"int8": (np.int8, np.uint8), "float16": (np.float16, np.float16)}[kind]
    blocks = -(-size // packed.BLOCK)
    return {
        "first_order_moments": np.zeros(size, types[0]),
        "first_order_moments.scale": np.zeros(blocks, np.float32),
        "second_order_moments": np.zeros(size, types[1]),
        "second_order_moments.scale": np.zeros(blocks, np.float32),
    }


def gradients(steps: int) -> list[Array]:
    rng = np.random.default_rng(0)
    size = 10.0 ** rng.uniform(-3, 0, SIZE)  # of very different sizes in one block
    return [(rng.normal(0.3, 1, SIZE) * size).astype(np.float32) for _ in range(steps)]


def run_graph(optimizer: optim.Optimizer, kind: str, steps: int) -> tuple[Array, dict[str, Array]]:
    session, states = update(optimizer), states_of(kind)
    params = np.ones(SIZE, np.float32)
    for step, gradient in enumerate(gradients(steps), 1):
        feeds = {"learning_rate": np.array([0.01], np.float32), "step": np.array([step]),
                 "grad_scale": np.ones(1, np.float32), "params": params, "gradients": gradient,
                 **states}  # fmt: skip
        if optimizer.decays:
            feeds["weight_decay"] = np.array([optimizer.weight_decay], np.float32)
        params, *new = session.run(None, feeds)
        states = dict(zip(states, new))
    return params, states


def adam(steps: int) -> Array:
    m, v, p = np.zeros(SIZE), np.zeros(SIZE), np.ones(SIZE)
    for t, g in enumerate(gradients(steps), 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.astype(np.float64) ** 2
        p = p - 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return p


@pytest.mark.parametrize(("kind", "tolerance"), [("float16", 0.002), ("int8", 0.1)])
def test_steps_are_near_those_of_float32(kind: Any, tolerance: float) -> None:
    params, states = run_graph(optim.adam(moments=kind), kind, 40)
    moved = np.abs(adam(40) - 1)
    assert np.abs(params - adam(40)).mean() < tolerance * moved.mean()
    assert (states["second_order_moments"] > 0).all()  # never a step over zero


def test_averages_do_not_stand_still() -> None:
    """A gradient that doubles: rounded to the nearest, the second moment would never grow."""
    session, states = update(optim.adam(moments="int8")), states_of("int8")
    params = np.zeros(SIZE, np.float32)
    for step in range(1, 4001):
        gradient = np.full(SIZE, 1.0 if step <= 1000 else 1.5, np.float32)
        gradient[::256] = 8.0  # the largest of each block, which sets its scale
        feeds = {"learning_rate": np.array([0.0], np.float32), "step": np.array([step]),
                 "grad_scale": np.ones(1, np.float32), "params": params, "gradients": gradient,
                 **states}  # fmt: skip
        _, *new = session.run(None, feeds)
        states = dict(zip(states, new))
    share = states["second_order_moments"][1:256].astype(np.float64) / 255
    second = states["second_order_moments.scale"][0] * share**8
    assert abs(second.mean() / 2.18 - 1) < 0.05  # 2.25·(1 − 0.999³⁰⁰⁰) + 0.63·0.999³⁰⁰⁰


@pytest.mark.skipif(not kernels.available(), reason="numba is not installed")
@pytest.mark.parametrize(
    "optimizer",
    [
        optim.adamw_8bit(),
        optim.adamw_8bit(preset="torch", weight_decay=0.1),
        optim.adam_8bit(weight_decay=0.1, clip=optim.ClipValue(0.5)),
    ],
    ids=lambda o: o.name,
)
def test_the_kernel_does_what_the_graph_does(optimizer: optim.Optimizer, monkeypatch: Any) -> None:
    monkeypatch.setattr(kernels, "COMPILED_PARAMETERS", 0)
    expected, codes = run_graph(optimizer, "int8", 12)
    kernel = kernels.find_packed(optim.describe(optimizer), SIZE)
    assert kernel is not None
    params, states = np.ones(SIZE, np.float32), states_of("int8")
    for step, gradient in enumerate(gradients(12), 1):
        kernel(step, 0.01, optimizer.weight_decay, 1.0, params, gradient, *states.values())
    np.testing.assert_allclose(params, expected, rtol=2e-3, atol=1e-5)
    for name, array in states.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, codes[name], rtol=1e-2)
        else:
            assert (array == codes[name]).mean() > 0.99


def test_both_sides_draw_alike() -> None:
    assert (packed.BLOCK, packed.GOLDEN) == (kernels.BLOCK, kernels.GOLDEN)
    np.testing.assert_array_equal(packed.PLACES, kernels.PLACES)


# --- whole trainings ------------------------------------------------------------------------------


def make(folder: Path, optimizer: Any) -> Path:
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        digits_network(), loss=losses.CrossEntropyLoss(), optimizer=optimizer,
        artifact_directory=folder, step_model=True,
    )  # fmt: skip
    return folder


def test_the_curve_is_that_of_float32_and_a_resume_is_exact(tmp_path: Path) -> None:
    x, y = digits()
    x, y = x[:512], y[:512]
    ends = {}
    for name, optimizer in {
        "float32": optim.adamw(),
        "int8": optim.adamw_8bit(),
        "float16": optim.adamw(moments="float16"),
    }.items():
        folder = make(tmp_path / name, optimizer)
        trainer = Trainer.from_directory(folder, learning_rate=2e-3)
        ends[name] = trainer.fit((x, y), 4, 32, progress=False)["loss"][-1]
        if name == "float32":
            continue
        halves = Trainer.from_directory(folder, learning_rate=2e-3)
        halves.fit((x, y), 2, 32, progress=False)
        halves.save(tmp_path / "half")
        again = Trainer.from_directory(folder, checkpoint=tmp_path / "half")
        again.fit((x, y), 4, 32, progress=False, resume=True)
        for key, value in trainer.state.parameters:
            np.testing.assert_array_equal(value.data, again.state.parameters[key].data)
    assert abs(ends["float16"] / ends["float32"] - 1) < 0.02
    assert abs(ends["int8"] / ends["float32"] - 1) < 0.15


def test_moments_take_a_quarter(tmp_path: Path) -> None:
    def moments(folder: Path) -> int:
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        stores = optimizer.training_state.need_optimizer().states.values()
        return sum(spec.nbytes for store in stores for spec in store.specs.values())

    whole, small = (
        moments(make(tmp_path / name, make_optimizer()))
        for name, make_optimizer in (("a", optim.adamw), ("b", optim.adamw_8bit))
    )
    assert small < 0.27 * whole


def test_a_checkpoint_of_other_moments_is_refused(tmp_path: Path) -> None:
    x, y = digits()
    plain, small = make(tmp_path / "a", optim.adamw()), make(tmp_path / "b", optim.adamw_8bit())
    trainer = Trainer.from_directory(plain)
    trainer.fit((x[:64], y[:64]), 1, 32, progress=False)
    trainer.save(tmp_path / "saved")
    state = CheckpointState.load_checkpoint(tmp_path / "saved")
    module = Module(small / "training_model.onnx", state)
    with pytest.raises(CheckpointError, match=r"shapes or types|has no"):
        Optimizer(small / "optimizer_model.onnx", module)


def test_where_it_cannot_be_is_told(tmp_path: Path) -> None:
    for message, call in (
        ("stand still", lambda: optim.adamw(moments="bfloat16")),  # type: ignore[arg-type]
        ("not 'int4'", lambda: optim.adamw(moments="int4")),  # type: ignore[arg-type]
        ("for Adam and AdamW", lambda: optim.sgd(momentum=0.9).with_moments("int8")),
        ("over sequences", lambda: optim.sequence_model(optim.adamw_8bit(), [("w", [2])])),
        ("larger graph", lambda: optim.tensor_model(optim.adamw_8bit(), [("w", [2])])),
    ):
        with pytest.raises(OptimizerError, match=message):
            call()
    folder = make(tmp_path / "a", optim.adamw_8bit())
    assert not (folder / "step_model.onnx").exists()
    with pytest.raises(ArtifactError, match="JavaScript"):
        device_file(folder)


@pytest.mark.parametrize("types", [{"first_order_moments": "I4"}, {"other": "I8"}, [1], {"a": 1}])
def test_types_that_there_are_not_are_refused(types: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "a", optim.adamw_8bit())
    model = onnx.load(folder / "optimizer_model.onnx")
    (entry,) = [p for p in model.metadata_props if p.key == "onnxtrain.optimizer"]
    entry.value = json.dumps({**json.loads(entry.value), "state_types": types})
    with pytest.raises(ModelFileError, match="state_types"):
        load_optimizer(model.SerializeToString())
