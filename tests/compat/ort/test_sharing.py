"""Sessions and agents that threads and processes share."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

from onnxtrain.errors import ExecutionError, SharingError
from onnxtrain.training import TrainingParameters, TrainingSession
from tests.compat.ort.models import Agent, mlp, parse
from tests.sharing import ChildError, in_child, needs_fork, repeat, together

SIZE = 1 << 17
LR = np.array([SIZE / 128], np.float32)


def session():
    """All weights are equal before and after a step, which takes 1/64 off them."""
    model = parse(
        f"""g (float[1, 1] x) => (float loss, float[1, {SIZE}] y) {{
            y = Mul(x, w)  s = Mul(y, y)  loss = ReduceMean<keepdims=0>(s)
        }}""",
        {"w": np.full((1, SIZE), 0.5, np.float32)},
    )
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.training_optimizer_name = "SGDOptimizer"
    return TrainingSession(model.SerializeToString(), parameters)


FEEDS = {"x": np.ones((1, 1), np.float32), "Learning_Rate": LR}


def is_even(array):
    return bool((array == array.reshape(-1)[0]).all())


@pytest.mark.parametrize("bound", [False, True], ids=["run", "binding"])
def test_steps_of_several_threads_follow_one_another(bound):
    alone, shared = session(), session()
    for _ in range(60):
        alone.run(["loss"], FEEDS)

    def train():
        if not bound:
            assert is_even(shared.run(["y"], FEEDS)[0])
            return
        binding = shared.io_binding()
        for name, value in FEEDS.items():
            binding.bind_cpu_input(name, value)
        binding.bind_output("y", "cpu")
        shared.run_with_iobinding(binding)
        assert is_even(binding.copy_outputs_to_cpu()[0])

    def look():
        assert is_even(shared.get_state()["w"])
        assert is_even(shared.get_model_state()["full_precision"]["w"])

    together(*[repeat(20, train)] * 3, repeat(40, look))
    np.testing.assert_array_equal(shared.get_state()["w"], alone.get_state()["w"])


def test_a_state_is_loaded_between_two_steps():
    shared = session()
    states = [{"w": np.full((1, SIZE), value, np.float32)} for value in (0.25, 0.5)]

    def train():
        assert is_even(shared.run(["y"], FEEDS)[0])

    def load():
        for state in states:
            shared.load_state(state)

    together(repeat(60, train), repeat(60, train), repeat(60, load))
    assert is_even(shared.get_state()["w"])


def test_an_agent_works_for_several_threads_at_once():
    model, weights = mlp(features=64, hidden=64)
    agent = Agent(model, list(weights), ["X"])
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(8 + i, 64)).astype(np.float32) for i in range(3)]
    ones = [np.ones((len(b), 1), np.float32) for b in batches]

    def passes(i):
        outputs, state = agent.forward(batches[i], *weights.values())
        return {"Y": outputs[0].numpy(), **agent.backward(state, ones[i])}

    expected = [passes(i) for i in range(3)]

    def compare(i):
        for name, value in passes(i).items():
            np.testing.assert_array_equal(value, expected[i][name])

    together(*(repeat(200, lambda i=i: compare(i)) for i in range(3)))


def test_a_forward_pass_has_one_backward_pass_in_whichever_thread():
    model, weights = mlp()
    agent = Agent(model, list(weights), ["X"])
    x, one = np.ones((3, 4), np.float32), np.ones((3, 1), np.float32)
    for _ in range(100):
        _, state = agent.forward(x, *weights.values())
        won, lost = [], []

        def back(state=state, won=won, lost=lost):
            try:
                won.append(agent.backward(state, one))
            except ExecutionError as error:
                lost.append(str(error))

        together(back, back, back)
        assert (len(won), len(lost)) == (1, 2)
        assert all("no forward pass pending" in text for text in lost)


def made_agent():
    model, weights = mlp()
    agent = Agent(model, list(weights), ["X"])
    return agent.agent, lambda: agent.forward(np.ones((3, 4), np.float32), *weights.values())


def made_session():
    made = session()
    return made, lambda: made.run(["loss"], FEEDS)


MAKERS = {
    "TrainingSession": (made_session, "load_state"),
    "TrainingAgent": (made_agent, "gradient model"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_has_sessions_cannot_be_pickled_and_says_what_can(name):
    make, remedy = MAKERS[name]
    thing, _ = make()
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(SharingError, match=rf"{name} cannot be pickled.*{remedy}"):
            attempt(thing)


@needs_fork
@pytest.mark.parametrize("name", MAKERS)
def test_what_has_sessions_refuses_to_work_after_a_fork(name):
    make, remedy = MAKERS[name]
    thing, use = make()
    use()
    with pytest.raises(
        ChildError, match=rf"{name} was made before the process was forked.*{remedy}"
    ):
        in_child(use)
    use()
    assert thing


@needs_fork
def test_a_forked_process_makes_a_session_of_its_own():
    parent = session()
    parent.run(["loss"], FEEDS)
    state = parent.get_state()

    def go_on():
        child = session()
        child.load_state(state)
        return child.run(["loss"], FEEDS)[0], child.get_state()["w"][0, 0]

    found = in_child(go_on)
    assert found == (parent.run(["loss"], FEEDS)[0], parent.get_state()["w"][0, 0])
    assert threading.active_count() >= 1
