# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""TopK of most of a long row: sorted by the digits of its numbers. Import it only where numba is.

onnxruntime compares; here numbers are laid down by 11 of their bits at a time, from the last ones
on, which keeps equal ones in their order. So the lowest index comes first among equal numbers, as
the operator says. What is no number counts as the largest, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, floats_at, integers_at
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

SOURCE, VALUES, PLACES, ROWS, LENGTH, TAKEN, IS_LARGEST, STEP = range(8)
JOB = 8
BITS, DIGITS = 11, 3
BUCKETS = 1 << BITS
CHUNK = 16_384
"""Elements that one call of a thread takes, or one row."""


@njit(**OPTIONS)
def _key(bits: Any, is_largest: Any) -> Any:
    """An integer that is in the order of the numbers with these bits."""
    sign, size = bits >> I64(31), bits & I64(0x7FFFFFFF)
    if size > I64(0x7F800000):
        key = I64(0xFFFFFFFF)  # no number
    elif sign and size:
        key = I64(0x7FFFFFFF) - size
    else:
        key = size + I64(0x80000000)  # zeros of both signs are equal
    return I64(0xFFFFFFFF) - key if is_largest else key


@njit(**OPTIONS)
def _count(job: Any, row: Any, entries: Any, begins: Any) -> None:
    """The entries of a row, key and place, and where each digit's entries begin."""
    length = job[LENGTH]
    bits = carray(floats_at(job[SOURCE] + 4 * row * length), (length,)).view(np.uint32)
    begins[:] = 0
    for place in range(length):
        key = _key(I64(bits[place]), job[IS_LARGEST])
        entries[place] = np.uint64(key) << np.uint64(32) | np.uint64(place)
        for digit in range(DIGITS):
            begins[digit, key >> I64(digit * BITS) & I64(BUCKETS - 1)] += 1
    for digit in range(DIGITS):
        total = I64(0)
        for bucket in range(BUCKETS):
            count = begins[digit, bucket]
            begins[digit, bucket] = total
            total += count


@njit(**OPTIONS)
def _lay_down(entries: Any, others: Any, begins: Any, digit: Any) -> None:
    shift = np.uint64(32 + digit * BITS)
    for entry in entries:
        bucket = I64(entry >> shift) & I64(BUCKETS - 1)
        others[begins[bucket]] = entry
        begins[bucket] += 1


@njit(**OPTIONS)
def _sort(job: Any, part: Any) -> None:
    length, taken = job[LENGTH], job[TAKEN]
    begins = np.empty((DIGITS, BUCKETS), np.int64)
    entries, others = np.empty(length, np.uint64), np.empty(length, np.uint64)
    for row in range(part * job[STEP], min(job[ROWS], (part + 1) * job[STEP])):
        x = carray(floats_at(job[SOURCE] + 4 * row * length), (length,))
        values = carray(floats_at(job[VALUES] + 4 * row * taken), (taken,))
        places = carray(integers_at(job[PLACES] + 8 * row * taken), (taken,))
        _count(job, row, entries, begins)
        for digit in range(DIGITS):
            _lay_down(entries, others, begins[digit], I64(digit))
            entries, others = others, entries
        for i in range(taken):
            place = I64(entries[i] & np.uint64(0xFFFFFFFF))
            values[i], places[i] = x[place], place


@cfunc("void(int64, int64)", **OPTIONS)
def sort_part(address: int, part: int) -> None:
    """Some rows; onnxruntime's threads call it."""
    _sort(carray(integers_at(address), (JOB,)), part)


@njit(**OPTIONS)
def _top(state: Any, context: Any) -> Any:
    dims, sizes, job = (
        np.zeros(MAX_RANK, np.int64),
        np.zeros(MAX_RANK, np.int64),
        np.zeros(JOB, np.int64),
    )
    taken_at, rank_of_taken = read_input(state, context, I64(1), sizes)
    count = product(sizes, I64(0), rank_of_taken) if rank_of_taken >= 0 else I64(0)
    job[SOURCE], rank = read_input(state, context, I64(0), dims)
    axis = state[NUMBERS]
    if rank < 1 or count != 1 or (axis != -1 and axis != rank - 1):
        return failed(state, SHAPE)
    taken = carray(integers_at(taken_at), (1,))[0]
    job[ROWS], job[LENGTH], job[TAKEN] = product(dims, I64(0), rank - 1), dims[rank - 1], taken
    if taken < 0 or taken > job[LENGTH] or job[LENGTH] > I64(0xFFFFFFFF):
        return failed(state, INDEX)
    job[IS_LARGEST] = state[NUMBERS + 1]
    dims[rank - 1] = taken
    job[VALUES], status = make_output(state, context, I64(0), dims, rank)
    if status == 0:
        job[PLACES], status = make_output(state, context, I64(1), dims, rank)
    if status != 0 or job[ROWS] * taken == 0:
        return status
    job[STEP] = max(I64(1), CHUNK // job[LENGTH])
    in_parts(state, context, job, (job[ROWS] + job[STEP] - 1) // job[STEP])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def top(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _top(carray(integers_at(address), (NUMBERS + 2,)), context)
