# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Softmax and its logarithm along an axis that is not the last, and their gradients.

onnxruntime turns the tensor, goes row by row, and turns it back; rows of three numbers take it
longer than all the rest, and written out the maximum, the sum and the gradient's sum are passes of
their own. Here some positions at once are laid out with one line for each place on
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

SOURCE, RESULT_BEFORE, RESULT, OUTER, LENGTH, INNER, STEP, KIND, EXP, LOG = range(10)
JOB = 10
SOFTMAX, LOG_SOFTMAX, GRADIENT, LOG_GRADIENT = range(4)
"""What is computed. Gradients are read with the result that they are of."""
NARROWEST = 64
"""Positions of a tile at least, if there are as many: what it takes to begin a line counts less."""
SLICED = 16
"""Numbers from which on a slice is copied faster than number by number."""
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
    if job[KIND] == LOG_SOFTMAX:
        _each(job[LOG], total, total, total.size)
        for line in range(job[LENGTH]):
            _take_away(x[line], total)
        return x
    for line in range(job[LENGTH]):
        _divide(e[line], total)
    return e


@njit(**OPTIONS)
def _add_products(x: Any, other: Any, total: Any) -> None:
    for i in range(x.size):
        total[i] += x[i] * other[i]


@njit(**OPTIONS)
def _gradient(job: Any, dy: Any, y: Any, total: Any) -> Any:
    """y·(dy - Σ dy·y), or dy - eʸ·Σ dy of the logarithm."""
    total[:] = F32(0)
    if job[KIND] == GRADIENT:
        for line in range(job[LENGTH]):
            _add_products(dy[line], y[line], total)
        for line in range(job[LENGTH]):
            _take_away(dy[line], total)
            _multiply(dy[line], y[line])
        return dy
    for line in range(job[LENGTH]):
        _add_up(dy[line], total)
    _each(job[EXP], y, y, y.size)
    for line in range(job[LENGTH]):
        _multiply(y[line], total)
        _take_away(dy[line], y[line])
    return dy


@njit(**OPTIONS)
def _multiply(x: Any, other: Any) -> None:
    for i in range(x.size):
        x[i] *= other[i]


@njit(**OPTIONS)
def _copy(source: Any, target: Any) -> None:
    for i in range(target.size):
        target[i] = source[i]


@njit(**OPTIONS)
def _lay_out(source: Any, tile: Any, outers: Any, inner: Any, begin: Any, end: Any) -> None:
    """Some positions of outer ones beside each other, a line for each place on the axis.

    Slices are copied by vectors, and cost more than what is shorter than one.
    """
    length, width = tile.shape[0], end - begin
    for outer in range(outers):
        for line in range(length):
            at, to = (outer * length + line) * inner + begin, outer * width
            if width >= SLICED:
                _copy(source[at : at + width], tile[line, to : to + width])
            else:
                for i in range(width):
                    tile[line, to + i] = source[at + i]


@njit(**OPTIONS)
def _put_back(tile: Any, target: Any, outers: Any, inner: Any, begin: Any, end: Any) -> None:
    length, width = tile.shape[0], end - begin
    for outer in range(outers):
        for line in range(length):
            at, to = (outer * length + line) * inner + begin, outer * width
            if width >= SLICED:
                _copy(tile[line, to : to + width], target[at : at + width])
            else:
                for i in range(width):
                    target[at + i] = tile[line, to + i]


@njit(**OPTIONS)
def _tile(job: Any, first: Any, outers: Any, begin: Any, end: Any) -> None:
    """Some outer ones, or a part of one."""
    length, inner = job[LENGTH], job[INNER]
    count, at = outers * length * inner, 4 * first * length * inner
    x = np.empty((length, outers * (end - begin)), np.float32)
    other = np.empty((length, outers * (end - begin)), np.float32)
    total = np.empty(outers * (end - begin), np.float32)
    _lay_out(carray(floats_at(job[SOURCE] + at), (count,)), x, outers, inner, begin, end)
    if job[KIND] >= GRADIENT:
        result = carray(floats_at(job[RESULT_BEFORE] + at), (count,))
        _lay_out(result, other, outers, inner, begin, end)
        y = _gradient(job, x, other, total)
    else:
        y = _softmax(job, x, other, total)
    _put_back(y, carray(floats_at(job[RESULT] + at), (count,)), outers, inner, begin, end)


@njit(**OPTIONS)
def _some(job: Any, begin: Any, end: Any) -> None:
    """Outer ones, whose elements lie side by side: as many at once as a tile takes."""
    length, inner = job[LENGTH], job[INNER]
    at_once = max(I64(1), TILE // (length * inner))
    width = min(inner, max(I64(NARROWEST), TILE // length))
    for first in range(begin, end, at_once):
        for column in range(0, inner, width):
            behind = min(inner, column + width)
            _tile(job, I64(first), min(at_once, end - first), I64(column), behind)


@cfunc("void(int64, int64)", **OPTIONS)
def across_part(address: int, part: int) -> None:
    """Some of the outer ones; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _some(job, part * job[STEP], min(job[OUTER], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _run(state: Any, context: Any, job: Any, dims: Any, rank: Any) -> Any:
    """What the job says, along an axis."""
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
    job[EXP], job[LOG] = state[NUMBERS + 2], state[NUMBERS + 3]
    job[STEP] = max(I64(1), CHUNK // size)
    in_parts(state, context, job, (job[OUTER] + job[STEP] - 1) // job[STEP])
    return I64(0)


@njit(**OPTIONS)
def _across(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, I64(0), dims)
    job[KIND] = LOG_SOFTMAX if state[NUMBERS + 1] else SOFTMAX
    return _run(state, context, job, dims, rank)


@njit(**OPTIONS)
def _gradient_across(state: Any, context: Any) -> Any:
    dims, others = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, I64(0), dims)
    job[RESULT_BEFORE], rank_before = read_input(state, context, I64(1), others)
    if rank != rank_before:
        return failed(state, SHAPE)
    for place in range(rank):
        if dims[place] != others[place]:
            return failed(state, SHAPE)
    job[KIND] = LOG_GRADIENT if state[NUMBERS + 1] else GRADIENT
    return _run(state, context, job, dims, rank)


@cfunc("int64(int64, int64)", **OPTIONS)
def across(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _across(carray(integers_at(address), (NUMBERS + 4,)), context)


@cfunc("int64(int64, int64)", **OPTIONS)
def gradient_across(address: int, context: int) -> int:
    """The same, of a node that has the gradient of a softmax and the softmax itself."""
    return _gradient_across(carray(integers_at(address), (NUMBERS + 4,)), context)
