"""Where a function has a pole and a Where takes another value there, nothing flows back.

The gradient that arrives is zero there, and zero times infinity is not a number.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..operators import ELEMENTWISE, SELECTION, WITH_POLES

STEPS = 4
"""How many operators may stand between the pole and the selection."""


def is_guarded(node: ir.Node) -> bool:
    """Whether a result may be infinite, and is only read through what selects elements of it."""
    may_be = node.op_type in WITH_POLES or (
        node.op_type == "Mul" and any(map(_has_poles, node.inputs))
    )
    return may_be and is_selected(node.outputs[0])


def _has_poles(value: ir.Value | None, steps: int = STEPS) -> bool:
    """Whether a value is computed, element by element, from what may be infinite."""
    node = value.producer() if value is not None else None
    if node is None or node.domain:
        return False
    return node.op_type in WITH_POLES or (
        steps > 0
        and node.op_type in ELEMENTWISE
        and any(_has_poles(v, steps - 1) for v in node.inputs)
    )


def is_selected(value: ir.Value, steps: int = STEPS) -> bool:
    """Whether everything that is computed from a value, element by element, is selected from."""
    # Nodes of the backward half, which belong to no graph yet, read it too.
    uses = [
        (n, place)
        for n, place in value.uses()
        if n.graph is not None and n.outputs[0].dtype != ir.DataType.BOOL
    ]
    return (
        bool(uses)
        and not value.is_graph_output()
        and all(
            (n.op_type in SELECTION and place > 0)
            or (steps > 0 and n.op_type in ELEMENTWISE and is_selected(n.outputs[0], steps - 1))
            for n, place in uses
        )
    )


def zero_where(op: OpBuilder, dy: Tensor, gradient: Tensor) -> Tensor:
    """A gradient without what 0 times infinity gives where nothing came in."""
    return op.Where(op.Equal(dy, op.like(0.0, dy)), op.like(0.0, gradient), gradient)
