# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Weights of four bits as a matrix of floats. Import it only where numba is.

A row of `codes` is a block with one scale and one zero point, and so many blocks are a row of the
matrix. onnxruntime's DequantizeLinear runs on one thread, and blocks that are not full at the end
of a row are cut off by a copy of all floats. Here threads share the rows, and write what is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, bytes_at, floats_at, integers_at
from .tensors import (
    LARGEST_PLANE,
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    read_input,
)

CODES, SCALES, ZEROS, RESULT, ROWS, BLOCKS, BLOCK, WIDTH, SIGN, STEP = range(10)
JOB = 10
"""Addresses; rows of the matrix, blocks of a row, numbers of a block, numbers of a row that are
kept; what the sign is told by, and how many rows a thread takes at once."""
CHUNK = 16_384
"""Numbers that one call of a thread writes, or one row: as for other copies (`taking.py`)."""


@njit(**OPTIONS)
def _unpack(codes: Any, count: Any, zero: Any, scale: Any, sign: Any, result: Any) -> None:
    """Some numbers of a block; two are in a byte, the first one in its lower half."""
    pairs = count // 2
    source = carray(bytes_at(codes), (pairs + 1,))
    target = carray(floats_at(result), (count,))
    for i in range(pairs):
        byte = np.int32(source[i])
        target[2 * i] = F32(((byte & np.int32(15)) ^ sign) - zero) * scale
        target[2 * i + 1] = F32(((byte >> np.int32(4)) ^ sign) - zero) * scale
    if count % 2:
        target[count - 1] = F32(((np.int32(source[pairs]) & np.int32(15)) ^ sign) - zero) * scale


@cfunc("void(int64, int64)", **OPTIONS)
def unpack_rows(address: int, part: int) -> None:
    """Some rows; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    blocks, block, width, sign = job[BLOCKS], job[BLOCK], job[WIDTH], np.int32(job[SIGN])
    scales = carray(floats_at(job[SCALES]), (job[ROWS] * blocks,))
    zeros = carray(bytes_at(job[ZEROS]), ((job[ROWS] * blocks + 1) // 2,))
    for row in range(part * job[STEP], min(job[ROWS], (part + 1) * job[STEP])):
        for i in range(blocks):
            place, at = row * blocks + i, i * block
            zero = (np.int32(zeros[place >> 1]) >> np.int32(4 * (place & 1))) & np.int32(15)
            _unpack(
                job[CODES] + place * (block // 2),
                min(block, width - at),
                zero ^ sign,
                scales[place],
                sign,
                job[RESULT] + 4 * (row * width + at),
            )


@njit(**OPTIONS)
def _nibbles(state: Any, context: Any) -> Any:
    dims, others, points, sizes = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
    )
    job = np.zeros(JOB, np.int64)
    job[CODES], rank = read_input(state, context, 0, dims)
    job[SCALES], rank_of_scales = read_input(state, context, 1, others)
    job[ZEROS], rank_of_zeros = read_input(state, context, 2, points)
    length, job[WIDTH], job[SIGN] = state[NUMBERS], state[NUMBERS + 1], state[NUMBERS + 2]
    total, job[BLOCK] = dims[0], dims[1]
    is_list = rank_of_scales == 1 and rank_of_zeros == 1
    if rank != 2 or not is_list or others[0] != total or points[0] != total:
        return failed(state, SHAPE)
    if job[BLOCK] < 2 or job[BLOCK] % 2 or job[BLOCK] > LARGEST_PLANE or length % job[BLOCK]:
        return failed(state, SHAPE)
    job[BLOCKS] = length // job[BLOCK]
    if total % job[BLOCKS] or job[WIDTH] <= length - job[BLOCK]:
        return failed(state, SHAPE)
    job[ROWS] = total // job[BLOCKS]
    sizes[0], sizes[1] = job[ROWS], job[WIDTH]
    job[RESULT], status = make_output(state, context, 0, sizes, 2)
    if status != 0:
        return status
    if total == 0:
        return I64(0)
    job[STEP] = max(I64(1), CHUNK // job[WIDTH])
    in_parts(state, context, job, (job[ROWS] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def nibbles(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _nibbles(carray(integers_at(address), (NUMBERS + 3,)), context)
