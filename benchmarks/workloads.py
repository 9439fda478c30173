"""What is measured: model, batch, loss and optimizer of each workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import torch_models as models


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        title: for people.
        model: makes the torch module.
        batch: makes one input and one target.
        loss: "ce" or "mse".
        optimizer: name and arguments as in `torch.optim`; `clip` is the limit of the norm.
        steps: how many steps a round has.
        trainable: prefix of the trainable parameters ("" for all).
        dynamic: whether dimension 0 is exported as symbolic.
    """

    title: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: str = "ce"
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "sgd", "lr": 0.01})
    steps: int = 5
    trainable: str = ""
    dynamic: bool = True


def _tokens(*shape: int, high: int) -> Tensor:
    return torch.randint(0, high, shape)


SGD = {"name": "sgd", "lr": 0.01}
ADAMW = {"name": "adamw", "lr": 1e-3}

WORKLOADS: dict[str, Workload] = {
    "mlp_sgd": Workload(
        "MLP 784-512-512-10, batch 64, SGD",
        lambda: models.MLP(784, 512, 512, 10),
        lambda: (torch.randn(64, 784), _tokens(64, high=10)),
        optimizer=SGD, steps=50,
    ),
    "mlp_adamw": Workload(
        "MLP 784-512-512-10, batch 64, AdamW",
        lambda: models.MLP(784, 512, 512, 10),
        lambda: (torch.randn(64, 784), _tokens(64, high=10)),
        optimizer=ADAMW, steps=50,
    ),
    "cnn": Workload(
        "MNIST CNN, batch 64, AdamW",
        models.MnistCNN,
        lambda: (torch.randn(64, 1, 28, 28), _tokens(64, high=10)),
        optimizer=ADAMW, steps=10,
    ),
    "transformer_lm": Workload(
        "Transformer LM 200/2/2, vocabulary 28,782, 35×20, SGD",
        models.TransformerLM,
        lambda: (_tokens(35, 20, high=28782), _tokens(700, high=28782)),
        optimizer={"name": "sgd", "lr": 0.5}, steps=2, dynamic=False,
    ),
    "encoder": Workload(
        "BERT-like encoder 4×256, 16×128 tokens, AdamW, clipping",
        models.Encoder,
        lambda: (_tokens(16, 128, high=8000), _tokens(16, high=2)),
        optimizer={**ADAMW, "clip": 1.0}, steps=2,
    ),
    "resnet18": Workload(
        "ResNet-18 at 64×64, batch 16, SGD momentum, BatchNorm training",
        models.ResNet18,
        lambda: (torch.randn(16, 3, 64, 64), _tokens(16, high=10)),
        optimizer={**SGD, "momentum": 0.9}, steps=3,
    ),
    "lstm": Workload(
        "LSTM 2×128, sequence 50, batch 32, Adam",
        models.LSTMClassifier,
        lambda: (torch.randn(50, 32, 32), _tokens(32, high=5)),
        optimizer={"name": "adam", "lr": 1e-3}, steps=10, dynamic=False,
    ),
    "mlp_small": Workload(
        "onnxcustom's MLP 100-50-10-1, batch 15, SGD",
        lambda: models.MLP(100, 50, 10, 1),
        lambda: (torch.randn(15, 100), torch.randn(15, 1)),
        loss="mse", optimizer=SGD, steps=500,
    ),
    "resnet18_head": Workload(
        "Head of a frozen ResNet-18 at 64×64, batch 16, SGD",
        lambda: models.ResNet18().eval(),
        lambda: (torch.randn(16, 3, 64, 64), _tokens(16, high=10)),
        optimizer=SGD, steps=5, trainable="fc.",
    ),
    "optimizer_25m": Workload(
        "AdamW alone, 25 M parameters in 150 tensors",
        lambda: models.ManyTensors(150, 166_667),
        lambda: (torch.randn(1, 1), torch.randn(1, 1)),
        loss="mse", optimizer=ADAMW, steps=2,
    ),
    "unet": Workload(
        "U-Net with Resize and ConvTranspose, 64×64, batch 4, SGD",
        models.UNet,
        lambda: (torch.randn(4, 3, 64, 64), _tokens(4, 64, 64, high=2)),
        optimizer=SGD, steps=3,
    ),
}  # fmt: skip
