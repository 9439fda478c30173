# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""GatherElements: elements read by their places along an axis. Import it only where numba is.

`torch.gather` is one, and the gradient of what is scattered: of a pool that is undone, say.
onnxruntime computes the place of each row anew, which takes longer than to read short rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .elements import place_along
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

SOURCE, PLACES, RESULT, BLOCKS, STEP, SIZE, COUNT, INNER, IS_ASTRAY = range(9)
JOB = 9
"""Addresses; blocks, which are what is before the axis, and how many a thread takes at once; sizes
of the axis in the source and in the places; elements behind it; whether a place is outside."""
CHUNK = 16_384
"""Elements that one call of a thread takes, or one block."""
MISFIT, APART, ALIKE = range(3)


@njit(**OPTIONS)
def _pick(job: Any, begin: Any, end: Any) -> None:
    """The blocks between two numbers; notes if a place is outside, and puts 0 there."""
    size, count, inner = job[SIZE], job[COUNT], job[INNER]
    number, is_astray = (end - begin) * count * inner, False
    source = carray(
        floats_at(job[SOURCE] + 4 * begin * size * inner), ((end - begin) * size * inner,)
    )
    places = carray(integers_at(job[PLACES] + 8 * begin * count * inner), (number,))
    result = carray(floats_at(job[RESULT] + 4 * begin * count * inner), (number,))
    for block in range(end - begin):
        first = block * size * inner
        if inner == 1:
            for i in range(block * count, (block + 1) * count):
                place = places[i]
                place += size & (place >> I64(63))
                if 0 <= place < size:
                    result[i] = source[first + place]
                else:
                    result[i], is_astray = F32(0), True
            continue
        for line in range(block * count, (block + 1) * count):
            for column in range(inner):
                place = places[line * inner + column]
                place += size & (place >> I64(63))
                if 0 <= place < size:
                    result[line * inner + column] = source[first + place * inner + column]
                else:
                    result[line * inner + column], is_astray = F32(0), True
    if is_astray:
        job[IS_ASTRAY] = 1  # never 0: another thread may have found one


@cfunc("void(int64, int64)", **OPTIONS)
def pick_blocks(address: int, part: int) -> None:
    """Some blocks; onnxruntime's threads call it."""
    job = carray(integers_at(address), (JOB,))
    _pick(job, part * job[STEP], min(job[BLOCKS], (part + 1) * job[STEP]))


@njit(**OPTIONS)
def _pick_apart(job: Any, shape: Any, dims: Any, axis: Any) -> None:
    """The same where the places are fewer than the elements along other axes, too."""
    number = product(dims, 0, dims.size)
    source = carray(floats_at(job[SOURCE]), (product(shape, 0, shape.size),))
    places = carray(integers_at(job[PLACES]), (number,))
    result = carray(floats_at(job[RESULT]), (number,))
    for element in range(number):
        at = place_along(element, places[element], shape, dims, axis)
        if at < 0:
            job[IS_ASTRAY] = 1
            return
        result[element] = source[at]


@njit(**OPTIONS)
def _fits(shape: Any, dims: Any, axis: Any) -> Any:
    """Whether there are as many places along all axes but one, or fewer."""
    fits = I64(ALIKE)
    for a in range(shape.size):
        if a != axis and dims[a] > shape[a]:
            return I64(MISFIT)
        if a != axis and dims[a] != shape[a]:
            fits = I64(APART)
    return fits


@njit(**OPTIONS)
def _gather_elements(state: Any, context: Any) -> Any:
    shape, dims = np.zeros(MAX_RANK, np.int64), np.zeros(MAX_RANK, np.int64)
    job = np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, 0, shape)
    job[PLACES], rank_of_places = read_input(state, context, 1, dims)
    axis = state[NUMBERS] + (rank if state[NUMBERS] < 0 else I64(0))
    if rank < 1 or rank_of_places != rank or not 0 <= axis < rank:
        return failed(state, SHAPE)
    fits = _fits(shape[:rank], dims[:rank], axis)
    if fits == MISFIT:
        return failed(state, SHAPE)
    job[RESULT], status = make_output(state, context, 0, dims, rank)
    if status != 0 or product(dims, 0, rank) == 0:
        return status
    if fits == APART:
        _pick_apart(job, shape[:rank], dims[:rank], axis)
    else:
        job[BLOCKS], job[INNER] = product(dims, 0, axis), product(dims, axis + 1, rank)
        job[SIZE], job[COUNT] = shape[axis], dims[axis]
        job[STEP] = max(I64(1), CHUNK // ((job[SIZE] + job[COUNT]) * job[INNER]))
        in_parts(state, context, job, (job[BLOCKS] + job[STEP] - 1) // job[STEP])
    return failed(state, INDEX) if job[IS_ASTRAY] else I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def gather_elements(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _gather_elements(carray(integers_at(address), (NUMBERS + 1,)), context)
