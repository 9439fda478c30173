"""Small torch models of the families that people train, and their export to ONNX."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import onnx
import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    """Encoder with a classification head; `layers` deep."""

    def __init__(self, layers: int = 12, width: int = 32, heads: int = 4, vocabulary: int = 50):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Block(nn.Module):
    """Pre-norm attention and feed-forward, written out."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (
            t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class ResNet(nn.Module):
    """Three stages of residual blocks; BatchNorm in training or inference mode."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            Residual(width, width, 1),
            Residual(width, 2 * width, 2),
            Residual(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.bn(self.stem(x)).relu(), 3, 2, 1)
        return self.head(nn.functional.adaptive_avg_pool2d(self.stages(x), 1).flatten(1))


class Residual(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.short(x)).relu()


class UNet(nn.Module):
    """Down with MaxPool and stride, up with Resize and ConvTranspose, skip connections."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bottom = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.merge1 = nn.Conv2d(3 * width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x).relu()
        b = self.down2(nn.functional.max_pool2d(a, 2)).relu()
        c = self.bottom(nn.functional.max_pool2d(b, 2)).relu()
        y = self.merge2(torch.cat([self.up2(c), b], 1)).relu()
        y = nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        y = self.merge1(torch.cat([y, a], 1)).relu()
        return self.last(y)


class SequenceModel(nn.Module):
    """LSTM (bidirectional) or GRU over embedded tokens, a prediction per step."""

    def __init__(self, kind: str):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        both = kind == "lstm"
        layer = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = layer(12, 16, num_layers=2, bidirectional=both, batch_first=True)
        self.head = nn.Linear(32 if both else 16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


class WithLoss(nn.Module):
    """A model and the mean squared distance of its output to a target."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return ((self.model(x) - target) ** 2).mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (Transformer, lambda: torch.randint(0, 50, (3, 16))),
    "resnet": (ResNet, lambda: torch.randn(4, 3, 20, 20)),
    "unet": (UNet, lambda: torch.randn(2, 1, 16, 16)),
    "lstm": (lambda: SequenceModel("lstm"), lambda: torch.randint(0, 20, (3, 7))),
    "gru": (lambda: SequenceModel("gru"), lambda: torch.randint(0, 20, (3, 7))),
}


def export(
    model: nn.Module, inputs: tuple[Tensor, ...], names: list[str], *, dynamo: bool, training: bool
) -> onnx.ModelProto:
    """Export with either of torch's exporters, batch dimension dynamic."""
    model.train(training)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs)
            program = torch.onnx.export(
                model, inputs, input_names=names, dynamo=True, dynamic_shapes=shapes,
                verbose=False, optimize=False, opset_version=18,
            )  # fmt: skip
            assert program is not None
            return program.model_proto
        mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
        torch.onnx.export(
            model, inputs, buffer, input_names=names, dynamo=False, training=mode,
            do_constant_folding=False, opset_version=17,
            dynamic_axes={n: {0: "batch"} for n in names},
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())
