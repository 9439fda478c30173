"""What `benchmarks.operators` times: torch modules and functions, at about a million elements.

A list of cases is a mapping from names to functions that make a `Case`; another list is named on
the command line as ``package.module:ATTRIBUTE``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    """A module and its arguments; floating-point arguments with `requires_grad` get gradients."""

    module: nn.Module
    inputs: tuple[Any, ...]


Cases = Mapping[str, Callable[[], Case]]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def images(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def on(module: nn.Module, *shape: int) -> Callable[[], Case]:
    """The module on random numbers that get a gradient."""
    return lambda: Case(module, (images(*shape),))


def of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Case]:
    """The function of random tensors that get gradients."""
    return lambda: Case(Function(function), tuple(images(*s) for s in shapes))


def _embedding(rows: int, width: int, tokens: int) -> Callable[[], Case]:
    return lambda: Case(nn.Embedding(rows, width), (torch.randint(0, rows, (tokens,)),))


def _grid_sample(mode: str) -> Callable[[], Case]:
    def case() -> Case:
        grid = (torch.rand(8, 128, 128, 2) * 2 - 1).requires_grad_()
        function = Function(lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False))
        return Case(function, (images(8, 8, 128, 128), grid))

    return case


MAP = (16, 64, 32, 32)
"""A million elements as feature maps."""
ROWS = (1024, 1024)
"""A million elements as rows."""

CASES: dict[str, Callable[[], Case]] = {
    # --- activations
    "ReLU": on(nn.ReLU(), *MAP),
    "LeakyReLU": on(nn.LeakyReLU(), *MAP),
    "ReLU6": on(nn.ReLU6(), *MAP),
    "HardSigmoid": on(nn.Hardsigmoid(), *MAP),
    "HardSwish": on(nn.Hardswish(), *MAP),
    "HardTanh": on(nn.Hardtanh(), *MAP),
    "SiLU": on(nn.SiLU(), *MAP),
    "GELU": on(nn.GELU(), *MAP),
    "GELU, tanh": on(nn.GELU("tanh"), *MAP),
    "Softplus": on(nn.Softplus(), *MAP),
    "ELU": on(nn.ELU(), *MAP),
    "SELU": on(nn.SELU(), *MAP),
    "CELU": on(nn.CELU(), *MAP),
    "Mish": on(nn.Mish(), *MAP),
    "Sigmoid": on(nn.Sigmoid(), *MAP),
    "Tanh": on(nn.Tanh(), *MAP),
    "LogSigmoid": on(nn.LogSigmoid(), *MAP),
    "Softsign": on(nn.Softsign(), *MAP),
    "PReLU": on(nn.PReLU(), *MAP),
    "GLU": on(nn.GLU(), *ROWS),
    "Softmax": on(nn.Softmax(-1), *ROWS),
    "LogSoftmax": on(nn.LogSoftmax(-1), *ROWS),
    # --- normalization
    "LayerNorm 1024": on(nn.LayerNorm(1024), *ROWS),
    "LayerNorm 256": on(nn.LayerNorm(256), 16, 256, 256),
    "RMSNorm 1024": on(nn.RMSNorm(1024), *ROWS),
    "GroupNorm 8 of 64": on(nn.GroupNorm(8, 64), *MAP),
    "GroupNorm 32 of 256": on(nn.GroupNorm(32, 256), 16, 256, 16, 16),
    "InstanceNorm": on(nn.InstanceNorm2d(64, affine=True), *MAP),
    "BatchNorm": on(nn.BatchNorm2d(64), *MAP),
    # --- losses
    "SmoothL1": of(F.smooth_l1_loss, ROWS, ROWS),
    "Huber": of(F.huber_loss, ROWS, ROWS),
    "L1": of(F.l1_loss, ROWS, ROWS),
    "MSE": of(F.mse_loss, ROWS, ROWS),
    "BCE with logits": lambda: Case(
        Function(F.binary_cross_entropy_with_logits), (images(*ROWS), torch.rand(*ROWS))
    ),
    "cross entropy": lambda: Case(
        Function(F.cross_entropy), (images(*ROWS), torch.randint(0, 1024, (1024,)))
    ),
    # --- pools
    "MaxPool 2": on(nn.MaxPool2d(2), *MAP),
    "MaxPool 3, stride 2": on(nn.MaxPool2d(3, 2, 1), *MAP),
    "MaxPool3d 2": on(nn.MaxPool3d(2), 8, 16, 8, 32, 32),
    "AvgPool 2": on(nn.AvgPool2d(2), *MAP),
    "AvgPool 3, stride 2": on(nn.AvgPool2d(3, 2, 1), *MAP),
    "AdaptiveAvgPool 1": on(nn.AdaptiveAvgPool2d(1), *MAP),
    "AdaptiveAvgPool 7": on(nn.AdaptiveAvgPool2d(7), *MAP),
    "AdaptiveAvgPool 7, 56": on(nn.AdaptiveAvgPool2d(7), 8, 40, 56, 56),
    "AdaptiveAvgPool (5, 7)": on(nn.AdaptiveAvgPool2d((5, 7)), *MAP),
    "AdaptiveAvgPool (5, 7), 222": on(nn.AdaptiveAvgPool2d((5, 7)), 8, 8, 222, 222),
    "AdaptiveMaxPool (5, 7)": on(nn.AdaptiveMaxPool2d((5, 7)), *MAP),
    # --- resizing and sampling
    "bilinear resize": on(nn.Upsample(scale_factor=2, mode="bilinear"), 8, 32, 32, 32),
    "bicubic resize": on(nn.Upsample(scale_factor=2, mode="bicubic"), 8, 32, 32, 32),
    "nearest resize": on(nn.Upsample(scale_factor=2, mode="nearest"), 8, 32, 32, 32),
    "pixel shuffle": on(nn.PixelShuffle(2), *MAP),
    "GridSample, bilinear": _grid_sample("bilinear"),
    "GridSample, nearest": _grid_sample("nearest"),
    # --- convolutions
    "Conv 3×3": on(nn.Conv2d(64, 64, 3, padding=1), *MAP),
    "Conv 3×3, 4 groups": on(nn.Conv2d(64, 64, 3, padding=1, groups=4), *MAP),
    "Conv 3×3, 32 groups": on(nn.Conv2d(128, 128, 3, padding=1, groups=32), 8, 128, 32, 32),
    "depthwise 3×3": on(nn.Conv2d(64, 64, 3, padding=1, groups=64), *MAP),
    "depthwise 3×3, stride 2": on(nn.Conv2d(64, 64, 3, 2, 1, groups=64), *MAP),
    "depthwise 7×7": on(nn.Conv2d(96, 96, 7, padding=3, groups=96), 4, 96, 56, 56),
    "depthwise 7×7, 14": on(nn.Conv2d(384, 384, 7, padding=3, groups=384), 8, 384, 14, 14),
    "depthwise 1-d, 31": on(nn.Conv1d(256, 256, 31, padding=15, groups=256), 16, 256, 256),
    "ConvTranspose 2, stride 2": on(nn.ConvTranspose2d(64, 32, 2, 2), *MAP),
    # --- the rest
    "embedding 1k × 64, 16k tokens": _embedding(1000, 64, 16384),
    "embedding 50k × 768, 8k tokens": _embedding(50_000, 768, 8192),
    "Dropout": on(nn.Dropout(0.1), *ROWS),
    "Linear": on(nn.Linear(512, 512), 2048, 512),
    "clamp": of(lambda x: x.clamp(-1, 1), ROWS),
    "abs": of(torch.abs, ROWS),
    "pow 3": of(lambda x: x.pow(3), ROWS),
    "exp": of(torch.exp, ROWS),
    "erf": of(torch.erf, ROWS),
    "where": of(lambda x, y: torch.where(x > 0, x, y), ROWS, ROWS),
    "maximum": of(torch.maximum, ROWS, ROWS),
    "sum of columns": of(lambda x: x.sum(0), ROWS),
    "mean of maps": of(lambda x: x.mean((2, 3)), MAP),
    "variance of rows": of(lambda x: x.var(-1), ROWS),
    "cumulative sum": of(lambda x: x.cumsum(-1), ROWS),
    "concatenation": of(lambda x, y: torch.cat([x, y], 1), ROWS, ROWS),
    "transposition": of(lambda x: x.transpose(1, 2).contiguous(), (16, 256, 256)),
}
