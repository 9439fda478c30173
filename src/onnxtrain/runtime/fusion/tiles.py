"""Machine code of products of a matrix with 16 columns, through LLVM.

A tile of some rows stays in registers of the processor while one goes along the axis that is summed
over, with one number of each row and one row of the columns at a time. For that the matrix lies in
panels of a tile's rows, which `lay_out` writes. Import it only where llvmlite is (numba brings it).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir

from .functions import LANES, VECTOR
from .machine import addresses_of

ROWS = (4, 8, 12, 16, 20, 24, 28)
"""Of a tile: 28 of 32 registers are sums."""

FLOAT, I1, I32, I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
MASK, NUMBERS = ir.VectorType(I1, LANES), ir.VectorType(I32, LANES)
POINTER, ZERO = VECTOR.as_pointer(), ir.Constant(VECTOR, [ir.Constant(FLOAT, 0.0)] * LANES)
TILE = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Addresses of panel, columns and what sums begin with; steps; address of the result. Rows of all
but the panel are 16 numbers."""
PANEL = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Address of the source and how far apart its rows are; rows, steps, and the address of the panel,
whose rows count up to the next multiple of four."""
LINE = 64
"""Bytes of a line of the caches."""
MOVE = ir.FunctionType(ir.VoidType(), [I64] * 6)
"""Address of the source and how far apart its rows are; the same of the result; how many rows, and
how many of the 16 numbers of each."""
MULTIPLY_ADD = f"llvm.fma.v{LANES}f32"
LOAD, STORE = (f"llvm.masked.{name}.v{LANES}f32.p0" for name in ("load", "store"))
TABLE = ("move", "lay_out", *(f"tile{rows}" for rows in ROWS))


def is_available() -> bool:
    """Whether the processor has registers enough for such tiles."""
    return bool(binding.get_host_cpu_features().get("avx512f", False))


@functools.cache
def table() -> int:
    """The address of the addresses of `TABLE`, which stay for as long as the process."""
    # vectors of all 16 numbers, where LLVM would rather have two of eight
    addresses = addresses_of("tiles", _write, TABLE, "-prefer-256-bit")
    _tables.append((ctypes.c_int64 * len(TABLE))(*addresses))
    return ctypes.addressof(_tables[-1])


def _write(module: Any) -> None:
    """All functions of the table."""
    ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * 3), MULTIPLY_ADD)
    ir.Function(module, ir.FunctionType(VECTOR, [POINTER, I32, MASK, VECTOR]), LOAD)
    ir.Function(module, ir.FunctionType(ir.VoidType(), [VECTOR, POINTER, I32, MASK]), STORE)
    _write_move(module)
    _write_panel(module)
    for rows in ROWS:
        _write_tile(module, rows)


_tables: list[Any] = []


def _write_tile(module: Any, rows: int) -> None:
    """Sums of a tile: first + panel · columns."""
    function = ir.Function(module, TILE, f"tile{rows}")
    _, _, first, steps, result = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    sums = [b.load(_at(b, first, I64(LANES * row), POINTER), align=4) for row in range(rows)]
    sums = _along(b, function, sums, steps)
    for row in range(rows):
        b.store(sums[row], _at(b, result, I64(LANES * row), POINTER), align=4)
    b.ret_void()


def _along(b: Any, function: Any, sums: list[Any], steps: Any) -> list[Any]:
    """The sums after a loop along the summed axis."""
    panel, columns = function.args[:2]
    fused, rows = function.module.globals[MULTIPLY_ADD], len(sums)
    before, body = b.block, function.append_basic_block("along")
    after = function.append_basic_block("behind")
    b.cbranch(b.icmp_signed("<", I64(0), steps), body, after)
    b.position_at_end(body)
    step = _phi(b, I64, (I64(0), before))
    running = [_phi(b, VECTOR, (value, before)) for value in sums]
    vector = b.load(_at(b, columns, b.mul(step, I64(LANES)), POINTER), align=4)
    first, new = b.mul(step, I64(rows)), list[Any]()
    for row, value in enumerate(running):
        place = _at(b, panel, b.add(first, I64(row)), FLOAT.as_pointer())
        new.append(b.call(fused, [_everywhere(b, b.load(place, align=4)), vector, value]))
    following, last = b.add(step, I64(1)), b.block
    step.add_incoming(following, last)
    for old, value in zip(running, new):
        old.add_incoming(value, last)
    b.cbranch(b.icmp_signed("<", following, steps), body, after)
    b.position_at_end(after)
    return [_phi(b, VECTOR, (s, before), (n, last)) for s, n in zip(sums, new)]


def _write_move(module: Any) -> None:
    """Rows of up to 16 numbers, a whole one at a time.

    What is as wide as a line of the caches goes past them where rows lie apart, in a stack: the
    benchmark's LSTM writes 40 MB in a step, and reading them before they are written to, as caches
    do, takes 4 % of it.
    """
    function = ir.Function(module, MOVE, "move")
    source, distance, target, to, rows, columns = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    mask = _below(b, columns)

    def cached(row: Any) -> None:
        place = _at(b, source, b.mul(row, distance), POINTER)
        value = b.call(module.globals[LOAD], [place, I32(4), mask, ZERO])
        place = _at(b, target, b.mul(row, to), POINTER)
        b.call(module.globals[STORE], [value, place, I32(4), mask])

    def streamed(row: Any) -> None:
        value = b.load(_at(b, source, b.mul(row, distance), POINTER), align=4)
        store = b.store(value, _at(b, target, b.mul(row, to), POINTER), align=LINE)
        store.set_metadata("nontemporal", module.add_metadata([I32(1)]))

    unaligned = b.and_(b.or_(target, b.mul(to, I64(4))), I64(LINE - 1))
    is_line = b.icmp_signed("==", b.or_(unaligned, b.xor(columns, I64(LANES))), I64(0))
    is_stack = b.icmp_signed(">", to, I64(LANES))
    with b.if_else(b.and_(is_line, is_stack)) as (then, otherwise):
        with then:
            _loop(b, function, rows, streamed)
        with otherwise:
            _loop(b, function, rows, cached)
    b.ret_void()


def _write_panel(module: Any) -> None:
    """Blocks of 16 steps, of 16 rows at a time, are turned; what is not a row is zero."""
    function = ir.Function(module, PANEL, "lay_out")
    source, distance, rows, steps, panel = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    width = b.and_(b.add(rows, I64(3)), I64(-4))
    blocks = b.sdiv(b.add(steps, I64(LANES - 1)), I64(LANES))

    def turn(first: int, step: Any) -> None:
        is_row, is_column = _below(b, b.sub(rows, I64(first))), _below(b, b.sub(width, I64(first)))
        is_step = _below(b, b.sub(steps, step))
        vectors = list[Any]()
        for row in range(LANES):
            offset = b.add(b.mul(I64(first + row), distance), step)
            mask = _if(b, is_row, row, is_step)
            place = _at(b, source, offset, POINTER)
            vectors.append(b.call(module.globals[LOAD], [place, I32(4), mask, ZERO]))
        for size in (1, 2, 4, 8):
            vectors = _swapped(b, vectors, size)
        for number, vector in enumerate(vectors):
            offset = b.add(b.mul(b.add(step, I64(number)), width), I64(first))
            mask = _if(b, is_step, number, is_column)
            place = _at(b, panel, offset, POINTER)
            b.call(module.globals[STORE], [vector, place, I32(4), mask])

    for first in range(0, max(ROWS), LANES):
        _loop(b, function, blocks, lambda n, first=first: turn(first, b.mul(n, I64(LANES))))  # type: ignore[misc]
    b.ret_void()


def _swapped(b: Any, rows: list[Any], size: int) -> list[Any]:
    """One round of a transposition: blocks of that size change places across the diagonal."""
    result, lanes = list(rows), range(LANES)
    low = [lane if not lane & size else LANES + lane - size for lane in lanes]
    high = [lane + size if not lane & size else LANES + lane for lane in lanes]
    for row in lanes:
        if not row & size:
            pair = rows[row], rows[row + size]
            result[row] = b.shuffle_vector(*pair, ir.Constant(NUMBERS, low))
            result[row + size] = b.shuffle_vector(*pair, ir.Constant(NUMBERS, high))
    return result


def _if(b: Any, flags: Any, number: int, mask: Any) -> Any:
    """A mask, or nothing where one flag is not set."""
    nothing = ir.Constant(MASK, [I1(0)] * LANES)
    return b.select(b.extract_element(flags, I32(number)), mask, nothing)


def _below(b: Any, count: Any) -> Any:
    """Which lanes are below a count."""
    single = b.insert_element(ir.Constant(NUMBERS, ir.Undefined), b.trunc(count, I32), I32(0))
    zeros = ir.Constant(NUMBERS, [0] * LANES)
    counts = b.shuffle_vector(single, ir.Constant(NUMBERS, ir.Undefined), zeros)
    return b.icmp_signed("<", ir.Constant(NUMBERS, list(range(LANES))), counts)


def _loop(b: Any, function: Any, count: Any, body: Callable[[Any], None]) -> None:
    """So many rounds, of which there may be none."""
    before, inside = b.block, function.append_basic_block("round")
    after = function.append_basic_block("after")
    b.cbranch(b.icmp_signed("<", I64(0), count), inside, after)
    b.position_at_end(inside)
    number = _phi(b, I64, (I64(0), before))
    body(number)
    following = b.add(number, I64(1))
    number.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, count), inside, after)
    b.position_at_end(after)


def _phi(b: Any, kind: Any, *values: tuple[Any, Any]) -> Any:
    phi = b.phi(kind)
    for value, block in values:
        phi.add_incoming(value, block)
    return phi


def _at(b: Any, base: Any, numbers: Any, kind: Any) -> Any:
    """A pointer so many numbers behind an address."""
    return b.bitcast(b.gep(b.inttoptr(base, FLOAT.as_pointer()), [numbers]), kind)


def _everywhere(b: Any, value: Any) -> Any:
    single = b.insert_element(ir.Constant(VECTOR, ir.Undefined), value, I32(0))
    zeros = ir.Constant(NUMBERS, [0] * LANES)
    return b.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), zeros)
