"""Where a function has a pole and a Where takes another value there, nothing flows back.

The gradient that arrives is zero there, and zero times infinity is not a number.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..operators import SELECTION, WITH_POLES


def is_guarded(node: ir.Node) -> bool:
    """Whether a result may be infinite, and is only read by operators that select elements."""
    if node.op_type not in WITH_POLES:
        return False
    result = node.outputs[0]
    uses = result.uses()
    selected = all(n.op_type in SELECTION and place > 0 for n, place in uses)
    return bool(uses) and selected and not result.is_graph_output()


def zero_where(op: OpBuilder, dy: Tensor, gradient: Tensor) -> Tensor:
    """A gradient without what 0 times infinity gives where nothing came in."""
    return op.Where(op.Equal(dy, op.like(0.0, dy)), op.like(0.0, gradient), gradient)
