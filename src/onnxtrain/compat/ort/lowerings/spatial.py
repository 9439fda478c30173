"""Gradients of convolutions, pools and Resize."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ....errors import ModelError
from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering, describe
from ._vjp import Forward, unknown_rank, vjp


def conv_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, w: Tensor, *, outputs: tuple[bool, ...], **attributes: Any
) -> Any:
    """dX, dW and the sum of dY per channel."""
    return _conv_grad(op, lambda op, x, w: op.Conv(x, w, **attributes), dy, x, w, outputs)


def conv_transpose_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, w: Tensor, *, outputs: tuple[bool, ...], **attributes: Any
) -> Any:
    """dX, dW and the sum of dY per channel."""
    return _conv_grad(op, lambda op, x, w: op.ConvTranspose(x, w, **attributes), dy, x, w, outputs)


def _conv_grad(
    op: OpBuilder, forward: Forward, dy: Tensor, x: Tensor, w: Tensor, outputs: tuple[bool, ...]
) -> list[Tensor | None]:
    needed = [i for i, present in enumerate(outputs[:2]) if present]
    gradients: dict[int, Tensor] = {}
    if needed:
        gradients = dict(zip(needed, vjp(op, forward, [x, w], [dy], needed)))
    if len(outputs) > 2 and outputs[2]:
        gradients[2] = op.ReduceSum(dy, [0, *range(2, x.rank)], keepdims=0)
    return [gradients.get(i) for i in range(3)]


def max_pool_grad(
    op: OpBuilder, dy: Tensor, indices: Tensor, *, node: ir.Node, **attributes: Any
) -> Any:
    """Each dY goes back to where its maximum came from: the forward node knows the shape."""
    forward = indices.value.producer()
    if forward is None or forward.op_type != "MaxPool" or forward.inputs[0] is None:
        raise ModelError(f"{describe(node)}: the MaxPool that gave the indices is not there.")
    settings = {name: a.value for name, a in forward.attributes.items()}
    x = op.tensor(forward.inputs[0])
    return vjp(op, lambda op, x: op.MaxPool(x, **settings), [x], [dy], [0])


def average_pool_grad(op: OpBuilder, dy: Tensor, *, node: ir.Node, **attributes: Any) -> Any:
    """Each dY spread over its window; the shape of the input is what the file says of dX."""
    shape = node.outputs[0].shape
    if shape is None:
        raise unknown_rank(node.outputs[0].name or "")
    dims = op.const(np.array([d if isinstance(d, int) else -1 for d in shape.dims], np.int64))
    if -1 in (dims.const if dims.const is not None else []):
        raise ModelError(f"{describe(node)}: the shape of its result is not static.")
    x = op.full(dims, 0, dy.dtype)
    x.value.shape = shape
    return vjp(op, lambda op, x: op.AveragePool(x, **attributes), [x], [dy], [0])


def resize_grad(
    op: OpBuilder, dy: Tensor, x: Tensor, roi: Tensor | None, scales: Tensor | None,
    **attributes: Any,
) -> Any:  # fmt: skip
    """Of Resize with scales."""
    return vjp(
        op, lambda op, x, r, s: op.Resize(x, r, s, **attributes), [x, roi, scales], [dy], [0]
    )


TABLE: dict[str, Lowering] = {
    "ConvGrad": conv_grad,
    "ConvTransposeGrad": conv_transpose_grad,
    "MaxPoolGrad": max_pool_grad,
    "AveragePoolGrad": average_pool_grad,
    "ResizeGrad": resize_grad,
}
