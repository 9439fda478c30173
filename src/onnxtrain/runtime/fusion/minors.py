# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Determinants and cofactors of small matrices. Import it only where numba is.

Without a division, so that singular matrices have cofactors like others: all minors of the first
rows by their columns, all of the last rows, and products of both (Laplace). For five rows that are
240 multiplications, as many as an inverse takes, and the same ones for every matrix: they are done
for `TOGETHER` matrices at once, in double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from ...operators import MOST_ROWS
from .driver import F32, I64, OPTIONS, floats_at, integers_at
from .tensors import (
    MAX_RANK,
    NUMBERS,
    SHAPE,
    failed,
    in_parts,
    make_output,
    product,
    read_input,
)

SOURCE, RESULT, COUNT, SIZE, STEP = range(5)
JOB = 5
TOGETHER = 64
"""Matrices that are done at once: what is kept of five rows is 30 KB, of eight 300."""
CHUNK = 16_384
"""Elements that one call of a thread takes, or `TOGETHER` matrices."""


@njit(**OPTIONS)
def _columns_in(subset: Any) -> Any:
    count = I64(0)
    while subset:
        subset &= subset - 1
        count += 1
    return count


@njit(**OPTIONS)
def _add_product(target: Any, a: Any, b: Any, is_less: Any) -> None:
    """The product of two numbers of each matrix is added to a third, or taken away from it."""
    if is_less:
        for lane in range(TOGETHER):
            target[lane] -= a[lane] * b[lane]
    else:
        for lane in range(TOGETHER):
            target[lane] += a[lane] * b[lane]


@njit(**OPTIONS)
def _expand(matrix: Any, minors: Any, size: Any, is_last: Any) -> None:
    """Minors of as many of the first rows, or of the last, as a subset has columns."""
    minors[0] = 1.0
    for subset in range(1, I64(1) << size):
        rows, place = _columns_in(subset), I64(0)
        row = size - rows if is_last else rows - 1
        minors[subset] = 0.0
        for column in range(size):
            bit = I64(1) << column
            if subset & bit:
                is_less = place & 1 if is_last else (rows - 1 + place) & 1
                _add_product(
                    minors[subset], matrix[row * size + column], minors[subset ^ bit], is_less
                )
                place += 1


@njit(**OPTIONS)
def _read(job: Any, first: Any, count: Any, matrix: Any) -> None:
    """Some matrices, number by number; what is missing is 0."""
    cells = job[SIZE] * job[SIZE]
    x = carray(floats_at(job[SOURCE] + 4 * first * cells), (count * cells,))
    if count < TOGETHER:
        matrix[:cells] = 0.0
    for lane in range(count):
        for cell in range(cells):
            matrix[cell, lane] = x[lane * cells + cell]


@njit(**OPTIONS)
def _cofactors_of(job: Any, first: Any, count: Any, matrix: Any, before: Any, behind: Any) -> None:
    size, total = job[SIZE], np.empty(TOGETHER, np.float64)
    cells, every = size * size, (I64(1) << size) - 1
    y = carray(floats_at(job[RESULT] + 4 * first * cells), (count * cells,))
    _expand(matrix, before, size, False)
    _expand(matrix, behind, size, True)
    for column in range(size):
        others = every ^ (I64(1) << column)
        for row in range(size):
            total[:] = 0.0
            for subset in range(every + 1):
                if subset & others == subset and _columns_in(subset) == row:
                    rest, swaps = others ^ subset, row + column
                    for each in range(size):
                        if subset >> each & 1:
                            swaps += _columns_in(rest & ((I64(1) << each) - 1))
                    _add_product(total, before[subset], behind[rest], swaps & 1)
            for lane in range(count):
                y[lane * cells + row * size + column] = F32(total[lane])


@njit(**OPTIONS)
def _some(job: Any, part: Any, is_whole: Any) -> None:
    """The determinants of some matrices, or their cofactors."""
    subsets = I64(1) << job[SIZE]
    matrix = np.empty((job[SIZE] * job[SIZE], TOGETHER), np.float64)
    before = np.empty((subsets, TOGETHER), np.float64)
    behind = np.empty((1 if is_whole else subsets, TOGETHER), np.float64)
    end = min(job[COUNT], (part + 1) * job[STEP])
    for first in range(part * job[STEP], end, TOGETHER):
        count = min(I64(TOGETHER), end - first)
        _read(job, first, count, matrix)
        if is_whole:
            _expand(matrix, before, job[SIZE], False)
            y = carray(floats_at(job[RESULT] + 4 * first), (count,))
            for lane in range(count):
                y[lane] = F32(before[subsets - 1, lane])
        else:
            _cofactors_of(job, first, count, matrix, before, behind)


@cfunc("void(int64, int64)", **OPTIONS)
def determinant_part(address: int, part: int) -> None:
    """Some determinants; onnxruntime's threads call it."""
    _some(carray(integers_at(address), (JOB,)), part, True)


@cfunc("void(int64, int64)", **OPTIONS)
def cofactor_part(address: int, part: int) -> None:
    """Some matrices of cofactors; onnxruntime's threads call it."""
    _some(carray(integers_at(address), (JOB,)), part, False)


@njit(**OPTIONS)
def _run(state: Any, context: Any, is_whole: Any) -> Any:
    dims, job = np.zeros(MAX_RANK, np.int64), np.zeros(JOB, np.int64)
    job[SOURCE], rank = read_input(state, context, I64(0), dims)
    size = dims[rank - 1] if rank >= 2 else I64(0)
    if not 1 <= size <= MOST_ROWS or dims[rank - 2] != size:
        return failed(state, SHAPE)
    if not is_whole and size != state[NUMBERS]:
        return failed(state, SHAPE)
    rank_of_result = rank - 2 if is_whole else rank
    job[RESULT], status = make_output(state, context, I64(0), dims, rank_of_result)
    job[COUNT], job[SIZE] = product(dims, I64(0), rank - 2), size
    if status != 0 or job[COUNT] == 0:
        return status
    job[STEP] = max(I64(1), CHUNK // (TOGETHER * size * size)) * TOGETHER
    in_parts(state, context, job, (job[COUNT] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def determinants(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _run(carray(integers_at(address), (NUMBERS,)), context, True)


@cfunc("int64(int64, int64)", **OPTIONS)
def cofactors(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _run(carray(integers_at(address), (NUMBERS + 1,)), context, False)
