"""What the forms of all families share: see `fast_forms.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..autodiff.composites import Composite, Gradient
from ..autodiff.registry import is_rule
from ..autodiff.walk import Walk
from ..graph import OpBuilder, Tensor


@dataclass(frozen=True)
class Written:
    """The nodes that stand for an operator: their result, and how they are declared as one."""

    result: Tensor
    composite: Callable[[Sequence[ir.Node]], Composite] | None = None


@dataclass(frozen=True)
class Form:
    """How to write an operator: where it applies, and the nodes.

    What applies is told the names of the values that somebody asks for.
    """

    applies: Callable[[ir.Node, Collection[str]], bool]
    write: Callable[[OpBuilder, ir.Node], Written]
    dtype: ir.DataType = ir.DataType.FLOAT


def composite(
    nodes: Sequence[ir.Node],
    formula: Callable[[OpBuilder, Tensor], Iterable[tuple[ir.Value, Tensor | None]]],
) -> Composite:
    """The nodes as one function, whose gradient is this formula."""

    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        assert dys[0] is not None
        return formula(walk.op, dys[0])

    of: Gradient = gradient
    inner = tuple(o for n in nodes[:-1] for o in n.outputs)
    return Composite(nodes[-1], inner, of, tuple(nodes))


def operand(op: OpBuilder, node: ir.Node) -> Tensor:
    """The first operand."""
    assert node.inputs[0] is not None
    return op.tensor(node.inputs[0])


def has_rule(
    rule: Callable[..., object], op_type: str
) -> Callable[[ir.Node, Collection[str]], bool]:
    """Not where a user has registered another gradient."""
    return lambda *_: is_rule(rule, op_type)
