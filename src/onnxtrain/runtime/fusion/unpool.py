# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""MaxUnpool: zeros, and at given places the numbers of its input. Import it only where numba is.

A place counts elements of the whole result. Those of a pool are in the plane of their window, so
planes are done by several threads. If one is in another plane, all is done once more in the order
of the input, in which onnxruntime does it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .operators import MOST_AXES
from .tensors import (
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

SOURCE, PLACES, RESULT, PLANES, STEP, WINDOWS, SIZE, IS_ASTRAY = range(8)
JOB = 8
CHUNK = 16_384
"""Elements of the result that one call of a thread takes, or one plane."""


@njit(**OPTIONS)
def _put(job: Any, begin: Any, end: Any) -> None:
    """The planes between two numbers; notes if a place is in none of them."""
    size, windows = job[SIZE] * (end - begin), job[WINDOWS] * (end - begin)
    result = carray(floats_at(job[RESULT] + 4 * begin * job[SIZE]), (size,))
    for place in range(size):
        result[place] = F32(0)
    source = carray(floats_at(job[SOURCE] + 4 * begin * job[WINDOWS]), (windows,))
    places = carray(integers_at(job[PLACES] + 8 * begin * job[WINDOWS]), (windows,))
    first = begin * job[SIZE]
    for window in range(windows):
        place = places[window] - first
        if 0 <= place < size:
            result[place] = source[window]
        else:
            job[IS_ASTRAY] = 1


@cfunc("void(int64, int64)", **OPTIONS)
def unpool_planes(address: int, part: int) -> None:
    """Some planes; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _put(job, part * job[STEP], min(job[PLANES], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _max_unpool(state: Any, context: Any) -> Any:
    dims, others = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    axes = state[NUMBERS]
    job[SOURCE], rank = read_input(state, context, 0, dims)
    job[PLACES], rank_of_places = read_input(state, context, 1, others)
    if rank != axes + 2 or rank_of_places != rank:
        return failed(state, SHAPE)
    for axis in range(rank):
        if dims[axis] != others[axis] or (axis >= 2 and dims[axis] < 1):
            return failed(state, SHAPE)
    job[PLANES], job[WINDOWS] = dims[0] * dims[1], product(dims, 2, rank)
    for axis in range(axes):
        extent, stride = state[NUMBERS + 1 + 2 * axis], state[NUMBERS + 2 + 2 * axis]
        dims[axis + 2] = (dims[axis + 2] - 1) * stride + extent
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status != 0 or job[PLANES] == 0:
        return status
    job[SIZE] = product(dims, 2, rank)
    job[STEP] = max(I64(1), CHUNK // job[SIZE])
    in_parts(state, context, job, (job[PLANES] + job[STEP] - 1) // job[STEP])
    if job[IS_ASTRAY]:
        job[IS_ASTRAY] = 0
        _put(job, I64(0), job[PLANES])
    return failed(state, INDEX) if job[IS_ASTRAY] else I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def max_unpool(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    state = carray(integers_at(address), (NUMBERS + 1 + 2 * MOST_AXES,))
    return _max_unpool(state, context)
