# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""GridSample of the nearest pixels of images. Import it only where numba is.

onnxruntime finds each pixel anew in every channel; here they are found once for an image.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .tensors import (
    CORES,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    read_input,
)

(RESULT, IMAGE, GRID, IMAGES, CHANNELS, HEIGHT, WIDTH, POSITIONS, IS_ALIGNED, HAS_BORDER, STEP,
 GROUPS) = range(12)  # fmt: skip
JOB = 12
PARTS = 2
"""Of a core: an image is divided by channels if there are not so many images."""
OUTSIDE = I64(-1)


@njit(**OPTIONS)
def position_of(normal: Any, size: Any, is_aligned: Any) -> Any:
    """Where along an axis a coordinate from -1 to 1 lies, in pixels."""
    if is_aligned:
        return (normal + F32(1)) / F32(2) * (F32(size) - F32(1))
    return ((normal + F32(1)) * F32(size) - F32(1)) / F32(2)


@njit(**OPTIONS)
def _nearest(normal: Any, size: Any, is_aligned: Any, has_border: Any) -> Any:
    """The pixel along an axis that a coordinate from -1 to 1 names; -1 for none."""
    length, pixel = F32(size), np.rint(position_of(normal, size, is_aligned))
    if pixel >= 0 and pixel < length:
        return I64(pixel)
    if not has_border:
        return OUTSIDE
    return size - 1 if pixel >= length else I64(0)


@njit(**OPTIONS)
def _find(job: Any, image: Any, places: Any) -> None:
    """The pixels of all positions of an image."""
    grid = carray(floats_at(job[GRID] + 8 * image * places.size), (2 * places.size,))
    for i in range(places.size):
        column = _nearest(grid[2 * i], job[WIDTH], job[IS_ALIGNED], job[HAS_BORDER])
        line = _nearest(grid[2 * i + 1], job[HEIGHT], job[IS_ALIGNED], job[HAS_BORDER])
        is_outside = column < 0 or line < 0
        places[i] = OUTSIDE if is_outside else line * job[WIDTH] + column


@njit(**OPTIONS)
def _read_planes(job: Any, part: Any) -> None:
    """Some planes of one image."""
    count, size, channels = job[POSITIONS], job[HEIGHT] * job[WIDTH], job[CHANNELS]
    image, begin = part // job[GROUPS], part % job[GROUPS] * job[STEP]
    places = np.empty(count, np.int64)
    _find(job, image, places)
    for channel in range(begin, min(channels, begin + job[STEP])):
        plane = image * channels + channel
        pixels = carray(floats_at(job[IMAGE] + 4 * plane * size), (size,))
        result = carray(floats_at(job[RESULT] + 4 * plane * count), (count,))
        for i in range(count):
            place = places[i]
            pixel = pixels[np.uint64(max(place, I64(0)))]
            result[i] = pixel if place >= 0 else F32(0)


@cfunc("void(int64, int64)", **OPTIONS)
def read_planes(address: int, part: int) -> None:
    """Some planes; onnxruntime's threads call it."""
    _read_planes(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _grid_sample(state: Any, context: Any) -> Any:
    dims, others = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[IMAGE], rank = read_input(state, context, 0, dims)
    job[GRID], rank_of_grid = read_input(state, context, 1, others)
    if rank != 4 or rank_of_grid != 4 or others[0] != dims[0] or others[3] != 2:
        return failed(state, SHAPE)
    job[IMAGES], job[CHANNELS], job[HEIGHT], job[WIDTH] = dims[0], dims[1], dims[2], dims[3]
    job[POSITIONS] = others[1] * others[2]
    if job[HEIGHT] < 1 or job[WIDTH] < 1:
        return failed(state, SHAPE)
    dims[2], dims[3] = others[1], others[2]
    job[RESULT], status = make_output(state, context, 0, dims, 4)
    if status != 0 or job[IMAGES] * job[CHANNELS] * job[POSITIONS] == 0:
        return status
    job[IS_ALIGNED], job[HAS_BORDER] = state[NUMBERS], state[NUMBERS + 1]
    groups = min(job[CHANNELS], (PARTS * state[CORES] + job[IMAGES] - 1) // job[IMAGES])
    job[STEP] = (job[CHANNELS] + groups - 1) // groups
    job[GROUPS] = (job[CHANNELS] + job[STEP] - 1) // job[STEP]
    in_parts(state, context, job, job[IMAGES] * job[GROUPS])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def grid_sample(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _grid_sample(carray(integers_at(address), (NUMBERS + 2,)), context)
