# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""The gradient of a Pad that reflects, repeats or wraps around. Import it only where numba is.

As standard operators each padded axis takes two slices, two pads and two sums of whole tensors.
Here the axes that are padded make up a block. What stands in its middle is copied, and then what
was padded is added where it came from, in the order of memory: no number depends on threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at, keep
from .operators import MOST_PADDED
from .padding import _source_of
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, product, read_input

(SOURCE, RESULT, BLOCKS, STEP, OLD, NEW, WIDTH, INNER, GROUP, COPIES, ADDED, COPIED_FROM, ADDED_TO,
 ADDED_FROM, JOB) = range(15)  # fmt: skip
"""Addresses; blocks, and how many a thread takes at once; floats of a block of the gradient and of
the result; of a copy and of a sum; how many blocks the tables describe, how many copies and sums
there are for each, and the addresses of the tables. Copies stand one behind the other in the
result."""
CHUNK = 16_384
"""Floats that one call of a thread takes, or one block."""
SHORT = 16
"""Floats of a row up to which a table says of each where it comes from, as beginning a copy takes
longer."""
CELLS = 512
"""Floats of short rows that a table describes, of several blocks if one is smaller."""
FIELDS = 4
"""Numbers that describe an axis."""


@njit(**OPTIONS)
def _fold(job: Any, begin: Any, end: Any) -> None:
    """Some blocks, as many at once as the tables describe."""
    width, inner, group = job[WIDTH], job[INNER], job[GROUP]
    copies = carray(integers_at(job[COPIED_FROM]), (group * job[COPIES],))
    to = carray(integers_at(job[ADDED_TO]), (group * job[ADDED],))
    source_of = carray(integers_at(job[ADDED_FROM]), (group * job[ADDED],))
    for block in range(begin, end, group):
        count = min(group, end - block)
        old = carray(floats_at(job[SOURCE] + 4 * block * job[OLD]), (count * job[OLD],))
        new = carray(floats_at(job[RESULT] + 4 * block * job[NEW]), (count * job[NEW],))
        if width == 1:
            for i in range(count * job[COPIES]):
                new[i] = old[np.uint64(copies[i])]
        else:
            for i in range(count * job[COPIES]):
                place, at = np.uint64(copies[i]), np.uint64(i * width)
                for k in range(width):
                    new[at + np.uint64(k)] = old[place + np.uint64(k)]
        if inner == 1:
            for i in range(count * job[ADDED]):
                new[np.uint64(to[i])] += old[np.uint64(source_of[i])]
        else:
            for i in range(count * job[ADDED]):
                place, at = np.uint64(source_of[i]), np.uint64(to[i])
                for k in range(inner):
                    new[at + np.uint64(k)] += old[place + np.uint64(k)]


@cfunc("void(int64, int64)", **OPTIONS)
def fold_blocks(address: int, part: int) -> None:
    """Some blocks; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _fold(job, part * job[STEP], min(job[BLOCKS], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _row_of(state: Any, row: Any) -> Any:
    """Of a row of the gradient's block: where it goes, and whether it is in the middle."""
    place, stride, is_inside = I64(0), I64(1), True
    for number in range(state[NUMBERS + 1] - 2, -1, -1):
        at = NUMBERS + 2 + FIELDS * number
        before, size = state[at + 1], state[at + 3]
        length = before + size + state[at + 2]
        index = row % length - before
        row //= length
        is_inside = is_inside and 0 <= index < size
        place += _source_of(index, size, state[NUMBERS]) * stride
        stride *= size
    return place, is_inside


@njit(**OPTIONS)
def _describe(state: Any, rows: Any, inner: Any, copies: Any, to: Any, source_of: Any) -> None:
    """Fill the tables of one block: places of rows in the middle, and pairs to be added."""
    at = NUMBERS + 2 + FIELDS * (state[NUMBERS + 1] - 1)
    before, size = state[at + 1], state[at + 3]
    length = before + size + state[at + 2]
    copied, added = I64(0), I64(0)
    for row in range(rows):
        target, is_inside = _row_of(state, row)
        if is_inside:
            copies[copied] = (row * length + before) * inner
            copied += 1
        for column in range(length):
            if is_inside and before <= column < before + size:
                continue
            place = target * size + _source_of(column - before, size, state[NUMBERS])
            to[added], source_of[added] = place * inner, (row * length + column) * inner
            added += 1


@njit(**OPTIONS)
def _spread(table: Any, width: Any, blocks: Any, stride: Any) -> Any:
    """A table of so many blocks, one float at a time."""
    count = table.size
    wide = np.empty(blocks * count * width, np.int64)
    for block in range(blocks):
        for i in range(count):
            for k in range(width):
                wide[(block * count + i) * width + k] = block * stride + table[i] + k
    return wide


@njit(**OPTIONS)
def _fits(state: Any, rank: Any, dims: Any, sizes: Any) -> Any:
    """Whether the gradient has the sizes that its node says; `sizes` are those of the result."""
    for axis in range(rank):
        sizes[axis] = dims[axis]
    for number in range(state[NUMBERS + 1]):
        at = NUMBERS + 2 + FIELDS * number
        axis, size = state[at], state[at + 3]
        if axis >= rank or dims[axis] != state[at + 1] + state[at + 2] + size:
            return False
        sizes[axis] = size
    return True


@njit(**OPTIONS)
def _fold_tensor(state: Any, context: Any) -> Any:
    dims, sizes = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    if not _fits(state, rank, dims, sizes):
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, sizes, rank)
    if status != 0 or product(sizes, 0, rank) == 0:
        return status
    first = state[NUMBERS + 2]
    behind = first + state[NUMBERS + 1]
    inner, size = product(dims, behind, rank), sizes[behind - 1]
    old, new = product(dims, first, behind), product(sizes, first, behind)
    copies = np.empty(new // size, np.int64)
    to, source_of = np.empty(old - new, np.int64), np.empty(old - new, np.int64)
    _describe(state, old // dims[behind - 1], inner, copies, to, source_of)
    old, new, blocks, group = old * inner, new * inner, product(dims, 0, first), I64(1)
    job[WIDTH], job[INNER], job[COPIES], job[ADDED] = size * inner, inner, copies.size, to.size
    if size * inner < SHORT:
        group = min(blocks, max(I64(1), CELLS // new))
        copies = _spread(copies, size * inner, group, old)
        to, source_of = _spread(to, inner, group, new), _spread(source_of, inner, group, old)
        job[COPIES], job[ADDED] = copies.size // group, to.size // group
        job[WIDTH], job[INNER] = 1, 1
    job[BLOCKS], job[GROUP], job[OLD], job[NEW] = blocks, group, old, new
    job[COPIED_FROM], job[ADDED_TO] = copies.ctypes.data, to.ctypes.data
    job[ADDED_FROM] = source_of.ctypes.data
    job[STEP] = group * max(I64(1), CHUNK // (group * old))
    in_parts(state, context, job, (blocks + job[STEP] - 1) // job[STEP])
    keep(copies)
    keep(to)
    keep(source_of)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def fold(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _fold_tensor(
        carray(integers_at(address), (NUMBERS + 2 + FIELDS * MOST_PADDED,)), context
    )
