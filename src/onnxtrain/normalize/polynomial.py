"""Dimensions as polynomials of symbols with integer coefficients: enough algebra for shapes."""

from __future__ import annotations

from typing import TypeAlias

Monomial: TypeAlias = tuple[str, ...]


class UnknownError(Exception):
    """The result is not a polynomial."""


class Poly:
    """A sum of products of symbols, like ``4*batch + 1``; immutable and in normal form.

    >>> batch = Poly.symbol("batch")
    >>> str(batch * 4 + 1 - 1), (batch * 6) // 3 == batch * 2
    ('4*batch', True)
    """

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}

    @staticmethod
    def symbol(name: str) -> Poly:
        """One symbol."""
        return Poly({(name,): 1})

    @staticmethod
    def of(value: object) -> Poly:
        """An integer or a polynomial as a polynomial."""
        return value if isinstance(value, Poly) else Poly({(): int(value)})  # type: ignore[call-overload]

    def simplest(self) -> Poly | int:
        """A plain integer when there is no symbol in it."""
        if not self.terms:
            return 0
        return self.terms[()] if set(self.terms) == {()} else self

    def __add__(self, other: object) -> Poly | int:
        terms = dict(self.terms)
        for monomial, coefficient in Poly.of(other).terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return Poly(terms).simplest()

    def __mul__(self, other: object) -> Poly | int:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in Poly.of(other).terms.items():
                key = tuple(sorted(left + right))
                terms[key] = terms.get(key, 0) + a * b
        return Poly(terms).simplest()

    def __neg__(self) -> Poly | int:
        return self * -1

    def __sub__(self, other: object) -> Poly | int:
        return self + Poly.of(other) * -1

    def __rsub__(self, other: object) -> Poly | int:
        return Poly.of(other) - self

    def __floordiv__(self, other: object) -> Poly | int:
        """Exact division by one monomial; raises `UnknownError` when it leaves a rest."""
        divisor = Poly.of(other)
        if len(divisor.terms) != 1:
            raise UnknownError
        ((monomial, coefficient),) = divisor.terms.items()
        terms = {}
        for key, c in self.terms.items():
            rest = list(key)
            for factor in monomial:
                if factor not in rest:
                    raise UnknownError
                rest.remove(factor)
            if c % coefficient:
                raise UnknownError
            terms[tuple(rest)] = c // coefficient
        return Poly(terms).simplest()

    def __rfloordiv__(self, other: object) -> Poly | int:
        return Poly.of(other) // self

    __radd__ = __add__
    __rmul__ = __mul__
    __truediv__ = __floordiv__
    __rtruediv__ = __rfloordiv__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        parts = []
        for monomial, c in sorted(self.terms.items(), reverse=True):
            factors = ([] if c == 1 and monomial else [str(c)]) + list(monomial)
            parts.append("*".join(factors))
        return " + ".join(parts)

    __repr__ = __str__
