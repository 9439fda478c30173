"""TrainingSession: labels that are no classes, however they are fed."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from onnxtrain import training
from onnxtrain.errors import ExecutionError, LabelError

from .models import CPU, parse

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
SOME = np.array([0, -100, 2, -100, 1])
RATE = np.array([0.1], np.float32)
TEXT = """g (float[N, 4] x, int64[N] t) => (float loss) {
    z = MatMul(x, w)
    loss = SoftmaxCrossEntropyLoss <ignore_index = -100> (z, t)
}"""


def session(optimizer="SGDOptimizer", accumulation=1):
    parameters = training.TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.training_optimizer_name = optimizer
    parameters.gradient_accumulation_steps = accumulation
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = parse(TEXT, {"w": W}).SerializeToString()
    return training.TrainingSession(model, parameters, options)


def by_run(made, labels):
    return made.run(["loss"], {"x": X, "t": labels, "Learning_Rate": RATE})[0]


def by_ort_values(made, labels):
    feeds = {"x": X, "t": labels, "Learning_Rate": RATE}
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in feeds.items()}
    return made.run_with_ort_values(["loss"], values)[0].numpy()


def by_binding(made, labels):
    binding = made.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("t", labels)
    binding.bind_cpu_input("Learning_Rate", RATE)
    binding.bind_output("loss", "cpu")
    made.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def by_address(made, labels):
    binding = made.io_binding()._iobinding
    for name, array in (("x", X), ("t", labels), ("Learning_Rate", RATE)):
        binding.bind_input(name, CPU, array.dtype.type, array.shape, array.ctypes.data)
    binding.bind_output("loss", CPU)
    made._sess.run_with_iobinding(binding, None)
    return binding.get_outputs()[0].numpy()


WAYS = [by_run, by_ort_values, by_binding, by_address]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_every_way_of_feeding(way, optimizer):
    made = session(optimizer)
    for _ in range(3):
        before = made.get_state()["w"]
        loss = way(made, SOME)
        w = torch.tensor(before, requires_grad=True)
        want = F.cross_entropy(torch.tensor(X) @ w, torch.tensor(SOME))
        want.backward()
        np.testing.assert_allclose(loss, want.detach().numpy(), rtol=1e-5)
        after = made.get_state()
        if optimizer == "SGDOptimizer":
            np.testing.assert_allclose(after["w"], before - 0.1 * w.grad.numpy(), atol=1e-6)
        for bad in (-1, 3, -(2**63)):
            labels = SOME.copy()
            labels[2] = bad
            with pytest.raises(LabelError, match=f"'t' has the label {bad} in row 2,.* 0 to 2, or"):
                way(made, labels)
        for name, value in made.get_state().items():
            np.testing.assert_array_equal(value, after[name])


def test_a_wrong_label_is_not_accumulated():
    made, plain = session(accumulation=2), session(accumulation=2)
    for one in (made, plain):
        by_run(one, SOME)
        if one is made:
            with pytest.raises(LabelError):
                by_run(one, np.array([0, 1, 2, -1, 0]))
        by_run(one, SOME[::-1].copy())
    np.testing.assert_array_equal(made.get_state()["w"], plain.get_state()["w"])


def test_nobody_looks_at_the_labels():
    """What bypasses the session's checks fails in the graph: it has a guard."""
    made = session()
    binding = made.io_binding()
    labels = SOME.copy()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("t", labels)
    binding.bind_cpu_input("Learning_Rate", RATE)
    binding.bind_output("loss", "cpu")
    side, core = binding._iobinding.ready((True, 0)), made.sessions[True]._sess
    core.run_with_iobinding(side, None)
    labels[2] = -1
    with pytest.raises(Exception, match="Out of range"):
        core.run_with_iobinding(side, None)


def test_agent_refuses_wrong_labels():
    """The two halves have the guard too: onnxruntime's error, as ours."""
    config = training.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = config.initializer_names_to_train = ["w"]
    builder = training.OrtModuleGraphBuilder()
    builder.initialize(parse(TEXT, {"w": W}).SerializeToString(), config)
    builder.build()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    gradient = onnxruntime.InferenceSession(builder.get_gradient_model(), options)
    agent = training.TrainingAgent(gradient, ["x", "t", "w"], [CPU], ["w_grad"], [CPU])

    def gradient_of(labels):
        feeds = [onnxruntime.OrtValue.ortvalue_from_numpy(a)._ortvalue for a in (X, labels, W)]
        state, outputs, gradients = (
            training.PartialGraphExecutionState(),
            onnxruntime.capi._pybind_state.OrtValueVector(),
            onnxruntime.capi._pybind_state.OrtValueVector(),
        )
        agent.run_forward(feeds, outputs, state)
        seed = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(1, np.float32))._ortvalue
        agent.run_backward([seed], gradients, state)
        return gradients[0].numpy()

    w = torch.tensor(W, requires_grad=True)
    F.cross_entropy(torch.tensor(X) @ w, torch.tensor(SOME)).backward()
    np.testing.assert_allclose(gradient_of(SOME), w.grad.numpy(), rtol=1e-4, atol=1e-6)
    for bad in (-1, 3):
        with pytest.raises(ExecutionError, match="Out of range"):
            gradient_of(np.array([0, 1, bad, 0, 0]))
