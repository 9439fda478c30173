"""Scalars and linear combinations that are folded before anything touches a whole tensor.

An optimizer is mostly ``a·x + b·y`` with scalars ``a`` and ``b`` that are themselves products (clip
coefficient × (1 − β), learning rate × bias correction). Keeping those products symbolic until a
tensor is really needed leaves the fewest passes over memory: the scalars meet scalars.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..graph import Tensor

Scalar: TypeAlias = "float | Tensor"
"""A Python number, or a tensor without dimensions."""


def times(a: Scalar, b: Scalar) -> Scalar:
    """The product of two scalars; a factor of one costs nothing."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return a * b
    if not isinstance(a, Tensor):
        a, b = b, a
    assert isinstance(a, Tensor)
    if not isinstance(b, Tensor):
        if b == 1.0:
            return a
        if b == -1.0:
            return -a
        if b == 0.0:
            return 0.0
    return a * b


def plus(a: Scalar, b: Scalar) -> Scalar:
    """The sum of two scalars; a term of zero costs nothing."""
    if not isinstance(a, Tensor) and a == 0.0:
        return b
    if not isinstance(b, Tensor) and b == 0.0:
        return a
    return a + b


class Linear:
    """``Σ cᵢ·tᵢ`` with scalar coefficients, not computed yet.

    Args:
        terms: pairs of coefficient and tensor; terms over the same tensor are added up.
    """

    def __init__(self, terms: Iterable[tuple[Scalar, Tensor]]) -> None:
        self.terms: list[tuple[Scalar, Tensor]] = []
        for coefficient, tensor in terms:
            self._add(coefficient, tensor)

    def _add(self, coefficient: Scalar, tensor: Tensor) -> None:
        for i, (known, other) in enumerate(self.terms):
            if other.value is tensor.value:
                self.terms[i] = (plus(known, coefficient), tensor)
                return
        if isinstance(coefficient, Tensor) or coefficient != 0.0:
            self.terms.append((coefficient, tensor))

    def __add__(self, other: Linear) -> Linear:
        return Linear([*self.terms, *other.terms])

    def __mul__(self, factor: Scalar) -> Linear:
        return Linear([(times(c, factor), t) for c, t in self.terms])

    __rmul__ = __mul__

    def square(self) -> Linear:
        """The element-wise square; of one term ``(c·t)² = c²·t²``."""
        if len(self.terms) == 1:
            coefficient, tensor = self.terms[0]
            return Linear([(times(coefficient, coefficient), tensor * tensor)])
        value = self.value()
        return Linear([(1.0, value * value)])

    def evaluated(self) -> Linear:
        """The same with several terms computed into one, so that it can be used repeatedly."""
        return self if len(self.terms) == 1 else Linear([(1.0, self.value())])

    def value(self) -> Tensor:
        """Emit the operators and give the result."""
        total: Tensor | None = None
        for coefficient, tensor in self.terms:
            plain = not isinstance(coefficient, Tensor)
            if total is not None and plain and coefficient == -1.0:
                total = total - tensor
                continue
            part = tensor if plain and coefficient == 1.0 else tensor * coefficient
            total = part if total is None else total + part
        assert total is not None, "a linear combination without terms"
        return total
