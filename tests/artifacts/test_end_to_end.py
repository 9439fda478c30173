"""What generate_artifacts writes, trained by the device half, against PyTorch."""

import copy

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, generate_artifacts

STEPS = 100


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def cnn():
    # no bias before BatchNorm: its gradient is rounding noise, which Adam turns into a random walk
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 3),
    )  # fmt: skip


class Transformer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(5, 12, num_layers=2, batch_first=True)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def clipped(values):
    torch.nn.utils.clip_grad_norm_(values, 0.5)


CASES = {
    "mlp adamw": (
        mlp, (6,), optim.adamw(form="torch", weight_decay=0.1, clip=optim.ClipNorm(0.5)),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1), clipped,
    ),
    "mlp sgd": (
        mlp, (6,), optim.sgd(0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.01, 0.9, nesterov=True, weight_decay=0.01), None,
    ),
    "mlp adafactor": (
        mlp, (6,), optim.adafactor(), lambda p: torch.optim.Adafactor(p, 0.01), None,
    ),
    "transformer adamw": (
        Transformer, (5, 16), optim.adamw(form="torch", clip=optim.ClipNorm(0.5)),
        lambda p: torch.optim.AdamW(p, 0.002, weight_decay=0.0), clipped,
    ),
    "lstm sgd": (
        Recurrent, (6, 5), optim.sgd(0.9, clip=optim.ClipNorm(0.5)),
        lambda p: torch.optim.SGD(p, 0.01, 0.9), clipped,
    ),
    "cnn adamw": (
        cnn, (1, 8, 8), optim.adamw(form="torch", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1), None,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    """Two thread pools on few cores wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")  # the tracing exporter is deprecated and says so
@pytest.mark.parametrize("name", CASES)
def test_100_steps_follow_torch(tmp_path, name):
    make, shape, ours, theirs, clip = CASES[name]
    torch.manual_seed(1)
    net = make().train()
    batches = [(torch.randn(16, *shape), torch.randint(0, 3, (16,))) for _ in range(10)]
    torch.onnx.export(
        copy.deepcopy(net), (batches[0][0],), tmp_path / "net.onnx", input_names=["x"],
        output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17,
    )  # fmt: skip
    trainable = [n for n, _ in net.named_parameters()]
    generate_artifacts(
        onnx.load(tmp_path / "net.onnx"), requires_grad=trainable,
        loss=LossType.CrossEntropyLoss, optimizer=ours, artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(str(tmp_path / "training_model.onnx"), state, str(tmp_path / "eval_model.onnx"))
    optimizer = Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
    reference = theirs(net.parameters())
    optimizer.set_learning_rate(reference.param_groups[0]["lr"])
    for step in range(STEPS):
        x, y = batches[step % len(batches)]
        reference.zero_grad()
        want = torch.nn.functional.cross_entropy(net(x), y)
        want.backward()
        if clip is not None:
            clip(net.parameters())
        reference.step()
        got = module(x.numpy(), y.numpy())
        optimizer.step()
        module.lazy_reset_grad()
        np.testing.assert_allclose(float(got), want.item(), rtol=1e-4, atol=2e-5)
    module.eval()
    x, y = batches[0]
    with torch.no_grad():
        want = torch.nn.functional.cross_entropy(net.eval()(x), y).item()
    # running variances differ by the factor n/(n-1): ONNX keeps the population's
    np.testing.assert_allclose(float(module(x.numpy(), y.numpy())), want, rtol=2e-3)


def test_gradient_of_an_input_beside_the_parameters(tmp_path):
    from tests.onnxblock.harness import mlp as small

    generate_artifacts(
        small(), requires_grad=["W1", "x"], loss=LossType.MSELoss, optimizer=optim.sgd(),
        artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(str(tmp_path / "training_model.onnx"), state)
    optimizer = Optimizer(str(tmp_path / "optimizer_model.onnx"), module)
    before = state.parameters["W1"].data.copy()
    module(np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32))
    optimizer.step()
    assert not np.array_equal(before, state.parameters["W1"].data)
