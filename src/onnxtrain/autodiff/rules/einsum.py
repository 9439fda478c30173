"""Einsum, for any equation.

The gradient of one operand is an Einsum of `dy` and the other operands whose output is that
operand's term. Three things do not fit into one Einsum and are added around it: labels that only
this operand has (it was summed over them, so the gradient is repeated), labels that it has twice
(it was read along a diagonal, so the gradient is zero beside it), and dimensions of 1 that were
broadcast (so the gradient is summed). An ellipsis stands for labels of its own.
"""

from __future__ import annotations

import string
from typing import Any

from ...errors import ModelError
from ...graph import OpBuilder, Tensor
from ...graph.tensor import Dim
from ..registry import gradient
from ._index import Size, dim, line, vector


@gradient("Einsum")
def einsum(op: OpBuilder, dy: Tensor, y: Tensor, *inputs: Tensor, equation: str) -> Any:
    terms, result, spread = parse(equation, [x.rank for x in inputs])
    return tuple(
        _operand_gradient(op, dy, inputs, terms, result, spread, i) for i in range(len(inputs))
    )


def parse(equation: str, ranks: list[int]) -> tuple[list[str], str, frozenset[str]]:
    """Terms and output of an equation with ellipses spelled out, and the labels they became."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError(f"Einsum {equation!r} has {len(terms)} terms for {len(ranks)} operands.")
    free = [c for c in string.ascii_letters if c not in equation]
    widths = [r - len(t) + 3 for t, r in zip(terms, ranks) if "..." in t]
    labels = free[: max(widths, default=0)]
    terms = [
        t.replace("...", "".join(labels[len(labels) - (r - len(t) + 3) :]) if "..." in t else "")
        for t, r in zip(terms, ranks)
    ]
    every = "".join(terms)
    if not arrow:  # implicit: what occurs once, in alphabetic order, behind the ellipsis
        once = sorted(c for c in set(every) if every.count(c) == 1 and c not in labels)
        result = "".join([*labels, *once])
    return terms, result.replace("...", "".join(labels)), frozenset(labels)


def _operand_gradient(
    op: OpBuilder,
    dy: Tensor,
    inputs: tuple[Tensor, ...],
    terms: list[str],
    result: str,
    spread: frozenset[str],
    index: int,
) -> Tensor:
    x, term = inputs[index], terms[index]
    others = [(t, v) for i, (t, v) in enumerate(zip(terms, inputs)) if i != index]
    elsewhere = set(result).union(*(t for t, _ in others))
    own = "".join(dict.fromkeys(term))
    common = "".join(c for c in own if c in elsewhere)
    dx = _contract(op, [(result, dy), *others], common)
    missing = [a for a, c in enumerate(own) if c not in elsewhere]
    if missing:
        dx = op.Unsqueeze(dx, missing)
    sizes = [dim(op, x, term.index(c)) for c in own]
    undecided = _repeated(own, term, x, others, spread)
    if missing or undecided:
        # Ones where the gradient has the right size already; Expand leaves larger ones as they are.
        full = [
            s if a in missing or c in undecided else 1 for a, (c, s) in enumerate(zip(own, sizes))
        ]
        dx = op.Expand(dx, vector(op, *full))
    if undecided:
        shape = tuple(None if c in undecided else x.dim(term.index(c)) for c in own)
        dx = op.sum_to(dx, _first_of_each(op, x, term, own), shape, dx)
    return _onto_diagonal(op, dx, own, term, sizes)


def _contract(op: OpBuilder, operands: list[tuple[str, Tensor]], result: str) -> Tensor:
    """Einsum of the operands that have labels, times the scalars among them."""
    scalars = [v for t, v in operands if not t]
    tensors = [(t, v) for t, v in operands if t]
    product: Tensor | None = None
    if tensors:
        labels = [t for t, _ in tensors]
        if labels == [result]:
            product = tensors[0][1]
        else:
            equation = f"{','.join(labels)}->{result}"
            product = op.Einsum(*(v for _, v in tensors), equation=equation)
    for value in scalars:
        product = value if product is None else product * value
    assert product is not None
    return product


def _repeated(
    own: str, term: str, x: Tensor, others: list[tuple[str, Tensor]], spread: frozenset[str]
) -> list[str]:
    """Labels of an ellipsis whose dimensions may differ between the operands: 1 is repeated."""
    return [
        label
        for label in own
        if label in spread
        and not all(
            _same(x.dim(term.index(label)), v.dim(t.index(label))) for t, v in others if label in t
        )
    ]


def _same(a: Dim, b: Dim) -> bool:
    return a is not None and a == b


def _first_of_each(op: OpBuilder, x: Tensor, term: str, own: str) -> Tensor:
    """`x` with each label once, for its shape: unlike axes of a diagonal are the same size."""
    return x if term == own else op.Einsum(x, equation=f"{term}->{own}")


def _onto_diagonal(op: OpBuilder, dx: Tensor, own: str, term: str, sizes: list[Size]) -> Tensor:
    """Give back the axes that a repeated label merged: zero wherever they differ."""
    have = own
    for position, label in enumerate(term):
        if position < len(have) and have[position] == label and term[:position] == have[:position]:
            continue
        first = term.index(label)
        dx = op.Unsqueeze(dx, [position])
        have = have[:position] + label + have[position:]
        number = line(op, sizes[own.index(label)])
        along = [a for a in range(len(have)) if a != position]
        across = [a for a in range(len(have)) if a != first]
        same = op.Equal(op.Unsqueeze(number, along), op.Unsqueeze(number, across))
        dx = op.Where(same, dx, 0)
    return dx
