"""Every way to train is a face of one engine: a long model arrives in pieces through each."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import pytest

from onnxtrain import losses, optim, training
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.runtime.session import cutting, devices
from tests.compat.ort.models import Agent

LAYERS, WIDTH = 16, 4
RNG = np.random.default_rng(3)
X = RNG.normal(size=(5, WIDTH)).astype(np.float32)
Y = RNG.normal(size=(5, WIDTH)).astype(np.float32)
WEIGHTS = {
    f"{kind}{i}": RNG.normal(size=shape, scale=0.7).astype(np.float32)
    for i in range(LAYERS)
    for kind, shape in (("w", (WIDTH, WIDTH)), ("b", (WIDTH,)))
}


def chain(*, loss: bool = False) -> onnx.ModelProto:
    """Some fifty nodes, one after the other; their gradients and updates make it hundreds."""
    nodes, value = [], "x"
    for i in range(LAYERS):
        nodes += [
            oh.make_node("MatMul", [value, f"w{i}"], [f"p{i}"]),
            oh.make_node("Add", [f"p{i}", f"b{i}"], [f"s{i}"]),
            oh.make_node("Tanh", [f"s{i}"], [f"h{i}"]),
        ]
        value = f"h{i}"
    inputs = [oh.make_tensor_value_info("x", 1, ["n", WIDTH])]
    outputs = [oh.make_tensor_value_info(value, 1, ["n", WIDTH])]
    if loss:
        nodes += [
            oh.make_node("Sub", [value, "y"], ["d"]),
            oh.make_node("Mul", ["d", "d"], ["q"]),
            oh.make_node("ReduceMean", ["q"], ["loss"], keepdims=0),
        ]
        inputs.append(oh.make_tensor_value_info("y", 1, ["n", WIDTH]))
        outputs = [oh.make_tensor_value_info("loss", 1, []), *outputs]
    values = [onnx.numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()]
    graph = oh.make_graph(nodes, "chain", inputs, outputs, values)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    generate_artifacts(
        chain(), list(WEIGHTS), [], losses.MSELoss(), optim.adamw(), folder, step_model=True
    )
    return folder


@pytest.fixture
def cut(monkeypatch):
    """Call it to have models of more than 40 nodes cut from then on; gives the sessions."""
    sessions = []
    real = devices.cut_if_long

    def noted(*arguments):
        session = real(*arguments)
        if session is not None:
            sessions.append(session)
        return session

    def start():
        monkeypatch.setattr(devices, "cut_if_long", noted)
        monkeypatch.setattr(cutting, "MANY_NODES", 40)
        monkeypatch.setattr(cutting, "NODES_OF_A_PIECE", 30)
        return sessions

    return start


def parameters(state):
    return {name: parameter.data.copy() for name, parameter in state.parameters}


def by_module(folder):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    found = []
    for _ in range(3):
        found.append(module(X, Y))
        module(X, Y)  # adds to the gradients
        optimizer.step()
        module.lazy_reset_grad()
    return [*found, module.eval()(X, Y)], parameters(state)


def by_trainer(folder):
    trainer = Trainer.from_directory(folder)
    history = trainer.fit((X, Y), epochs=3, batch_size=5, progress=False)
    return [*history["loss"], trainer.predict(X)], parameters(trainer.state)


def by_session(folder):
    options = training.TrainingParameters()
    options.loss_output_name = "loss"
    options.weights_to_train = set(WEIGHTS)
    options.training_optimizer_name = "AdamOptimizer"
    session = training.TrainingSession(chain(loss=True).SerializeToString(), options)
    rate = np.array([0.01], np.float32)
    feeds = {"x": X, "y": Y, "Learning_Rate": rate}
    found = [session.run(None, feeds)[0] for _ in range(2)]
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("loss")
    for _ in range(2):
        session.run_with_iobinding(binding)
        found.append(binding.copy_outputs_to_cpu()[0].copy())
    return found, session.get_state()


def by_agent(folder):
    agent = Agent(chain(), list(WEIGHTS), ["x"])
    values = [agent.forward(X, *WEIGHTS.values()) for _ in range(2)]
    outputs, state = values[1]
    return [outputs[0].numpy()], agent.backward(state, Y)


def by_ort_trainer(folder):
    from onnxtrain.compat.ort.orttrainer.optim import AdamConfig
    from onnxtrain.torch import ORTTrainer

    torch = pytest.importorskip("torch")
    described = {
        "inputs": [("x", ["n", WIDTH]), ("y", ["n", WIDTH])],
        "outputs": [("loss", [], True), (f"h{LAYERS - 1}", ["n", WIDTH])],
    }
    trainer = ORTTrainer(chain(loss=True), described, AdamConfig(lr=0.01))
    batch = torch.from_numpy(X), torch.from_numpy(Y)
    found = [trainer.train_step(*batch)[0].item() for _ in range(3)]
    found.append(trainer.eval_step(*batch)[0].item())
    return found, trainer.state_dict()["model"]["full_precision"]


def by_ort_module(folder):
    torch = pytest.importorskip("torch")
    from onnxtrain.torch import ORTModule

    layers = []
    for i in range(LAYERS):
        linear = torch.nn.Linear(WIDTH, WIDTH)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(WEIGHTS[f"w{i}"].T))
            linear.bias.copy_(torch.from_numpy(WEIGHTS[f"b{i}"]))
        layers += [linear, torch.nn.Tanh()]
    module = ORTModule(torch.nn.Sequential(*layers), exporter="torchscript")
    found = module(torch.from_numpy(X))
    found.backward(torch.from_numpy(Y))
    with torch.no_grad():
        again = module(torch.from_numpy(X))
    gradients = {n: p.grad.numpy() for n, p in module.named_parameters()}
    return [found.detach().numpy(), again.numpy()], gradients


FACES = [by_module, by_trainer, by_session, by_agent, by_ort_trainer, by_ort_module]


@pytest.mark.parametrize("face", FACES, ids=lambda f: f.__name__[3:])
def test_a_long_model_arrives_in_pieces(face, folder, cut):
    whole, values = face(folder)
    sessions = cut()
    found, other = face(folder)
    assert sessions
    assert all(len(session.pieces) > 1 for session in sessions)
    for one, two in zip(whole, found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    assert values.keys() == other.keys()
    for name, value in values.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
