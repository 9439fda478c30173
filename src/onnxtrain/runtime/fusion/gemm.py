# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Products of two matrices, both laid out as they are read; `gemm_tiles` has the machine code.

onnxruntime's own product reads rows of the left operand where they are, and transposes a left
operand that lies the other way round four columns at a time: gradients of weights run at two thirds
of what the processor can do, and so do products over rows whose length is a multiple of 4 KiB.

The smaller operand is laid out first, by all threads, for all of them. Then each thread takes parts
of the larger one, lays them out in its second cache, and goes through the tiles of its part. The
summed axis is cut into blocks whose panels fit into the caches; what is added up in which order
depends on the sizes alone. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, call, fetch_and_add, integers_at, keep
from .tensors import (
    CORES,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

TILE_ROWS, TILE_COLUMNS = 14, 32
COPY, TURN, TILES = 0, 1, 1
"""Places in `gemm_tiles.table`; the tile of so many rows stands so far behind."""
LONGEST_BLOCK = 384
"""Steps along the summed axis at a time: a panel of rows takes 21 KB then, of the first cache."""
LARGEST_PART = 256
"""Rows or columns of a part, and columns that it is multiplied with before the next rows: with a
block of steps 390 KB each, of a second cache of a megabyte."""
MOST_PARTS, LEAST_PART = 4, 64
"""Parts for each thread, if these have so many rows or columns: a slower thread takes fewer."""
LARGEST_SHARED = 2**19
"""Numbers of the smaller operand that are laid out at a time: 2 MB, of the third cache."""
TABLE, TURNED_A, TURNED_B, IS_ADDED = range(NUMBERS, NUMBERS + 4)
STATE = NUMBERS + 4
ONE_ROW = -1
"""In the place of how far rows are apart of what sums begin with."""
(NODE, ROWS, STEPS, COLUMNS, LEFT, RIGHT, FIRST, APART, RESULT, PACKED, PARTS, BY_ROWS, PHASE,
 BLOCKS, FIRST_BLOCK, LAST_BLOCK, OWN, OWN_SIZE, NEXT) = range(19)  # fmt: skip
JOB = 19
LAYING_OUT, MULTIPLYING = range(2)
STEPS_AT_ONCE = 8
"""Rows of an operand that are copied to all panels before the next ones: as many as a set of the
first cache holds lines, where rows are a multiple of 4 KiB apart."""
LINE = 16
"""Numbers of a line of the caches: vectors of panels do not cross them."""
WORTH_THREADS = 2**17
"""Multiplications from which on another thread is woken up: some two microseconds of one."""


@njit(**OPTIONS)
def _aligned(count: Any) -> Any:
    """So many numbers, and what is missing to whole lines of the caches."""
    return (count + LINE - 1) // LINE * LINE


@njit(**OPTIONS)
def _step_of(job: Any, block: Any) -> Any:
    """Where a block of the summed axis begins."""
    return block * job[STEPS] // job[BLOCKS]


@njit(**OPTIONS)
def _panels(count: Any, width: Any) -> Any:
    return (count + width - 1) // width


@njit(**OPTIONS)
def _cut(first: Any, last: Any, panel: Any, panels: Any) -> Any:
    """Where a panel of rows begins, and how many it has: as many as the others, or one more."""
    begin = first + panel * (last - first) // panels
    return begin, first + (panel + 1) * (last - first) // panels - begin


@njit(**OPTIONS)
def _rows_of(
    job: Any, table: Any, first: Any, last: Any, begin: Any, end: Any, step: Any, steps: Any,
    target: Any,
) -> None:  # fmt: skip
    """Panels of rows, each as wide as it has rows: some of those into which a range is cut."""
    state = carray(integers_at(job[NODE]), (STATE,))
    panels, is_copied = _panels(last - first, TILE_ROWS), state[TURNED_A] != 0
    most = I64(STEPS_AT_ONCE) if is_copied else max(steps, I64(1))
    for at in range(0, steps, most):
        count = min(most, steps - at)
        for panel in range(begin, end):
            row, height = _cut(first, last, panel, panels)
            place = target + 4 * ((row - first) * steps + at * height)
            if is_copied:
                source = job[LEFT] + 4 * ((step + at) * job[ROWS] + row)
                call(table[COPY], (source, job[ROWS], count, height, place, height))
            else:
                source = job[LEFT] + 4 * (row * job[STEPS] + step)
                call(table[TURN], (source, job[STEPS], height, count, place, height))


@njit(**OPTIONS)
def _columns_of(
    job: Any, table: Any, begin: Any, end: Any, step: Any, steps: Any, target: Any
) -> None:
    """Panels of columns from one to another."""
    state = carray(integers_at(job[NODE]), (STATE,))
    is_copied, wide = state[TURNED_B] == 0, I64(TILE_COLUMNS)
    most = I64(STEPS_AT_ONCE) if is_copied else max(steps, I64(1))
    for at in range(0, steps, most):
        count = min(most, steps - at)
        for column in range(begin, end, TILE_COLUMNS):
            width = min(wide, end - column)
            place = target + 4 * ((column - begin) * steps + at * wide)
            if is_copied:
                source = job[RIGHT] + 4 * ((step + at) * job[COLUMNS] + column)
                call(table[COPY], (source, job[COLUMNS], count, width, place, wide))
            else:
                source = job[RIGHT] + 4 * (column * job[STEPS] + step)
                call(table[TURN], (source, job[STEPS], width, count, place, wide))


@njit(**OPTIONS)
def _tiles(
    job: Any, table: Any, block: Any, rows: Any, row: Any, last_row: Any, columns: Any,
    column: Any, last_column: Any, steps: Any,
) -> None:  # fmt: skip
    """All tiles of a part, for a block of steps."""
    panels, width = _panels(last_row - row, TILE_ROWS), job[COLUMNS]
    for number in range(panels):
        begin, height = _cut(row, last_row, number, panels)
        panel, function = rows + 4 * (begin - row) * steps, table[TILES + height]
        for at in range(column, last_column, TILE_COLUMNS):
            result = job[RESULT] + 4 * (begin * width + at)
            first, apart = result, width
            if block == 0:
                first, apart = job[FIRST], job[APART]
                if apart == ONE_ROW:
                    first, apart = first + 4 * at, I64(0)
                elif apart != 0:
                    first += 4 * (begin * apart + at)
            place = columns + 4 * (at - column) * steps
            count = min(I64(TILE_COLUMNS), last_column - at)
            call(function, (panel, place, first, apart, steps, result, width, count))


@njit(**OPTIONS)
def _tile_at(columns: Any, part: Any, parts: Any) -> Any:
    """The column with which a part begins: tiles are not cut."""
    return min(columns, part * _panels(columns, TILE_COLUMNS) // parts * TILE_COLUMNS)


@njit(**OPTIONS)
def _width_of_shared(job: Any) -> Any:
    """Numbers of the smaller operand for each step, with what fills the last panel of columns."""
    return _panels(job[COLUMNS], TILE_COLUMNS) * TILE_COLUMNS if job[BY_ROWS] else job[ROWS]


@njit(**OPTIONS)
def _multiply(job: Any, table: Any, part: Any, own: Any) -> None:
    """A part of the larger operand times all of the smaller one, for the blocks at hand."""
    parts = job[PARTS]
    if job[BY_ROWS]:
        begin, end = part * job[ROWS] // parts, (part + 1) * job[ROWS] // parts
    else:
        begin, end = _tile_at(job[COLUMNS], part, parts), _tile_at(job[COLUMNS], part + 1, parts)
    packed = job[PACKED]
    for block in range(job[FIRST_BLOCK], job[LAST_BLOCK]):
        step = _step_of(job, block)
        steps = _step_of(job, block + 1) - step
        if job[BY_ROWS]:
            panels = _panels(end - begin, TILE_ROWS)
            _rows_of(job, table, begin, end, I64(0), panels, step, steps, own)
            for column in range(0, job[COLUMNS], LARGEST_PART):
                last = min(column + LARGEST_PART, job[COLUMNS])
                place = packed + 4 * column * steps
                _tiles(job, table, block, own, begin, end, place, column, last, steps)
        else:
            _columns_of(job, table, begin, end, step, steps, own)
            _tiles(job, table, block, packed, I64(0), job[ROWS], own, begin, end, steps)
        packed += 4 * _width_of_shared(job) * steps


@njit(**OPTIONS)
def _lay_out_shared(job: Any, table: Any, part: Any) -> None:
    """Some panels of the smaller operand, blocks one behind the other."""
    parts, target = job[PARTS], job[PACKED]
    for block in range(job[FIRST_BLOCK], job[LAST_BLOCK]):
        step = _step_of(job, block)
        steps = _step_of(job, block + 1) - step
        if job[BY_ROWS]:
            begin = _tile_at(job[COLUMNS], part, parts)
            end = _tile_at(job[COLUMNS], part + 1, parts)
            _columns_of(job, table, begin, end, step, steps, target + 4 * begin * steps)
        else:
            panels = _panels(job[ROWS], TILE_ROWS)
            begin, end = part * panels // parts, (part + 1) * panels // parts
            _rows_of(job, table, I64(0), job[ROWS], begin, end, step, steps, target)
        target += 4 * _width_of_shared(job) * steps


@cfunc("void(int64, int64)", **OPTIONS)
def gemm_part(address: int, part: int) -> None:
    """Some panels of the smaller operand, or parts of the larger one until there are none left."""
    job = carray(integers_at(address), (JOB,))
    state = carray(integers_at(job[NODE]), (STATE,))
    table = carray(integers_at(state[TABLE]), (2 + TILE_ROWS,))
    if job[PHASE] == LAYING_OUT:
        _lay_out_shared(job, table, part)
    else:
        own, next_part = job[OWN] + 4 * part * job[OWN_SIZE], address + 8 * NEXT
        number = fetch_and_add(next_part)
        while number < job[PARTS]:
            _multiply(job, table, number, own)
            number = fetch_and_add(next_part)


@njit(**OPTIONS)
def _read_operands(state: Any, context: Any, job: Any, dims: Any) -> Any:
    """Addresses and sizes; the rank of the result, whose sizes are written to `dims`, or 0."""
    others = np.zeros(MAX_RANK, np.int64)
    job[LEFT], rank = read_input(state, context, 0, dims)
    job[RIGHT], rank_of_right = read_input(state, context, 1, others)
    if rank < 2 or rank_of_right != 2 or (rank > 2 and state[TURNED_A]):
        return I64(0)
    job[ROWS], job[STEPS] = product(dims, 0, rank - 1), dims[rank - 1]
    if state[TURNED_A]:
        job[ROWS], job[STEPS] = dims[1], dims[0]
        dims[0] = dims[1]
    job[COLUMNS] = others[0] if state[TURNED_B] else others[1]
    if job[STEPS] != (others[1] if state[TURNED_B] else others[0]):
        return I64(0)
    dims[rank - 1] = job[COLUMNS]
    return rank


@njit(**OPTIONS)
def _read_added(state: Any, context: Any, job: Any) -> Any:
    """What sums begin with: one row for all, or one for each; False if it is another size."""
    others = np.zeros(MAX_RANK, np.int64)
    if not state[IS_ADDED]:
        return True
    job[FIRST], rank = read_input(state, context, 2, others)
    if rank < 1 or rank > 2 or others[rank - 1] != job[COLUMNS]:
        return False
    job[APART] = ONE_ROW
    if rank == 2 and others[0] != 1:
        job[APART] = job[COLUMNS]
        return others[0] == job[ROWS]
    return True


@njit(**OPTIONS)
def _run(state: Any, context: Any, address: Any) -> Any:
    job, dims = np.zeros(JOB, np.int64), np.zeros(MAX_RANK, np.int64)
    zeros = np.zeros(TILE_COLUMNS, np.float32)
    job[NODE], job[FIRST] = address, I64(zeros.ctypes.data)
    rank = _read_operands(state, context, job, dims)
    if rank == 0 or not _read_added(state, context, job):
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status != 0:
        return status
    rows, columns, steps = job[ROWS], job[COLUMNS], job[STEPS]
    job[BY_ROWS] = I64(1) if columns <= rows else I64(0)
    job[BLOCKS] = max(I64(1), _panels(steps, LONGEST_BLOCK))
    width, longest = max(I64(1), _width_of_shared(job)), steps // job[BLOCKS] + 1
    together = min(job[BLOCKS], max(I64(1), LARGEST_SHARED // (width * longest)))
    cores = I64(1) if rows * columns * steps < WORTH_THREADS else state[CORES]
    size = max(rows, columns)
    parts = max(
        _panels(_panels(size, LARGEST_PART), cores) * cores,
        min(MOST_PARTS * cores, size // LEAST_PART),
        I64(1),
    )
    job[OWN_SIZE] = _aligned((_panels(size, parts) + TILE_COLUMNS) * longest)
    shared = _aligned(width * longest * together)
    dims[0] = shared + cores * job[OWN_SIZE]
    job[PACKED], status = make_output(state, context, 1, dims, 1)
    if status != 0 or rows * columns == 0:
        return status
    job[OWN] = job[PACKED] + 4 * shared
    for block in range(0, job[BLOCKS], together):
        job[FIRST_BLOCK], job[LAST_BLOCK] = block, min(block + together, job[BLOCKS])
        job[PHASE], job[PARTS] = LAYING_OUT, cores
        in_parts(state, context, job, cores)
        job[PHASE], job[PARTS], job[NEXT] = MULTIPLYING, parts, 0
        in_parts(state, context, job, min(cores, parts))
    keep(zeros)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def gemm(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _run(carray(integers_at(address), (STATE,)), context, address)
