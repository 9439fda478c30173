"""What is measured: model, batch, loss and optimizer of each workload.

torch is imported by what needs it only: the driver of the benchmark runs without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Attributes:
        title: for people.
        model: makes the torch module.
        batch: makes one input and one target.
        loss: "ce" or "mse".
        optimizer: name and arguments as in `torch.optim`; `clip` is the limit of the norm.
        trainable: prefix of the trainable parameters ("" for all).
        dynamic: whether dimension 0 is exported as symbolic.
        random: whether a step draws random numbers (dropout): losses then agree roughly only.
        exporter: which of torch's two writes the ONNX model.
        left_out: contestants that do not take part, and why.
    """

    title: str
    model: Callable[[], Any]
    batch: Callable[[], tuple[Any, Any]]
    loss: str = "ce"
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "sgd", "lr": 0.01})
    trainable: str = ""
    dynamic: bool = True
    random: bool = False
    exporter: str = "torchscript"
    left_out: dict[str, str] = field(default_factory=dict)


def _model(name: str, *sizes: int, **options: int) -> Any:
    from . import torch_models

    return getattr(torch_models, name)(*sizes, **options)


def _transformer(name: str, *sizes: int) -> Any:
    from . import transformer_models

    return getattr(transformer_models, name)(*sizes)


def _normal(*shape: int) -> Any:
    import torch

    return torch.randn(*shape)


def _tokens(*shape: int, high: int) -> Any:
    import torch

    return torch.randint(0, high, shape)


SGD = {"name": "sgd", "lr": 0.01}
ADAMW = {"name": "adamw", "lr": 1e-3}

WORKLOADS: dict[str, Workload] = {
    "mlp_sgd": Workload(
        "MLP 784-512-512-10, batch 64, SGD",
        lambda: _model("MLP", 784, 512, 512, 10),
        lambda: (_normal(64, 784), _tokens(64, high=10)),
        optimizer=SGD,
    ),
    "mlp_adamw": Workload(
        "MLP 784-512-512-10, batch 64, AdamW",
        lambda: _model("MLP", 784, 512, 512, 10),
        lambda: (_normal(64, 784), _tokens(64, high=10)),
        optimizer=ADAMW,
    ),
    "cnn": Workload(
        "MNIST CNN, batch 64, AdamW",
        lambda: _model("MnistCNN"),
        lambda: (_normal(64, 1, 28, 28), _tokens(64, high=10)),
        optimizer=ADAMW,
    ),
    "transformer_lm": Workload(
        "Transformer LM 200/2/2, vocabulary 28,782, 35×20, SGD",
        lambda: _model("TransformerLM"),
        lambda: (_tokens(35, 20, high=28782), _tokens(700, high=28782)),
        optimizer={"name": "sgd", "lr": 0.5}, dynamic=False, random=True,
    ),
    "encoder": Workload(
        "BERT-like encoder 4×256, 16×128 tokens, AdamW, clipping",
        lambda: _model("Encoder"),
        lambda: (_tokens(16, 128, high=8000), _tokens(16, high=2)),
        optimizer={**ADAMW, "clip": 1.0},
    ),
    "resnet18": Workload(
        "ResNet-18 at 64×64, batch 16, SGD momentum, BatchNorm training",
        lambda: _model("ResNet18"),
        lambda: (_normal(16, 3, 64, 64), _tokens(16, high=10)),
        optimizer={**SGD, "momentum": 0.9},
        left_out={"orttrainer": "it has no SGD with momentum"},
    ),
    "lstm": Workload(
        "LSTM 2×128, sequence 50, batch 32, Adam",
        lambda: _model("LSTMClassifier"),
        lambda: (_normal(50, 32, 32), _tokens(32, high=5)),
        optimizer={"name": "adam", "lr": 1e-3}, dynamic=False,
    ),
    "mlp_small": Workload(
        "onnxcustom's MLP 100-50-10-1, batch 15, SGD",
        lambda: _model("MLP", 100, 50, 10, 1),
        lambda: (_normal(15, 100), _normal(15, 1)),
        loss="mse", optimizer=SGD,
    ),
    "resnet18_head": Workload(
        "Head of a frozen ResNet-18 at 64×64, batch 16, SGD",
        lambda: _model("ResNet18").eval(),
        lambda: (_normal(16, 3, 64, 64), _tokens(16, high=10)),
        optimizer=SGD, trainable="fc.",
    ),
    "optimizer_25m": Workload(
        "AdamW alone, 25 M parameters in 150 tensors",
        lambda: _model("ManyTensors", 150, 166_667),
        lambda: (_normal(1, 1), _normal(1, 1)),
        loss="mse", optimizer=ADAMW,
    ),
    "unet": Workload(
        "U-Net with Resize and ConvTranspose, 64×64, batch 4, SGD",
        lambda: _model("UNet"),
        lambda: (_normal(4, 3, 64, 64), _tokens(4, 64, 64, high=2)),
        optimizer=SGD,
    ),
    "token_encoder": Workload(
        "Encoder 4×256 that answers everywhere, 16×128 tokens, AdamW",
        lambda: _transformer("TokenEncoder"),
        lambda: (_tokens(16, 128, high=8000), _tokens(2048, high=2)),
        optimizer=ADAMW,
    ),
    "gpt2": Workload(
        "GPT-2 124M, vocabulary 50,257, 4×64 tokens, AdamW",
        lambda: _transformer("Decoder", 50257, 768, 12, 12, 64, 1024),
        lambda: (_tokens(4, 64, high=50257), _tokens(256, high=50257)),
        optimizer=ADAMW, dynamic=False,
        left_out={"old": "left out: 24 GB of memory hold seven contestants of this size"},
    ),
    "vit": Workload(
        "ViT 4×192, 112×112 in patches of 16, batch 16, AdamW",
        lambda: _transformer("ViT"),
        lambda: (_normal(16, 3, 112, 112), _tokens(16, high=10)),
        optimizer=ADAMW, dynamic=False,
    ),
    "llama": Workload(
        "Llama-shaped decoder 4×256, 8 heads on 2, rotary, 8×64 tokens, AdamW",
        lambda: _transformer("Llama"),
        lambda: (_tokens(8, 64, high=8000), _tokens(512, high=8000)),
        optimizer=ADAMW, dynamic=False, exporter="dynamo",
    ),
}  # fmt: skip


OTHERS: dict[str, Workload] = {
    "decoder": Workload(
        "GPT-2-shaped decoder 4×256, vocabulary 8,000, 8×64 tokens, AdamW",
        lambda: _transformer("Decoder"),
        lambda: (_tokens(8, 64, high=8000), _tokens(512, high=8000)),
        optimizer=ADAMW, dynamic=False,
    ),
}  # fmt: skip
"""Found by name; not in the tables of docs/performance.md."""


def find(name: str) -> Workload:
    """A workload by name; `encoder:batch=8,length=64,layers=2,width=128` is one of a curve."""
    if name in WORKLOADS or name in OTHERS:
        return {**OTHERS, **WORKLOADS}[name]
    kind, _, text = name.partition(":")
    sizes = {key: int(value) for key, _, value in (part.partition("=") for part in text.split(","))}
    return CURVES[kind](**sizes)


def _encoder(batch: int, length: int, layers: int, width: int) -> Workload:
    return Workload(
        f"encoder, {layers} layers × {width}, {batch}×{length} tokens, SGD",
        lambda: _model("Encoder", 1000, width, 4, layers, length),
        lambda: (_tokens(batch, length, high=1000), _tokens(batch, high=2)),
        optimizer=SGD,
    )  # fmt: skip


def _mlp(batch: int, width: int) -> Workload:
    return Workload(
        f"MLP {width}-{width}-{width}-10, batch {batch}, SGD",
        lambda: _model("MLP", width, width, width, 10),
        lambda: (_normal(batch, width), _tokens(batch, high=10)),
        optimizer=SGD,
    )  # fmt: skip


CURVES: dict[str, Callable[..., Workload]] = {"encoder": _encoder, "mlp": _mlp}
