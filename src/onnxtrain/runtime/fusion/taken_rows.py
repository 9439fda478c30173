# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Rows of a table, perhaps weighted, added up by number, without a copy of those that are taken.

`y[rows[i]] += weights[i] · table[taken[i]]` is a bag of embeddings and the messages that come along
the edges of a graph; its gradient is the same sum, of the rows that `taken` and `rows` have
exchanged. The parts of the result have owners as in `rows.py`, and for its reasons. Import it only
where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at, keep
from .rows import ALONE, BLOCK, LINE, limits_of
from .tensors import (
    CORES,
    INDEX,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

(RESULT, ROWS, TABLE, TAKEN, WEIGHTS, BLOCKS, COUNT, WIDTH, TOKENS, LENGTH, BETWEEN, OWNERS,
 BY_COLUMNS) = range(13)  # fmt: skip
JOB = 13
"""Addresses, that of weights 0 if there are none; the least and the largest row of each block; rows
of the result, their width, how many are added; sizes of the table's first axis and of those between
it and the last; owners, and whether of columns."""

VECTOR = -1
"""In the place of the sizes between: the table is a vector, and the indices make up rows of it."""


@njit(**OPTIONS)
def _add_row(result: Any, source: Any, count: Any, weight: Any) -> None:
    target, row = carray(floats_at(result), (count,)), carray(floats_at(source), (count,))
    for column in range(count):
        target[column] += weight * row[column]


@njit(**OPTIONS)
def _add_part(job: Any, part: Any) -> None:
    """Some columns of all rows of the result, or some rows."""
    count, width, tokens = job[COUNT], job[WIDTH], job[TOKENS]
    first, behind, begin, end = I64(0), count, I64(0), width
    if job[BY_COLUMNS]:
        begin, end = part * width // job[OWNERS], (part + 1) * width // job[OWNERS]
    else:
        first, behind = part * count // job[OWNERS], (part + 1) * count // job[OWNERS]
    rows, taken = (
        carray(integers_at(job[ROWS]), (tokens,)),
        carray(integers_at(job[TAKEN]), (tokens,)),
    )
    blocks, is_weighted = (tokens + BLOCK - 1) // BLOCK, job[WEIGHTS] != 0
    limits = carray(integers_at(job[BLOCKS]), (2 * blocks,))
    weights = carray(floats_at(job[WEIGHTS]), (tokens,))
    for row in range(first, behind):
        carray(floats_at(job[RESULT] + 4 * (row * width + begin)), (end - begin,))[:] = F32(0)
    for block in range(blocks):
        if limits[2 * block] >= behind or limits[2 * block + 1] < first:
            continue
        for token in range(block * BLOCK, min(tokens, (block + 1) * BLOCK)):
            row, place = rows[token], taken[token]
            row += count if row < 0 else 0
            if first <= row < behind:
                _add_row(
                    job[RESULT] + 4 * (row * width + begin),
                    job[TABLE] + 4 * (place * width + begin),
                    end - begin,
                    weights[token] if is_weighted else F32(1),
                )


@cfunc("void(int64, int64)", **OPTIONS)
def add_taken_part(address: int, part: int) -> None:
    """What one owner does; onnxruntime's threads call it."""
    _add_part(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _share(state: Any, context: Any, job: Any) -> Any:
    """Have all of a job done, unless the number of a row is out of range."""
    count, width, tokens = job[COUNT], job[WIDTH], job[TOKENS]
    limits = np.empty(2 * ((tokens + BLOCK - 1) // BLOCK), np.int64)
    if not limits_of(carray(integers_at(job[ROWS]), (tokens,)), count, limits):
        return failed(state, INDEX)
    if count * width == 0:
        return I64(0)
    owners = max(1, min(state[CORES], (tokens + count) * width // ALONE))
    job[BLOCKS], job[BY_COLUMNS] = limits.ctypes.data, width >= LINE * owners
    job[OWNERS] = min(owners, count) if not job[BY_COLUMNS] else owners
    in_parts(state, context, job, job[OWNERS])
    keep(limits)
    return I64(0)


@njit(**OPTIONS)
def _repeated(dims: Any, others: Any, places: Any) -> Any:
    """Where a tensor of some sizes is read when it is broadcast with another one; False if not."""
    total, most = I64(1), max(dims.size, others.size)
    for a in range(1, most + 1):
        d = dims[dims.size - a] if a <= dims.size else I64(1)
        o = others[others.size - a] if a <= others.size else I64(1)
        if d not in (o, 1) and o != 1:
            return False
        total *= o if d == 1 else d
    if total != places.size:
        return False
    for token in range(total):
        rest, place, stride = token, I64(0), I64(1)
        for a in range(1, most + 1):
            d = dims[dims.size - a] if a <= dims.size else I64(1)
            size = others[others.size - a] if d == 1 and a <= others.size else d
            if d > 1:
                place += rest % size * stride
            rest //= size
            stride *= d
        places[token] = place
    return True


@njit(**OPTIONS)
def _taken_rows(address: Any, length: Any, between: Any, rows: Any) -> Any:
    """Which rows a Gather takes, each of so many as are behind an index; False if one is astray."""
    taken = carray(integers_at(address), (rows.size // max(I64(1), between),))
    for i in range(taken.size):
        place = taken[i] + (length if taken[i] < 0 else I64(0))
        if not 0 <= place < length:
            return False
        for row in range(between):
            rows[i * between + row] = place * between + row
    return True


@njit(**OPTIONS)
def _read_taken(state: Any, context: Any, job: Any, sizes: Any) -> Any:
    """Reads a table and the indices of a Gather: the number of axes before the last; -1 if odd.

    Their sizes are written to `sizes`, then those before the last axis of the table.
    """
    dims = np.zeros(MAX_RANK, np.int64)
    job[TAKEN], rank = read_input(state, context, 3, sizes)
    job[TABLE], axes = read_input(state, context, 2, dims)
    job[LENGTH], job[BETWEEN] = dims[0], VECTOR
    if axes == 1 and rank > 0 and sizes[rank - 1] == job[WIDTH]:
        return rank - 1
    if rank < 0 or axes < 2 or rank + axes - 2 > MAX_RANK or dims[axes - 1] != job[WIDTH]:
        return I64(-1)
    sizes[rank : rank + axes - 2] = dims[1 : axes - 1]
    job[BETWEEN] = product(dims, 1, axes - 1)
    return rank + axes - 2


@njit(**OPTIONS)
def _take_numbers(job: Any, numbers: Any, taken: Any) -> Any:
    """Rows of single numbers of a vector, which become a table; False if an index is astray."""
    places = np.empty(numbers.size, np.int64)
    if not _taken_rows(job[TAKEN], job[LENGTH], I64(1), places):
        return False
    vector = carray(floats_at(job[TABLE]), (job[LENGTH],))
    for i in range(numbers.size):
        numbers[i] = vector[places[i]]
    job[TABLE] = numbers.ctypes.data
    for row in range(taken.size):
        taken[row] = row
    return True


@njit(**OPTIONS)
def _weigh(job: Any, taken: Any, sizes: Any, others: Any, arrays: Any, weights: Any) -> Any:
    """Rows and weights for each number of a row; False if their sizes do not fit."""
    first, second = arrays
    if not _repeated(sizes, others, first) or not _repeated(others, sizes, second):
        return False
    factors = carray(floats_at(job[WEIGHTS]), (product(others, 0, others.size),))
    for token in range(first.size):
        first[token] = taken[first[token]]
        if weights.size:
            weights[token] = factors[second[token]]
    return True


@njit(**OPTIONS)
def _add_taken(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    shape_at, shape_rank = read_input(state, context, 0, dims)
    if shape_rank != 1 or dims[0] != 2:
        return failed(state, SHAPE)
    shape = carray(integers_at(shape_at), (2,))
    job[ROWS], rows_rank = read_input(state, context, 1, dims)
    job[COUNT], job[WIDTH], job[TOKENS] = shape[0], shape[1], dims[0]
    sizes, others, axes = np.zeros(2 * MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64), I64(0)
    lead = _read_taken(state, context, job, sizes)
    if state[NUMBERS]:
        job[WEIGHTS], axes = read_input(state, context, 4, others)
    if rows_rank != 1 or min(lead, axes) < 0 or min(job[COUNT], job[WIDTH]) < 0:
        return failed(state, SHAPE)
    taken, is_vector = np.empty(product(sizes, 0, lead), np.int64), job[BETWEEN] == VECTOR
    numbers = np.empty(taken.size * job[WIDTH] if is_vector else I64(0), np.float32)
    if is_vector:
        are_inside = _take_numbers(job, numbers, taken)
    else:
        are_inside = _taken_rows(job[TAKEN], job[LENGTH], job[BETWEEN], taken)
    if not are_inside:
        return failed(state, INDEX)
    tokens = job[TOKENS]
    rows, places = np.empty(tokens, np.int64), np.empty(tokens, np.int64)
    weights = np.empty(tokens if state[NUMBERS] else I64(0), np.float32)
    if not _weigh(job, taken, sizes[:lead], others[:axes], (rows, places), weights):
        return failed(state, SHAPE)
    job[TAKEN] = rows.ctypes.data
    job[WEIGHTS] = weights.ctypes.data if state[NUMBERS] else I64(0)
    dims[0], dims[1] = job[COUNT], job[WIDTH]
    job[RESULT], status = make_output(state, context, 0, dims, 2)
    status = _share(state, context, job) if status == 0 else status
    keep(rows)
    keep(weights)
    keep(numbers)
    return status


@cfunc("int64(int64, int64)", **OPTIONS)
def add_taken_rows(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _add_taken(carray(integers_at(address), (NUMBERS + 1,)), context)
