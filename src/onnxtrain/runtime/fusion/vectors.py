"""What writers of machine code share: vectors of 16 numbers, masks, loops and addresses, in LLVM.

Import it only where llvmlite is (numba brings it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .functions import LANES, VECTOR

FLOAT, I1, I32, I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
MASK, NUMBERS = ir.VectorType(I1, LANES), ir.VectorType(I32, LANES)
POINTER, ZERO = VECTOR.as_pointer(), ir.Constant(VECTOR, [ir.Constant(FLOAT, 0.0)] * LANES)
MULTIPLY_ADD = f"llvm.fma.v{LANES}f32"
LOAD, STORE = (f"llvm.masked.{name}.v{LANES}f32.p0" for name in ("load", "store"))


def swapped(b: Any, rows: list[Any], size: int) -> list[Any]:
    """One round of a transposition: blocks of that size change places across the diagonal.

    Of eight vectors, both halves are turned, each for itself.
    """
    result, lanes = list(rows), range(LANES)
    low = [lane if not lane & size else LANES + lane - size for lane in lanes]
    high = [lane + size if not lane & size else LANES + lane for lane in lanes]
    for row in range(len(rows)):
        if not row & size:
            pair = rows[row], rows[row + size]
            result[row] = b.shuffle_vector(*pair, ir.Constant(NUMBERS, low))
            result[row + size] = b.shuffle_vector(*pair, ir.Constant(NUMBERS, high))
    return result


def masked_if(b: Any, flags: Any, number: int, mask: Any) -> Any:
    """A mask, or nothing where one flag is not set."""
    nothing = ir.Constant(MASK, [I1(0)] * LANES)
    return b.select(b.extract_element(flags, I32(number)), mask, nothing)


def below(b: Any, count: Any) -> Any:
    """Which lanes are below a count."""
    single = b.insert_element(ir.Constant(NUMBERS, ir.Undefined), b.trunc(count, I32), I32(0))
    zeros = ir.Constant(NUMBERS, [0] * LANES)
    counts = b.shuffle_vector(single, ir.Constant(NUMBERS, ir.Undefined), zeros)
    return b.icmp_signed("<", ir.Constant(NUMBERS, list(range(LANES))), counts)


def loop(b: Any, function: Any, count: Any, body: Callable[[Any], None]) -> None:
    """So many rounds, of which there may be none."""
    before, inside = b.block, function.append_basic_block("round")
    after = function.append_basic_block("after")
    b.cbranch(b.icmp_signed("<", I64(0), count), inside, after)
    b.position_at_end(inside)
    number = phi(b, I64, (I64(0), before))
    body(number)
    following = b.add(number, I64(1))
    number.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, count), inside, after)
    b.position_at_end(after)


def phi(b: Any, kind: Any, *values: tuple[Any, Any]) -> Any:
    """What a value is, by the block that one comes from."""
    result = b.phi(kind)
    for value, block in values:
        result.add_incoming(value, block)
    return result


def at(b: Any, base: Any, numbers: Any, kind: Any) -> Any:
    """A pointer so many numbers behind an address."""
    return b.bitcast(b.gep(b.inttoptr(base, FLOAT.as_pointer()), [numbers]), kind)


def everywhere(b: Any, value: Any) -> Any:
    """A vector of one number."""
    single = b.insert_element(ir.Constant(VECTOR, ir.Undefined), value, I32(0))
    zeros = ir.Constant(NUMBERS, [0] * LANES)
    return b.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), zeros)
