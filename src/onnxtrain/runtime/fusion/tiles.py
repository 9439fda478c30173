"""Machine code of products of a matrix with 16 columns, through LLVM.

A tile of some rows and half of the columns stays in registers while one goes along the axis that is
summed over. A register holds 16 rows of one column, so a number of a column is read once for up to
three registers. With 16 columns in a register, a number of the matrix is read for each
multiplication, and that is more than a core can read: of its 152 GFLOP/s, 28 rows of 16 columns had
113, 48 rows of 8 have 138. At the end a tile is turned. The matrix lies in panels of a tile's rows,
which `lay_out` writes. Import it only where llvmlite is (numba brings it).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from llvmlite import binding, ir

from .functions import LANES, VECTOR
from .machine import addresses_of
from .vectors import (
    FLOAT,
    I32,
    I64,
    LOAD,
    MASK,
    MULTIPLY_ADD,
    POINTER,
    STORE,
    ZERO,
    at,
    below,
    everywhere,
    loop,
    masked_if,
    phi,
    swapped,
)

ROWS = (16, 32, 48)
"""Of a tile."""
COLUMNS = 8
"""Of a tile at once: 24 of 32 registers are sums."""

HALF = ir.VectorType(FLOAT, COLUMNS).as_pointer()
TILE = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Addresses of panel, columns and what sums begin with; steps; address of the result. Rows of all
but the panel are 16 numbers."""
PANEL = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Address of the source and how far apart its rows are; rows, steps, and the address of the panel,
whose rows count up to the next multiple of 16."""
LINE = 64
"""Bytes of a line of the caches."""
MOVE = ir.FunctionType(ir.VoidType(), [I64] * 6)
"""Address of the source and how far apart its rows are; the same of the result; how many rows, and
how many of the 16 numbers of each."""
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
    _, columns, first, steps, result = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def half(number: Any) -> None:
        offset = b.mul(number, I64(COLUMNS))
        sums = _along(b, function, b.add(columns, b.mul(offset, I64(4))), steps, rows)
        for row in range(0, rows, LANES):
            turned = sums[row // LANES :: rows // LANES]  # the columns of 16 rows
            for size in (1, 2, 4):
                turned = swapped(b, turned, size)
            for line in range(LANES):
                lanes = [COLUMNS * (line // COLUMNS) + lane for lane in range(COLUMNS)]
                order = ir.Constant(ir.VectorType(I32, COLUMNS), lanes)
                value = b.shuffle_vector(turned[line % COLUMNS], ZERO, order)
                place = b.add(offset, I64((row + line) * LANES))
                value = b.fadd(b.load(at(b, first, place, HALF), align=4), value)
                b.store(value, at(b, result, place, HALF), align=4)

    loop(b, function, I64(LANES // COLUMNS), half)
    b.ret_void()


def _along(b: Any, function: Any, columns: Any, steps: Any, rows: int) -> list[Any]:
    """Sums along the summed axis, of 16 rows each, all rows of a column behind each other."""
    panel, fused = function.args[0], function.module.globals[MULTIPLY_ADD]
    before, body = b.block, function.append_basic_block("along")
    after = function.append_basic_block("behind")
    b.cbranch(b.icmp_signed("<", I64(0), steps), body, after)
    b.position_at_end(body)
    step, vectors = phi(b, I64, (I64(0), before)), range(0, rows, LANES)
    running = [phi(b, VECTOR, (ZERO, before)) for _ in range(COLUMNS) for _ in vectors]
    first = b.mul(step, I64(rows))
    left = [b.load(at(b, panel, b.add(first, I64(row)), POINTER), align=4) for row in vectors]
    sums = list[Any]()
    for column in range(COLUMNS):
        place = at(b, columns, b.add(b.mul(step, I64(LANES)), I64(column)), FLOAT.as_pointer())
        number = everywhere(b, b.load(place, align=4))
        sums += [b.call(fused, [v, number, running[len(sums) + n]]) for n, v in enumerate(left)]
    following, last = b.add(step, I64(1)), b.block
    step.add_incoming(following, last)
    for old, value in zip(running, sums):
        old.add_incoming(value, last)
    b.cbranch(b.icmp_signed("<", following, steps), body, after)
    b.position_at_end(after)
    return [phi(b, VECTOR, (ZERO, before), (value, last)) for value in sums]


def _write_move(module: Any) -> None:
    """Rows of up to 16 numbers, a whole one at a time.

    What is as wide as a line of the caches goes past them where rows lie apart, in a stack: the
    benchmark's LSTM writes 40 MB in a step, and reading them before they are written to, as caches
    do, takes 4 % of it.
    """
    function = ir.Function(module, MOVE, "move")
    source, distance, target, to, rows, columns = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    mask = below(b, columns)

    def cached(row: Any) -> None:
        place = at(b, source, b.mul(row, distance), POINTER)
        value = b.call(module.globals[LOAD], [place, I32(4), mask, ZERO])
        place = at(b, target, b.mul(row, to), POINTER)
        b.call(module.globals[STORE], [value, place, I32(4), mask])

    def streamed(row: Any) -> None:
        value = b.load(at(b, source, b.mul(row, distance), POINTER), align=4)
        store = b.store(value, at(b, target, b.mul(row, to), POINTER), align=LINE)
        store.set_metadata("nontemporal", module.add_metadata([I32(1)]))

    unaligned = b.and_(b.or_(target, b.mul(to, I64(4))), I64(LINE - 1))
    is_line = b.icmp_signed("==", b.or_(unaligned, b.xor(columns, I64(LANES))), I64(0))
    is_stack = b.icmp_signed(">", to, I64(LANES))
    with b.if_else(b.and_(is_line, is_stack)) as (then, otherwise):
        with then:
            loop(b, function, rows, streamed)
        with otherwise:
            loop(b, function, rows, cached)
    b.ret_void()


def _write_panel(module: Any) -> None:
    """Blocks of 16 steps, of 16 rows at a time, are turned; what is not a row is zero."""
    function = ir.Function(module, PANEL, "lay_out")
    source, distance, rows, steps, panel = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    width = b.and_(b.add(rows, I64(LANES - 1)), I64(-LANES))
    blocks = b.sdiv(b.add(steps, I64(LANES - 1)), I64(LANES))

    def turn(first: int, step: Any) -> None:
        is_row, is_column = below(b, b.sub(rows, I64(first))), below(b, b.sub(width, I64(first)))
        is_step = below(b, b.sub(steps, step))
        vectors = list[Any]()
        for row in range(LANES):
            offset = b.add(b.mul(I64(first + row), distance), step)
            mask = masked_if(b, is_row, row, is_step)
            place = at(b, source, offset, POINTER)
            vectors.append(b.call(module.globals[LOAD], [place, I32(4), mask, ZERO]))
        for size in (1, 2, 4, 8):
            vectors = swapped(b, vectors, size)
        for number, vector in enumerate(vectors):
            offset = b.add(b.mul(b.add(step, I64(number)), width), I64(first))
            mask = masked_if(b, is_step, number, is_column)
            place = at(b, panel, offset, POINTER)
            b.call(module.globals[STORE], [vector, place, I32(4), mask])

    for first in range(0, max(ROWS), LANES):
        loop(b, function, blocks, lambda n, first=first: turn(first, b.mul(n, I64(LANES))))  # type: ignore[misc]
    b.ret_void()
