# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Cross entropy of rows of scores, without the tensor of all log-probabilities.

A loss reads one log-probability of each row, and its gradient can have the others again from the
scores: ``exp(x − max − log Σ exp(x − max))``. So there are three kernels: what is one number for
each row (the largest score, and the logarithm of the sum), log-probabilities at some labels, and
the gradient, which may be written to where the scores are. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, call, floats_at, integers_at, keep
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

(SCORES, STATS, RESULT, ROWS, CLASSES, STEP, PROGRAM, SHARE, SHARE_STEP, LABELS, ADDED,
 ADDED_STEP, SIGN, IS_ASTRAY) = range(14)  # fmt: skip
JOB = 14
"""Addresses of scores, of two numbers for each row, and of the result; sizes; rows of a call;
address of the program; of a factor and how far on that of the next row is; of labels, if they are
one for each row; the same of what is added there, and its sign; whether a label is no class."""
CHUNK = 16_384
"""Elements that one call of a thread takes, or one row."""


@njit(**OPTIONS)
def _rows_of_stats(job: Any, begin: Any, end: Any) -> None:
    places, strides = np.empty(3, np.int64), np.empty(3, np.int64)
    size = 4 * job[CLASSES]
    places[0], strides[0] = job[SCORES] + size * begin, size
    places[1], strides[1] = job[STATS] + 8 * begin, 8
    places[2], strides[2] = places[1] + 4, 8
    call(job[PROGRAM], (places.ctypes.data, strides.ctypes.data, end - begin, job[CLASSES]))
    keep(places)
    keep(strides)


@cfunc("void(int64, int64)", **OPTIONS)
def stats_part(address: int, part: int) -> None:
    """Some rows; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _rows_of_stats(job, part * job[STEP], min(job[ROWS], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _is_last(axis: Any, rank: Any) -> Any:
    return rank >= 1 and (axis == rank - 1 or axis == -1)


@njit(**OPTIONS)
def _lay_out(job: Any, dims: Any, rank: Any) -> None:
    """How many rows there are, and how many a thread takes."""
    job[ROWS], job[CLASSES] = product(dims, I64(0), rank - 1), dims[rank - 1]
    job[STEP] = max(I64(1), CHUNK // max(I64(1), job[CLASSES]))


@njit(**OPTIONS)
def _row_stats(state: Any, context: Any) -> Any:
    dims, sizes, job = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(JOB, np.int64),
    )
    job[SCORES], rank = read_input(state, context, I64(0), dims)
    if not _is_last(state[NUMBERS], rank):
        return failed(state, SHAPE)
    _lay_out(job, dims, rank)
    sizes[0], sizes[1] = job[ROWS], 2
    job[STATS], status = make_output(state, context, I64(0), sizes, I64(2))
    if status != 0 or job[ROWS] * job[CLASSES] == 0:
        return status
    job[PROGRAM] = state[NUMBERS + 1]
    in_parts(state, context, job, (job[ROWS] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def row_stats(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _row_stats(carray(integers_at(address), (NUMBERS + 2,)), context)


# --- log-probabilities at labels ------------------------------------------------------------------


@njit(**OPTIONS)
def _row_of(line: Any, dims: Any, sizes: Any, axes: Any) -> Any:
    """The row of scores that a row of labels belongs to: there may be fewer of them."""
    row, stride = I64(0), I64(1)
    for axis in range(axes - 1, -1, -1):
        row += line % sizes[axis] * stride
        line //= sizes[axis]
        stride *= dims[axis]
    return row


@njit(**OPTIONS)
def _fit(dims: Any, rank: Any, sizes: Any, other: Any) -> Any:
    """Whether labels have the axes of the scores, and no more rows along any."""
    fits = other == rank
    for axis in range(rank - 1):
        fits = fits and sizes[axis] <= dims[axis]
    return fits


@njit(**OPTIONS)
def _pick(state: Any, context: Any) -> Any:
    dims, sizes, shape = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
    )
    scores_at, rank = read_input(state, context, I64(0), dims)
    stats_at, rank_of_stats = read_input(state, context, I64(1), shape)
    labels_at, rank_of_labels = read_input(state, context, I64(2), sizes)
    if not _is_last(state[NUMBERS], rank) or not _fit(dims, rank, sizes, rank_of_labels):
        return failed(state, SHAPE)
    rows, classes = product(dims, I64(0), rank - 1), dims[rank - 1]
    if rank_of_stats != 2 or shape[0] != rows or shape[1] != 2:
        return failed(state, SHAPE)
    result_at, status = make_output(state, context, I64(0), sizes, rank)
    count = product(sizes, I64(0), rank)
    if status != 0 or count == 0:
        return status
    scores, stats = (
        carray(floats_at(scores_at), (rows * classes,)),
        carray(floats_at(stats_at), (2 * rows,)),
    )
    labels, result = (
        carray(integers_at(labels_at), (count,)),
        carray(floats_at(result_at), (count,)),
    )
    each = sizes[rank - 1]
    for line in range(count // each):
        row = _row_of(line, dims, sizes, rank - 1)
        for place in range(line * each, (line + 1) * each):
            label = labels[place]
            label += classes if label < 0 else I64(0)
            if not 0 <= label < classes:
                return failed(state, INDEX)
            result[place] = (scores[row * classes + label] - stats[2 * row]) - stats[2 * row + 1]
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def pick(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _pick(carray(integers_at(address), (NUMBERS + 1,)), context)


@cfunc("void(int64, int64)", **OPTIONS)
def pick_part(address: int, part: int) -> None:
    """Nothing: labels are few, and one thread reads them."""


# --- the gradient of the scores -------------------------------------------------------------------


@njit(**OPTIONS)
def _add_at(job: Any, row: Any, line: Any) -> None:
    """What is added at the label of a row."""
    classes = job[CLASSES]
    label = carray(integers_at(job[LABELS] + 8 * line), (1,))[0]
    label += classes if label < 0 else I64(0)
    if 0 <= label < classes:
        added = carray(floats_at(job[ADDED] + job[ADDED_STEP] * line), (1,))[0]
        place = job[RESULT] + 4 * (row * classes + label)
        carray(floats_at(place), (1,))[0] += F32(job[SIGN]) * added
    else:
        job[IS_ASTRAY] = 1


@njit(**OPTIONS)
def _rows_of_gradient(job: Any, begin: Any, end: Any) -> None:
    places, strides = np.empty(5, np.int64), np.empty(5, np.int64)
    size = 4 * job[CLASSES]
    places[0], strides[0] = job[SCORES] + size * begin, size
    places[1], strides[1] = job[STATS] + 8 * begin, 8
    places[2], strides[2] = places[1] + 4, 8
    places[3], strides[3] = job[SHARE] + job[SHARE_STEP] * begin, job[SHARE_STEP]
    places[4], strides[4] = job[RESULT] + size * begin, size
    call(job[PROGRAM], (places.ctypes.data, strides.ctypes.data, end - begin, job[CLASSES]))
    keep(places)
    keep(strides)
    if job[LABELS] != 0:
        for row in range(begin, end):
            _add_at(job, row, row)


@cfunc("void(int64, int64)", **OPTIONS)
def gradient_part(address: int, part: int) -> None:
    """Some rows; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _rows_of_gradient(job, part * job[STEP], min(job[ROWS], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _read_each(state: Any, context: Any, number: Any, dims: Any, rank: Any) -> Any:
    """Address of one number, or of one for each row, and how far apart; -1 if it is neither."""
    shape = np.zeros(MAX_RANK, np.int64)
    address, rank_of_each = read_input(state, context, number, shape)
    if 0 <= rank_of_each <= rank and product(shape, I64(0), rank_of_each) == 1:
        return address, I64(0)
    fits = rank_of_each == rank and shape[rank - 1] == 1
    for axis in range(rank - 1):
        fits = fits and shape[axis] == dims[axis]
    return address, I64(4) if fits else I64(-1)


@njit(**OPTIONS)
def _gradient(state: Any, context: Any) -> Any:
    dims, sizes, others = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
    )
    job = np.zeros(JOB, np.int64)
    job[SCORES], rank = read_input(state, context, I64(0), dims)
    job[STATS], rank_of_stats = read_input(state, context, I64(1), others)
    if not _is_last(state[NUMBERS], rank):
        return failed(state, SHAPE)
    _lay_out(job, dims, rank)
    if rank_of_stats != 2 or others[0] != job[ROWS] or others[1] != 2:
        return failed(state, SHAPE)
    labels, rank_of_labels = read_input(state, context, I64(2), sizes)
    job[SHARE], job[SHARE_STEP] = _read_each(state, context, I64(3), dims, rank)
    job[ADDED], job[ADDED_STEP] = _read_each(state, context, I64(4), sizes, rank)
    fits = _fit(dims, rank, sizes, rank_of_labels) and sizes[rank - 1] == 1
    if not fits or job[SHARE_STEP] < 0 or job[ADDED_STEP] < 0:
        return failed(state, SHAPE)
    lines = product(sizes, I64(0), rank)
    job[RESULT], status = make_output(state, context, I64(0), dims, rank)
    if status != 0 or job[ROWS] * job[CLASSES] == 0:
        return status
    job[SIGN], job[PROGRAM] = state[NUMBERS + 1], state[NUMBERS + 2]
    is_alike = lines == job[ROWS]
    job[LABELS] = labels if is_alike else I64(0)
    in_parts(state, context, job, (job[ROWS] + job[STEP] - 1) // job[STEP])
    if not is_alike:
        job[LABELS] = labels
        for line in range(lines):
            _add_at(job, _row_of(line, dims, sizes, rank - 1), line)
    return failed(state, INDEX) if job[IS_ASTRAY] else I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def gradient(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _gradient(carray(integers_at(address), (NUMBERS + 3,)), context)
