"""Files and numbers that Python and JavaScript exchange."""

import json
import math

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.runtime.loop import schedulers
from onnxtrain.runtime.state.checkpoint_state import OptimizerState, RandomState
from onnxtrain.runtime.state.seeds import seed_of

from . import cases, tools


class FakeOptimizer:
    rate = 0.5

    def get_learning_rate(self):
        return self.rate

    def set_learning_rate(self, rate):
        self.rate = rate


SCHEDULES = [
    ("LinearLRScheduler", (3, 10, 0.4)),
    ("StepLR", (2, 0.3)),
    ("CosineAnnealingLR", (6, 0.01)),
]


def rates(name, args):
    optimizer = FakeOptimizer()
    schedule = getattr(schedulers, name)(optimizer, *args)
    found = []
    for _ in range(12):
        found.append(optimizer.rate)
        schedule.step()
    return {"name": name, "args": args, "rates": found}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "mlp"
    cases.write("mlp", made)
    state = CheckpointState.from_arrays(
        {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "é": np.ones(5, np.float32)},
        {"running": np.arange(3, dtype=np.float64), "count": np.array([7], np.int64)},
    )
    state.properties["whole"], state.properties["float"] = 3, 1.0
    state.properties["huge"], state.properties["nan"] = 2**62, math.nan
    state.properties["inf"], state.properties["text"] = math.inf, 'a "quoted" {é}, text'
    state.training_state.random = RandomState(2**63 + 1, 2**40, 2**62 + 1)
    state.training_state.optimizer = OptimizerState("AdamW", 12, 0.25)
    for kind in ("first", "second"):
        state.training_state.optimizer.states[kind] = state.training_state.trainable.like()
        state.training_state.optimizer.states[kind].view("w")[...] = 3.0
    state.training_state.scheduler = {"scheduler": "StepLR", "count": 4}
    state.training_state.trainer = {"epoch": 2}
    CheckpointState.save_checkpoint(state, made / "state", include_optimizer_state=True)
    seeds = [(0, 1, "drop"), (2**64 - 1, 3, "a/b"), (5, 2**40, "é")]
    wanted = {
        "artifacts": ["training_model.onnx", "eval_model.onnx", "checkpoint"],
        "seeds": [(str(s), str(g), n, seed_of(RandomState(s, g), n)) for s, g, n in seeds],
        "schedules": [rates(*s) for s in SCHEDULES],
    }
    (made / "wanted.json").write_text(json.dumps(wanted))
    return made


def test_javascript_reads_and_writes_what_python_does(folder):
    (found,) = tools.run_node("formats.mjs", tools.LIBRARY, folder, tools.modules())
    assert found == {"done": True}
    state = CheckpointState.load_checkpoint(folder / "back")
    np.testing.assert_array_equal(state.parameters["w"].data, 2 * np.arange(6.0).reshape(2, 3))
    assert state.parameters["running"].data.dtype == np.float64
    assert state.parameters["count"].data.tolist() == [7]
    properties = dict(state.properties)
    assert math.isnan(properties.pop("nan"))
    assert properties == {
        "whole": 3, "float": 1.0, "huge": 2**62, "inf": math.inf, "endless": -math.inf,
        "text": 'a "quoted" {é}, text', "new": 2.5,
    }  # fmt: skip
    assert isinstance(properties["float"], float)
    assert isinstance(properties["whole"], int)
    assert state.training_state.random == RandomState(2**63 + 1, 2**40, 2**62 + 1)
    optimizer = state.training_state.optimizer
    assert (optimizer.name, optimizer.step, optimizer.learning_rate) == ("AdamW", 12, 0.25)
    assert optimizer.states["second"].view("w").min() == 3.0
    assert state.training_state.scheduler == {"scheduler": "StepLR", "count": 4}
    assert state.training_state.trainer == {"epoch": 2}
    check_schedule(folder)


def check_schedule(folder):
    """A schedule that JavaScript began under Python's name for it."""
    state = CheckpointState.load_checkpoint(folder / "scheduled")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    rate = optimizer.get_learning_rate()
    schedule = schedulers.ExponentialLR(optimizer, 0.9)
    assert schedule.resume()
    assert schedule.count == 3
    assert optimizer.get_learning_rate() == pytest.approx(rate, rel=1e-12)
    assert rate == pytest.approx(0.001 * 0.9**3, rel=1e-12)
