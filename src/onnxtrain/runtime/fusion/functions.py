"""exp, log, tanh, erf, sinh and what follows from them, on sixteen numbers at once, as LLVM's code.

Polynomials through the function at Chebyshev's points, without a branch. Each is right to two or
three units in the last place, and keeps infinities and NaN; `tests/runtime/fusion` compares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

LANES = 16
"""Numbers of a vector: one register of AVX-512, two of AVX2, four of NEON."""
VECTOR = ir.VectorType(ir.FloatType(), LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
Value = Any
"""A value of LLVM's, which has no types for us."""


@functools.cache
def fitted(name: str) -> tuple[float, ...]:
    """Coefficients for a function, lowest first."""
    f, low, high, degree = FITS[name]
    fit = np.polynomial.chebyshev.Chebyshev.interpolate(f, degree, [low, high])
    return tuple(float(np.float32(c)) for c in fit.convert(kind=np.polynomial.Polynomial).coef)


def _each(f: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda xs: np.array([f(float(x)) for x in np.atleast_1d(xs)])


FITS: dict[str, tuple[Callable[[Any], Any], float, float, int]] = {
    "exp": (np.exp, -0.35, 0.35, 6),
    "sinh": (_each(lambda s: (math.sinh(math.sqrt(s)) / math.sqrt(s) - 1) / s), 0.0, 1.0, 3),
    "log": (_each(lambda f: (math.log1p(f) - f + f * f / 2) / f**3), -0.2929, 0.4143, 8),
}
"""What is fitted, between which numbers, and of which degree. sinh(x) is x + x³·P(x²) up to 1,
where degree 3 is wrong by 4e-9 of it, its rounded coefficients included."""
LARGE_OPERAND = 4096.0
"""From here on asinh and acosh are ln 2x: the next term, 1 / 4x², is less than 2e-9 of it."""
TANH_ABOVE = (
    1.0, 1.370394230e-1, 3.898522817e-3, 2.862274232e-5, 3.209399324e-8, -1.335620156e-11,
)  # fmt: skip
TANH_BELOW = (1.0, 4.703727663e-1, 2.735611796e-2, 3.992072016e-4, 1.330723990e-6)
TANH_END = 8.5
"""tanh(x) / x in the same way as erf(x) / x, with an error of 7e-10."""
ERF_ABOVE = (
    1.12837916, 1.87301350e-1, 5.23469301e-2, 3.63770821e-3, 2.82854333e-4, 2.08285422e-6,
)  # fmt: skip
ERF_BELOW = (1.0, 4.99324554e-1, 1.12834404e-1, 1.47087492e-2, 1.13334056e-3, 3.83305446e-5)
ERF_END = 3.95
"""erf(x) / x as a quotient of polynomials in x² up to this x, behind which erf is 1 in single
precision: least squares, weighted until the largest error was 9e-9, as small as it gets."""


class Vectors:
    """Writes operations on vectors of floats.

    Args:
        builder: LLVM's, where the next instruction goes.
        module: where functions of LLVM's own are declared.
    """

    def __init__(self, builder: Any, module: Any) -> None:
        self.builder, self._module = builder, module

    def number(self, value: float) -> Value:
        """One number in all lanes."""
        rounded = float(np.float32(value))
        return ir.Constant(VECTOR, [ir.Constant(ir.FloatType(), rounded)] * LANES)

    def words(self, value: int) -> Value:
        """One integer in all lanes."""
        return ir.Constant(WORDS, [ir.Constant(ir.IntType(32), value)] * LANES)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """A function that LLVM brings, such as ``sqrt``."""
        kind = ir.FunctionType(VECTOR, [VECTOR] * len(operands))
        full = f"llvm.{name}.v{LANES}f32"
        function = self._module.globals.get(full) or ir.Function(self._module, kind, full)
        return self.builder.call(function, operands)

    def test(self, relation: str, a: Value, b: Value) -> Value:
        """A comparison, which is false for NaN."""
        return self.builder.fcmp_ordered(relation, a, b)

    def differ(self, a: Value, b: Value) -> Value:
        """Whether two numbers are not equal, as NaN is to any."""
        return self.builder.fcmp_unordered("!=", a, b)

    def choose(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        return self.builder.select(condition, a, b)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        """Horner's scheme."""
        result = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            result = self.intrinsic("fmuladd", result, x, self.number(c))
        return result

    def keep_nan(self, x: Value, y: Value) -> Value:
        """`y`, or `x` where that is NaN."""
        return self.choose(self.builder.fcmp_unordered("uno", x, x), x, y)

    def bits(self, words: Value) -> Value:
        """Integers taken as floats."""
        return self.builder.bitcast(words, VECTOR)

    def exp(self, x: Value) -> Value:
        """The exponential."""
        return self._power(x, 0)

    def _power(self, x: Value, halvings: int) -> Value:
        """eˣ halved so often: 2ⁿ · e^r with |r| ≤ ln 2 / 2.

        Nothing is multiplied where the result is zero: what is too small for a number takes a
        processor a hundred times as long, and half of an attention is masked.
        """
        b, number = self.builder, self.number
        is_zero = self.test("<", x, number(-104.0))
        y = self.choose(is_zero, number(0.0), x)
        y = self.choose(self.test("<", y, number(90.0)), y, number(90.0))  # infinite, also halved
        n = self.intrinsic(
            "floor", self.intrinsic("fmuladd", y, number(1 / math.log(2)), number(0.5))
        )
        high = 0.693359375  # ln 2 with few digits: n times it is exact
        r = self.intrinsic("fmuladd", n, number(-high), y)
        r = self.intrinsic("fmuladd", n, number(high - math.log(2)), r)
        p = self.polynomial(fitted("exp"), r)
        whole = b.sub(b.fptosi(n, WORDS), self.words(halvings))
        half = b.ashr(whole, self.words(1))  # two factors: 2ⁿ itself may be out of range
        for power in (half, b.sub(whole, half)):
            scale = b.shl(b.add(power, self.words(127)), self.words(23))
            p = b.fmul(p, self.bits(scale))
        return self.keep_nan(x, self.choose(is_zero, number(0.0), p))

    def log(self, x: Value) -> Value:
        """The logarithm: n·ln 2 + log1p(f) with 1 + f between √½ and √2."""
        b, number = self.builder, self.number
        is_tiny = self.test("<", x, number(1.1754944e-38))
        y = self.choose(is_tiny, b.fmul(x, number(2.0**23)), x)
        word = b.bitcast(y, WORDS)
        n = b.ashr(b.sub(word, self.words(0x3F3504F3)), self.words(23))
        f = b.fsub(self.bits(b.sub(word, b.shl(n, self.words(23)))), number(1.0))
        n = b.sitofp(n, VECTOR)
        n = b.fsub(n, self.choose(is_tiny, number(23.0), number(0.0)))
        p = b.fmul(self.polynomial(fitted("log"), f), b.fmul(f, b.fmul(f, f)))
        p = self.intrinsic("fmuladd", n, number(math.log(2) - 0.693359375), p)
        p = self.intrinsic("fmuladd", b.fmul(f, f), number(-0.5), p)
        p = self.intrinsic("fmuladd", n, number(0.693359375), b.fadd(f, p))
        p = self.choose(self.test("<", x, number(math.inf)), p, x)
        p = self.choose(self.test("!=", x, number(0.0)), p, number(-math.inf))
        return self.choose(self.test(">=", x, number(0.0)), p, number(math.nan))

    def tanh(self, x: Value) -> Value:
        """x·P(x²) / Q(x²), and 1 behind the end."""
        return self._odd(x, TANH_ABOVE, TANH_BELOW, TANH_END)

    def erf(self, x: Value) -> Value:
        """x·P(x²) / Q(x²), and 1 behind the end."""
        return self._odd(x, ERF_ABOVE, ERF_BELOW, ERF_END)

    def _odd(self, x: Value, above: Sequence[float], below: Sequence[float], end: float) -> Value:
        b, number, t = self.builder, self.number, self.intrinsic("fabs", x)
        s = b.fmul(t, t)
        y = b.fdiv(b.fmul(t, self.polynomial(above, s)), self.polynomial(below, s))
        y = self.choose(self.test("<", t, number(end)), y, number(1.0))
        y = self.choose(self.test("<", y, number(1.0)), y, number(1.0))
        return self.keep_nan(x, self.intrinsic("copysign", y, x))

    def sinh(self, x: Value) -> Value:
        """x + x³·P(x²) up to 1, (e^x − e^−x) / 2 behind it, with e^x halved before it is infinite.

        The difference keeps the digits of e^x there: it is wrong by 1.3 times as much at most.
        """
        b, t = self.builder, self.intrinsic("fabs", x)
        s, half = b.fmul(t, t), self._power(t, 1)
        near = self.intrinsic("fmuladd", b.fmul(t, s), self.polynomial(fitted("sinh"), s), t)
        far = b.fsub(half, b.fdiv(self.number(0.25), half))
        y = self.choose(self.test("<", t, self.number(1.0)), near, far)
        return self.keep_nan(x, self.intrinsic("copysign", y, x))

    def cosh(self, x: Value) -> Value:
        """(e^|x| + e^−|x|) / 2, with e^|x| halved before it is infinite."""
        half = self._power(self.intrinsic("fabs", x), 1)
        return self.builder.fadd(half, self.builder.fdiv(self.number(0.25), half))

    def asinh(self, x: Value) -> Value:
        """log1p(t + t² / (1 + √(1 + t²))) of t = |x|, which keeps the digits of small numbers."""
        b, one, t = self.builder, self.number(1.0), self.intrinsic("fabs", x)
        s = b.fmul(t, t)
        root = self.intrinsic("sqrt", b.fadd(one, s))
        y = self._log_of_sum(b.fadd(t, b.fdiv(s, b.fadd(one, root))), t)
        return self.keep_nan(x, self.intrinsic("copysign", y, x))

    def acosh(self, x: Value) -> Value:
        """log1p(d + √(d² + 2d)) of d = x − 1, which is exact; NaN below 1."""
        b, one = self.builder, self.number(1.0)
        d = b.fsub(x, one)
        root = self.intrinsic("sqrt", self.intrinsic("fmuladd", d, d, b.fadd(d, d)))
        y = self._log_of_sum(b.fadd(d, root), x)
        return self.choose(self.test(">=", x, one), y, self.number(math.nan))

    def atanh(self, x: Value) -> Value:
        """log1p(2t / (1 − t)) / 2 of t = |x|; infinite at 1, NaN behind it."""
        b, number, t = self.builder, self.number, self.intrinsic("fabs", x)
        u = b.fdiv(b.fadd(t, t), b.fsub(number(1.0), t))
        y = b.fmul(number(0.5), self._log1p(u))
        y = self.choose(self.test("!=", t, number(1.0)), y, number(math.inf))
        y = self.choose(self.test("<=", t, number(1.0)), y, number(math.nan))
        return self.intrinsic("copysign", y, x)

    def _log_of_sum(self, u: Value, x: Value) -> Value:
        """log(1 + u), which is ln 2x where x is large; u may be out of range there.

        One logarithm does for both, and the second term is chosen too.
        """
        b, is_large = self.builder, self.test(">=", x, self.number(LARGE_OPERAND))
        w = b.fadd(self.number(1.0), u)
        rest = self.choose(is_large, self.number(math.log(2)), self._rounded_away(u, w))
        return b.fadd(self.log(self.choose(is_large, x, w)), rest)

    def _log1p(self, u: Value) -> Value:
        """log(1 + u) of a finite u ≥ 0."""
        w = self.builder.fadd(self.number(1.0), u)
        return self.builder.fadd(self.log(w), self._rounded_away(u, w))

    def _rounded_away(self, u: Value, w: Value) -> Value:
        """What log(w) is short of log(1 + u) where w is 1 + u rounded."""
        b = self.builder
        return b.fdiv(b.fsub(u, b.fsub(w, self.number(1.0))), w)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^−x)."""
        e = self.exp(self.builder.fneg(x))
        return self.builder.fdiv(self.number(1.0), self.builder.fadd(self.number(1.0), e))

    def softplus(self, x: Value) -> Value:
        """log(1 + eˣ) = max(x, 0) + log1p(e^−|x|), with the digits that 1 + e rounds away."""
        b = self.builder
        e = self.exp(b.fneg(self.intrinsic("fabs", x)))
        positive = self.choose(self.test(">", x, self.number(0.0)), x, self.number(0.0))
        return self.keep_nan(x, b.fadd(positive, self._log1p(e)))
