"""PyTorch's modules at sizes that networks have: about a million elements, all axes of some length.

PyTorch's own table has samples of four elements along an axis. Repeated along the first one they
are rows or images of almost nothing, which makes some modules look slow and hides others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.operator_cases import Case, Cases, images, on


def _loss(module: nn.Module, classes: int, *shape: int) -> Callable[[], Case]:
    """Scores of a row for each class, and labels for the rest of the axes."""

    def case() -> Case:
        labels = torch.randint(0, classes, (shape[0], *shape[2:]))
        return Case(module, (images(*shape), labels))

    return case


def _several_labels(rows: int, classes: int, count: int) -> Callable[[], Case]:
    def case() -> Case:
        labels = torch.full((rows, classes), -1, dtype=torch.int64)
        for row in labels:
            row[:count] = torch.randperm(classes)[:count]
        return Case(nn.MultiLabelMarginLoss(), (images(rows, classes), labels))

    return case


def _attention() -> Case:
    module = nn.MultiheadAttention(128, 4, batch_first=True)
    rows: tuple[Tensor, ...] = tuple(images(16, 64, 128) for _ in range(3))
    return Case(module, rows)


def _bilinear(rows: int, size: int, outputs: int) -> Callable[[], Case]:
    return lambda: Case(nn.Bilinear(size, size, outputs), (images(rows, size), images(rows, size)))


ORDINARY: Cases = {
    "Bilinear, 256 rows of 64": _bilinear(256, 64, 64),
    "Bilinear, 16,384 rows of 16": _bilinear(16384, 16, 8),
    "CrossEntropyLoss, maps of 21 classes": _loss(nn.CrossEntropyLoss(), 21, 4, 21, 112, 112),
    "CrossEntropyLoss, maps of 3 classes": _loss(nn.CrossEntropyLoss(), 3, 4, 3, 256, 256),
    "CrossEntropyLoss, volumes": _loss(nn.CrossEntropyLoss(), 3, 2, 3, 56, 56, 56),
    "CrossEntropyLoss, small maps": _loss(nn.CrossEntropyLoss(), 10, 1024, 10, 10, 10),
    "NLLLoss, maps": _loss(nn.NLLLoss(), 21, 4, 21, 112, 112),
    "NLLLoss, 1,000 classes": _loss(nn.NLLLoss(), 1000, 1024, 1000),
    "NLLLoss, 10 classes": _loss(nn.NLLLoss(), 10, 100_000, 10),
    "MultiMarginLoss, 1,000 classes": _loss(nn.MultiMarginLoss(), 1000, 1024, 1000),
    "MultiMarginLoss, 100 classes": _loss(nn.MultiMarginLoss(), 100, 10_000, 100),
    "MultiLabelMarginLoss, 80 classes": _several_labels(1024, 80, 4),
    "MultiLabelMarginLoss, 20 classes": _several_labels(8192, 20, 3),
    "AvgPool3d 2": on(nn.AvgPool3d(2), 2, 16, 32, 32, 32),
    "AvgPool3d 3, stride 2": on(nn.AvgPool3d(3, 2, 1), 2, 16, 32, 32, 32),
    "MaxPool1d 4": on(nn.MaxPool1d(4), 64, 64, 256),
    "MaxPool2d 3, stride 2": on(nn.MaxPool2d(3, 2, 1), 16, 64, 32, 32),
    "MaxPool3d 2": on(nn.MaxPool3d(2), 2, 16, 32, 32, 32),
    "AdaptiveAvgPool2d 3": on(nn.AdaptiveAvgPool2d(3), 16, 64, 32, 32),
    "AdaptiveAvgPool3d (3, 4, 5)": on(nn.AdaptiveAvgPool3d((3, 4, 5)), 2, 16, 32, 32, 32),
    "BatchNorm1d": on(nn.BatchNorm1d(256), 4096, 256),
    "BatchNorm2d, 32×32": on(nn.BatchNorm2d(64), 16, 64, 32, 32),
    "BatchNorm2d, 7×7": on(nn.BatchNorm2d(512), 32, 512, 7, 7),
    "InstanceNorm1d": on(nn.InstanceNorm1d(64), 64, 64, 256),
    "InstanceNorm3d": on(nn.InstanceNorm3d(16), 2, 16, 32, 32, 32),
    "LogSoftmax of maps": on(nn.LogSoftmax(1), 4, 21, 112, 112),
    "Softmin along the second axis": on(nn.Softmin(1), 64, 100, 160),
    "Softmax2d": on(nn.Softmax2d(), 4, 21, 112, 112),
    "ZeroPad2d": on(nn.ZeroPad2d(1), 16, 64, 32, 32),
    "ReflectionPad2d": on(nn.ReflectionPad2d(2), 16, 64, 32, 32),
    "ReflectionPad3d": on(nn.ReflectionPad3d(2), 2, 16, 32, 32, 32),
    "ReplicationPad3d": on(nn.ReplicationPad3d(2), 2, 16, 32, 32, 32),
    "CircularPad1d": on(nn.CircularPad1d(3), 64, 64, 256),
    "Softshrink": on(nn.Softshrink(), 16, 64, 32, 32),
    "Hardshrink": on(nn.Hardshrink(), 16, 64, 32, 32),
    "Threshold": on(nn.Threshold(0.1, 0.0), 16, 64, 32, 32),
    "LSTM, two layers": on(nn.LSTM(128, 128, 2), 64, 32, 128),
    "GRU": on(nn.GRU(128, 128), 64, 32, 128),
    "RNN": on(nn.RNN(128, 128), 64, 32, 128),
    "LSTMCell": on(nn.LSTMCell(256, 256), 1024, 256),
    "GRUCell": on(nn.GRUCell(256, 256), 1024, 256),
    "RNNCell": on(nn.RNNCell(256, 256), 1024, 256),
    "Conv3d": on(nn.Conv3d(16, 16, 3, padding=1), 2, 16, 16, 32, 32),
    "ConvTranspose3d": on(nn.ConvTranspose3d(16, 16, 2, stride=2), 2, 16, 16, 16, 16),
    "PixelUnshuffle": on(nn.PixelUnshuffle(2), 16, 64, 32, 32),
    "TransformerEncoderLayer": on(
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True), 16, 64, 128
    ),
    "MultiheadAttention": _attention,
}
