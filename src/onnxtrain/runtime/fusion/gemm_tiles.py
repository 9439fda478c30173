"""Machine code of matrix products, through LLVM: tiles of rows and columns that stay in registers.

A tile has up to 14 rows and 32 columns, two vectors of AVX-512: 28 of 32 registers are sums, and a
step along the summed axis reads two vectors and one number for each row. For that the left operand
lies in panels of a tile's rows, the right one in panels of a tile's columns, which `turn` and
`copy` write. Import it only where llvmlite is (numba brings it).
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

ROWS, COLUMNS = 14, 32
"""Of a tile."""
VECTORS = COLUMNS // LANES
AHEAD = 8
"""Steps of a panel of columns that are fetched ahead: 1 KB. With 4 to 32 of them products of 2,048
rows took 0.9 of the time without, on one thread of Cascade Lake."""
TILE = ir.FunctionType(ir.VoidType(), [I64] * 8)
"""Address of a panel of rows; of a panel of columns; of what sums begin with, and how far apart its
rows are; steps; address of the result, and how far apart its rows are; how many columns it has."""
PACK = ir.FunctionType(ir.VoidType(), [I64] * 6)
"""Address of the source and how far apart its rows are; rows and numbers of each; address of the
panel and its width."""
BYTES = ir.IntType(8).as_pointer()
FETCH, FOR_READING = "llvm.prefetch.p0", (I32(0), I32(3), I32(1))
TABLE = ("copy", "turn", *(f"product{rows}" for rows in range(1, ROWS + 1)))


def is_available() -> bool:
    """Whether the processor has registers enough for such tiles."""
    return bool(binding.get_host_cpu_features().get("avx512f", False))


@functools.cache
def table() -> int:
    """The address of the addresses of `TABLE`, which stay for as long as the process."""
    addresses = addresses_of("gemm_tiles", _write, TABLE, "-prefer-256-bit")
    _tables.append((ctypes.c_int64 * len(TABLE))(*addresses))
    return ctypes.addressof(_tables[-1])


_tables: list[Any] = []


def _write(module: Any) -> None:
    """All functions of the table."""
    ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * 3), MULTIPLY_ADD)
    ir.Function(module, ir.FunctionType(VECTOR, [POINTER, I32, MASK, VECTOR]), LOAD)
    ir.Function(module, ir.FunctionType(ir.VoidType(), [VECTOR, POINTER, I32, MASK]), STORE)
    ir.Function(module, ir.FunctionType(ir.VoidType(), [BYTES, I32, I32, I32]), FETCH)
    _write_copy(module)
    _write_turn(module)
    for rows in range(1, ROWS + 1):
        _write_tile(module, rows)


def _load(b: Any, module: Any, place: Any, mask: Any) -> Any:
    return b.call(module.globals[LOAD], [place, I32(4), mask, ZERO])


def _store(b: Any, module: Any, value: Any, place: Any, mask: Any) -> None:
    b.call(module.globals[STORE], [value, place, I32(4), mask])


def _masks(b: Any, count: Any) -> list[Any]:
    """Which lanes of each vector are below a count."""
    return [below(b, b.sub(count, I64(LANES * vector))) for vector in range(VECTORS)]


def _write_tile(module: Any, rows: int) -> None:
    """Sums of a tile: first + panel of rows · panel of columns."""
    function = ir.Function(module, TILE, f"product{rows}")
    panel, columns, first, apart, steps, result, distance, count = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    masks, sums = _masks(b, count), list[Any]()
    for row in range(rows):
        for vector, mask in enumerate(masks):
            place = b.add(b.mul(I64(row), apart), I64(LANES * vector))
            sums.append(_load(b, module, at(b, first, place, POINTER), mask))
    before, body = b.block, function.append_basic_block("along")
    after = function.append_basic_block("behind")
    b.cbranch(b.icmp_signed("<", I64(0), steps), body, after)
    b.position_at_end(body)
    step, offset = phi(b, I64, (I64(0), before)), phi(b, I64, (I64(0), before))
    running, new = [phi(b, VECTOR, (value, before)) for value in sums], list[Any]()
    vectors = [
        b.load(at(b, columns, b.add(offset, I64(LANES * v)), POINTER), align=4)
        for v in range(VECTORS)
    ]
    for v in range(VECTORS):
        place = at(b, columns, b.add(offset, I64(LANES * v + AHEAD * COLUMNS)), BYTES)
        b.call(module.globals[FETCH], [place, *FOR_READING])
    number = b.mul(step, I64(rows))
    for row in range(rows):
        place = at(b, panel, b.add(number, I64(row)), FLOAT.as_pointer())
        factor = everywhere(b, b.load(place, align=4))
        for vector in range(VECTORS):
            value = running[row * VECTORS + vector]
            new.append(b.call(module.globals[MULTIPLY_ADD], [factor, vectors[vector], value]))
    following, last = b.add(step, I64(1)), b.block
    step.add_incoming(following, last)
    offset.add_incoming(b.add(offset, I64(COLUMNS)), last)
    for old, value in zip(running, new):
        old.add_incoming(value, last)
    b.cbranch(b.icmp_signed("<", following, steps), body, after)
    b.position_at_end(after)
    sums = [phi(b, VECTOR, (s, before), (n, last)) for s, n in zip(sums, new)]
    for row in range(rows):
        for vector, mask in enumerate(masks):
            place = b.add(b.mul(I64(row), distance), I64(LANES * vector))
            value = sums[row * VECTORS + vector]
            _store(b, module, value, at(b, result, place, POINTER), mask)
    b.ret_void()


def _write_copy(module: Any) -> None:
    """Rows of up to a tile's columns, and zeros behind them."""
    function = ir.Function(module, PACK, "copy")
    source, distance, rows, count, panel, width = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    masks, wide = _masks(b, count), _masks(b, width)

    def copy(row: Any, vectors: int) -> None:
        for vector, mask in enumerate(masks[:vectors]):
            offset = I64(LANES * vector)
            place = at(b, source, b.add(b.mul(row, distance), offset), POINTER)
            target = at(b, panel, b.add(b.mul(row, width), offset), POINTER)
            _store(b, module, _load(b, module, place, mask), target, wide[vector])

    with b.if_else(b.icmp_signed("<=", width, I64(LANES))) as (then, otherwise):
        with then:
            loop(b, function, rows, lambda row: copy(row, 1))
        with otherwise:
            loop(b, function, rows, lambda row: copy(row, VECTORS))
    b.ret_void()


def _write_turn(module: Any) -> None:
    """Rows become columns of a panel: blocks of 16 steps, of 16 rows at a time."""
    function = ir.Function(module, PACK, "turn")
    source, distance, rows, steps, panel, width = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    blocks = b.sdiv(b.add(steps, I64(LANES - 1)), I64(LANES))

    def turn(first: int, step: Any) -> None:
        is_row, is_step = below(b, b.sub(rows, I64(first))), below(b, b.sub(steps, step))
        is_wide = below(b, b.sub(width, I64(first)))
        vectors = list[Any]()
        for row in range(LANES):
            place = b.add(b.mul(I64(first + row), distance), step)
            mask = masked_if(b, is_row, row, is_step)
            vectors.append(_load(b, module, at(b, source, place, POINTER), mask))
        for size in (1, 2, 4, 8):
            vectors = swapped(b, vectors, size)
        for number, vector in enumerate(vectors):
            place = b.add(b.mul(b.add(step, I64(number)), width), I64(first))
            mask = masked_if(b, is_step, number, is_wide)
            _store(b, module, vector, at(b, panel, place, POINTER), mask)

    for first in range(0, COLUMNS, LANES):
        with b.if_then(b.icmp_signed("<", I64(first), width)):
            loop(b, function, blocks, lambda n, first=first: turn(first, b.mul(n, I64(LANES))))  # type: ignore[misc]
    b.ret_void()
