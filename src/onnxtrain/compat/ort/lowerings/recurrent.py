"""LSTM and GRU that keep gates and states for their gradient operators.

The gradient is that of the standard operator, which reads none of the gates the training form kept:
so the gradient operators go first, and the forward becomes the standard one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ....errors import ModelError
from ....graph import OpBuilder, Tensor
from ....normalize.rewrite import Lowering, describe
from ._vjp import vjp


def lstm_training(op: OpBuilder, *inputs: Tensor | None, **attributes: Any) -> Any:
    """LSTM; the kept cell states and gates have no reader any more."""
    return op.many("LSTM", *inputs, outputs=3, **attributes)


def gru_training(op: OpBuilder, *inputs: Tensor | None, **attributes: Any) -> Any:
    """GRU; the kept gates have no reader any more."""
    return op.many("GRU", *inputs, outputs=2, **attributes)


def lstm_grad(
    op: OpBuilder, x: Tensor, w: Tensor, r: Tensor, lengths: Tensor | None, h0: Tensor | None,
    c0: Tensor | None, hidden: Tensor, cells: Tensor, gates: Tensor, dy: Tensor | None,
    dh: Tensor | None, dc: Tensor | None, *, node: ir.Node, **attributes: Any,
) -> Any:  # fmt: skip
    """dX, dW, dR, dB, dH0, dC0 and dP."""
    operand_of = {0: 0, 1: 1, 2: 2, 3: 3, 4: 5, 5: 6, 6: 7}
    return _grad(op, "LSTM", gates, [dy, dh, dc], node, operand_of)


def gru_grad(
    op: OpBuilder, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None,
    h0: Tensor | None, hidden: Tensor, gates: Tensor, dy: Tensor | None, dh: Tensor | None,
    *, node: ir.Node, **attributes: Any,
) -> Any:  # fmt: skip
    """dX, dW, dR, dB and dH0."""
    return _grad(op, "GRU", gates, [dy, dh], node, {0: 0, 1: 1, 2: 2, 3: 3, 4: 5})


def _grad(
    op: OpBuilder,
    kind: str,
    gates: Tensor,
    dys: Sequence[Tensor | None],
    node: ir.Node,
    operand_of: dict[int, int],
) -> list[Tensor | None]:
    """The gradient of the layer that kept these gates; `operand_of`: output → its operand."""
    layer = gates.value.producer()
    if layer is None or layer.op_type != f"{kind}Training":
        raise ModelError(f"{describe(node)}: the {kind}Training that kept the gates is not there.")
    operands = [None if v is None else op.tensor(v) for v in layer.inputs]
    settings = {name: a.value for name, a in layer.attributes.items()}
    used = [i for i, o in enumerate(node.outputs) if o.name and i in operand_of]
    present = [
        i for i in used if operand_of[i] < len(operands) and operands[operand_of[i]] is not None
    ]

    def forward(op: OpBuilder, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        return op.many(kind, *inputs, outputs=len(dys), **settings)

    gradients = vjp(op, forward, operands, dys, [operand_of[i] for i in present])
    results: list[Tensor | None] = [None] * len(node.outputs)
    for i, gradient in zip(present, gradients):
        results[i] = gradient
    return results


FIRST: dict[str, Lowering] = {"LSTMGrad": lstm_grad, "GRUGrad": gru_grad}
"""To be rewritten while the layers they belong to are still there."""

TABLE: dict[str, Lowering] = {"LSTMTraining": lstm_training, "GRUTraining": gru_training}
