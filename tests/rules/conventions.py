"""What the tests of conventions share: one operator's gradients, and torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

import onnxtrain

from .harness import run_ort

INF = float("inf")


def gradients(
    op: str,
    *inputs: np.ndarray | None,
    opset: int = 18,
    wrt: list[int] | None = None,
    constants: tuple[int, ...] = (),
    seed: np.ndarray | None = None,
    dynamic: bool = False,
    **attrs: Any,
) -> list[np.ndarray]:
    """Gradients of one operator on onnxruntime, given the gradient `seed` of its output."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    given = {n: np.asarray(a) for n, a in zip(names, inputs) if a is not None}
    stored = {f"x{i}" for i in constants}
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="node", **attrs)],
        "g",
        [
            helper.make_tensor_value_info(
                n,
                helper.np_dtype_to_tensor_dtype(a.dtype),
                [f"{n}_{i}" for i in range(a.ndim)] if dynamic else a.shape,
            )
            for n, a in given.items()
            if n not in stored
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(given[n], n) for n in sorted(stored)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    targets = [f"x{i}" for i in (range(1) if wrt is None else wrt)]
    result = onnxtrain.differentiate(model, wrt=targets, of=["y"], vjp=True)
    feeds = {n: a for n, a in given.items() if n not in stored}
    shape = run_ort(model, feeds)[0].shape
    feeds["y_grad"] = np.ones(shape, np.float32) if seed is None else seed
    return run_ort(result, feeds)[1:]


def torch_gradients(function: Any, *inputs: np.ndarray, seed: np.ndarray | None = None) -> list:
    tensors = [torch.tensor(a, requires_grad=True) for a in inputs]
    y = function(*tensors)
    y.backward(torch.ones_like(y) if seed is None else torch.tensor(seed))
    return [t.grad.numpy() for t in tensors]


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)
