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
from collections.abc import Callable
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

BYTES = ir.IntType(8).as_pointer()
HALF = ir.VectorType(FLOAT, COLUMNS).as_pointer()
TILE = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Addresses of panel, columns and what sums begin with; steps; address of the result. Rows of all
but the panel are 16 numbers."""
HOST = ir.FunctionType(ir.VoidType(), [I64] * 8)
"""A tile that does other work beside its sums, a row of 16 numbers with each step: also the address
of entries, the number of those that go with the first half of the columns, and of all. No half has
entries of more rows than steps."""
ENTRY = 5
"""Integers of an entry: the address of its source and how far apart rows are; the same of the
result, or 0 for what is only fetched; and how many rows."""
PANEL = ir.FunctionType(ir.VoidType(), [I64] * 5)
"""Address of the source and how far apart its rows are; rows, steps, and the address of the panel,
whose rows count up to the next multiple of 16."""
FETCH = ir.FunctionType(ir.VoidType(), [I64] * 4)
"""Address of the source and how far apart its rows are; how many rows, and how many numbers of each
will be read."""
ADD = ir.FunctionType(ir.VoidType(), [I64] * 3)
"""Addresses of what is added and of what it is added to; how many rows of 16 numbers."""
PREFETCH = "llvm.prefetch.p0"
SECOND_CACHE = 2
"""How near to the processor what is fetched comes: the first cache is full of panels."""
LINE = 64
"""Bytes of a line of the caches."""
MOVE = ir.FunctionType(ir.VoidType(), [I64] * 6)
"""Address of the source and how far apart its rows are; the same of the result; how many rows, and
how many of the 16 numbers of each."""
TABLE = (
    "move", "lay_out", "fetch", "add", *(f"tile{rows}" for rows in ROWS),
    *(f"host{rows}" for rows in ROWS),
)  # fmt: skip


def is_available() -> bool:
    """Whether the processor has registers enough for such tiles."""
    return bool(binding.get_host_cpu_features().get("avx512f", False))


@functools.cache
def table() -> int:
    """The address of the addresses of `TABLE`, which stay for as long as the process."""
    # vectors of all 16 numbers, where LLVM would rather have two of eight
    addresses = addresses_of("tiles, and what they do beside", _write, TABLE, "-prefer-256-bit")
    _tables.append((ctypes.c_int64 * len(TABLE))(*addresses))
    return ctypes.addressof(_tables[-1])


def _write(module: Any) -> None:
    """All functions of the table."""
    ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * 3), MULTIPLY_ADD)
    ir.Function(module, ir.FunctionType(VECTOR, [POINTER, I32, MASK, VECTOR]), LOAD)
    ir.Function(module, ir.FunctionType(ir.VoidType(), [VECTOR, POINTER, I32, MASK]), STORE)
    ir.Function(module, ir.FunctionType(ir.VoidType(), [BYTES, I32, I32, I32]), PREFETCH)
    _write_move(module)
    _write_panel(module)
    _write_fetch(module)
    _write_add(module)
    for is_host in (False, True):
        for rows in ROWS:
            _write_tile(module, rows, is_host=is_host)


_tables: list[Any] = []


def _write_tile(module: Any, rows: int, *, is_host: bool) -> None:
    """Sums of a tile: first + panel · columns; a host also works off entries."""
    kind, name = (HOST, f"host{rows}") if is_host else (TILE, f"tile{rows}")
    function = ir.Function(module, kind, name)
    _, columns, first, steps, result, *work = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def half(number: Any) -> None:
        offset = b.mul(number, I64(COLUMNS))
        along = _Along(b, function, b.add(columns, b.mul(offset, I64(4))), rows)
        begun, sums = I64(0), along.zeros()
        if is_host:
            begun, sums = _beside(along, number, *work)
        sums = along.go_on(begun, b.sub(steps, begun), sums)
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


class _Along:
    """Writes sums along the summed axis, of 16 rows each, all rows of a column behind each other.

    Args:
        builder: LLVM's; its function has a panel as the first argument.
        function: that.
        columns: address of the columns.
        rows: of the tile.
    """

    def __init__(self, builder: Any, function: Any, columns: Any, rows: int) -> None:
        self.builder, self.function, self._columns, self._rows = builder, function, columns, rows

    def zeros(self) -> list[Any]:
        """What sums begin with."""
        return [ZERO] * (COLUMNS * self._rows // LANES)

    def go_on(
        self, begin: Any, count: Any, sums: list[Any], beside: Callable[[Any], None] | None = None
    ) -> list[Any]:
        """Sums with so many steps more; `beside` writes what else is done in each."""
        b, before = self.builder, self.builder.block
        body = self.function.append_basic_block("along")
        after = self.function.append_basic_block("behind")
        b.cbranch(b.icmp_signed("<", I64(0), count), body, after)
        b.position_at_end(body)
        number = phi(b, I64, (I64(0), before))
        running = [phi(b, VECTOR, (value, before)) for value in sums]
        new = self._with_step(b.add(begin, number), running)
        if beside is not None:
            beside(number)
        following, last = b.add(number, I64(1)), b.block
        number.add_incoming(following, last)
        for old, value in zip(running, new):
            old.add_incoming(value, last)
        b.cbranch(b.icmp_signed("<", following, count), body, after)
        b.position_at_end(after)
        return [phi(b, VECTOR, (a, before), (c, last)) for a, c in zip(sums, new)]

    def _with_step(self, step: Any, sums: list[Any]) -> list[Any]:
        b, vectors = self.builder, range(0, self._rows, LANES)
        panel, fused = self.function.args[0], self.function.module.globals[MULTIPLY_ADD]
        first, new = b.mul(step, I64(self._rows)), list[Any]()
        left = [b.load(at(b, panel, b.add(first, I64(row)), POINTER), align=4) for row in vectors]
        for column in range(COLUMNS):
            place = b.add(b.mul(step, I64(LANES)), I64(column))
            value = b.load(at(b, self._columns, place, FLOAT.as_pointer()), align=4)
            number = everywhere(b, value)
            new += [b.call(fused, [v, number, sums[len(new) + n]]) for n, v in enumerate(left)]
        return new


def _beside(along: _Along, half: Any, entries: Any, split: Any, end: Any) -> tuple[Any, list[Any]]:
    """Steps with each of which a row of an entry is written or fetched: how many, and sums."""
    b, function = along.builder, along.function
    fetch = function.module.globals[PREFETCH]
    is_first = b.icmp_signed("==", half, I64(0))
    begin, end = b.select(is_first, I64(0), split), b.select(is_first, split, end)
    before, body = b.block, function.append_basic_block("entry")
    after = function.append_basic_block("worked")
    b.cbranch(b.icmp_signed("<", begin, end), body, after)
    b.position_at_end(body)
    entry, begun = phi(b, I64, (begin, before)), phi(b, I64, (I64(0), before))
    running = [phi(b, VECTOR, (value, before)) for value in along.zeros()]
    place = b.add(entries, b.mul(entry, I64(8 * ENTRY)))
    source, distance, target, to, count = (
        b.load(b.inttoptr(b.add(place, I64(8 * n)), I64.as_pointer())) for n in range(ENTRY)
    )

    def fetched(row: Any) -> None:
        first = b.mul(row, distance)
        for number in (first, b.add(first, I64(LANES - 1))):
            b.call(fetch, [at(b, source, number, BYTES), I32(0), I32(SECOND_CACHE), I32(1)])

    def written(row: Any) -> None:
        value = b.load(at(b, source, b.mul(row, distance), POINTER), align=4)
        b.store(value, at(b, target, b.mul(row, to), POINTER), align=4)

    def streamed(row: Any) -> None:
        value = b.load(at(b, source, b.mul(row, distance), POINTER), align=4)
        store = b.store(value, at(b, target, b.mul(row, to), POINTER), align=LINE)
        store.set_metadata("nontemporal", function.module.add_metadata([I32(1)]))

    is_fetched = b.icmp_signed("==", target, I64(0))
    sums = along.go_on(begun, b.select(is_fetched, count, I64(0)), running, fetched)
    rows, is_line = b.select(is_fetched, I64(0), count), _goes_past_caches(b, target, to)
    sums = along.go_on(begun, b.select(is_line, I64(0), rows), sums, written)
    sums = along.go_on(begun, b.select(is_line, rows, I64(0)), sums, streamed)
    following, done, last = b.add(entry, I64(1)), b.add(begun, count), b.block
    for old, value in zip([entry, begun, *running], [following, done, *sums]):
        old.add_incoming(value, last)
    b.cbranch(b.icmp_signed("<", following, end), body, after)
    b.position_at_end(after)
    ends = [phi(b, VECTOR, (ZERO, before), (value, last)) for value in sums]
    return phi(b, I64, (I64(0), before), (done, last)), ends


def _goes_past_caches(b: Any, target: Any, to: Any) -> Any:
    """Whether rows of 16 numbers are lines of the caches, and lie apart, as in a stack."""
    unaligned = b.and_(b.or_(target, b.mul(to, I64(4))), I64(LINE - 1))
    is_line = b.icmp_signed("==", unaligned, I64(0))
    return b.and_(is_line, b.icmp_signed(">", to, I64(LANES)))


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

    is_whole = b.icmp_signed("==", columns, I64(LANES))
    with b.if_else(b.and_(is_whole, _goes_past_caches(b, target, to))) as (then, otherwise):
        with then:
            loop(b, function, rows, streamed)
        with otherwise:
            loop(b, function, rows, cached)
    b.ret_void()


def _write_fetch(module: Any) -> None:
    """Rows of up to 16 numbers, of which each is in one or two lines of the caches."""
    prefetch = module.globals[PREFETCH]
    function = ir.Function(module, FETCH, "fetch")
    source, distance, rows, columns = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))
    last = b.sub(columns, I64(1))

    def row(number: Any) -> None:
        first = b.mul(number, distance)
        for place in (first, b.add(first, last)):
            b.call(prefetch, [at(b, source, place, BYTES), I32(0), I32(SECOND_CACHE), I32(1)])

    loop(b, function, rows, row)
    b.ret_void()


def _write_add(module: Any) -> None:
    """Rows of 16 numbers are added to others."""
    function = ir.Function(module, ADD, "add")
    source, target, rows = function.args
    b = ir.IRBuilder(function.append_basic_block("entry"))

    def row(number: Any) -> None:
        place = b.mul(number, I64(LANES))
        old, new = (b.load(at(b, base, place, POINTER), align=4) for base in (target, source))
        b.store(b.fadd(old, new), at(b, target, place, POINTER), align=4)

    loop(b, function, rows, row)
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
