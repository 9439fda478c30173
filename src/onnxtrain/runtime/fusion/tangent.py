"""tan on sixteen numbers at once, as LLVM's code; it is a function of its own in a module.

A number is taken to at most π/4 by multiples of π/2: in double precision up to `FAR`, and behind it
by as many binary digits of 2/π as its exponent needs. The latter takes 1.1 instead of 0.4 ms for a
million numbers (one thread, AVX-512), so there is a branch: nearly no vector has such a number.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from llvmlite import ir

from .functions import LANES, VECTOR, WORDS, Value, Vectors

I32, DOUBLES = ir.IntType(32), ir.VectorType(ir.DoubleType(), LANES)
LONGS = ir.VectorType(ir.IntType(64), LANES)
NAME, TABLE = "tangent", "digits_of_two_by_pi"
FAR = 1e6
"""Up to here the number of quarters has 20 bits, and is exact times π/2 with 33."""
QUARTER = 6746518852 / 2**32
"""π/2 with 33 bits."""
REST = 6.077100506506192e-11
"""What it lacks."""
DIGITS, WORDS_OF_EXPONENT, EXPONENTS = 94, 3, 256
"""Binary digits behind the point of a number of quarters, two before it: 2/π times a power of two,
of which all multiples of four are left out. Of all floats behind `FAR`, none is closer to a whole
number of quarters than 2⁻³⁰ of one (16367173 · 2⁷²), of which 62 digits leave 32."""


def tangent(builder: Any, module: Any, x: Value) -> Value:
    """The tangent of a vector, by a call."""
    return builder.call(module.globals.get(NAME) or _written(module), [x])


def _written(module: Any) -> Any:
    """The function in a module that does not have it yet."""
    function = ir.Function(module, ir.FunctionType(VECTOR, [VECTOR]), NAME)
    function.linkage = "internal"
    entry, far, end = map(function.append_basic_block, ("entry", "far", "end"))
    b, (x,) = ir.IRBuilder(entry), function.args
    v = Vectors(b, module)
    t = v.intrinsic("fabs", x)
    is_far = v.test(">=", t, v.number(FAR))
    near_rest, near_odd = _reduced(b, module, t)
    nothing = ir.Constant(ir.IntType(LANES), 0)
    b.cbranch(b.icmp_unsigned("!=", b.bitcast(is_far, nothing.type), nothing), far, end)
    b.position_at_end(far)
    far_rest, far_odd = _reduced_by_digits(b, module, t)
    chosen = b.select(is_far, far_rest, near_rest), b.select(is_far, far_odd, near_odd)
    b.branch(end)
    b.position_at_end(end)
    rest, odd = b.phi(VECTOR), b.phi(is_far.type)
    for phi, near, either in zip((rest, odd), (near_rest, near_odd), chosen):
        phi.add_incoming(near, entry)
        phi.add_incoming(either, far)
    s = b.fmul(rest, rest)
    y = v.intrinsic("fmuladd", b.fmul(rest, s), v.polynomial(coefficients(), s), rest)
    y = b.select(odd, b.fdiv(v.number(-1.0), y), y)
    y = b.select(v.test("<", t, v.number(math.inf)), y, v.number(math.nan))
    sign = b.and_(b.bitcast(x, WORDS), v.words(0x80000000))
    b.ret(v.bits(b.xor(b.bitcast(y, WORDS), sign)))
    return function


@functools.cache
def coefficients() -> tuple[float, ...]:
    """Of P in tan(x) = x + x³·P(x²) up to π/4: degree 6 is wrong by 7e-9 of it."""

    def p(squares: Any) -> Any:
        roots = np.sqrt(squares)
        return (np.tan(roots) / roots - 1) / squares

    fit = np.polynomial.chebyshev.Chebyshev.interpolate(p, 6, [0.0, (math.pi / 4) ** 2])
    return tuple(float(np.float32(c)) for c in fit.convert(kind=np.polynomial.Polynomial).coef)


def _reduced(b: Any, module: Any, t: Value) -> tuple[Value, Value]:
    """What is left of numbers without the nearest multiple of π/2, and whether that is odd."""
    x = b.fpext(t, DOUBLES)
    n = _floor(b, module, b.fadd(b.fmul(x, _doubles(2 / math.pi)), _doubles(0.5)))
    rest = b.fsub(x, b.fmul(n, _doubles(QUARTER)))
    rest = b.fsub(rest, b.fmul(n, _doubles(REST)))
    even = b.fmul(_doubles(2.0), _floor(b, module, b.fmul(n, _doubles(0.5))))
    return b.fptrunc(rest, VECTOR), b.fcmp_ordered("!=", n, even)


def _reduced_by_digits(b: Any, module: Any, t: Value) -> tuple[Value, Value]:
    """The same of large numbers: integers times digits of 2/π, whole turns left out.

    Of the 96 bits of the product the upper 64 are computed: two for the quarter, 62 behind it.
    """
    bits = b.bitcast(t, WORDS)
    exponent = b.lshr(bits, ir.Constant(WORDS, [I32(23)] * LANES))
    mantissa = b.or_(
        b.and_(bits, ir.Constant(WORDS, [I32(0x7FFFFF)] * LANES)),
        ir.Constant(WORDS, [I32(0x800000)] * LANES),
    )
    integer = b.zext(mantissa, LONGS)
    high, middle, low = (
        b.mul(integer, b.zext(word, LONGS)) for word in _digits(b, module, exponent)
    )
    turns = b.add(b.add(b.shl(high, _longs(32)), middle), b.lshr(low, _longs(32)))
    nearest = b.add(turns, _longs(1 << 61))  # so that what is left is between -1/2 and 1/2
    is_odd = b.icmp_unsigned("!=", b.and_(nearest, _longs(1 << 62)), _longs(0))
    left = b.sub(b.and_(nearest, _longs((1 << 62) - 1)), _longs(1 << 61))
    rest = b.fmul(b.sitofp(left, DOUBLES), _doubles(math.pi / 2 / 2**62))
    return b.fptrunc(rest, VECTOR), is_odd


def _digits(b: Any, module: Any, exponent: Value) -> list[Value]:
    """Three words of 2/π for each lane, the highest first, by exponents as they are stored."""
    kind = ir.ArrayType(I32, EXPONENTS * WORDS_OF_EXPONENT)
    table = ir.GlobalVariable(module, kind, TABLE)
    table.linkage, table.global_constant = "internal", True
    table.initializer = ir.Constant(kind, [I32(word) for word in digits_by_exponent()])
    words: list[Value] = [ir.Constant(WORDS, ir.Undefined)] * WORDS_OF_EXPONENT
    for lane in range(LANES):
        row = b.mul(b.extract_element(exponent, I32(lane)), I32(WORDS_OF_EXPONENT))
        for number in range(WORDS_OF_EXPONENT):
            place = b.gep(table, [I32(0), b.add(row, I32(number))])
            words[number] = b.insert_element(words[number], b.load(place), I32(lane))
    return words


@functools.cache
def digits_by_exponent() -> list[int]:
    """For each exponent as it is stored, 2/π times its power of two, but for multiples of four.

    A float is an integer of 24 bits times 2 to the power of its stored exponent less 150.
    """
    point = 400  # digits of 2/π: 106 + 94 are needed
    two_by_pi = (2 << 2 * point) // _pi(point)
    rows = []
    for stored in range(EXPONENTS):
        digits = (two_by_pi << DIGITS << stored) >> (point + 150) & (1 << DIGITS + 2) - 1
        rows += [digits >> 64, digits >> 32 & 0xFFFFFFFF, digits & 0xFFFFFFFF]
    return rows


def _pi(point: int) -> int:
    """π with so many binary digits: 16·atan(1/5) − 4·atan(1/239)."""
    guard = 32
    one = 1 << point + guard

    def atan_of_one_by(n: int) -> int:
        power, total, k = one // n, 0, 0
        while power:
            total += (-1) ** k * (power // (2 * k + 1))
            power, k = power // (n * n), k + 1
        return total

    return (16 * atan_of_one_by(5) - 4 * atan_of_one_by(239)) >> guard


def _floor(b: Any, module: Any, x: Value) -> Value:
    name = f"llvm.floor.v{LANES}f64"
    kind = ir.FunctionType(DOUBLES, [DOUBLES])
    return b.call(module.globals.get(name) or ir.Function(module, kind, name), [x])


def _doubles(value: float) -> Value:
    return ir.Constant(DOUBLES, [ir.Constant(ir.DoubleType(), value)] * LANES)


def _longs(value: int) -> Value:
    return ir.Constant(LONGS, [ir.Constant(ir.IntType(64), value)] * LANES)
