# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""A Slice that reads whole axes backwards. Import it only where numba is.

onnxruntime takes its elements one by one, 0.65 ns each, four times as long as torch. Here a row is
read from its end with vectors, and what is behind the last of these axes is copied as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at
from .operators import MOST_AXES_TURNED
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, product, read_input

SOURCE, RESULT, COUNT, STEP, LENGTH, INNER, AXES = range(7)
SIZES, TURNED = 7, 7 + MAX_RANK
JOB = TURNED + MAX_RANK
"""Addresses; elements of the result, and how many a thread takes at once; elements of a row, and
floats of an element; axes before that of a row, their sizes, and which are read backwards. Axes
that follow each other, and are read in the same direction, are one."""
CHUNK = 16_384
"""Floats that one call of a thread takes, or one element."""


@njit(**OPTIONS)
def _row_of(job: Any, row: Any) -> Any:
    """Which row of the source stands in a row of the result."""
    place, stride = I64(0), I64(1)
    for axis in range(job[AXES] - 1, -1, -1):
        size = job[SIZES + axis]
        index = row % size
        row //= size
        place += (size - 1 - index if job[TURNED + axis] else index) * stride
        stride *= size
    return place


@njit(**OPTIONS)
def _copy(source: Any, target: Any, count: Any) -> None:
    for i in range(count):
        target[i] = source[i]


@njit(**OPTIONS)
def _turn(job: Any, begin: Any, end: Any) -> None:
    """Elements of the result, row by row."""
    length, inner = job[LENGTH], job[INNER]
    while begin < end:
        row = begin // length
        count = min(end, (row + 1) * length) - begin
        behind = (_row_of(job, row) + 1) * length - (begin - row * length)  # of the last one
        source = carray(floats_at(job[SOURCE] + 4 * (behind - count) * inner), (count * inner,))
        target = carray(floats_at(job[RESULT] + 4 * begin * inner), (count * inner,))
        begin += count
        if inner == 1:
            for i in range(count):
                target[i] = source[np.uint64(count - 1 - i)]  # else numba asks if it is negative
            continue
        for i in range(count):
            _copy(source[(count - 1 - i) * inner :], target[i * inner :], inner)


@cfunc("void(int64, int64)", **OPTIONS)
def turn_part(address: int, part: int) -> None:
    """Some elements; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _turn(job, part * job[STEP], min(job[COUNT], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _turn_tensor(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    turned = np.zeros(MAX_RANK, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    for number in range(state[NUMBERS]):
        axis = state[NUMBERS + 1 + number]
        axis += rank if axis < 0 else I64(0)
        if not 0 <= axis < rank or turned[axis]:
            return failed(state, SHAPE)
        turned[axis] = 1
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status != 0 or product(dims, 0, rank) == 0:
        return status
    last = I64(-1)  # of the axes taken together
    for axis in range(rank):
        if last >= 0 and job[TURNED + last] == turned[axis]:
            job[SIZES + last] *= dims[axis]
        else:
            last += 1
            job[SIZES + last], job[TURNED + last] = dims[axis], turned[axis]
    job[INNER] = 1
    if not job[TURNED + last]:
        job[INNER] = job[SIZES + last]
        last -= 1
    job[AXES], job[LENGTH] = last, job[SIZES + last]
    job[COUNT] = product(dims, 0, rank) // job[INNER]
    job[STEP] = max(I64(1), CHUNK // job[INNER])
    in_parts(state, context, job, (job[COUNT] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def turn(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _turn_tensor(carray(integers_at(address), (NUMBERS + 1 + MOST_AXES_TURNED,)), context)
