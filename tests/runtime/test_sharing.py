"""Threads and processes that share what is trained.

In the even model all weights are equal before and after every update, whatever the optimizer: a
weight that differs is one that was read or written in the middle of a step.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import threading
import time

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from onnxtrain import optim
from onnxtrain.api import (
    CheckpointState,
    EarlyStopping,
    LinearLRScheduler,
    Module,
    Optimizer,
    SaveCheckpoint,
    Trainer,
)
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.errors import SharingError
from onnxtrain.runtime.session.binding import Binding
from onnxtrain.runtime.session.devices import Device
from onnxtrain.runtime.step import kernels
from onnxtrain.runtime.step.evaluator import Evaluator
from onnxtrain.runtime.step.one_graph import OneGraphStep
from onnxtrain.runtime.step.update import load_optimizer
from tests.sharing import ChildError, in_child, needs_fork, repeat, together

from . import handmade

pytestmark = pytest.mark.slow

SIZE = 1 << 19  # more than one piece of an update; gradients are sums of powers of two
RATE = SIZE / 100  # an update takes off 2 %
ONE, ZEROS = np.ones((1, 1), np.float32), np.zeros((1, SIZE), np.float32)


@pytest.fixture(autouse=True)
def _no_numba(monkeypatch):
    """Compiling takes longer than these tests; a graph in pieces is the harder case."""
    monkeypatch.setenv("ONNXTRAIN_NO_NUMBA", "1")


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 1] x) => (float[N, {SIZE}] y) <float[1, {SIZE}] w> {{ y = Mul(x, w) }}"""
    )
    weight = onnx.numpy_helper.from_array(np.full((1, SIZE), 0.5, np.float32), "w")
    model.graph.initializer.append(weight)
    folder = tmp_path_factory.mktemp("even")
    generate_artifacts(
        model,
        requires_grad=["w"],
        loss=LossType.MSELoss,
        optimizer=optim.sgd(),
        artifact_directory=folder,
        step_model=True,
        additional_output_names=["y"],
    )
    return handmade.Artifacts(folder)


def parts(artifacts, rate=0.001):
    state = artifacts.state()
    module = Module(artifacts.train, state, artifacts.eval)
    optimizer = Optimizer(artifacts.optimizer, module)
    optimizer.set_learning_rate(rate)
    return state, module, optimizer


def is_even(array):
    return bool((array == array.reshape(-1)[0]).all())


def train_until(seconds, step):
    """A function that makes steps for a while."""

    def work():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            step()

    return work


# --- Module, Optimizer ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [5, 3000], ids=["copied inputs", "bound inputs"])
def test_a_module_is_evaluated_from_three_threads(artifacts, rows):
    module = Module(artifacts.train, artifacts.state(), artifacts.eval).eval()
    batches = [handmade.batch(seed, rows + seed) for seed in range(3)]
    expected = [module(*batch) for batch in batches]

    def evaluate(batch, right):
        for out, good in zip(module(*batch), right):
            np.testing.assert_array_equal(out, good)

    times = 3000 if rows == 5 else 100
    together(*(repeat(times, lambda i=i: evaluate(batches[i], expected[i])) for i in range(3)))


def test_gradients_of_several_threads_add_up(even):
    """Each call adds its gradient, 2·w·x²/n, whichever thread it comes from."""
    state, module, _ = parts(even)
    module(0 * ONE, ZEROS)
    together(*(repeat(20, lambda x=x * ONE: module(x, ZEROS)) for x in (1, 2, 4)))
    expected = np.full((1, SIZE), 20 * (1 + 4 + 16) / SIZE, np.float32)
    np.testing.assert_array_equal(state.parameters["w"].grad, expected)


def test_updates_of_several_threads_follow_one_another(even, monkeypatch):
    run, inside = Binding.run, []

    def slow(binding):
        inside.append(binding)
        time.sleep(0.002)
        assert len(inside) == 1, "two updates at once"
        run(binding)
        inside.pop()

    monkeypatch.setattr(Binding, "run", slow)
    state, module, optimizer = parts(even)
    optimizer.set_learning_rate(2.0**-20)
    module(ONE, ZEROS)
    weights, gradients = state.parameters["w"].data, state.parameters["w"].grad
    gradients[...] = 1.0
    together(*[repeat(10, optimizer.step)] * 3)
    assert optimizer.step_count == 30
    np.testing.assert_array_equal(weights, np.full_like(weights, 0.5 - 30 * 2.0**-20))


def test_steps_and_updates_of_different_threads(even):
    state, module, optimizer = parts(even, RATE)

    def step():
        module.lazy_reset_grad()
        module(ONE, ZEROS)

    together(train_until(1.0, step), train_until(1.0, optimizer.step))
    assert is_even(state.parameters["w"].data)
    assert is_even(state.parameters["w"].grad)


def test_nobody_sees_half_a_step(even, tmp_path):
    """While one thread trains, others evaluate, save, export, read and write the weights."""
    state, module, optimizer = parts(even, RATE)
    evaluating = Module(even.train, state, even.eval).eval()
    seen = dict.fromkeys(("eval", "save", "export", "vector", "write", "pickle"), 0)

    def train():
        module.lazy_reset_grad()
        module(ONE, ZEROS)
        optimizer.step()

    def note(name, array):
        assert is_even(array), f"{name} saw half a step"
        seen[name] += 1

    def evaluate():
        note("eval", evaluating(ONE, ZEROS)[1])

    def save():
        CheckpointState.save_checkpoint(state, tmp_path / "c", include_optimizer_state=True)
        note("save", CheckpointState.load_checkpoint(tmp_path / "c").parameters["w"].data)
        note("pickle", pickle.loads(pickle.dumps(state)).parameters["w"].data)

    def export():
        evaluating.export_model_for_inferencing(tmp_path / "m.onnx", ["y"])
        session = onnxruntime.InferenceSession(
            (tmp_path / "m.onnx").read_bytes(), providers=["CPUExecutionProvider"]
        )
        note("export", session.run(None, {"x": ONE})[0])

    numbers = itertools.count(1)

    def write():
        value = np.full((1, SIZE), 1.0 / next(numbers), np.float32)
        state.parameters["w"].data = value
        with state.lock:
            note("vector", np.array(evaluating.get_contiguous_parameters().numpy()))
        module.copy_buffer_to_parameters(value.reshape(-1))
        seen["write"] += 1

    together(*(train_until(1.5, work) for work in (train, evaluate, save, export, write)))
    assert all(seen.values()), seen
    assert is_even(state.parameters["w"].data)


def test_a_reset_in_the_middle_of_a_step_counts_for_the_next_one(even, monkeypatch):
    state, module, _ = parts(even)
    module(ONE, ZEROS)
    once = state.parameters["w"].grad.copy()
    worker = threading.Thread(target=module.lazy_reset_grad, daemon=True)
    run = Binding.run

    def slow(binding):
        run(binding)
        if worker.ident is None:
            worker.start()
            worker.join(0.2)

    monkeypatch.setattr(Binding, "run", slow)
    module(ONE, ZEROS)
    worker.join()
    np.testing.assert_array_equal(state.parameters["w"].grad, 2 * once)
    module(ONE, ZEROS)
    np.testing.assert_array_equal(state.parameters["w"].grad, once)


def test_parallel_kernels_run_one_after_the_other():
    """With the threads that numba brings along, two at once abort the process."""
    inside = []

    def kernel(number):
        inside.append(number)
        time.sleep(0.002)
        assert inside == [number]
        inside.pop()

    alone = kernels._one_at_a_time(kernel)
    together(*(repeat(5, lambda i=i: alone(i)) for i in range(3)))


# --- Trainer --------------------------------------------------------------------------------------

ROWS = 20
DATA = (np.ones((ROWS, 1), np.float32), np.zeros((ROWS, SIZE), np.float32))


@pytest.mark.parametrize("step", [True, False], ids=["one graph", "parts"])
def test_a_trainer_is_asked_while_it_trains(even, tmp_path, step):
    trainer = Trainer(
        even.train,
        even.optimizer,
        even.state(),
        even.eval,
        even.step if step else None,
        scheduler=lambda o: LinearLRScheduler(o, 5, 500, RATE),
        metrics=["mse"],
    )
    done, checked = threading.Event(), 0

    def fit():
        try:
            trainer.fit(DATA, epochs=6, batch_size=2, progress=False)
        finally:
            done.set()

    def ask():
        nonlocal checked
        while not done.is_set():
            assert is_even(trainer.predict(ONE))
            found = trainer.evaluate((ONE, ZEROS))
            assert found["loss"] == pytest.approx(found["mse"], rel=1e-3)
            trainer.save(tmp_path / "c")
            trainer.export(tmp_path / "m.onnx")
            state = CheckpointState.load_checkpoint(tmp_path / "c")
            told = state.training_state.trainer
            assert is_even(state.parameters["w"].data)
            assert state.training_state.optimizer.step == told["epoch"] * 10 + told["batch"]
            assert state.training_state.scheduler["count"] == state.training_state.optimizer.step
            checked += 1

    together(fit, ask)
    assert checked
    assert trainer.step == 60
    assert trainer.history["loss"][-1] < 0.5 * trainer.history["loss"][0]
    assert len(trainer.history["loss"]) == 6


def test_a_second_fit_is_refused_while_the_first_one_runs(artifacts):
    trainer = Trainer(artifacts.train, artifacts.optimizer, artifacts.state(), artifacts.eval)
    data = handmade.batch(0, 8)
    inside, refused = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        assert refused.wait(30)

    def second():
        assert inside.wait(30)
        try:
            with pytest.raises(SharingError, match="fit is running already"):
                trainer.fit(data, progress=False)
        finally:
            refused.set()

    together(lambda: trainer.fit(data, epochs=2, callbacks=[wait], progress=False), second)
    assert len(trainer.history["loss"]) == 2


def test_evaluations_of_several_threads_do_not_mix(artifacts):
    """Metrics are counters that belong to the trainer."""
    trainer = Trainer(
        artifacts.train, artifacts.optimizer, artifacts.state(), artifacts.eval, metrics=["mse"]
    )
    data = [handmade.batch(seed, 20 + seed) for seed in range(3)]
    expected = [(trainer.evaluate(d, 8), trainer.predict(d, 8)) for d in data]

    def ask(i):
        found, out = trainer.evaluate(data[i], 8), trainer.predict(data[i], 8)
        assert found == expected[i][0]
        np.testing.assert_array_equal(out, expected[i][1])

    together(*(repeat(100, lambda i=i: ask(i)) for i in range(3)))


def test_a_fit_inside_a_fit_is_refused_and_the_trainer_lives_on(artifacts):
    trainer = Trainer(artifacts.train, artifacts.optimizer, artifacts.state(), artifacts.eval)
    data = handmade.batch(0, 8)
    with pytest.raises(SharingError, match="fit is running already"):
        trainer.fit(data, callbacks=[lambda t, _: t.fit(data)], progress=False)
    assert len(trainer.fit(data, epochs=2, progress=False)["loss"]) == 2


def test_a_callback_may_wait_for_another_thread(artifacts):
    """Callbacks run without the lock."""
    trainer = Trainer(artifacts.train, artifacts.optimizer, artifacts.state(), artifacts.eval)
    data, answers = handmade.batch(0, 8), []

    def ask(trainer, _):
        worker = threading.Thread(
            target=lambda: answers.append(trainer.evaluate(data)), daemon=True
        )
        worker.start()
        worker.join(30)

    trainer.fit(data, epochs=3, callbacks=[ask], progress=False)
    assert len(answers) == 3


def test_the_lock_makes_several_calls_one(even):
    """Two threads train one network; nobody's gradient gets into the other's update."""
    state, module, optimizer = parts(even, RATE)

    def train():
        with state.lock:
            before = state.parameters["w"].data[0, 0]
            module.lazy_reset_grad()
            module(ONE, ZEROS)
            gradient = state.parameters["w"].grad[0, 0]
            optimizer.step()
            after = state.parameters["w"].data[0, 0]
        assert after == pytest.approx(before - RATE * gradient, rel=1e-6)
        assert after == pytest.approx(0.98 * before, rel=1e-5)

    together(*[repeat(15, train)] * 3)
    assert optimizer.step_count == 45


# --- processes ------------------------------------------------------------------------------------


def step_of(artifacts, state):
    return OneGraphStep(
        artifacts.step, state.training_state, load_optimizer(artifacts.optimizer), Device("cpu")
    )


def evaluator_of(artifacts, state):
    return Evaluator(artifacts.eval, state.training_state, Device("cpu"), with_loss=False)


X, Y = handmade.batch()
OBJECTS = {
    "Module": (lambda a: parts(a)[1], lambda m: m(X, Y), "CheckpointState"),
    "Optimizer": (lambda a: parts(a)[2], lambda o: o.step(), "CheckpointState"),
    "Trainer": (
        lambda a: Trainer(a.train, a.optimizer, a.state(), a.eval),
        lambda t: t.fit((X, Y), progress=False),
        "Trainer.save",
    ),
    "OneGraphStep": (lambda a: step_of(a, a.state()), lambda s: s([X, Y]), "CheckpointState"),
    "Evaluator": (lambda a: evaluator_of(a, a.state()), lambda e: e([X]), "CheckpointState"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_has_sessions_cannot_be_pickled_and_says_what_can(artifacts, name):
    make, _, remedy = OBJECTS[name]
    thing = make(artifacts)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SharingError, match=f"{name} cannot be pickled") as caught:
            attempt(thing)
        assert remedy in str(caught.value)
        assert isinstance(caught.value, TypeError)


@needs_fork
@pytest.mark.parametrize("name", OBJECTS)
def test_what_has_sessions_refuses_to_work_after_a_fork(artifacts, name):
    make, use, remedy = OBJECTS[name]
    thing = make(artifacts)
    use(thing)
    with pytest.raises(ChildError, match=f"{name} was made before the process was fork") as caught:
        in_child(lambda: use(thing))
    assert caught.value.args[0] == "SharingError"
    assert remedy in str(caught.value)
    use(thing)  # here it works on


@needs_fork
def test_a_forked_process_goes_on_with_the_state(artifacts):
    state, module, optimizer = parts(artifacts)
    module(X, Y)
    optimizer.step()

    def go_on():
        again = Module(artifacts.train, state, artifacts.eval)
        loss = again(X, Y)[0]
        Optimizer(artifacts.optimizer, again).step()
        return float(loss), state.parameters["W1"].data.copy(), state.training_state.optimizer.step

    def here():
        module.lazy_reset_grad()
        loss = module(X, Y)[0]
        optimizer.step()
        return float(loss), state.parameters["W1"].data.copy(), state.training_state.optimizer.step

    there = in_child(go_on)
    for expected, found in zip(here(), there):
        np.testing.assert_array_equal(expected, found)


@needs_fork
def test_sessions_of_the_parent_may_be_forgotten_in_a_child(artifacts):
    """Ending one would wait for threads that are not there."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    things = [Module(artifacts.train, artifacts.state(), artifacts.eval, session_options=options)]
    things[0].eval()(X, Y)

    def forget():
        import gc

        things.clear()
        gc.collect()
        return "alive"

    assert in_child(forget) == "alive"


@needs_fork
def test_a_state_that_is_in_the_middle_of_a_step_is_refused_in_a_child(artifacts):
    state, module, _ = parts(artifacts)
    holding, release = threading.Event(), threading.Event()

    def hold():
        with state.lock:
            holding.set()
            release.wait(60)

    worker = threading.Thread(target=hold, daemon=True)
    worker.start()
    try:
        holding.wait(60)
        with pytest.raises(ChildError, match="half old and half new"):
            in_child(lambda: pickle.dumps(state))
        with pytest.raises(ChildError, match="half old and half new"):
            in_child(lambda: in_child(lambda: pickle.dumps(state)))
    finally:
        release.set()
        worker.join()
    with state.lock:  # held by the thread that forks: it knows where it is
        assert in_child(lambda: len(pickle.dumps(state))) > 0
    module(X, Y)


def test_a_pickled_state_has_everything_that_a_checkpoint_has(artifacts):
    state, module, optimizer = parts(artifacts)
    scheduler = LinearLRScheduler(optimizer, 2, 10, 0.1)
    for _ in range(3):
        module.lazy_reset_grad()
        module(X, Y)
        optimizer.step()
        scheduler.step()
    state.properties["epoch"] = 4
    for found in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        assert found.properties["epoch"] == 4
        assert found.training_state.optimizer.step == 3
        assert (
            found.training_state.optimizer.learning_rate
            == state.training_state.optimizer.learning_rate
        )
        assert found.training_state.scheduler == state.training_state.scheduler
        for name, parameter in state.parameters:
            np.testing.assert_array_equal(found.parameters[name].data, parameter.data)
        again = Module(artifacts.train, found)
        Optimizer(artifacts.optimizer, again)
        again(X, Y)
    nominal = CheckpointState.nominal(["w"], [])
    assert pickle.loads(pickle.dumps(nominal)).is_nominal


def test_a_state_pickles_while_the_one_graph_step_trains(artifacts):
    state = artifacts.state()
    step = step_of(artifacts, state)
    step([X, Y])
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(state)).parameters["W1"].data, state.parameters["W1"].data
    )


def test_callbacks_and_schedules_do_not_pickle_the_trainer_in_secret(artifacts, tmp_path):
    """What has no sessions pickles as it always did; what leads to them says so."""
    assert pickle.loads(pickle.dumps(EarlyStopping(patience=3))).patience == 3
    pickle.dumps(SaveCheckpoint(tmp_path / "c"))
    with pytest.raises(SharingError, match="Optimizer cannot be pickled"):
        pickle.dumps(LinearLRScheduler(parts(artifacts)[2], 1, 5, 0.1))
