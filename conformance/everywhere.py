"""The same gradients with kernels of our own wherever there can be one, however small a tensor is.

A session gets such kernels for large tensors (`passes/fusion.py`, `passes/kernels.py`), and most
networks of the lists are scaled down: they would never meet one. So the gradients are computed once
more with every tensor taken for a large one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from onnxtrain.passes import fusion, kernels

from .sessions import Session
from .verdicts import COARSE, Verdict, distance

Array = np.ndarray[Any, Any]
LIMITS = [
    (fusion, "ELEMENTS", 1),
    (fusion, "ELEMENTS_IN_LOOPS", 1),
    (fusion, "LONG_ROW", 2),
    (kernels, "ELEMENTS", 1),
]
"""From which size on there is a kernel, and which size that is here."""
MOST_BYTES = 200_000_000
"""Of a model: above that there is no room for it twice, and most of its tensors are large."""
WORSE = 10.0
"""How many times as far from float64 as standard operators kernels may be."""
SAME = 1e-4
"""Of the largest entry of a gradient: what rounding may change. What differs by more is judged as
if it were a gradient of its own."""


@contextlib.contextmanager
def every_tensor_counts_as_large() -> Iterator[None]:
    """Models that are made meanwhile have marks for kernels wherever there can be one."""
    usual = [getattr(module, name) for module, name, _ in LIMITS]
    try:
        for module, name, size in LIMITS:
            setattr(module, name, size)
        yield
    finally:
        for (module, name, _), size in zip(LIMITS, usual):
            setattr(module, name, size)


def with_kernels_everywhere(
    differentiate: Callable[[], onnx.ModelProto], usual: Session
) -> tuple[onnx.ModelProto, Session] | None:
    """A model of gradients, and its session, with all kernels that it can have.

    None if it is too large; also if the `usual` session has as many, and nothing was too small.
    """
    if usual.bytes > MOST_BYTES:
        return None
    with every_tensor_counts_as_large():
        model = differentiate()
    session = Session(model, creations=1)
    return (model, session) if session.kernels > usual.kernels else None


def are_same(ours: Mapping[str, Array], others: Mapping[str, Array], largest: float) -> bool:
    """Whether two sets of gradients differ by rounding alone."""
    return all(
        ours[n].shape == g.shape
        and distance(g, ours[n], largest) <= SAME
        and distance(g, ours[n], 0.0) <= COARSE
        for n, g in others.items()
    )


def not_excused(
    verdict: Verdict,
    kernels: Mapping[str, Array],
    standard: Mapping[str, Array],
    exact: Mapping[str, Array],
) -> Verdict:
    """What is judged as rounding has to be so without the kernels, too.

    A graph that is right in float64 says nothing of kernels: it has standard operators.

    Args:
        verdict: about the gradients that kernels gave.
        kernels: those gradients.
        standard: the same by standard operators.
        exact: what those operators give in float64.
    """
    if verdict.word != "rounding":
        return verdict
    for name, reference in exact.items():
        size = float(np.abs(reference).max(initial=0.0))
        allowed = WORSE * _gap(standard[name], reference) + SAME * size
        if not _gap(kernels[name], reference) <= allowed:
            return Verdict("wrong", verdict.error, f"kernels and operators differ: {verdict.note}")
    return verdict


def _gap(one: Array, other: Array) -> float:
    with np.errstate(all="ignore"):
        gap = np.abs(one.astype(np.float64) - other)
    return float(np.where(np.isnan(one) & np.isnan(other), 0.0, gap).max(initial=0.0))
