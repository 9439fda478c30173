# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Gather of short rows: columns of a matrix, say. Import it only where numba is.

onnxruntime begins a copy anew for each index, which takes longer than to copy a few numbers. Here
indices are looked at once, and what is behind the axis is copied in one loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at, keep
from .tensors import (
    INDEX,
    LARGEST_PLANE,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    copy_places,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

SOURCE, RESULT, PLACES, LINES, STEP, SIZE, COUNT, INNER = range(8)
JOB = 8
"""Addresses; lines of the result, which are one for each index and all that is before the axis, and
how many a thread takes at once; the axis' length, indices, and elements behind the axis."""
CHUNK = 16_384
"""Elements that one call of a thread copies, or one line."""


@njit(**OPTIONS)
def _take(job: Any, begin: Any, end: Any) -> None:
    """The lines between two numbers."""
    size, count, inner = job[SIZE], job[COUNT], job[INNER]
    places = carray(integers_at(job[PLACES]), (count,))
    line, block, first = begin, begin // count, begin % count
    while line < end:
        last = min(count, first + end - line)
        source = carray(floats_at(job[SOURCE] + 4 * block * size * inner), (size * inner,))
        result = carray(floats_at(job[RESULT] + 4 * line * inner), ((last - first) * inner,))
        if inner == 1:
            for i in range(last - first):
                result[i] = source[np.uint64(places[first + i])]
        else:
            for i in range(last - first):
                at = places[first + i] * inner
                for column in range(inner):
                    result[i * inner + column] = source[at + column]
        line, block, first = line + last - first, block + 1, I64(0)


@cfunc("void(int64, int64)", **OPTIONS)
def take_lines(address: int, part: int) -> None:
    """Some lines; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _take(job, part * job[STEP], min(job[LINES], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _gather(state: Any, context: Any) -> Any:
    dims, others, sizes = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
    )
    job = np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    indices, rank_of_indices = read_input(state, context, 1, others)
    axis = state[NUMBERS] + (rank if state[NUMBERS] < 0 else I64(0))
    is_small = rank_of_indices >= 0 and rank - 1 + rank_of_indices <= MAX_RANK
    if rank < 1 or not 0 <= axis < rank or not is_small or dims[axis] > LARGEST_PLANE:
        return failed(state, SHAPE)
    for a in range(rank - 1 + rank_of_indices):
        if a < axis:
            sizes[a] = dims[a]
        elif a < axis + rank_of_indices:
            sizes[a] = others[a - axis]
        else:
            sizes[a] = dims[a - rank_of_indices + 1]
    job[RESULT], status = make_output(state, context, 0, sizes, rank - 1 + rank_of_indices)
    if status != 0:
        return status
    job[COUNT], job[SIZE] = product(others, 0, rank_of_indices), dims[axis]
    job[INNER] = product(dims, axis + 1, rank)
    job[LINES] = product(dims, 0, axis) * job[COUNT]
    places = np.empty(job[COUNT], np.int64)
    if not copy_places(indices, job[SIZE], places):
        return failed(state, INDEX)
    if job[LINES] * job[INNER] == 0:
        return I64(0)
    job[PLACES] = places.ctypes.data
    job[STEP] = max(I64(1), CHUNK // job[INNER])
    in_parts(state, context, job, (job[LINES] + job[STEP] - 1) // job[STEP])
    keep(places)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def gather(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _gather(carray(integers_at(address), (NUMBERS + 1,)), context)
