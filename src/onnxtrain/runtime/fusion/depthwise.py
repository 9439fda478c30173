# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""The weights' gradient of a depthwise convolution. Import it only where numba is.

Each channel has a kernel of its own, so its gradient is as many sums as the kernel has places:

    dW[c, i, j] = Σₙ Σ_yx image[n, c, y + i·dilation, x + j·dilation]·signal[n, c, y, x]

The padded planes of some images are one long line, and the signal is another one with zeros where
its rows are shorter: a place of the kernel is how far one line is moved along the other, and a sum
is one product of two lines. Where zeros met something that is no number, a channel is summed again,
element by element.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at, keep
from .tensors import MAX_RANK, NUMBERS, SHAPE, failed, in_parts, make_output, read_input

KERNEL, DILATION, BEFORE, BEHIND = range(4)
"""Of each of two axes."""
PER_AXIS = 4
ROWS_AT, COLUMNS_AT = NUMBERS, NUMBERS + PER_AXIS
END = NUMBERS + 2 * PER_AXIS

(IMAGE, SIGNAL, RESULT, IMAGES, CHANNELS, HEIGHT, WIDTH, ROWS, COLUMNS, LINES, LINE, STATE,
 STEP, TABLES) = range(14)  # fmt: skip
JOB = 14
"""Addresses; sizes of images, of the signal and of padded planes; the node, how many channels a
thread takes at once, and tables."""
CHUNK = 16_384
"""Products that one call of a thread computes, or those of one channel."""
LINE_OF_IMAGES = 3072
"""Elements of a line of several planes: two of them are in the first cache of a core."""
SUMS = {"reassoc", "contract"}
"""A sum may be taken in any order; what is no number stays so."""


@njit(fastmath=SUMS, **OPTIONS)
def _product(one: Any, signal: Any) -> Any:
    total = F32(0)
    for i in range(signal.size):
        total += one[i] * signal[i]
    return total


@njit(fastmath=SUMS, **OPTIONS)
def _three_products(one: Any, another: Any, third: Any, signal: Any) -> Any:
    """Three at once read the signal once, and take two thirds of the time."""
    first, second, last = F32(0), F32(0), F32(0)
    for i in range(signal.size):
        factor = signal[i]
        first += one[i] * factor
        second += another[i] * factor
        last += third[i] * factor
    return first, second, last


@njit(**OPTIONS)
def _lay_out(source: Any, rows: Any, columns: Any, line: Any, table: Any) -> None:
    """A plane as a part of a line, and zeros; the table says which pixel is where, -1 for none.

    Row by row it takes one and a half to twice as long.
    """
    plane = carray(floats_at(source), (rows * columns,))
    for i in range(table.size):
        line[i] = plane[table[i]] if table[i] >= 0 else F32(0)


@njit(**OPTIONS)
def _fill_table(table: Any, job: Any, rows: Any, columns: Any, top: Any, left: Any) -> None:
    """Which pixel of some rows is where in a padded plane."""
    table[:] = I64(-1)
    for y in range(rows):
        for x in range(columns):
            table[(top + y) * job[LINE] + left + x] = y * columns + x


@njit(**OPTIONS)
def _by_lines(job: Any, state: Any, channel: Any, lines: Any, sums: Any) -> None:
    """All sums of a channel, some images at a time."""
    plane = job[LINES] * job[LINE]
    tables = carray(integers_at(job[TABLES]), (2, plane))
    together, width = lines.shape[1] // plane, state[COLUMNS_AT + KERNEL]
    pixels, windows = job[HEIGHT] * job[WIDTH], job[ROWS] * job[COLUMNS]
    down, along = state[ROWS_AT + DILATION] * job[LINE], state[COLUMNS_AT + DILATION]
    sums[:] = 0.0
    for begin in range(0, job[IMAGES], together):
        count = min(together, job[IMAGES] - begin)
        for image in range(count):
            number = (begin + image) * job[CHANNELS] + channel
            source, signal = job[IMAGE] + 4 * number * pixels, job[SIGNAL] + 4 * number * windows
            at = slice(image * plane, (image + 1) * plane)
            _lay_out(source, job[HEIGHT], job[WIDTH], lines[0, at], tables[0])
            _lay_out(signal, job[ROWS], job[COLUMNS], lines[1, at], tables[1])
        length = (count - 1) * plane + (job[ROWS] - 1) * job[LINE] + job[COLUMNS]
        line = lines[1, :length]
        for i in range(state[ROWS_AT + KERNEL]):
            j, moved = I64(0), lines[0, i * down :]
            while j < width:
                place, one = i * width + j, moved[j * along :]
                if j + 2 < width:
                    another, third = moved[(j + 1) * along :], moved[(j + 2) * along :]
                    first, second, last = _three_products(one, another, third, line)
                    sums[place] += first
                    sums[place + 1] += second
                    sums[place + 2] += last
                    j += 3
                else:
                    sums[place] += _product(one, line)
                    j += 1


@njit(**OPTIONS)
def _one_by_one(job: Any, state: Any, channel: Any, sums: Any) -> None:
    """The same of pixels alone, without what is around them."""
    pixels, windows = job[HEIGHT] * job[WIDTH], job[ROWS] * job[COLUMNS]
    sums[:] = 0.0
    for n in range(job[IMAGES]):
        number = n * job[CHANNELS] + channel
        image = carray(floats_at(job[IMAGE] + 4 * number * pixels), (pixels,))
        signal = carray(floats_at(job[SIGNAL] + 4 * number * windows), (windows,))
        for place in range(sums.size):
            i = place // state[COLUMNS_AT + KERNEL]
            j = place - i * state[COLUMNS_AT + KERNEL]
            top = i * state[ROWS_AT + DILATION] - state[ROWS_AT + BEFORE]
            left = j * state[COLUMNS_AT + DILATION] - state[COLUMNS_AT + BEFORE]
            for y in range(max(I64(0), -top), min(job[ROWS], job[HEIGHT] - top)):
                for x in range(max(I64(0), -left), min(job[COLUMNS], job[WIDTH] - left)):
                    pixel = image[(y + top) * job[WIDTH] + x + left]
                    sums[place] += pixel * signal[y * job[COLUMNS] + x]


@cfunc("void(int64, int64)", **OPTIONS)
def sum_part(address: int, part: int) -> None:
    """The kernels of some channels; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    state = carray(integers_at(job[STATE]), (END,))
    places = state[ROWS_AT + KERNEL] * state[COLUMNS_AT + KERNEL]
    plane = job[LINES] * job[LINE]
    together = max(I64(1), min(I64(LINE_OF_IMAGES) // plane, job[IMAGES]))
    lines, sums = np.empty((2, together * plane), np.float32), np.zeros(places, np.float64)
    for channel in range(part * job[STEP], min(job[CHANNELS], (part + 1) * job[STEP])):
        _by_lines(job, state, I64(channel), lines, sums)
        if not np.isfinite(sums).all():
            _one_by_one(job, state, I64(channel), sums)
        result = carray(floats_at(job[RESULT] + 4 * channel * places), (places,))
        for place in range(places):
            result[place] = F32(sums[place])


@njit(**OPTIONS)
def _lines_of(state: Any, at: Any, size: Any, windows: Any) -> Any:
    """The padded size of an axis; -1 if other windows than those of the signal fit there."""
    padded = size + state[at + BEFORE] + state[at + BEHIND]
    return (
        padded if windows + (state[at + KERNEL] - 1) * state[at + DILATION] == padded else I64(-1)
    )


@njit(**OPTIONS)
def _compute(state: Any, context: Any) -> Any:
    dims, windows = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    sizes, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[IMAGE], rank = read_input(state, context, 0, dims)
    job[SIGNAL], other_rank = read_input(state, context, 1, windows)
    if rank != 4 or other_rank != 4 or dims[0] != windows[0] or dims[1] != windows[1]:
        return failed(state, SHAPE)
    job[LINES] = _lines_of(state, I64(ROWS_AT), dims[2], windows[2])
    job[LINE] = _lines_of(state, I64(COLUMNS_AT), dims[3], windows[3])
    if min(job[LINES], job[LINE]) < 0 or min(windows[2], windows[3]) < 1:
        return failed(state, SHAPE)
    job[IMAGES], job[CHANNELS], job[HEIGHT], job[WIDTH] = dims[0], dims[1], dims[2], dims[3]
    job[ROWS], job[COLUMNS], job[STATE] = windows[2], windows[3], state.ctypes.data
    sizes[0], sizes[1] = dims[1], I64(1)
    sizes[2], sizes[3] = state[ROWS_AT + KERNEL], state[COLUMNS_AT + KERNEL]
    job[RESULT], status = make_output(state, context, 0, sizes, I64(4))
    if status != 0 or dims[1] == 0:
        return status
    products = job[LINES] * job[LINE] * sizes[2] * sizes[3] * max(I64(1), dims[0])
    job[STEP] = max(I64(1), I64(CHUNK) // products)
    tables = np.empty((2, job[LINES] * job[LINE]), np.int64)
    job[TABLES] = tables.ctypes.data
    top, left = state[ROWS_AT + BEFORE], state[COLUMNS_AT + BEFORE]
    _fill_table(tables[0], job, dims[2], dims[3], top, left)
    _fill_table(tables[1], job, windows[2], windows[3], I64(0), I64(0))
    in_parts(state, context, job, (dims[1] + job[STEP] - 1) // job[STEP])
    keep(tables)
    keep(job)
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def depthwise_weights(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _compute(carray(integers_at(address), (END,)), context)
