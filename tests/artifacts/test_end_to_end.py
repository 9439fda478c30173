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
        torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 3),
    )  # fmt: skip


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
    "cnn adamw": (
        cnn, (1, 8, 8), optim.adamw(form="torch", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1), None,
    ),
}  # fmt: skip


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
    optimizer.set_learning_rate(0.01)
    reference = theirs(net.parameters())
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
