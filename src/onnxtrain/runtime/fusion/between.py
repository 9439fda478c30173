# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""GridSample between the pixels of images and of volumes. Import it only where numba is.

onnxruntime finds the pixels and their weights anew in every channel; here they are found once for
some positions, and stay in the first cache while all channels are read. What lies outside counts as
zero whatever pixel is there, and a position that is no number gives none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .nearest import position_of
from .tensors import (
    LARGEST_PLANE,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

RESULT, IMAGE, GRID, CHANNELS, PIXELS, POSITIONS, AXES, IS_ALIGNED, HAS_BORDER, PARTS = range(10)
SIZES = 10
MOST_AXES = 3
JOB = SIZES + MOST_AXES
BLOCK = 512
"""Positions whose pixels and weights are kept: eight of each take 32 KiB."""
STEP = 8 * BLOCK
"""Positions that one call of a thread takes. Not measured by itself."""
OUTSIDE = I64(-1)


@njit(**OPTIONS)
def _pixel(number: Any, size: Any) -> Any:
    """A pixel along an axis, or -1 where there is none."""
    return I64(number) if number >= F32(0) and number < F32(size) else OUTSIDE


@njit(**OPTIONS)
def _find(job: Any, first: Any, count: Any, places: Any, weights: Any) -> None:
    """Pixels and weights of some positions: those of two along each axis."""
    axes = job[AXES]
    grid = carray(floats_at(job[GRID] + 4 * axes * first), (axes * count,))
    for i in range(count):
        places[0, i], weights[0, i] = 0, F32(1)
        taps = I64(1)
        for axis in range(axes):  # the grid names the last axis first
            size = job[SIZES + axis]
            normal = grid[axes * i + axes - 1 - axis]
            position = position_of(normal, size, job[IS_ALIGNED])
            if job[HAS_BORDER]:
                last = F32(size) - F32(1)
                position = F32(0) if position < F32(0) else position
                position = last if position > last else position
            low = np.floor(position)
            near, far = _pixel(low, size), _pixel(low + F32(1), size)
            share = position - low
            for tap in range(taps):
                place, weight = I64(places[tap, i]), weights[tap, i]
                is_outside = place < 0
                line = place * size
                places[taps + tap, i] = OUTSIDE if is_outside or far < 0 else line + far
                places[tap, i] = OUTSIDE if is_outside or near < 0 else line + near
                weights[taps + tap, i] = weight * share
                weights[tap, i] = weight * (low + F32(1) - position)
            taps *= 2


@njit(**OPTIONS)
def _value(pixels: Any, place: Any) -> Any:
    pixel = pixels[np.uint64(max(place, np.int32(0)))]
    return pixel if place >= 0 else F32(0)


@njit(**OPTIONS)
def _read(pixels: Any, places: Any, weights: Any, result: Any, taps: Any) -> None:
    """One channel at some positions."""
    for i in range(result.size):
        total = (
            _value(pixels, places[0, i]) * weights[0, i]
            + _value(pixels, places[1, i]) * weights[1, i]
            + _value(pixels, places[2, i]) * weights[2, i]
            + _value(pixels, places[3, i]) * weights[3, i]
        )
        if taps == 8:
            total += (
                _value(pixels, places[4, i]) * weights[4, i]
                + _value(pixels, places[5, i]) * weights[5, i]
                + _value(pixels, places[6, i]) * weights[6, i]
                + _value(pixels, places[7, i]) * weights[7, i]
            )
        result[i] = total


@cfunc("void(int64, int64)", **OPTIONS)
def sample_part(address: int, part: int) -> None:
    """Some positions of one image; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    taps = I64(1) << job[AXES]
    places = np.empty((taps, BLOCK), np.int32)
    weights = np.empty((taps, BLOCK), np.float32)
    image, begin = part // job[PARTS], part % job[PARTS] * STEP
    positions, channels, size = job[POSITIONS], job[CHANNELS], job[PIXELS]
    for first in range(begin, min(positions, begin + STEP), BLOCK):
        count = min(BLOCK, positions - first)
        _find(job, image * positions + first, count, places, weights)
        for channel in range(image * channels, (image + 1) * channels):
            pixels = carray(floats_at(job[IMAGE] + 4 * channel * size), (size,))
            result = carray(floats_at(job[RESULT] + 4 * (channel * positions + first)), (count,))
            _read(pixels, places, weights, result, taps)


@njit(**OPTIONS)
def _sample(state: Any, context: Any) -> Any:
    dims, others = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[IMAGE], rank = read_input(state, context, 0, dims)
    job[GRID], rank_of_grid = read_input(state, context, 1, others)
    axes = rank - 2
    is_image = rank == rank_of_grid and 2 <= axes <= MOST_AXES
    if not is_image or others[0] != dims[0] or others[rank - 1] != axes:
        return failed(state, SHAPE)
    job[AXES], job[CHANNELS] = axes, dims[1]
    job[PIXELS], job[POSITIONS] = product(dims, 2, rank), product(others, 1, rank - 1)
    if job[PIXELS] < 1 or job[PIXELS] > LARGEST_PLANE:
        return failed(state, SHAPE)
    for axis in range(axes):
        job[SIZES + axis], dims[2 + axis] = dims[2 + axis], others[1 + axis]
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status != 0 or product(dims, 0, rank) == 0:
        return status
    job[IS_ALIGNED], job[HAS_BORDER] = state[NUMBERS], state[NUMBERS + 1]
    job[PARTS] = (job[POSITIONS] + STEP - 1) // STEP
    in_parts(state, context, job, dims[0] * job[PARTS])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def sample(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _sample(carray(integers_at(address), (NUMBERS + 2,)), context)
