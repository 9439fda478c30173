"""Small vision models, in the forms in which exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser

SIDE, OLD = 8, 5
"""Pixels of an image, and classes that the models know."""


def parsed(
    text: str, weights: dict[str, tuple[int, ...]], opset: int = 18, extra: str = ""
) -> onnx.ModelProto:
    """A graph with random weights."""
    head = f'<ir_version: 8, opset_import: ["": {opset}{extra}]>'
    model = onnx.parser.parse_model(head + text)
    rng = np.random.default_rng(0)
    for name, shape in weights.items():
        value = rng.normal(0, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


CONVOLUTION = {"c_w": (6, 3, 3, 3), "c_b": (6,)}
BODY = "c = Conv <pads = [1, 1, 1, 1]> (x, c_w, c_b) r = Relu (c)"


def gemm() -> onnx.ModelProto:
    """As torch writes a ResNet: pooled, flat, Gemm."""
    return parsed(
        f"g (float[N, 3, 8, 8] x) => (float[N, 5] y) {{ {BODY} p = GlobalAveragePool (r)"
        " f = Flatten (p) y = Gemm <transB = 1> (f, fc_w, fc_b) }",
        {**CONVOLUTION, "fc_w": (5, 6), "fc_b": (5,)},
    )


def softmax() -> onnx.ModelProto:
    """MatMul and Add, and a Softmax at the end."""
    return parsed(
        f"g (float[N, 3, 8, 8] x) => (float[N, 5] y) {{ {BODY} p = GlobalAveragePool (r)"
        " f = Flatten (p) m = MatMul (f, w) s = Add (m, b) y = Softmax (s) }",
        {**CONVOLUTION, "w": (6, 5), "b": (5,)},
    )


def channels_last() -> onnx.ModelProto:
    """As tf2onnx writes a MobileNet: N×H×W×C, a 1×1 convolution, Squeeze, Softmax."""
    return parsed(
        "g (float[N, 8, 8, 3] x) => (float[N, 5] y) { t = Transpose <perm = [0, 3, 1, 2]> (x)"
        " c = Conv <pads = [1, 1, 1, 1]> (t, c_w, c_b) r = Relu (c)"
        " p = ReduceMean <keepdims = 1> (r, axes) k = Conv <kernel_shape = [1, 1]> (p, k_w, k_b)"
        " l = Transpose <perm = [0, 2, 3, 1]> (k) s = Reshape (l, shape) y = Softmax (s) }",
        {**CONVOLUTION, "k_w": (5, 6, 1, 1), "k_b": (5,)},
    )


def reshaped() -> onnx.ModelProto:
    """As tf2onnx writes a Dense layer: MatMul on the pooled N×1×1×C, and Reshape behind it."""
    return parsed(
        f"g (float[N, 3, 8, 8] x) => (float[N, 5] y) {{ {BODY} p = GlobalAveragePool (r)"
        " l = Transpose <perm = [0, 2, 3, 1]> (p) m = MatMul (l, w) a = Add (m, b)"
        " s = Reshape (a, shape) y = Softmax <axis = -1> (s) }",
        {**CONVOLUTION, "w": (6, 5), "b": (5,)},
    )


def squeezenet() -> onnx.ModelProto:
    """A convolution as classifier, ReLU and pooling behind it, and scores N×C×1×1."""
    return parsed(
        f"g (float[N, 3, 8, 8] x) => (float[N, 5, 1, 1] y) {{ {BODY} k = Conv (r, k_w, k_b)"
        " q = Relu (k) p = GlobalAveragePool (q) y = Softmax <axis = 1> (p) }",
        {**CONVOLUTION, "k_w": (5, 6, 1, 1), "k_b": (5,)},
    )


def log_softmax() -> onnx.ModelProto:
    """The logarithm of a Softmax, of scores divided by a temperature."""
    return parsed(
        f"g (float[N, 3, 8, 8] x) => (float[N, 5] y) <float t = {{2.0}}> {{ {BODY}"
        " p = GlobalAveragePool (r) f = Flatten (p) m = Gemm (f, w, b) d = Div (m, t)"
        " s = Softmax (d) y = Log (s) }",
        {**CONVOLUTION, "w": (6, 5), "b": (5,)},
    )


def dropout() -> onnx.ModelProto:
    """As torch writes a MobileNet in training mode: a Dropout before the classifier."""
    return parsed(
        "g (float[N, 3, 8, 8] x) => (float[N, 5] y) <float ratio = {0.5}, bool on = {1}> "
        f"{{ {BODY} p = GlobalAveragePool (r) f = Flatten (p) d = Dropout (f, ratio, on)"
        " y = Gemm (d, w, b) }",
        {**CONVOLUTION, "w": (6, 5), "b": (5,)},
    )


@dataclass(frozen=True)
class Case:
    """A model, and where the old classifier has its weight and bias."""

    make: Callable[[], onnx.ModelProto]
    weight: str
    bias: str
    parameters: tuple[str, str]


def with_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Constants that the text of a graph left open."""
    known = {"axes": np.array([2, 3]), "shape": np.array([-1, OLD])}
    used = {i for n in model.graph.node for i in n.input}
    for name, value in known.items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


CASES = {
    "gemm": Case(gemm, "fc_w", "fc_b", ("fc_w.weight", "fc_w.bias")),
    "softmax": Case(softmax, "w", "b", ("w.weight", "w.bias")),
    "channels_last": Case(channels_last, "k_w", "k_b", ("k_w.weight", "k_w.bias")),
    "reshaped": Case(reshaped, "w", "b", ("w.weight", "w.bias")),
    "squeezenet": Case(squeezenet, "k_w", "k_b", ("k_w.weight", "k_w.bias")),
    "log_softmax": Case(log_softmax, "w", "b", ("w.weight", "w.bias")),
}


def torch_networks() -> dict[str, Any]:
    """Tiny networks in the manner of ResNet, MobileNet and ViT."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
            self.bn1, self.conv = nn.BatchNorm2d(6), nn.Conv2d(6, 6, 3, padding=1)
            self.bn2, self.fc = nn.BatchNorm2d(6), nn.Linear(6, OLD)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.bn1(self.stem(x)))
            x = torch.relu(x + self.bn2(self.conv(x)))
            return self.fc(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))

    class Mobile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 6, 1), nn.ReLU6(), nn.Conv2d(6, 6, 3, groups=6, padding=1),
                nn.Hardswish(),
            )  # fmt: skip
            self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, OLD))

        def forward(self, x: Any) -> Any:
            return self.classifier(self.features(x).mean([2, 3]))

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, stride=4)
            self.first = nn.Parameter(torch.randn(1, 1, 8))
            self.norm, self.query = nn.LayerNorm(8), nn.Linear(8, 24)
            self.head = nn.Linear(8, OLD)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1)
            q, k, v = (p.unsqueeze(1) for p in self.query(self.norm(x)).chunk(3, -1))
            x = x + nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1)
            return self.head(x[:, 0])

    torch.manual_seed(0)
    return {"resnet": Residual().eval(), "mobilenet": Mobile().eval(), "vit": Vision().eval()}
