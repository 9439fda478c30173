"""Both APIs against PyTorch and scikit-learn, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi._pybind_state import OrtValueVector, SessionIOBinding
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression

from onnxtrain import (
    OrtValueCache,
    PartialGraphExecutionState,
    TrainingParameters,
    TrainingSession,
)
from tests.compat.ort.models import CPU, Agent, mlp, mlp_with_loss, parse, vector
from tests.compat.ort.test_session import Torch, feeds

RNG = np.random.default_rng(17)
BATCHES = [
    (RNG.normal(size=(6, 4)).astype(np.float32), RNG.normal(size=(6, 1)).astype(np.float32))
    for _ in range(100)
]


def run_graph(text: str, values: dict[str, Any]) -> dict[str, Any]:
    """A graph of one's own between the passes: loss, penalty, update."""
    session = SESSIONS.get(text)
    if session is None:
        session = SESSIONS[text] = onnxruntime.InferenceSession(
            parse(text).SerializeToString(), providers=["CPUExecutionProvider"]
        )
    names = [o.name for o in session.get_outputs()]
    given = {i.name: np.asarray(values[i.name], np.float32) for i in session.get_inputs()}
    return dict(zip(names, session.run(None, given)))


SESSIONS: dict[str, Any] = {}
LOSS = """g (float[N,1] y, float[N,1] label) => (float loss, float[N,1] dy) <float two = {2}> {
    d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims=0>(s)
    n = Size(d)
    m = Cast<to=1>(n)
    k = Div(two, m)
    dy = Mul(d, k)
}"""
SGD = """g (float[...] w, float[...] g, float lr) => (float[...] new) {
    s = Mul(g, lr)
    new = Sub(w, s)
}"""
MOMENTUM = """g (float[...] w, float[...] g, float[...] v, float lr)
    => (float[...] new, float[...] vnew) <float mu = {0.9}> {
    a = Mul(v, mu)
    vnew = Add(a, g)
    s = Mul(vnew, lr)
    new = Sub(w, s)
}"""
NESTEROV = """g (float[...] w, float[...] g, float[...] v, float lr)
    => (float[...] new, float[...] vnew) <float mu = {0.9}> {
    a = Mul(v, mu)
    vnew = Add(a, g)
    b = Mul(vnew, mu)
    c = Add(b, g)
    s = Mul(c, lr)
    new = Sub(w, s)
}"""
PENALTY = """g (float[...] w, float[...] g) => (float[...] new) <float two_l2 = {0.02}> {
    p = Mul(w, two_l2)
    new = Add(g, p)
}"""


def ranked(text: str, rank: int) -> str:
    return text.replace("...", ",".join(f"d{i}" for i in range(rank)))


class Parts:
    """Training with the second API: every piece is a graph of its own."""

    def __init__(self, model: Any, weights: dict[str, Any], update: str, penalty: bool) -> None:
        self.agent = Agent(model, list(weights))
        self.weights = {n: a.copy() for n, a in weights.items()}
        self.velocity = {n: np.zeros_like(a) for n, a in weights.items()}
        self.update, self.penalty = update, penalty

    def step(self, x: Any, y: Any, rate: float) -> float:
        outputs, state = self.agent.forward(x, *self.weights.values())
        result = run_graph(LOSS, {"y": outputs[0].numpy(), "label": y})
        gradients = self.agent.backward(state, result["dy"])
        for name, weight in self.weights.items():
            gradient = gradients[f"{name}_grad"]
            if self.penalty:
                text = ranked(PENALTY, weight.ndim)
                gradient = run_graph(text, {"w": weight, "g": gradient})["new"]
            values = {"w": weight, "g": gradient, "v": self.velocity[name], "lr": rate}
            new = run_graph(ranked(self.update, weight.ndim), values)
            self.weights[name] = new["new"]
            self.velocity[name] = new.get("vnew", self.velocity[name])
        return float(result["loss"])


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize(
    ("update", "options"),
    [(SGD, {}), (MOMENTUM, {"momentum": 0.9}), (NESTEROV, {"momentum": 0.9, "nesterov": True})],
    ids=["sgd", "momentum", "nesterov"],
)
def test_second_api_follows_torch(update: str, options: dict[str, Any], penalty: bool) -> None:
    model, weights = mlp()
    parts = Parts(model, weights, update, penalty)
    decay = 0.02 if penalty else 0.0  # torch adds λw, the gradient of λ/2·w²
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.01, weight_decay=decay, **options))
    ours, theirs = [], []
    for x, y in BATCHES:
        ours.append(parts.step(x, y, 0.01))
        theirs.append(other.step(x, y))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    other.check(parts.weights, 1e-4, 1e-5)


def test_both_apis_and_torch_agree_for_100_steps() -> None:
    model, weights = mlp()
    whole, _ = mlp_with_loss()
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.training_optimizer_name = "SGDOptimizer"
    session = TrainingSession(whole.SerializeToString(), parameters)
    parts = Parts(model, weights, SGD, penalty=False)
    other = Torch(weights, lambda w: torch.optim.SGD(w, lr=0.02))
    losses = [
        (
            float(session.run(["loss"], feeds(x, y, 0.02))[0]),
            parts.step(x, y, 0.02),
            other.step(x, y),
        )
        for x, y in BATCHES
    ]
    first, second, third = np.array(losses).T
    np.testing.assert_allclose(first, third, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second, third, rtol=1e-5, atol=1e-6)
    for name, value in session.get_state().items():
        np.testing.assert_allclose(value, parts.weights[name], rtol=1e-5, atol=1e-5)


# -- linear regression -----------------------------------------------------------------------------

X, Y = make_regression(200, n_features=3, noise=5.0, bias=2.0, random_state=0)
X, Y = X.astype(np.float32), (Y / 50).astype(np.float32).reshape(-1, 1)
REFERENCE = LinearRegression().fit(X, Y)
LINEAR = "g (float[N,3] X) => (float[N,1] Y) { m = MatMul(X, coef) Y = Add(m, intercept) }"
LINEAR_LOSS = """g (float[N,3] X, float[N,1] label) => (float loss) {
    m = MatMul(X, coef)
    y = Add(m, intercept)
    d = Sub(y, label)
    loss = ReduceSumSquare<keepdims=0>(d)
}"""


def start() -> dict[str, Any]:
    return {"coef": np.zeros((3, 1), np.float32), "intercept": np.zeros(1, np.float32)}


def check_coefficients(state: dict[str, Any]) -> None:
    np.testing.assert_allclose(state["coef"].ravel(), REFERENCE.coef_.ravel(), atol=1e-3)
    np.testing.assert_allclose(state["intercept"], REFERENCE.intercept_, atol=1e-3)


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_linear_regression_by_the_first_api(optimizer: str) -> None:
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.weights_to_train = {"coef", "intercept"}
    parameters.training_optimizer_name = optimizer
    model = parse(LINEAR_LOSS, start())
    session = TrainingSession(model.SerializeToString(), parameters)
    for step in range(400):
        rate = 0.2 / len(X) if optimizer == "SGDOptimizer" else 0.1 * 0.98**step
        session.run(["loss"], feeds(X, Y, rate))
    check_coefficients(session.get_state())


# The passes below are written as in the tutorial of the predecessor: the attributes of a class
# hold the agent, the sessions and the devices, and `forward` and `backward` use them by name.


class Function:
    """Forward and backward with a shared agent."""

    _devices = [CPU]  # noqa: RUF012
    _debug = False
    _cache = OrtValueCache()
    _run_options = None

    def __init__(self) -> None:
        self.states_: list[PartialGraphExecutionState] = []
        self.saved_tensors = None

    @staticmethod
    def input_to_ort(tensors: Any, devices: Any, debug: bool) -> Any:
        assert not debug
        assert devices
        return tensors if isinstance(tensors, OrtValueVector) else vector(tensors)

    def forward(self, inputs: Any, training: bool = False) -> Any:
        forward_inputs = cls.input_to_ort(
            inputs, cls._devices, cls._debug)  # fmt: skip

        if training:
            forward_outputs = OrtValueVector()
            state = PartialGraphExecutionState()
            self.states_.append(state)
            cls._training_agent.run_forward(
                forward_inputs, forward_outputs, state, cls._cache)  # fmt: skip
            return forward_outputs
        else:  # noqa: RET505
            iobinding = SessionIOBinding(cls._sess_eval._sess)
            for name, inp in zip(
                    cls._grad_input_names, forward_inputs):  # fmt: skip
                iobinding.bind_ortvalue_input(name, inp)

            for name, dev in zip(
                    cls._output_names, cls._fw_no_grad_output_device_info):  # fmt: skip
                iobinding.bind_output(name, dev)

            cls._sess_eval._sess.run_with_iobinding(
                iobinding, cls._run_options)  # fmt: skip
            return iobinding.get_outputs()

    def backward(self, grad_outputs: Any) -> Any:
        cls = self.__class__
        inputs = self.saved_tensors
        state = self.states_.pop()
        backward_inputs = cls.input_to_ort(
            grad_outputs, cls._bw_outputs_device_info, cls._debug)  # fmt: skip

        backward_outputs = OrtValueVector()
        cls._training_agent.run_backward(
            backward_inputs, backward_outputs, state)  # fmt: skip
        assert inputs is None
        return backward_outputs


cls: Any = Function


def test_linear_regression_by_the_second_api() -> None:
    agent = Agent(parse(LINEAR, start()), ["intercept", "coef"], ["X"])  # not alphabetical
    cls._training_agent = agent.agent
    cls._sess_eval = onnxruntime.InferenceSession(
        agent.builder.get_forward_model(), providers=["CPUExecutionProvider"]
    )
    cls._grad_input_names = agent.feed_names
    cls._output_names = agent.info.user_output_names
    cls._fw_no_grad_output_device_info = [CPU]
    cls._bw_outputs_device_info = [CPU] * 3
    function = Function()
    weights = start()
    for _ in range(400):
        feed = [X, weights["intercept"], weights["coef"]]
        (predicted,) = function.forward(feed, training=True)
        gradient = 2 * (predicted.numpy() - Y)
        results = function.backward([gradient])
        assert isinstance(results, C.OrtValueVector)
        _, intercept, coef = (r.numpy() for r in results)
        weights["intercept"] = weights["intercept"] - np.float32(0.2 / len(X)) * intercept
        weights["coef"] = weights["coef"] - np.float32(0.2 / len(X)) * coef
    check_coefficients(weights)
    (predicted,) = function.forward([X, weights["intercept"], weights["coef"]])
    np.testing.assert_allclose(predicted.numpy(), REFERENCE.predict(X), atol=1e-2)
    assert function.states_ == []
