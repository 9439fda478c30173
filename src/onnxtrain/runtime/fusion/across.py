# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Softmax and its logarithm along an axis of a few numbers that is not the last.

onnxruntime turns the tensor, goes row by row, and turns it back; rows of three numbers take it
longer than all the rest. Here some positions at once are laid out with one line for each place on
the axis: everything is element by element then. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, call, floats_at, integers_at, keep
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

SOURCE, RESULT, OUTER, LENGTH, INNER, STEP, IS_LOG, EXP, LOG = range(9)
JOB = 9
TILE = 4096
"""Elements that are laid out at once, in the first cache."""
CHUNK = 16_384
"""Elements that one call of a thread takes, if they can be divided."""


@njit(**OPTIONS)
def _each(program: Any, source: Any, target: Any, count: Any) -> None:
    """A compiled program of one operand, for some numbers side by side."""
    places, strides = np.empty(2, np.int64), np.zeros(2, np.int64)
    places[0], places[1] = source.ctypes.data, target.ctypes.data
    call(program, (places.ctypes.data, strides.ctypes.data, I64(1), I64(count)))
    keep(places)
    keep(strides)
    keep(source)
    keep(target)


@njit(**OPTIONS)
def _highest(x: Any, top: Any) -> None:
    for i in range(top.size):
        top[i] = top[i] if top[i] >= x[i] else x[i]


@njit(**OPTIONS)
def _take_away(x: Any, other: Any) -> None:
    for i in range(x.size):
        x[i] -= other[i]


@njit(**OPTIONS)
def _add_up(x: Any, total: Any) -> None:
    for i in range(x.size):
        total[i] += x[i]


@njit(**OPTIONS)
def _divide(x: Any, other: Any) -> None:
    for i in range(x.size):
        x[i] /= other[i]


@njit(**OPTIONS)
def _softmax(job: Any, x: Any, e: Any, total: Any) -> Any:
    """Of the lines of a tile; what is no number in one makes all that it meets no numbers."""
    total[:] = x[0]
    for line in range(1, job[LENGTH]):
        _highest(x[line], total)
    for line in range(job[LENGTH]):
        _take_away(x[line], total)
    _each(job[EXP], x, e, x.size)
    total[:] = F32(0)
    for line in range(job[LENGTH]):
        _add_up(e[line], total)
    if job[IS_LOG]:
        _each(job[LOG], total, total, total.size)
        for line in range(job[LENGTH]):
            _take_away(x[line], total)
        return x
    for line in range(job[LENGTH]):
        _divide(e[line], total)
    return e


@njit(**OPTIONS)
def _some(job: Any, begin: Any, end: Any) -> None:
    """Outer ones, whose elements lie side by side: as many at once as a tile takes."""
    length, inner = job[LENGTH], job[INNER]
    size = length * inner
    at_once = max(I64(1), TILE // size)
    for first in range(begin, end, at_once):
        count = min(at_once, end - first)
        x = np.empty((length, count * inner), np.float32)
        e = np.empty((length, count * inner), np.float32)
        source = carray(floats_at(job[SOURCE] + 4 * first * size), (count * size,))
        result = carray(floats_at(job[RESULT] + 4 * first * size), (count * size,))
        for outer in range(count):
            for line in range(length):
                for i in range(inner):
                    x[line, outer * inner + i] = source[outer * size + line * inner + i]
        y = _softmax(job, x, e, np.empty(count * inner, np.float32))
        for outer in range(count):
            for line in range(length):
                for i in range(inner):
                    result[outer * size + line * inner + i] = y[line, outer * inner + i]


@cfunc("void(int64, int64)", **OPTIONS)
def across_part(address: int, part: int) -> None:
    """Some of the outer ones; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _some(job, part * job[STEP], min(job[OUTER], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _across(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, I64(0), dims)
    axis = state[NUMBERS]
    axis += rank if axis < 0 else 0
    if rank < 1 or axis < 0 or axis >= rank:
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, I64(0), dims, rank)
    job[OUTER], job[LENGTH] = product(dims, I64(0), axis), dims[axis]
    job[INNER] = product(dims, axis + 1, rank)
    size = job[LENGTH] * job[INNER]
    if status != 0 or job[OUTER] * size == 0:
        return status
    job[IS_LOG], job[EXP], job[LOG] = state[NUMBERS + 1], state[NUMBERS + 2], state[NUMBERS + 3]
    job[STEP] = max(I64(1), CHUNK // size)
    in_parts(state, context, job, (job[OUTER] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def across(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _across(carray(integers_at(address), (NUMBERS + 4,)), context)
