"""The torch models of the benchmark's workloads."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Sequential):
    """Fully connected layers with ReLU in between."""

    def __init__(self, *sizes: int) -> None:
        layers: list[nn.Module] = []
        for inside, outside in zip(sizes, sizes[1:]):
            layers += [nn.Linear(inside, outside), nn.ReLU()]
        super().__init__(*layers[:-1])


class MnistCNN(nn.Module):
    """conv32, pool, conv64, pool, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(1600, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


class TransformerLM(nn.Module):
    """The language model of the getting-started sample: encoder layers with a causal mask."""

    def __init__(
        self, vocabulary: int = 28782, width: int = 200, heads: int = 2, layers: int = 2,
        dropout: float = 0.2, length: int = 35,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.encoder = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, width, dropout)
        self.transformer_encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(5000).unsqueeze(1)
        scale = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(5000, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = (
            torch.sin(position * scale),
            torch.cos(position * scale),
        )
        self.register_buffer("positions", table[:length].clone())
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        self.register_buffer("mask", mask)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[0]
        x = self.encoder(tokens) * math.sqrt(self.width)
        x = self.dropout(x + self.positions[:length])
        x = self.transformer_encoder(x, self.mask[:length, :length])
        return self.decoder(x).reshape(-1, self.vocabulary)


class Encoder(nn.Module):
    """A BERT-like encoder with a classification head, attention written out."""

    def __init__(self, vocabulary: int = 8000, width: int = 256, heads: int = 4, layers: int = 4,
                 length: int = 128, classes: int = 2) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList([EncoderBlock(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens) + self.position[:, : tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


class EncoderBlock(nn.Module):
    """Post-norm attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape

        def split(t: Tensor) -> Tensor:
            return t.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(width // self.heads)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.o(mixed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class BasicBlock(nn.Module):
    """The residual block of ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class ResNet18(nn.Module):
    """ResNet-18 as published."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        stages: list[nn.Module] = []
        inside = 64
        for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [BasicBlock(inside, outside, stride), BasicBlock(outside, outside, 1)]
            inside = outside
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.fc(F.adaptive_avg_pool2d(self.layers(x), 1).flatten(1))


class LSTMClassifier(nn.Module):
    """Two LSTM layers and a linear head on the last step."""

    def __init__(self, inside: int = 32, width: int = 128, classes: int = 5) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inside, width, num_layers=2)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][-1])


class UNet(nn.Module):
    """Two levels down with MaxPool, one up with ConvTranspose, one up with Resize."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        w = width
        self.down1, self.down2 = _twice(3, w), _twice(w, 2 * w)
        self.bottom = _twice(2 * w, 4 * w)
        self.up2, self.merge2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), _twice(4 * w, 2 * w)
        self.merge1, self.last = _twice(3 * w, w), nn.Conv2d(w, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        y = self.merge2(torch.cat([self.up2(c), b], 1))
        y = F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.last(self.merge1(torch.cat([y, a], 1)))


def _twice(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


class ManyTensors(nn.Module):
    """Nearly no arithmetic, many parameters: what remains is the optimizer."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for part in self.parts:
            total = total + part[:1]
        return total
