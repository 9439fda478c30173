"""A model's forward pass in PyTorch, for a fair comparison of speed; common operators only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
import torch.nn.functional as F  # noqa: N812
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]


class NoTwinError(Exception):
    """The model uses something that has no counterpart here."""


class Twin:
    """Runs the nodes of a graph with PyTorch.

    Args:
        model: the model.
        trainable: initializers that get gradients.
    """

    def __init__(self, model: onnx.ModelProto, trainable: list[str]) -> None:
        unknown = sorted({n.op_type for n in model.graph.node} - set(TABLE) - {"Constant"})
        if unknown:
            raise NoTwinError(f"no counterpart here for {', '.join(unknown)}")
        self.values: dict[str, Any] = {}
        for tensor in model.graph.initializer:
            value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
            self.values[tensor.name] = value.requires_grad_(tensor.name in trainable)
        self.nodes = []
        for node in model.graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant":
                array = numpy_helper.to_array(attributes["value"]).copy()
                self.values[node.output[0]] = torch.from_numpy(array)
            else:
                self.nodes.append(
                    (TABLE[node.op_type], list(node.input), node.output[0], attributes)
                )
        self.parameters = [self.values[n] for n in trainable]

    def __call__(self, inputs: Mapping[str, Any], output: str) -> Any:
        """One output."""
        values = {**self.values, **inputs}
        for function, names, result, attributes in self.nodes:
            operands = [values[n] if n else None for n in names]
            values[result] = function(attributes, *operands)
        return values[output]


def _pair(pads: list[int]) -> Any:
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise NoTwinError("uneven padding")
    return tuple(pads[:half])


def _plain(a: Attributes) -> None:
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or a.get("ceil_mode"):
        raise NoTwinError("automatic padding")


def _conv(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    _plain(a)
    rank = w.dim() - 2
    run = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    return run(
        x, w, b, tuple(a.get("strides", [1] * rank)), _pair(a.get("pads", [0] * 2 * rank)),
        tuple(a.get("dilations", [1] * rank)), a.get("group", 1),
    )  # fmt: skip


def _pool(run: Callable[..., Any]) -> Callable[..., Any]:
    def pool(a: Attributes, x: Any) -> Any:
        _plain(a)
        kernel = list(a["kernel_shape"])
        if len(kernel) != 2 or any(d != 1 for d in a.get("dilations", [1, 1])):
            raise NoTwinError("a pooling that is not two-dimensional")
        return run(x, kernel, list(a.get("strides", [1, 1])), _pair(a.get("pads", [0] * 4)))

    return pool


def _average(x: Any, kernel: list[int], strides: list[int], pads: Any) -> Any:
    return F.avg_pool2d(x, kernel, strides, pads, count_include_pad=False)


def _gemm(a: Attributes, x: Any, y: Any, c: Any = None) -> Any:
    x = x.t() if a.get("transA") else x
    y = y.t() if a.get("transB") else y
    if c is None or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0:
        out = a.get("alpha", 1.0) * (x @ y)
        return out if c is None else out + a.get("beta", 1.0) * c
    return torch.addmm(c, x, y)


def _batch_norm(a: Attributes, x: Any, s: Any, b: Any, m: Any, v: Any) -> Any:
    return F.batch_norm(x, m, v, s, b, True, 1 - a.get("momentum", 0.9), a.get("epsilon", 1e-5))


def _layer_norm(a: Attributes, x: Any, s: Any, b: Any = None) -> Any:
    return F.layer_norm(x, s.shape, s, b, a.get("epsilon", 1e-5))


def _reshape(a: Attributes, x: Any, shape: Any) -> Any:
    sizes = [x.shape[i] if d == 0 else d for i, d in enumerate(shape.tolist())]
    return x.reshape(sizes)


def _reduce_mean(a: Attributes, x: Any, axes: Any = None) -> Any:
    chosen = axes.tolist() if axes is not None else a.get("axes")
    return x.mean(dim=chosen, keepdim=bool(a.get("keepdims", 1)))


def _axes(a: Attributes, axes: Any) -> list[int]:
    return [int(i) for i in (axes.tolist() if axes is not None else a.get("axes", []))]


def _squeeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    return x.squeeze(tuple(_axes(a, axes))) if axes is not None or "axes" in a else x.squeeze()


def _unsqueeze(a: Attributes, x: Any, axes: Any = None) -> Any:
    rank = x.dim() + len(_axes(a, axes))
    for axis in sorted(i % rank for i in _axes(a, axes)):
        x = x.unsqueeze(axis)
    return x


def _slice(
    a: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None
) -> Any:
    chosen = _axes(a, axes) if axes is not None else list(range(len(starts)))
    strides = steps.tolist() if steps is not None else [1] * len(starts)
    slices = [slice(None)] * x.dim()
    for axis, start, end, stride in zip(chosen, starts.tolist(), ends.tolist(), strides):
        if stride < 0:
            raise NoTwinError("a Slice that runs backwards")
        size = x.shape[axis]
        first, last = (min(max(i, -size), size) for i in (start, end))
        slices[axis] = slice(first, last, min(stride, size) or 1)
    return x[tuple(slices)]


def _gather(a: Attributes, x: Any, indices: Any) -> Any:
    axis = a.get("axis", 0) % x.dim()
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return F.embedding(indices, x)
    rows = x.index_select(axis, indices.reshape(-1))
    return rows.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def _softmax(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, x: run(x, dim=a.get("axis", -1))


TABLE: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "MaxPool": _pool(F.max_pool2d),
    "AveragePool": _pool(_average),
    "GlobalAveragePool": lambda a, x: x.mean(dim=tuple(range(2, x.dim())), keepdim=True),
    "Gemm": _gemm,
    "MatMul": lambda a, x, y: x @ y,
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Mul": lambda a, x, y: x * y,
    "Div": lambda a, x, y: x / y,
    "Pow": lambda a, x, y: x**y,
    "Sqrt": lambda a, x: x.sqrt(),
    "Erf": lambda a, x: x.erf(),
    "Relu": lambda a, x: F.relu(x),
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Sigmoid": lambda a, x: x.sigmoid(),
    "Tanh": lambda a, x: x.tanh(),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "Softmax": _softmax(torch.softmax),
    "LogSoftmax": _softmax(torch.log_softmax),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "ReduceMean": _reduce_mean,
    "Reshape": _reshape,
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Transpose": lambda a, x: x.permute(*a["perm"]),
    "Concat": lambda a, *x: torch.cat(x, dim=a["axis"]),
    "Shape": lambda a, x: torch.tensor(x.shape[a.get("start", 0) : a.get("end")]),
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Identity": lambda a, x: x,
}


def same(twin: Twin, feeds: Mapping[str, Array], output: str, expected: Array) -> bool:
    """Whether the twin computes what onnxruntime does."""
    with torch.no_grad():
        actual = twin({k: torch.from_numpy(v) for k, v in feeds.items()}, output).numpy()
    return actual.shape == expected.shape and bool(np.allclose(actual, expected, 1e-3, 1e-3))
