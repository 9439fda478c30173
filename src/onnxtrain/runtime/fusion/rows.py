# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Rows added up by number: the gradient of an embedding. Import it only where numba is.

Each part of the result has one owner, who goes through all rows in their order, so the numbers do
not depend on how many threads there are. An owner has columns where rows are wide: then all have
the same work, however often a row is named. Otherwise it has a range of rows of the result, and
passes over blocks of indices that name none of them: those of a pool stand in order.

They are added to zeros, or to what a product has just written: the gradient of a table that is
looked up and multiplied with, as the words of a language model are. That is an input of the node,
which nobody else reads before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at, keep
from .tensors import (
    CORES,
    INDEX,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    read_input,
)

RESULT, ROWS, SOURCE, BLOCKS, COUNT, WIDTH, TOKENS, OWNERS, BY_COLUMNS, IS_FULL = range(10)
JOB = 10
BLOCK = 512
"""Indices of which the least and the largest are noted."""
LINE = 16
"""Floats of a line of the cache: an owner of columns has no less."""
ALONE = 32_768
"""Elements that one thread adds before another one is woken up: two chunks of the elementwise
driver, not measured by itself."""


@njit(**OPTIONS)
def _add_row(result: Any, source: Any, count: Any) -> None:
    """One row to another."""
    target, row = carray(floats_at(result), (count,)), carray(floats_at(source), (count,))
    for column in range(count):
        target[column] += row[column]


@njit(**OPTIONS)
def _of_columns(job: Any, part: Any) -> None:
    count, width, tokens = job[COUNT], job[WIDTH], job[TOKENS]
    rows = carray(integers_at(job[ROWS]), (tokens,))
    begin, end = part * width // job[OWNERS], (part + 1) * width // job[OWNERS]
    for row in range(0 if job[IS_FULL] else count):
        carray(floats_at(job[RESULT] + 4 * (row * width + begin)), (end - begin,))[:] = F32(0)
    for token in range(tokens):
        row = rows[token]
        row += count if row < 0 else 0
        _add_row(
            job[RESULT] + 4 * (row * width + begin),
            job[SOURCE] + 4 * (token * width + begin),
            end - begin,
        )


@njit(**OPTIONS)
def _of_rows(job: Any, part: Any) -> None:
    count, width, tokens = job[COUNT], job[WIDTH], job[TOKENS]
    rows = carray(integers_at(job[ROWS]), (tokens,))
    begin, end = part * count // job[OWNERS], (part + 1) * count // job[OWNERS]
    result = carray(floats_at(job[RESULT]), (count * width,))
    source = carray(floats_at(job[SOURCE]), (tokens * width,))
    if not job[IS_FULL]:
        result[begin * width : end * width] = F32(0)
    blocks = (tokens + BLOCK - 1) // BLOCK
    limits = carray(integers_at(job[BLOCKS]), (2 * blocks,))
    for block in range(blocks):
        if limits[2 * block] >= end or limits[2 * block + 1] < begin:
            continue
        for token in range(block * BLOCK, min(tokens, (block + 1) * BLOCK)):
            row = rows[token]
            row += count if row < 0 else 0
            if not begin <= row < end:
                continue
            if width == 1:
                result[row] += source[token]
            else:
                for column in range(width):
                    result[row * width + column] += source[token * width + column]


@njit(**OPTIONS)
def _add_part(job: Any, part: Any) -> None:
    if job[BY_COLUMNS]:
        _of_columns(job, part)
    else:
        _of_rows(job, part)


@cfunc("void(int64, int64)", **OPTIONS)
def add_part(address: int, part: int) -> None:
    """What one owner does; onnxruntime's threads call it."""
    _add_part(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def limits_of(rows: Any, count: Any, limits: Any) -> Any:
    """The least and the largest row of each block; False if one is out of range."""
    for block in range(limits.size // 2):
        least, largest, lowest = I64(count), I64(-1), I64(0)
        for token in range(block * BLOCK, min(rows.size, (block + 1) * BLOCK)):
            row = rows[token]
            lowest = min(lowest, row)
            row += count if row < 0 else 0
            least, largest = min(least, row), max(largest, row)
        if lowest < -count or largest >= count:
            return False
        limits[2 * block], limits[2 * block + 1] = least, largest
    return True


@njit(**OPTIONS)
def _share(state: Any, context: Any, job: Any, elements: Any) -> Any:
    """Have all of a job done, unless an index is out of range; `elements` are read and written."""
    count, width, tokens = job[COUNT], job[WIDTH], job[TOKENS]
    limits = np.empty(2 * ((tokens + BLOCK - 1) // BLOCK), np.int64)
    if not limits_of(carray(integers_at(job[ROWS]), (tokens,)), count, limits):
        return failed(state, INDEX)
    if count * width == 0:
        return I64(0)
    owners = max(1, min(state[CORES], elements // ALONE))
    job[BLOCKS], job[BY_COLUMNS] = limits.ctypes.data, width >= LINE * owners
    job[OWNERS] = min(owners, count) if not job[BY_COLUMNS] else owners
    in_parts(state, context, job, job[OWNERS])
    keep(limits)
    return I64(0)


@njit(**OPTIONS)
def _add_rows(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    shape_at, shape_rank = read_input(state, context, 0, dims)
    axes = dims[0]
    job[ROWS], rows_rank = read_input(state, context, 1, dims)
    tokens = dims[0]
    if shape_rank != 1 or rows_rank != 1 or axes < 1 or axes > 2:
        return failed(state, SHAPE)
    shape = carray(integers_at(shape_at), (axes,))
    count, width = shape[0], shape[1] if axes == 2 else I64(1)
    job[SOURCE], rank = read_input(state, context, 2, dims)
    fits = rank == axes and dims[0] == tokens and (axes == 1 or dims[1] == width)
    if not fits or count < 0 or width < 0:
        return failed(state, SHAPE)
    dims[0], dims[1] = count, width
    job[RESULT], status = make_output(state, context, 0, dims, axes)
    if status != 0:
        return status
    job[COUNT], job[WIDTH], job[TOKENS] = count, width, tokens
    return _share(state, context, job, (tokens + count) * width)


@njit(**OPTIONS)
def _add_rows_to(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[RESULT], axes = read_input(state, context, 0, dims)
    if axes < 1 or axes > 2:
        return failed(state, SHAPE)
    count, width = dims[0], dims[1] if axes == 2 else I64(1)
    job[ROWS], rows_rank = read_input(state, context, 1, dims)
    tokens = dims[0]
    job[SOURCE], rank = read_input(state, context, 2, dims)
    fits = rows_rank == 1 and rank == axes and dims[0] == tokens
    if not fits or (axes == 2 and dims[1] != width):
        return failed(state, SHAPE)
    dims[0] = 0
    _, status = make_output(state, context, 0, dims, 1)
    if status != 0:
        return status
    job[COUNT], job[WIDTH], job[TOKENS], job[IS_FULL] = count, width, tokens, 1
    return _share(state, context, job, tokens * width)


@cfunc("int64(int64, int64)", **OPTIONS)
def add_rows(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _add_rows(carray(integers_at(address), (NUMBERS,)), context)


@cfunc("int64(int64, int64)", **OPTIONS)
def add_rows_to(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _add_rows_to(carray(integers_at(address), (NUMBERS,)), context)
