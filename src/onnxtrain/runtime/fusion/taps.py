# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Pixels that are read between others: the gradient of what read them. Import it only with numba.

A tap is one pixel for each position, the same in all channels, and its weight. The gradient of an
image adds up what was read, in the order of positions. Each plane of the result has one owner, so
the numbers do not depend on the number of threads. Two planes are done at once: places and weights
are read once for both (a million elements in four taps, by themselves on one thread of AVX-512:
2.1 ms instead of 2.6, and 3.3 tap by tap).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at, keep
from .tensors import (
    CORES,
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

TOGETHER = 4
"""Taps that are added in one pass over the positions, if there are so many: those of a position
between eight pixels of a volume, or sixteen of an image, take two or four passes."""
MOST_TAPS = 4 * TOGETHER
RESULT, SOURCE, IMAGES, CHANNELS, POSITIONS, PIXELS, TAPS, STEP, GROUPS, IS_ASTRAY = range(10)
PLACES = 10
WEIGHTS = PLACES + MOST_TAPS
JOB = WEIGHTS + MOST_TAPS
PARTS = 2
"""Of a core: an image is divided by channels if there are not so many images."""


@njit(**OPTIONS)
def _tap(a: Any, b: Any, value: Any, other: Any, place: Any, weight: Any) -> None:
    """One number in each of two planes."""
    a[place] += value * weight
    b[place] += other * weight


@njit(**OPTIONS)
def _add_pair(job: Any, places: Any, image: Any, first: Any, second: Any, a: Any, b: Any) -> None:
    """The taps of two planes of an image."""
    count, channel = job[POSITIONS], image * job[CHANNELS]
    x = carray(floats_at(job[SOURCE] + 4 * (channel + first) * count), (count,))
    y = carray(floats_at(job[SOURCE] + 4 * (channel + second) * count), (count,))
    if job[TAPS] == 1:
        p, v = places[0], carray(floats_at(job[WEIGHTS] + 4 * image * count), (count,))
        for i in range(count):
            _tap(a, b, x[i], y[i], p[i], v[i])
        return
    for tap in range(0, job[TAPS], TOGETHER):
        _add_four(job, places[tap : tap + TOGETHER], WEIGHTS + tap, image, x, y, a, b)


@njit(**OPTIONS)
def _add_four(
    job: Any, places: Any, weights: Any, image: Any, x: Any, y: Any, a: Any, b: Any
) -> None:
    """Four taps of two planes, whose weights are at these places of the job."""
    count = job[POSITIONS]
    p, q, r, s = places[0], places[1], places[2], places[3]
    v = carray(floats_at(job[weights] + 4 * image * count), (count,))
    w = carray(floats_at(job[weights + 1] + 4 * image * count), (count,))
    h = carray(floats_at(job[weights + 2] + 4 * image * count), (count,))
    z = carray(floats_at(job[weights + 3] + 4 * image * count), (count,))
    for i in range(count):
        value, other = x[i], y[i]
        _tap(a, b, value, other, p[i], v[i])
        _tap(a, b, value, other, q[i], w[i])
        _tap(a, b, value, other, r[i], h[i])
        _tap(a, b, value, other, s[i], z[i])


@njit(**OPTIONS)
def _add_planes(job: Any, part: Any) -> None:
    """Some planes of one image."""
    count, size, channels = job[POSITIONS], job[PIXELS], job[CHANNELS]
    image = part // job[GROUPS]
    places = np.empty((job[TAPS], count), np.uint32)
    for tap in range(job[TAPS]):
        if not copy_places(job[PLACES + tap] + 8 * image * count, size, places[tap]):
            job[IS_ASTRAY] = 1
            return
    spare = np.empty(size if channels % 2 else 0, np.float32)
    begin = part % job[GROUPS] * job[STEP]
    for first in range(begin, min(channels, begin + job[STEP]), 2):
        second = min(first + 1, channels - 1)
        plane = job[RESULT] + 4 * (image * channels + first) * size
        beside = spare.ctypes.data if first == second else plane + 4 * size
        a, b = carray(floats_at(plane), (size,)), carray(floats_at(beside), (size,))
        for place in range(size):
            a[place] = F32(0)
        for place in range(size):
            b[place] = F32(0)
        _add_pair(job, places, image, first, second, a, b)
    keep(spare)


@cfunc("void(int64, int64)", **OPTIONS)
def add_planes(address: int, part: int) -> None:
    """Some planes; onnxruntime's threads call it."""
    _add_planes(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _read_taps(state: Any, context: Any, job: Any, first: Any) -> Any:
    """Where places and weights are; False if they do not have the images and positions."""
    dims = np.zeros(MAX_RANK, np.int64)
    for i in range(2 * job[TAPS]):
        to = PLACES + i if i < job[TAPS] else WEIGHTS + i - job[TAPS]
        job[to], rank = read_input(state, context, first + i, dims)
        if rank != 2 or dims[0] != job[IMAGES] or dims[1] != job[POSITIONS]:
            return False
    return True


@njit(**OPTIONS)
def _add_taps(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    shape_at, rank = read_input(state, context, 0, dims)
    axes = dims[0]
    if rank != 1 or axes < 3 or axes > MAX_RANK:
        return failed(state, SHAPE)
    shape = carray(integers_at(shape_at), (axes,))
    job[SOURCE], rank = read_input(state, context, 1, dims)
    if rank != 3 or shape[0] != dims[0] or shape[1] != dims[1]:
        return failed(state, SHAPE)
    job[IMAGES], job[CHANNELS], job[POSITIONS] = dims[0], dims[1], dims[2]
    job[TAPS] = state[NUMBERS]
    if not _read_taps(state, context, job, 2):
        return failed(state, SHAPE)
    for axis in range(2, axes):
        if shape[axis] < 1:
            return failed(state, SHAPE)
    dims[2] = product(shape, 2, axes)
    job[PIXELS] = dims[2]
    if dims[2] > LARGEST_PLANE:
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, dims, 3)
    if status != 0 or dims[0] * dims[1] == 0:
        return status
    pairs = (job[CHANNELS] + 1) // 2
    groups = min(pairs, (PARTS * state[CORES] + job[IMAGES] - 1) // job[IMAGES])
    job[STEP] = 2 * ((pairs + groups - 1) // groups)
    job[GROUPS] = (job[CHANNELS] + job[STEP] - 1) // job[STEP]
    in_parts(state, context, job, job[IMAGES] * job[GROUPS])
    return failed(state, INDEX) if job[IS_ASTRAY] else I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def add_taps(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _add_taps(carray(integers_at(address), (NUMBERS + 1,)), context)
