# mypy: allow-untyped-decorators, disable-error-code="attr-defined, import-untyped, no-any-return"
"""MaxPool with the places of the maxima, as its gradient wants it. Import it only where numba is.

onnxruntime compares element by element. Here a long row of windows is compared at once: first with
the elements at the first place of their kernels, then with those at the next one, so that the loop
is one of vector instructions. A window begins with its first element inside of the image, and goes
over to a later one if that is larger: so the first of equal ones wins, and NaN if it is the first
one only, as in onnxruntime 1.31.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types

from .driver import I64, OPTIONS, floats_at, integers_at, keep, pointer_to
from .operators import MOST_AXES
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

IMAGE, RESULT, PLACES, PLANES, STEP = range(5)
SIZES = 5
KERNELS, STRIDES, DILATIONS, PADS, OUTPUTS = (SIZES + MOST_AXES * i for i in range(1, 6))
"""Of three axes each; a signal or an image has leading ones of size 1."""
JOB = OUTPUTS + MOST_AXES
places_at = pointer_to(types.int32, ir.IntType(32))
I32 = np.int32
LONG_ROW = 24
"""Windows of a row from which on they are compared side by side.

A million windows on two threads, side by side and one after the other, in ms: 3×3 with stride 2,
rows of 16 22.8 and 10.9, of 64 9.3 and 10.1; with stride 1, rows of 16 12.2 and 13.2, of 64 4.4 and
10; 2×2 with stride 2, rows of 8 15.1 and 8.9, of 16 13.1 and 7.5, of 32 5.4 and 6.8.
"""
CHUNK = 16_384
"""Elements of the result that one call of a thread takes, or one plane."""


@njit(**OPTIONS)
def _begin(source: Any, at: Any, stride: Any, largest: Any, where: Any, count: Any) -> None:
    """The first element of each of some windows.

    `source`, `largest` and `where` are addresses, `at` is the place of the first one in the plane.
    """
    image = carray(floats_at(source), (stride * count,))
    best, places = carray(floats_at(largest), (count,)), carray(places_at(where), (count,))
    for window in range(count):
        best[window] = image[stride * window]
        places[window] = I32(at + stride * window)


@njit(**OPTIONS)
def _compare(source: Any, at: Any, stride: Any, largest: Any, where: Any, count: Any) -> None:
    """A later element of some windows with the best one so far, in the same places."""
    image = carray(floats_at(source), (stride * count,))
    best, places = carray(floats_at(largest), (count,)), carray(places_at(where), (count,))
    if stride == 1:
        for window in range(count):
            value, least, place = image[window], best[window], places[window]
            is_larger = value > least
            best[window] = value if is_larger else least
            places[window] = I32(at + window) if is_larger else place
    elif stride == 2:  # the usual strides are constants to LLVM
        for window in range(count):
            value, least, place = image[2 * window], best[window], places[window]
            is_larger = value > least
            best[window] = value if is_larger else least
            places[window] = I32(at + 2 * window) if is_larger else place
    else:
        for window in range(count):
            value, least, place = image[stride * window], best[window], places[window]
            is_larger = value > least
            best[window] = value if is_larger else least
            places[window] = I32(at + stride * window) if is_larger else place


@njit(**OPTIONS)
def _spans(job: Any, spans: Any) -> None:
    """Which windows have each place of the kernel, along the last axis, inside of the image."""
    width, stride = job[SIZES + 2], job[STRIDES + 2]
    for k in range(job[KERNELS + 2]):
        start = k * job[DILATIONS + 2] - job[PADS + 2]
        spans[3 * k] = start
        spans[3 * k + 1] = max(I64(0), (stride - 1 - start) // stride)
        spans[3 * k + 2] = min(job[OUTPUTS + 2], (width - 1 - start + stride) // stride)


@njit(**OPTIONS)
def _row(job: Any, spans: Any, image: Any, depth: Any, line: Any, best: Any, places: Any) -> None:
    """The windows of one row of the plane at an address."""
    height, width, stride = job[SIZES + 1], job[SIZES + 2], job[STRIDES + 2]
    is_first = True
    for k0 in range(job[KERNELS]):
        z = depth * job[STRIDES] - job[PADS] + k0 * job[DILATIONS]
        if z < 0 or z >= job[SIZES]:
            continue
        for k1 in range(job[KERNELS + 1]):
            y = line * job[STRIDES + 1] - job[PADS + 1] + k1 * job[DILATIONS + 1]
            if y < 0 or y >= height:
                continue
            begun = job[OUTPUTS + 2] if is_first else I64(0)
            for k2 in range(job[KERNELS + 2]):
                begin, end = spans[3 * k2 + 1], spans[3 * k2 + 2]
                at = (z * height + y) * width + spans[3 * k2] + begin * stride
                place, to = image + 4 * at, 4 * begin
                fresh = min(begun, end) - begin  # padding was before them
                if fresh > 0:
                    _begin(place, at, stride, best + to, places + to, fresh)
                    begun, begin = begin, begin + fresh
                    at, place, to = at + fresh * stride, place + 4 * fresh * stride, to + 4 * fresh
                if begin < end:
                    _compare(place, at, stride, best + to, places + to, end - begin)
            is_first = False


@njit(**OPTIONS)
def _lines(job: Any, depth: Any, line: Any, lines: Any) -> Any:
    """Where the lines of the image begin that a row of windows reads; how many they are."""
    height, width, count = job[SIZES + 1], job[SIZES + 2], I64(0)
    for k0 in range(job[KERNELS]):
        z = depth * job[STRIDES] - job[PADS] + k0 * job[DILATIONS]
        for k1 in range(job[KERNELS + 1]):
            y = line * job[STRIDES + 1] - job[PADS + 1] + k1 * job[DILATIONS + 1]
            if 0 <= z < job[SIZES] and 0 <= y < height:
                lines[count] = (z * height + y) * width
                count += 1
    return count


@njit(**OPTIONS)
def _short_row(
    plane: Any, lines: Any, count: Any, dilation: Any, inside: Any, best: Any, places: Any
) -> None:
    """The windows of one row, one after the other.

    `plane`, `best` and `places` are arrays, `inside` says of each window where it begins along the
    last axis, and how many places of its kernel are there.
    """
    for window in range(best.size):
        start, width = inside[2 * window], inside[2 * window + 1]
        place = lines[0] + start
        largest = plane[place]
        for number in range(count):
            at = lines[number] + start
            for _ in range(width):
                value = plane[at]
                is_larger = value > largest
                largest = value if is_larger else largest
                place = at if is_larger else place
                at += dilation
        best[window], places[window] = largest, place


@njit(**OPTIONS)
def _pool_short_rows(job: Any, part: Any) -> None:
    width, rows, dilation = job[OUTPUTS + 2], job[OUTPUTS] * job[OUTPUTS + 1], job[DILATIONS + 2]
    size, inside = product(job, SIZES, SIZES + 3), np.empty(2 * width, np.int64)
    lines = np.zeros(product(job, KERNELS, KERNELS + 2), np.int64)
    for window in range(width):
        start = window * job[STRIDES + 2] - job[PADS + 2]
        before = max(I64(0), (dilation - 1 - start) // dilation)
        behind = min(job[KERNELS + 2], (job[SIZES + 2] - 1 - start) // dilation + 1)
        inside[2 * window], inside[2 * window + 1] = start + before * dilation, behind - before
    for plane in range(part * job[STEP], min(job[PLANES], (part + 1) * job[STEP])):
        image = carray(floats_at(job[IMAGE] + 4 * plane * size), (size,))
        for line in range(rows):
            place = (plane * rows + line) * width
            best = carray(floats_at(job[RESULT] + 4 * place), (width,))
            places = carray(integers_at(job[PLACES] + 8 * place), (width,))
            depth = line // job[OUTPUTS + 1]
            count = _lines(job, depth, line - depth * job[OUTPUTS + 1], lines)
            _short_row(image, lines, count, dilation, inside, best, places)
            for window in range(width):
                places[window] += plane * size


@njit(**OPTIONS)
def _pool_planes(job: Any, part: Any) -> None:
    width = job[OUTPUTS + 2]
    if width < LONG_ROW:
        _pool_short_rows(job, part)
        return
    size, windows = product(job, SIZES, SIZES + 3), product(job, OUTPUTS, OUTPUTS + 3)
    row, spans = np.empty(width, np.int32), np.empty(3 * job[KERNELS + 2], np.int64)
    _spans(job, spans)
    for plane in range(part * job[STEP], min(job[PLANES], (part + 1) * job[STEP])):
        image = job[IMAGE] + 4 * plane * size
        for line in range(job[OUTPUTS] * job[OUTPUTS + 1]):
            place = plane * windows + line * width
            depth = line // job[OUTPUTS + 1]
            within = line - depth * job[OUTPUTS + 1]
            best = job[RESULT] + 4 * place
            _row(job, spans, image, depth, within, best, row.ctypes.data)
            places = carray(integers_at(job[PLACES] + 8 * place), (width,))
            for window in range(width):
                places[window] = plane * size + row[window]
    keep(row)


@cfunc("void(int64, int64)", **OPTIONS)
def pool_planes(address: int, part: int) -> None:
    """Some planes; onnxruntime's threads call it."""
    _pool_planes(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _windows(size: Any, span: Any, stride: Any, before: Any, behind: Any, ceil: Any) -> Any:
    """How many windows lie along an axis, as onnxruntime counts them; negative if none can.

    Its division rounds towards zero: a window that sticks out by less than a stride is one.
    """
    rest = size + before + behind - span
    if rest < 0:
        return 1 - -rest // stride
    if not ceil:
        return rest // stride + 1
    count = (rest + stride - 1) // stride + 1
    return count - 1 if (count - 1) * stride >= size + before else count


@njit(**OPTIONS)
def _max_pool(state: Any, context: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    axes = state[NUMBERS]
    job[IMAGE], rank = read_input(state, context, 0, dims)
    if rank != axes + 2:
        return failed(state, SHAPE)
    for at in range(SIZES, JOB):
        job[at] = 0 if PADS <= at < PADS + MOST_AXES else 1
    plane = I64(1)
    for axis in range(axes - 1, -1, -1):
        at, to = NUMBERS + 2 + 5 * axis, 3 - axes + axis
        kernel, stride, dilation = state[at], state[at + 1], state[at + 2]
        before, behind, size = state[at + 3], state[at + 4], dims[axis + 2]
        span = (kernel - 1) * dilation + 1
        count = _windows(size, span, stride, before, behind, state[NUMBERS + 1])
        if count < 0:
            return failed(state, SHAPE)
        job[SIZES + to], job[KERNELS + to], job[STRIDES + to] = size, kernel, stride
        job[DILATIONS + to], job[PADS + to], job[OUTPUTS + to] = dilation, before, count
        dims[axis + 2] = count
        plane *= size
        if plane > LARGEST_PLANE:
            return failed(state, SHAPE)
    job[PLANES] = dims[0] * dims[1]
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status == 0:
        job[PLACES], status = make_output(state, context, 1, dims, rank)
    windows = product(dims, 2, rank)
    if status != 0 or job[PLANES] * windows == 0:
        return status
    job[STEP] = max(I64(1), CHUNK // windows)
    in_parts(state, context, job, (job[PLANES] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def max_pool(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    state = carray(integers_at(address), (NUMBERS + 2 + 5 * MOST_AXES,))
    return _max_pool(state, context)
