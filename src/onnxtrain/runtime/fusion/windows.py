# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Windows of small images cut out, and added up again. Import it only where numba is.

A trained convolution on a small map is a product with the windows of all images (`window_columns`,
`few_pixels`). Standard operators cut them out by a Conv with ones and zeros, or by a Slice for each
place of the kernel, and add them up by Col2Im behind a Transpose. Here a table, made once for all
images and channels, says which pixel each place of each window is.

Sums are taken place by place of the kernel, as onnxruntime's Col2Im does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at, keep
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, read_input

LAYOUT, AXES = NUMBERS, NUMBERS + 1
KERNEL, STRIDE, DILATION, BEFORE, BEHIND, WINDOWS = range(6)
"""Of each of two axes; behind them the channels times places of a row, or the sizes of the image.
No windows are as many as fit."""
PER_AXIS = 6
REST = AXES + 2 * PER_AXIS
CHANNELS_FIRST = 0
"""A layout: (C, kernel, N, windows); the other one is of windows that are rows, or of images."""

SOURCE, RESULT, IMAGES, CHANNELS, PIXELS, PLACES, COUNT, TABLE, PAIRS, STEP, FORM = range(11)
JOB = 11
"""Addresses; sizes, places of the kernel and windows of an image; a table and its length; what a
thread takes at once, and the layout."""
CHUNK = 16_384
"""Elements of windows that one call of a thread takes, or those of one channel or image."""


@njit(**OPTIONS)
def _windows_of(state: Any, axis: Any, size: Any) -> Any:
    """How many windows lie along an axis; -1 if those that the node speaks of do not."""
    at = AXES + PER_AXIS * axis
    room = size + state[at + BEFORE] + state[at + BEHIND]
    rest = room - (state[at + KERNEL] - 1) * state[at + DILATION] - 1
    fitting = rest // state[at + STRIDE] + 1 if rest >= 0 else I64(0)
    count = state[at + WINDOWS] if state[at + WINDOWS] else fitting
    return count if 0 < count <= fitting else I64(-1)


@njit(**OPTIONS)
def _pixel(state: Any, place: Any, window: Any, columns: Any, height: Any, width: Any) -> Any:
    """Which pixel a place of the kernel is in a window; -1 if it is padding."""
    second = AXES + PER_AXIS
    ky = place // state[second + KERNEL]
    kx = place - ky * state[second + KERNEL]
    wy = window // columns
    wx = window - wy * columns
    y = wy * state[AXES + STRIDE] - state[AXES + BEFORE] + ky * state[AXES + DILATION]
    x = wx * state[second + STRIDE] - state[second + BEFORE] + kx * state[second + DILATION]
    return y * width + x if 0 <= y < height and 0 <= x < width else I64(-1)


# --- cut out --------------------------------------------------------------------------------------


@njit(**OPTIONS)
def _cut_channels(job: Any, begin: Any, end: Any) -> None:
    """All windows of some channels, one place of the kernel after the other."""
    pixels, places, count, images = job[PIXELS], job[PLACES], job[COUNT], job[IMAGES]
    table = carray(integers_at(job[TABLE]), (places * count,))
    plane = np.zeros(pixels + 1, np.float32)
    for channel in range(begin, end):
        for image in range(images):
            at = job[SOURCE] + 4 * (image * job[CHANNELS] + channel) * pixels
            plane[:pixels] = carray(floats_at(at), (pixels,))
            for place in range(places):
                to = job[RESULT] + 4 * ((channel * places + place) * images + image) * count
                row = carray(floats_at(to), (count,))
                for window in range(count):
                    row[window] = plane[table[place * count + window]]


@njit(**OPTIONS)
def _cut_images(job: Any, begin: Any, end: Any) -> None:
    """Windows of some images as rows: all channels, each with all places of the kernel."""
    pixels, places, count, channels = job[PIXELS], job[PLACES], job[COUNT], job[CHANNELS]
    table = carray(integers_at(job[TABLE]), (places * count,))
    plane = np.zeros(pixels + 1, np.float32)
    for image in range(begin, end):
        for channel in range(channels):
            at = job[SOURCE] + 4 * (image * channels + channel) * pixels
            plane[:pixels] = carray(floats_at(at), (pixels,))
            for window in range(count):
                to = job[RESULT] + 4 * ((image * count + window) * channels + channel) * places
                row = carray(floats_at(to), (places,))
                for place in range(places):
                    row[place] = plane[table[place * count + window]]


@cfunc("void(int64, int64)", **OPTIONS)
def cut_part(address: int, part: int) -> None:
    """Some channels or images; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    if job[FORM] == CHANNELS_FIRST:
        _cut_channels(job, part * job[STEP], min(job[CHANNELS], (part + 1) * job[STEP]))
    else:
        _cut_images(job, part * job[STEP], min(job[IMAGES], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _cut(state: Any, context: Any) -> Any:
    dims, sizes = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    if rank != 4:
        return failed(state, SHAPE)
    rows, columns = _windows_of(state, I64(0), dims[2]), _windows_of(state, I64(1), dims[3])
    job[PLACES] = state[AXES + KERNEL] * state[AXES + PER_AXIS + KERNEL]
    if rows < 0 or columns < 0 or (state[REST] and state[REST] != dims[1] * job[PLACES]):
        return failed(state, SHAPE)
    job[IMAGES], job[CHANNELS], job[PIXELS] = dims[0], dims[1], dims[2] * dims[3]
    job[COUNT], job[FORM] = rows * columns, state[LAYOUT]
    if job[FORM] == CHANNELS_FIRST:
        sizes[0], sizes[1], sizes[2] = dims[1], job[PLACES], dims[0]
        sizes[3], sizes[4] = rows, columns
        job[RESULT], status = make_output(state, context, 0, sizes, I64(5))
    else:
        sizes[0], sizes[1] = dims[0] * job[COUNT], dims[1] * job[PLACES]
        job[RESULT], status = make_output(state, context, 0, sizes, I64(2))
    if status != 0 or dims[0] * dims[1] == 0:
        return status
    table = np.empty(job[PLACES] * job[COUNT], np.int64)
    for place in range(job[PLACES]):
        for window in range(job[COUNT]):
            pixel = _pixel(state, place, window, columns, dims[2], dims[3])
            table[place * job[COUNT] + window] = pixel if pixel >= 0 else job[PIXELS]
    job[TABLE] = table.ctypes.data
    by_channel = job[FORM] == CHANNELS_FIRST
    parts, others = (dims[1], dims[0]) if by_channel else (dims[0], dims[1])
    job[STEP] = max(I64(1), CHUNK // (others * table.size))
    in_parts(state, context, job, (parts + job[STEP] - 1) // job[STEP])
    keep(table)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def cut_windows(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _cut(carray(integers_at(address), (REST + 2,)), context)


# --- added up -------------------------------------------------------------------------------------


@njit(**OPTIONS)
def _add_windows(plane: Any, cells: Any, table: Any) -> None:
    """The windows of one plane; the table has pairs of places in the cells and in the plane."""
    for pixel in range(plane.size):
        plane[pixel] = F32(0)
    for pair in range(table.size // 2):
        plane[table[2 * pair + 1]] += cells[table[2 * pair]]


@cfunc("void(int64, int64)", **OPTIONS)
def fold_part(address: int, part: int) -> None:
    """Some channels of all images; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    pixels, places, count, images = job[PIXELS], job[PLACES], job[COUNT], job[IMAGES]
    table = carray(integers_at(job[TABLE]), (job[PAIRS],))
    is_by_channel = job[FORM] == CHANNELS_FIRST
    for channel in range(part * job[STEP], min(job[CHANNELS], (part + 1) * job[STEP])):
        for image in range(images):
            first = channel * places * images + image
            if not is_by_channel:
                first = (image * job[CHANNELS] + channel) * places
            reach = ((places - 1) * (images if is_by_channel else 1) + 1) * count
            cells = carray(floats_at(job[SOURCE] + 4 * first * count), (reach,))
            at = job[RESULT] + 4 * (image * job[CHANNELS] + channel) * pixels
            _add_windows(carray(floats_at(at), (pixels,)), cells, table)


@njit(**OPTIONS)
def _fold(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, dims)
    height, width = state[REST], state[REST + 1]
    rows, columns = _windows_of(state, I64(0), height), _windows_of(state, I64(1), width)
    places = state[AXES + KERNEL] * state[AXES + PER_AXIS + KERNEL]
    if rows < 0 or columns < 0:
        return failed(state, SHAPE)
    count, job[FORM] = rows * columns, state[LAYOUT]
    if job[FORM] == CHANNELS_FIRST:
        fits = rank == 2 and dims[0] % places == 0 and dims[1] % count == 0
        channels, images = dims[0] // places, dims[1] // count
    else:
        fits = rank == 3 and dims[1] % places == 0 and dims[2] == count
        channels, images = dims[1] // places, dims[0]
    if not fits:
        return failed(state, SHAPE)
    dims[0], dims[1], dims[2], dims[3] = images, channels, height, width
    job[RESULT], status = make_output(state, context, 0, dims, I64(4))
    if status != 0 or images * channels == 0:
        return status
    job[IMAGES], job[CHANNELS], job[PIXELS] = images, channels, height * width
    job[PLACES], job[COUNT] = places, count
    table, pairs = np.empty(2 * places * count, np.int64), I64(0)
    between = images * count if job[FORM] == CHANNELS_FIRST else count
    for place in range(places):
        for window in range(count):
            pixel = _pixel(state, place, window, columns, height, width)
            if pixel >= 0:
                table[pairs], table[pairs + 1] = place * between + window, pixel
                pairs += 2
    job[TABLE], job[PAIRS] = table.ctypes.data, pairs
    job[STEP] = max(I64(1), CHUNK // (images * places * count))
    in_parts(state, context, job, (channels + job[STEP] - 1) // job[STEP])
    keep(table)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def fold_windows(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _fold(carray(integers_at(address), (REST + 2,)), context)
