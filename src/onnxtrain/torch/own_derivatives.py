"""Functions whose own backward is the derivative of their forward.

Such a backward saves memory or time and changes no gradient (a masked softmax that keeps its result
alone, say). Exported as what the forward does, the function loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .function_calls import call_backward, call_forward, is_float

SIZES = (1.0, 1e-2, 1e2, 1e4)
"""Of the gradients that are tried, at one point each: a backward that clips them shows."""
TOLERANCE = 1e-5
"""Relative to the largest entry, in float64; parts of a function may round to float32."""


def is_derivative(cls: Any, args: Sequence[Any]) -> bool:
    """Whether the backward gives what autograd makes of the forward.

    Asked in float64 at the arguments themselves and at three points around them. Where it is not
    certain, because the forward changes its arguments or cannot be differentiated, the answer is
    no.
    """
    random = torch.Generator().manual_seed(0)
    try:
        return all(_agree(cls, _point(args, i > 0, random), s, random) for i, s in enumerate(SIZES))
    except Exception:  # whatever it needs, it is not this kind of function
        return False


def _point(args: Sequence[Any], moved: bool, random: torch.Generator) -> list[Any]:
    """The arguments with floats in float64, if `moved` by factors around one: signs stay."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.detach().clone()
        wide = value.detach().double()
        factors = 0.5 + torch.rand(wide.shape, generator=random, dtype=torch.float64)
        return wide * factors if moved else wide.clone()

    return [copy(value) for value in args]


def _agree(cls: Any, args: list[Any], size: float, random: torch.Generator) -> bool:
    floats = [i for i, value in enumerate(args) if is_float(value)]

    def plain(*values: torch.Tensor) -> Any:
        operands = list(args)
        for place, value in zip(floats, values):
            operands[place] = value
        return call_forward(cls, operands)[0]

    # What is changed in place on the way would stop autograd, and is no change to a graph.
    functional = torch.func.functionalize(plain)
    derivative: Any = torch.func.vjp(functional, *(args[i] for i in floats))
    result, pull = derivative
    results = result if isinstance(result, tuple) else (result,)
    grads = tuple(size * torch.randn(r.shape, generator=random, dtype=r.dtype) for r in results)
    expected = pull(grads if isinstance(result, tuple) else grads[0])
    versions = [args[i]._version for i in floats]
    with torch.no_grad():
        _, context = call_forward(cls, args)
        got = call_backward(cls, context, *grads)
    if versions != [args[i]._version for i in floats]:
        return False
    return all(_equal(got[i], value) for i, value in zip(floats, expected))


def _equal(got: torch.Tensor | None, expected: torch.Tensor) -> bool:
    if got is None:
        return not expected.any()
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    same_shape = got.shape == expected.shape
    return same_shape and bool(torch.all((got - expected).abs() <= TOLERANCE * largest))
