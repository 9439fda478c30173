# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""CumSum: sums along an axis up to each element. Import it only where numba is.

The sums are added in the order of the axis, as onnxruntime does it, so the numbers are the same.
Four lines are summed at once where their elements stand side by side: each addition of a line waits
for the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .tensors import (
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

SOURCE, RESULT, OUTER, LENGTH, INNER, IS_EXCLUSIVE, IS_REVERSE, UNITS, STEP = range(9)
JOB = 9
TOGETHER = 4
"""Lines that are summed at once: an addition takes four cycles."""
BLOCK = 1024
"""Columns of which one thread sums a block, in its first cache."""
CHUNK = 16_384
"""Elements that one call of a thread takes, if they can be divided."""
NOTHING = F32(-0.0)
"""The number that changes none it is added to, not even the sign of zero."""


@njit(**OPTIONS)
def _four_lines(job: Any, line: Any) -> None:
    length = job[LENGTH]
    x = carray(floats_at(job[SOURCE] + 4 * line * length), (TOGETHER * length,))
    y = carray(floats_at(job[RESULT] + 4 * line * length), (TOGETHER * length,))
    a = b = c = d = F32(0) if job[IS_EXCLUSIVE] else NOTHING
    at, step = (length - 1, I64(-1)) if job[IS_REVERSE] else (I64(0), I64(1))
    for _ in range(length):
        p, q, r, s = x[at], x[at + length], x[at + 2 * length], x[at + 3 * length]
        if job[IS_EXCLUSIVE]:
            y[at], y[at + length], y[at + 2 * length], y[at + 3 * length] = a, b, c, d
            a, b, c, d = a + p, b + q, c + r, d + s
        else:
            a, b, c, d = a + p, b + q, c + r, d + s
            y[at], y[at + length], y[at + 2 * length], y[at + 3 * length] = a, b, c, d
        at += step


@njit(**OPTIONS)
def _line(job: Any, line: Any) -> None:
    length = job[LENGTH]
    x = carray(floats_at(job[SOURCE] + 4 * line * length), (length,))
    y = carray(floats_at(job[RESULT] + 4 * line * length), (length,))
    total = F32(0) if job[IS_EXCLUSIVE] else NOTHING
    at, step = (length - 1, I64(-1)) if job[IS_REVERSE] else (I64(0), I64(1))
    for _ in range(length):
        value = x[at]
        y[at] = total if job[IS_EXCLUSIVE] else total + value
        total += value
        at += step


@njit(**OPTIONS)
def _columns(job: Any, outer: Any, begin: Any) -> None:
    """A block of columns, row by row."""
    length, inner = job[LENGTH], job[INNER]
    count = min(BLOCK, inner - begin)
    sums = np.empty(count, np.float32)
    for column in range(count):
        sums[column] = F32(0) if job[IS_EXCLUSIVE] else NOTHING
    for i in range(length):
        row = length - 1 - i if job[IS_REVERSE] else i
        at = 4 * ((outer * length + row) * inner + begin)
        x = carray(floats_at(job[SOURCE] + at), (count,))
        y = carray(floats_at(job[RESULT] + at), (count,))
        if job[IS_EXCLUSIVE]:
            for column in range(count):
                y[column] = sums[column]
                sums[column] += x[column]
        else:
            for column in range(count):
                sums[column] += x[column]
                y[column] = sums[column]


@njit(**OPTIONS)
def _sum_part(job: Any, part: Any) -> None:
    blocks = (job[INNER] + BLOCK - 1) // BLOCK
    for unit in range(part * job[STEP], min(job[UNITS], (part + 1) * job[STEP])):
        if job[INNER] > 1:
            _columns(job, unit // blocks, unit % blocks * BLOCK)
        elif unit * TOGETHER + TOGETHER <= job[OUTER]:
            _four_lines(job, unit * TOGETHER)
        else:
            for line in range(unit * TOGETHER, job[OUTER]):
                _line(job, line)


@cfunc("void(int64, int64)", **OPTIONS)
def sum_part(address: int, part: int) -> None:
    """Some lines or columns; onnxruntime's threads call it."""
    _sum_part(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _cum_sum(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    axis = state[NUMBERS]
    axis += rank if axis < 0 else 0
    if rank < 1 or axis < 0 or axis >= rank:
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    outer, length, inner = product(dims, 0, axis), dims[axis], product(dims, axis + 1, rank)
    if status != 0 or outer * length * inner == 0:
        return status
    job[OUTER], job[LENGTH], job[INNER] = outer, length, inner
    job[IS_EXCLUSIVE], job[IS_REVERSE] = state[NUMBERS + 1], state[NUMBERS + 2]
    if inner == 1:
        job[UNITS] = (outer + TOGETHER - 1) // TOGETHER
        elements = TOGETHER * length
    else:
        job[UNITS] = outer * ((inner + BLOCK - 1) // BLOCK)
        elements = min(BLOCK, inner) * length
    job[STEP] = max(I64(1), CHUNK // elements)
    in_parts(state, context, job, (job[UNITS] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def cum_sum(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _cum_sum(carray(integers_at(address), (NUMBERS + 3,)), context)
