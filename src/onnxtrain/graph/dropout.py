"""Facts about a Dropout node: how much it drops, whether it does, what happens to the rest."""

from __future__ import annotations

import onnx_ir as ir

from .builder import OpBuilder
from .nodes import known
from .tensor import Tensor


def ratio_of(node: ir.Node) -> float | ir.Value:
    """The share that is dropped: a number, or a value that is known only when the graph runs."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None:
        return 0.5
    tensor = known(value)
    return value if tensor is None else float(tensor.numpy().reshape(()))


def training_mode_of(node: ir.Node) -> bool | ir.Value:
    """Whether it drops at all: a constant, or a value that is known only when the graph runs."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return False
    tensor = known(value)
    return value if tensor is None else bool(tensor.numpy().any())


def never_drops(node: ir.Node) -> bool:
    """Whether it certainly gives its input unchanged."""
    return training_mode_of(node) is False or ratio_of(node) == 0.0


def dropout_scale(op: OpBuilder, node: ir.Node, like: Tensor) -> Tensor:
    """1/(1 − ratio) while training (0 when all is dropped), else 1; a scalar."""
    ratio, training = ratio_of(node), training_mode_of(node)
    if isinstance(ratio, ir.Value):
        share = op.tensor(ratio)
        keep_ratio = 1.0 - op.as_type_of(share, like)
        scale = op.Where(keep_ratio > 0, op.Reciprocal(op.Where(keep_ratio > 0, keep_ratio, 1)), 0)
    else:
        scale = op.like(1.0 / (1.0 - ratio) if ratio < 1 else 0.0, like)
    if isinstance(training, ir.Value):
        return op.Where(op.tensor(training), scale, op.like(1, like))
    return scale
