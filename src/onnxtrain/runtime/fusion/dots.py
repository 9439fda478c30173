# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Pixels times a gradient, summed over channels: how much a position changes what was read.

Every image has its own pixels, the same in all channels. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
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
    read_input,
)

IMAGE, GRADIENT, IMAGES, CHANNELS, POSITIONS, PIXELS, TAPS, BLOCKS, IS_ASTRAY = range(9)
MOST_TAPS = 4
PLACES = 9
RESULTS = PLACES + MOST_TAPS
JOB = RESULTS + MOST_TAPS
BLOCK = 16_384
"""Positions that one call of a thread takes: one tap of a million took 0.65 ms so, and 0.80 with
2,048 (planes of 64 KiB, one thread of AVX-512)."""


@njit(**OPTIONS)
def _dot(job: Any, part: Any) -> None:
    count, size = job[POSITIONS], job[PIXELS]
    image, begin = part // job[BLOCKS], part % job[BLOCKS] * BLOCK
    n, at = min(BLOCK, count - begin), image * count + begin
    places = np.empty((job[TAPS], n), np.uint32)
    for tap in range(job[TAPS]):
        result = carray(floats_at(job[RESULTS + tap] + 4 * at), (n,))
        for i in range(n):
            result[i] = F32(0)
        if not copy_places(job[PLACES + tap] + 8 * at, size, places[tap]):
            job[IS_ASTRAY] = 1
            return
    for channel in range(job[CHANNELS]):
        plane = image * job[CHANNELS] + channel
        pixels = carray(floats_at(job[IMAGE] + 4 * plane * size), (size,))
        gradient = carray(floats_at(job[GRADIENT] + 4 * (plane * count + begin)), (n,))
        for tap in range(job[TAPS]):  # all four in one loop took as long
            result, of_tap = carray(floats_at(job[RESULTS + tap] + 4 * at), (n,)), places[tap]
            for i in range(n):
                result[i] += pixels[of_tap[i]] * gradient[i]


@cfunc("void(int64, int64)", **OPTIONS)
def dot_block(address: int, part: int) -> None:
    """Some positions of an image; onnxruntime's threads call it."""
    _dot(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _dots(state: Any, context: Any) -> Any:
    dims, others = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[IMAGE], rank = read_input(state, context, 0, dims)
    job[GRADIENT], rank_of_gradient = read_input(state, context, 1, others)
    if rank != 3 or rank_of_gradient != 3 or dims[0] != others[0] or dims[1] != others[1]:
        return failed(state, SHAPE)
    job[IMAGES], job[CHANNELS], job[PIXELS], job[POSITIONS] = dims[0], dims[1], dims[2], others[2]
    job[TAPS] = state[NUMBERS]
    if job[PIXELS] < 1 or job[PIXELS] > LARGEST_PLANE:
        return failed(state, SHAPE)
    for tap in range(job[TAPS]):
        job[PLACES + tap], rank = read_input(state, context, 2 + tap, dims)
        if rank != 2 or dims[0] != job[IMAGES] or dims[1] != job[POSITIONS]:
            return failed(state, SHAPE)
        job[RESULTS + tap], status = make_output(state, context, tap, dims, 2)
        if status != 0:
            return status
    job[BLOCKS] = (job[POSITIONS] + BLOCK - 1) // BLOCK
    if job[IMAGES] * job[BLOCKS] > 0:
        in_parts(state, context, job, job[IMAGES] * job[BLOCKS])
    return failed(state, INDEX) if job[IS_ASTRAY] else I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def dots(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _dots(carray(integers_at(address), (NUMBERS + 1,)), context)
