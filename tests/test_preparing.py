"""What takes longer than two seconds is told, once, and nothing else is."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from rich.console import Console

import onnxtrain
from onnxtrain import optim, preparing
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.cli import waiting
from onnxtrain.cli.output import Output
from onnxtrain.training import TrainingParameters, TrainingSession

NAME = "onnxtrain.preparing"


class Clock:
    """Time that passes when it is told to, and timers that follow it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def __call__(self) -> float:
        return self.now

    def timer(self, seconds: float, function: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(self.now + seconds, function))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in self.timers:
            if timer.is_running and timer.due <= self.now:
                timer.is_running = False
                timer.function()


class FakeTimer:
    daemon = False

    def __init__(self, due: float, function: Callable[[], None]) -> None:
        self.due, self.function, self.is_running = due, function, False

    def start(self) -> None:
        self.is_running = True

    def cancel(self) -> None:
        self.is_running = False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setenv("ONNXTRAIN_QUIET", "0")
    monkeypatch.setattr(preparing, "clock", fake)
    monkeypatch.setattr(preparing, "Timer", fake.timer)
    return fake


def test_what_is_short_is_not_told(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with preparing.preparing("making a session", 12):
            clock.pass_time(1.9)
    assert not caplog.records
    assert not any(timer.is_running for timer in clock.timers)


def test_what_is_long_is_told_while_it_lasts(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with preparing.preparing("preparing Net"):
        with preparing.preparing("exporting", 5):
            clock.pass_time(1.5)
        with preparing.preparing("making a session", lambda: 1234):
            clock.pass_time(0.6)
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert record.name == NAME
            assert record.getMessage() == (
                "Preparing Net: making a session (1,234 nodes). This takes more than 2 seconds and "
                "happens once; later steps do not wait for it. (ONNXTRAIN_QUIET=1 turns this "
                "message off.)"
            )
            clock.pass_time(4.0)
    assert [r.getMessage() for r in caplog.records[1:]] == ["Preparing Net: done after 6.1 s."]


def test_a_failure_is_not_called_done(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> int:
        raise OSError("gone")

    @preparing.preparing("reading", broken)
    def read() -> None:
        clock.pass_time(3.0)
        raise ValueError("no model")

    with pytest.raises(ValueError, match="no model"):
        read()
    assert [r.getMessage()[:9] for r in caplog.records] == ["Reading. "]
    with preparing.preparing("reading again"):  # a task of its own: nothing is left of the first
        clock.pass_time(1.0)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("how", ["variable", "level"])
def test_it_can_be_turned_off(
    how: str, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variable":
        monkeypatch.setenv("ONNXTRAIN_QUIET", "1")
    else:
        caplog.set_level(logging.ERROR, logger=NAME)
    with preparing.preparing("making a session"):
        clock.pass_time(9.0)
    assert not caplog.records
    assert not clock.timers


MODEL = """
    <ir_version: 8, opset_import: ["": 18]>
    g (float[N, 2] x) => (float loss) <float[2, 2] w = {1, 2, 3, 4}> {
        y = MatMul(x, w)  s = Mul(y, y)  loss = ReduceMean<keepdims=0>(s)
    }
"""


def by_differentiate(_: Any) -> None:
    onnxtrain.differentiate(onnx.parser.parse_model(MODEL))


def by_artifacts(folder: Any) -> None:
    model = onnx.parser.parse_model(MODEL)
    generate_artifacts(model, optimizer=optim.sgd(), artifact_directory=folder)


def by_module(folder: Any) -> None:
    by_artifacts(folder)
    state = onnxtrain.CheckpointState.load_checkpoint(folder / "checkpoint")
    onnxtrain.Module(folder / "training_model.onnx", state)


def by_training_session(_: Any) -> None:
    parameters = TrainingParameters()
    parameters.loss_output_name, parameters.training_optimizer_name = "loss", "SGDOptimizer"
    session = TrainingSession(onnx.parser.parse_model(MODEL).SerializeToString(), parameters)
    rate = np.array([0.1], np.float32)
    for _ in range(2):
        session.run(None, {"x": np.ones((1, 2), np.float32), "Learning_Rate": rate})


def by_ort_trainer(_: Any) -> None:
    torch = pytest.importorskip("torch")
    from onnxtrain.torch.optim import SGDConfig

    from onnxtrain.torch import ORTTrainer

    described = {"inputs": [("x", ["N", 2])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(onnx.parser.parse_model(MODEL), described, SGDConfig())
    for _ in range(2):
        trainer.train_step(torch.ones(1, 2))


def by_estimator(_: Any) -> None:
    regressor = pytest.importorskip("onnxtrain.sklearn").OnnxRegressor
    regressor(max_iter=1).fit(np.ones((4, 2), np.float32), np.arange(4.0))


WAYS = {
    "Differentiating the model": by_differentiate,
    "Generating training artifacts": by_artifacts,
    "Preparing the training model": by_module,
    "Preparing a TrainingSession": by_training_session,
    "ORTTrainer prepares its first step": by_ort_trainer,
    "Preparing a TrainingSession ": by_estimator,
}


@pytest.mark.parametrize("text", WAYS)
def test_every_way_in_tells(
    text: str, clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """As if every stage took three seconds."""
    timer = clock.timer

    def slow_timer(seconds: float, function: Callable[[], None]) -> FakeTimer:
        made = timer(seconds, function)
        made.start = lambda: (function(), clock.pass_time(3.0))  # type: ignore[method-assign,assignment]
        return made

    preparing.Timer = slow_timer  # type: ignore[assignment,misc]  # the fixture takes it back
    WAYS[text](tmp_path)
    told = [r.getMessage() for r in caplog.records if r.name == NAME]
    assert any(message.startswith(text.strip()) for message in told), told
    assert len(told) % 2 == 0  # each has an end
    assert len(told) <= 6, told


def test_a_running_trainer_says_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    by_artifacts(tmp_path)
    state = onnxtrain.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = onnxtrain.Module(tmp_path / "training_model.onnx", state)
    optimizer = onnxtrain.Optimizer(tmp_path / "optimizer_model.onnx", module)
    x = np.ones((1, 2), np.float32)
    for _ in range(2):
        module(x)
        optimizer.step()
    timers = len(clock.timers)
    for _ in range(3):
        module(x)
        optimizer.step()
    assert len(clock.timers) == timers


# --- on the command line --------------------------------------------------------------------------


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    monkeypatch.setattr(Output, "err", property(lambda _: console))
    return text


def test_a_terminal_shows_a_spinner(clock: Clock, screen: io.StringIO) -> None:
    with waiting.preparations_shown(Output()):
        with preparing.preparing("making a session", 1234):
            clock.pass_time(3.0)
        (handler,) = preparing.LOGGER.handlers
        assert handler.status is None  # type: ignore[attr-defined]
    assert "Making a session (1,234 nodes)" in screen.getvalue()
    assert "ONNXTRAIN_QUIET" not in screen.getvalue()
    assert not preparing.LOGGER.handlers
    assert preparing.LOGGER.propagate


def test_elsewhere_it_is_a_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with waiting.preparations_shown(Output()), preparing.preparing("making a session", 7):
        clock.pass_time(3.0)
    assert capsys.readouterr().err == "Making a session (7 nodes) …\n"
    with waiting.preparations_shown(Output(quiet=True)), preparing.preparing("making a session"):
        clock.pass_time(3.0)
    assert not capsys.readouterr().err


def test_beside_a_progress_bar_it_is_a_line(clock: Clock, screen: io.StringIO) -> None:
    output = Output()
    output.live = output.err
    with waiting.preparations_shown(output), preparing.preparing("making a session"):
        clock.pass_time(3.0)
    assert "Making a session …" in screen.getvalue()
