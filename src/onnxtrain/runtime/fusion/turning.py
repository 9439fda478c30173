# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Transpose that moves the last axis and others, and DepthToSpace.

onnxruntime goes through such a tensor element by element, and finds the place of each from all
axes. Here axes that stay side by side are one, and squares of the two axes that are last before and
after are turned in the first cache. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at
from .operators import DEPTH_COLUMN_ROW, MOST_AXES_TURNED, PERMUTATION
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, product, read_input

SOURCE, RESULT, SQUARES, STEP, ROWS, ROW_STEP, COLUMNS, COLUMN_STEP, AXES, LENGTH = range(10)
SIZES, STEPS, TARGETS = 10, 10 + MAX_RANK, 10 + 2 * MAX_RANK
JOB = TARGETS + MAX_RANK
"""Addresses; how many matrices there are, and how many a thread takes at once; rows of each, which
follow each other in the source, and how far they are apart in the result; columns, which follow
each other in the result, and how far they are apart in the source; the other axes, all numbers,
then sizes of the axes and how far their places are apart in the source and in the result."""
CHUNK = 16_384
"""Numbers that one call of a thread moves, or one matrix."""
SQUARE = 16
"""Rows and columns that are turned at once: a line of the cache is 16 numbers."""
FEW_COLUMNS = 8
"""Columns of a row that are fewer than a loop is worth, so that the other one is within."""


@njit(**OPTIONS)
def _turn_matrix(source: Any, target: Any, job: Any) -> None:
    rows, columns = job[ROWS], job[COLUMNS]
    row_step, column_step = job[ROW_STEP], job[COLUMN_STEP]
    if columns < FEW_COLUMNS and columns < rows:
        for column in range(columns):
            old, new = source[column * column_step :], target[column:]
            for row in range(rows):
                new[np.uint64(row * row_step)] = old[row]
        return
    for first_row in range(0, rows, SQUARE):
        for first in range(0, columns, SQUARE):
            count = min(SQUARE, columns - first)
            for row in range(first_row, min(rows, first_row + SQUARE)):
                old, new = source[row + first * column_step :], target[row * row_step + first :]
                for i in range(count):
                    new[i] = old[np.uint64(i * column_step)]


@njit(**OPTIONS)
def _turn(job: Any, begin: Any, end: Any) -> None:
    """Some of the matrices, whose places are counted on from the first one's."""
    source = carray(floats_at(job[SOURCE]), (job[LENGTH],))
    target = carray(floats_at(job[RESULT]), (job[LENGTH],))
    index, rest, at, to = np.zeros(MAX_RANK, np.int64), begin, I64(0), I64(0)
    for axis in range(job[AXES]):
        index[axis], rest = rest % job[SIZES + axis], rest // job[SIZES + axis]
        at += index[axis] * job[STEPS + axis]
        to += index[axis] * job[TARGETS + axis]
    for _ in range(begin, end):
        _turn_matrix(source[at:], target[to:], job)
        for axis in range(job[AXES]):
            index[axis] += 1
            at += job[STEPS + axis]
            to += job[TARGETS + axis]
            if index[axis] < job[SIZES + axis]:
                break
            at -= index[axis] * job[STEPS + axis]
            to -= index[axis] * job[TARGETS + axis]
            index[axis] = 0


@cfunc("void(int64, int64)", **OPTIONS)
def turn_matrices(address: int, part: int) -> None:
    """Some of the matrices; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _turn(job, part * job[STEP], min(job[SQUARES], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _lay_out(job: Any, dims: Any, order: Any, rank: Any) -> None:
    """How the axes of a tensor, in the order of the result, become matrices and what is around."""
    steps, sizes, at = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64), I64(0)
    for place in range(rank):  # those that stay side by side are one
        axis = order[place]
        if dims[axis] == 1:
            continue
        step = product(dims, axis + 1, rank)
        if at and steps[at - 1] == step * dims[axis]:
            steps[at - 1], sizes[at - 1] = step, sizes[at - 1] * dims[axis]
        else:
            steps[at], sizes[at] = step, dims[axis]
            at += 1
    job[ROWS], job[ROW_STEP], job[COLUMNS], job[COLUMN_STEP] = 1, 0, 1, 1
    if at:
        job[COLUMNS], job[COLUMN_STEP] = sizes[at - 1], steps[at - 1]
    target, others = job[COLUMNS], I64(0)
    for place in range(at - 2, -1, -1):
        if steps[place] == 1:
            job[ROWS], job[ROW_STEP] = sizes[place], target
        else:
            job[SIZES + others], job[STEPS + others] = sizes[place], steps[place]
            job[TARGETS + others] = target
            others += 1
        target *= sizes[place]
    job[AXES] = others


@njit(**OPTIONS)
def _view(state: Any, kind: Any, dims: Any, order: Any, shape: Any) -> Any:
    """Six axes of images whose channels become blocks, their order, and the result's sizes."""
    block = state[NUMBERS + 1]
    images, channels, height, width = dims[0], dims[1], dims[2], dims[3]
    if channels % (block * block):
        return False
    channels //= block * block
    if kind == DEPTH_COLUMN_ROW:
        view, places = (images, block, block, channels, height, width), (0, 3, 4, 1, 5, 2)
    else:
        view, places = (images, channels, block, block, height, width), (0, 1, 4, 2, 5, 3)
    for axis in range(6):
        dims[axis], order[axis] = view[axis], places[axis]
    shape[0], shape[1], shape[2], shape[3] = images, channels, height * block, width * block
    return True


@njit(**OPTIONS)
def _turn_tensor(state: Any, context: Any) -> Any:
    dims, shape = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    order, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    kind, count = state[NUMBERS], state[NUMBERS + 1]
    job[SOURCE], rank = read_input(state, context, 0, dims)
    axes = rank
    if kind == PERMUTATION:
        if rank != count:
            return failed(state, SHAPE)
        for place in range(rank):
            order[place] = state[NUMBERS + 2 + place]
            shape[place] = dims[order[place]]
    else:
        if rank != 4 or not _view(state, kind, dims, order, shape):
            return failed(state, SHAPE)
        axes = I64(6)
    job[RESULT], status = make_output(state, context, 0, shape, rank)
    job[LENGTH] = product(shape, 0, rank)
    if status != 0 or job[LENGTH] == 0:
        return status
    _lay_out(job, dims, order, axes)
    size = job[ROWS] * job[COLUMNS]
    job[SQUARES], job[STEP] = job[LENGTH] // size, max(I64(1), CHUNK // size)
    in_parts(state, context, job, (job[SQUARES] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def turn_tensor(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _turn_tensor(carray(integers_at(address), (NUMBERS + 2 + MOST_AXES_TURNED,)), context)
