# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Pad, in every mode, for rows of any length. Import it only where numba is.

onnxruntime begins a copy anew for each row, which takes 50 nanoseconds. Here axes without padding
are taken together: those before the first padded one are blocks, those behind the last one make up
an element. Along padded axes a table says which element is read, or that none is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at, keep
from .operators import EDGE, MOST_PADDED, REFLECT, WRAP
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, product, read_input

SOURCE, RESULT, ROWS, STEP, FILL, INNER, AXES, TABLES, BEFORE = range(9)
OLD, NEW = 9, 9 + MAX_RANK
JOB = NEW + MAX_RANK
"""Addresses; rows of the result, and how many a thread takes at once; what is put where nothing is
read, as bits; floats of an element; axes and the address of their tables; where in a row of the
result the source begins; their sizes before and behind. The last of the axes is that of a row."""
CHUNK = 16_384
"""Elements that one call of a thread takes, or one row."""
SHORT = 32
"""Elements of a row up to which it is read element by element."""
NARROW = 16
"""The same where the rows stand one behind the other in the source, too."""
BLOCK = 256
"""Such rows that are read column by column: they stay in the first cache."""
NOTHING = -1
"""In a table: nothing is read."""


@njit(**OPTIONS)
def _source_of(place: Any, size: Any, mode: Any) -> Any:
    """Which element of an axis stands at a place, which may be before or behind it."""
    if 0 <= place < size:
        return I64(place)
    if mode == EDGE:
        return I64(0) if place < 0 else I64(size - 1)
    if mode == WRAP:
        return I64(place % size)
    if mode == REFLECT:
        period = max(2 * (size - 1), 1)
        within = place % period
        return I64(within if within < size else period - within)
    return I64(NOTHING)


@njit(**OPTIONS)
def _copy(source: Any, target: Any, count: Any) -> None:
    old, new = carray(floats_at(source), (count,)), carray(floats_at(target), (count,))
    for i in range(count):
        new[i] = old[i]


@njit(**OPTIONS)
def _fill(target: Any, count: Any, value: Any) -> None:
    new = carray(floats_at(target), (count,))
    for i in range(count):
        new[i] = value


@njit(**OPTIONS)
def _sum(sizes: Any, begin: Any, end: Any) -> Any:
    total = I64(0)
    for axis in range(begin, end):
        total += sizes[axis]
    return total


@njit(**OPTIONS)
def _row_of(job: Any, tables: Any, row: Any) -> Any:
    """Where the source has the row that stands in a row of the result; nowhere if it is outside."""
    last = job[AXES] - 1
    place, stride, at = I64(0), job[OLD + last], tables.size - job[NEW + last]
    for axis in range(last - 1, -1, -1):
        at -= job[NEW + axis]
        index = tables[at + row % job[NEW + axis]]
        row //= job[NEW + axis]
        if index == NOTHING:
            return I64(NOTHING)
        place += index * stride
        stride *= job[OLD + axis]
    return place + row * stride


@njit(**OPTIONS)
def _read_by_table(source: Any, target: Any, table: Any, size: Any, value: Any) -> None:
    """A short row: to begin a copy takes longer."""
    old, new = carray(floats_at(source), (size,)), carray(floats_at(target), (table.size,))
    for column in range(table.size):
        new[column] = old[table[column]] if table[column] != NOTHING else value


@njit(**OPTIONS)
def _read_columns(job: Any, table: Any, begin: Any, end: Any, value: Any) -> None:
    """Short rows that stand one behind the other in the source, too: the table is read once."""
    size, length = job[OLD], table.size
    for first in range(begin, end, BLOCK):
        rows = min(I64(BLOCK), end - first)
        old = carray(floats_at(job[SOURCE] + 4 * first * size), (rows * size,))
        new = carray(floats_at(job[RESULT] + 4 * first * length), (rows * length,))
        for column in range(length):
            place = table[column]
            if place == NOTHING:
                for row in range(rows):
                    new[row * length + column] = value
            else:
                for row in range(rows):
                    new[row * length + column] = old[row * size + place]


@njit(**OPTIONS)
def _is_filled(table: Any, first: Any, behind: Any) -> Any:
    """Whether nothing is read around the source."""
    for column in range(table.size):
        if not first <= column < behind and table[column] != NOTHING:
            return False
    return True


@njit(**OPTIONS)
def _pad(job: Any, begin: Any, end: Any) -> None:
    """Rows of the result."""
    last, inner = job[AXES] - 1, job[INNER]
    total = _sum(job, I64(NEW), NEW + job[AXES])
    tables = carray(integers_at(job[TABLES]), (total,))
    size, length = job[OLD + last], job[NEW + last]
    table = tables[total - length :]
    value = carray(floats_at(job.ctypes.data + 8 * FILL), (1,))[0]
    if inner == 1 and last == 0 and length < NARROW:
        _read_columns(job, table, begin, end, value)
        return
    first = min(max(job[BEFORE], I64(0)), length)
    behind = max(first, min(job[BEFORE] + size, length))
    middle = I64(max(-job[BEFORE], I64(0))) * inner
    is_filled = _is_filled(table, first, behind)
    for row in range(begin, end):
        target, place = job[RESULT] + 4 * row * length * inner, _row_of(job, tables, row)
        if place == NOTHING:
            _fill(target, length * inner, value)
            continue
        source = job[SOURCE] + 4 * place * inner
        if inner == 1 and last and length < SHORT:
            _read_by_table(source, target, table, size, value)
            continue
        _copy(source + 4 * middle, target + 4 * first * inner, (behind - first) * inner)
        if is_filled:
            _fill(target, first * inner, value)
            _fill(target + 4 * behind * inner, (length - behind) * inner, value)
            continue
        for column in range(length):
            if not first <= column < behind:
                _copy(source + 4 * table[column] * inner, target + 4 * column * inner, inner)


@cfunc("void(int64, int64)", **OPTIONS)
def pad_rows(address: int, part: int) -> None:
    """Some rows; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _pad(job, part * job[STEP], min(job[ROWS], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _padding(state: Any, rank: Any, before: Any, behind: Any) -> Any:
    """What is added along each axis; False if there is no such axis, or it is named twice."""
    seen = I64(0)
    for number in range(state[NUMBERS + 2]):
        at = NUMBERS + 3 + 3 * number
        axis = state[at] + (rank if state[at] < 0 else I64(0))
        if not 0 <= axis < rank or (seen >> axis) & 1:
            return False
        seen |= I64(1) << axis
        before[axis], behind[axis] = state[at + 1], state[at + 2]
    return True


@njit(**OPTIONS)
def _pad_tensor(state: Any, context: Any) -> Any:
    before, behind = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    dims, sizes = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job, mode = np.zeros(JOB, np.int64), state[NUMBERS]
    job[SOURCE], rank = read_input(state, context, 0, dims)
    if rank < 1 or not _padding(state, rank, before, behind):
        return failed(state, SHAPE)
    for axis in range(rank):
        sizes[axis] = dims[axis] + before[axis] + behind[axis]
        if sizes[axis] < 0 or (dims[axis] == 0 and mode and sizes[axis]):
            return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, sizes, rank)
    if status != 0 or product(sizes, 0, rank) == 0:
        return status
    first, last = I64(0), rank - 1
    while first < last and not before[first] and not behind[first]:
        first += 1
    while last > first and not before[last] and not behind[last]:
        last -= 1
    job[FILL], job[INNER] = state[NUMBERS + 1], product(dims, last + 1, rank)
    job[AXES], at = last + 1 - first, I64(0)
    tables = np.empty(_sum(sizes, first, last + 1), np.int64)
    for axis in range(first, last + 1):
        job[OLD + axis - first], job[NEW + axis - first] = dims[axis], sizes[axis]
        for place in range(sizes[axis]):
            tables[at] = _source_of(place - before[axis], dims[axis], mode)
            at += 1
    job[TABLES], job[BEFORE], job[ROWS] = tables.ctypes.data, before[last], product(sizes, 0, last)
    job[STEP] = max(I64(1), CHUNK // (sizes[last] * job[INNER]))
    in_parts(state, context, job, (job[ROWS] + job[STEP] - 1) // job[STEP])
    keep(tables)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def pad(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _pad_tensor(carray(integers_at(address), (NUMBERS + 3 + 3 * MOST_PADDED,)), context)
