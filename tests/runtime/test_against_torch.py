"""Loss curves over 100 steps, from equal weights and batches, against PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain import optim
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer

from .test_real_artifacts import generate, network

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

CASES = {
    "sgd": (
        optim.sgd(momentum=0.9, nesterov=True, weight_decay=1e-3),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3),
        None,
    ),
    "adamw clipped": (
        optim.adamw(weight_decay=0.01, form="torch", clip=optim.ClipNorm(0.5)),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01),
        0.5,
    ),
}


def twin():
    values = {t.name: onnx.numpy_helper.to_array(t) for t in network().graph.initializer}
    conv, norm = torch.nn.Conv2d(1, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16)
    linear = torch.nn.Linear(256, 10)
    pairs = {
        "conv.w": conv.weight, "conv.b": conv.bias, "bn.scale": norm.weight, "bn.bias": norm.bias,
        "fc.w": linear.weight, "fc.b": linear.bias,
    }  # fmt: skip
    with torch.no_grad():
        for name, parameter in pairs.items():
            value = values[name].T if name == "fc.w" else values[name]
            parameter.copy_(torch.from_numpy(np.array(value)))
    net = torch.nn.Sequential(conv, norm, torch.nn.ReLU(), torch.nn.Flatten(), linear)
    return net, pairs


def batches(steps=100):
    rng = np.random.default_rng(5)
    for _ in range(steps):
        yield rng.normal(size=(16, 1, 8, 8)).astype("f4"), rng.integers(0, 10, 16)


def torch_curve(make, clip):
    net, _ = twin()
    optimizer = make(net.parameters())
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", CASES)
def test_curve(tmp_path, name):
    optimizer, make, clip = CASES[name]
    folder = generate(tmp_path, optimizer=optimizer, step_model=True)
    expected = torch_curve(make, clip)
    module = Module(
        str(folder / "training_model.onnx"), CheckpointState.load_checkpoint(folder / "checkpoint")
    )
    update = Optimizer(str(folder / "optimizer_model.onnx"), module)
    update.set_learning_rate(0.01)
    losses = []
    for x, y in batches():
        losses.append(float(module(x, y)))
        update.step()
        module.lazy_reset_grad()
    assert np.allclose(losses, expected, rtol=1e-4)
    trainer = Trainer.from_directory(folder, learning_rate=0.01)
    whole = [float(trainer._engine.run([x, y])[0]) for x, y in batches()]
    assert type(trainer._engine).__name__ == "OneGraphEngine"
    assert np.allclose(whole, expected, rtol=1e-4)
