"""Softmax along an axis that is not the last, as it is written out, and gradients: for a kernel.

`fast_forms` writes such a softmax with the largest number of each column and their sum, two passes
more than a kernel needs (`runtime/fusion/across.py`), and its gradient has a sum of its own. All
nodes of such a formula are marked, so that none of them becomes part of another group.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..graph.nodes import ints, producer_of, rank_of, same_shape
from ..graph.tensor import dims_of
from ..operators import KERNEL
from .sizes import elements_of

ELEMENTS = 8192
"""As in `kernels.py`."""
SHORT, FEW_BEHIND = 12, 64
"""Numbers on the axis up to which the kernel is faster, and behind it up to which it is. A million,
with the gradient, one thread, written out and by the kernel: (6990, 3, 50) 3.4 and 2.1 to 2.5 ms,
(2000, 8, 60) 2.2 and 2.1, (2000, 16, 32) 2.4 and 2.2; with 80 behind the axis 1.2 and 2.7, with
1024 1.7 and 2.4."""


def mark_written_softmaxes(model: ir.Model) -> None:
    """Mark the nodes of what is a softmax across, its logarithm, or the gradient of one."""
    for node in model.graph:
        parts = FORMS[node.op_type](node) if node.op_type in FORMS and not node.domain else None
        if parts is None or not _is_alone([node, *parts]) or not _is_across(node, parts):
            continue
        for part in (node, *parts):
            part.doc_string = KERNEL


def _is_alone(nodes: Sequence[ir.Node]) -> bool:
    """Whether nobody else reads what is inside, and no node is marked for something else."""
    inner = {id(n) for n in nodes}
    return not any(n.doc_string for n in nodes) and all(
        not out.is_graph_output() and all(id(user) in inner for user, _ in out.uses())
        for n in nodes[1:]
        for out in n.outputs
    )


def _is_across(node: ir.Node, parts: Sequence[ir.Node]) -> bool:
    """Whether it is large, of single precision, and along one axis with few numbers behind it."""
    (x, *_), y = parts[-1].inputs, node.outputs[0]
    rank, shape = rank_of(x), (x.shape if x is not None else None) or y.shape
    axes = {tuple(ints(p.inputs[1]) or ()) for p in parts if p.op_type.startswith("Reduce")}
    if rank is None or len(axes) != 1 or x is None or shape is None:
        return False
    (axis,) = axes.pop() if len(next(iter(axes))) == 1 else (-1,)
    types, behind = {value.dtype for value in (x, y)}, shape[axis % rank + 1 :]
    is_float = ir.DataType.FLOAT in types and types <= {ir.DataType.FLOAT, None}
    length = shape[axis % rank]
    is_short = isinstance(length, int) and length <= SHORT and 1 < elements_of(behind) < FEW_BEHIND
    return is_float and is_short and elements_of(shape) >= ELEMENTS


def _reduction(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """A reduction along given axes, which are kept."""
    node = producer_of(value, op_type)
    if node is None or len(node.inputs) != 2 or node.attributes.get_int("keepdims", 1) != 1:
        return None
    return node


def _softmax(quotient: ir.Node) -> list[ir.Node] | None:
    """e / Σ e, where e = exp(x - max x)."""
    e, total = producer_of(quotient.inputs[0], "Exp"), _reduction(quotient.inputs[1], "ReduceSum")
    if e is None or total is None or total.inputs[0] is not e.outputs[0]:
        return None
    below = _below(e.inputs[0])
    return None if below is None else [e, total, *below]


def _log_softmax(difference: ir.Node) -> list[ir.Node] | None:
    """b - log Σ exp b, where b = x - max x; or a gradient, dy - exp(y)·Σ dy."""
    if producer_of(difference.inputs[1], "Mul") is not None:
        return _log_gradient(difference)
    log, below = producer_of(difference.inputs[1], "Log"), _below(difference.inputs[0])
    total = _reduction(log.inputs[0], "ReduceSum") if log is not None else None
    e = producer_of(total.inputs[0], "Exp") if total is not None else None
    if log is None or total is None or e is None or below is None:
        return None
    return [log, total, e, *below] if e.inputs[0] is difference.inputs[0] else None


def _below(value: ir.Value | None) -> list[ir.Node] | None:
    """x - max x; x is the first operand of the last node."""
    difference = producer_of(value, "Sub")
    largest = _reduction(difference.inputs[1], "ReduceMax") if difference is not None else None
    if difference is None or largest is None or largest.inputs[0] is not difference.inputs[0]:
        return None
    return [difference, largest]


def _gradient(product: ir.Node) -> list[ir.Node] | None:
    """y·(dy - Σ dy·y)."""
    y, difference = product.inputs[0], producer_of(product.inputs[1], "Sub")
    total = _reduction(difference.inputs[1], "ReduceSum") if difference is not None else None
    inner = producer_of(total.inputs[0], "Mul") if total is not None else None
    if difference is None or total is None or inner is None:
        return None
    dy = difference.inputs[0]
    is_same = inner.inputs[0] is dy and inner.inputs[1] is y and _are_alike(dy, y)
    return [difference, total, inner] if is_same else None


def _log_gradient(difference: ir.Node) -> list[ir.Node] | None:
    product, dy = producer_of(difference.inputs[1], "Mul"), difference.inputs[0]
    e = producer_of(product.inputs[0], "Exp") if product is not None else None
    total = _reduction(product.inputs[1], "ReduceSum") if product is not None else None
    if product is None or e is None or total is None or total.inputs[0] is not dy:
        return None
    return [product, e, total] if _are_alike(dy, e.inputs[0]) else None


def _are_alike(dy: ir.Value | None, y: ir.Value | None) -> bool:
    """Whether nothing is broadcast: a gradient has the axes of what it is of, known or not."""
    dims = None if dy is None else dims_of(dy)
    return same_shape(dy, y) or (dims is not None and y is not None and dims == dims_of(y))


FORMS = {"Div": _softmax, "Mul": _gradient, "Sub": _log_softmax}
"""The last nodes of these formulas."""
