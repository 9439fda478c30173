# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""What all kernels but the elementwise one share: inputs and outputs of a node, and errors.

onnxruntime calls `compute` for a node, with the integers that `state` has laid out; the first of
them is the address of the kernel. Import it only where numba is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .driver import I64, OPTIONS, call, integers_at, keep
from .operators import MISFITS

(KERNEL, GET_INPUT, GET_OUTPUT, GET_DATA, GET_INFO, GET_TYPE, GET_RANK, GET_DIMS, RELEASE_INFO,
 PARALLEL_FOR, CREATE_STATUS, WORK, CORES) = range(13)  # fmt: skip
MESSAGES = CORES + 1
NUMBERS = MESSAGES + len(MISFITS)
"""Where the integers of a node's attribute begin."""
MOST_OWNERS = 16
"""Into how many parts the result is divided at most, each of which looks at all indices."""
MAX_RANK = 8
LARGEST_PLANE = 2**31 - 1
"""Pixels of a plane: so many have numbers of 32 bits."""
SHAPE, INDEX = range(len(MISFITS))
"""Numbers of errors."""
BAD_ARGUMENT = 2
"""onnxruntime's code of an error."""


def state(
    compiled: Sequence[int],
    called: Sequence[int],
    messages: Sequence[int],
    cores: int,
    numbers: Sequence[int],
) -> list[int]:
    """The integers of a node.

    Args:
        compiled: addresses of the kernel, of what its threads call, and of tables of more.
        called: those of onnxruntime's functions.
        messages: those of the texts of errors.
        cores: how many the machine has.
        numbers: what the node says.
    """
    kernel, work, *tables = compiled
    return [kernel, *called, work, min(cores, MOST_OWNERS), *messages, *tables, *numbers]


@njit(**OPTIONS)
def read_input(state: Any, context: Any, number: Any, dims: Any) -> Any:
    """Address and rank of an input, whose sizes are written to `dims`; rank -1 if that is odd."""
    cell = np.zeros(1, np.int64)
    place = cell.ctypes.data
    call(state[GET_INPUT], (context, I64(number), place))
    value = cell[0]
    call(state[GET_DATA], (value, place))
    data = cell[0]
    call(state[GET_INFO], (value, place))
    info = cell[0]
    call(state[GET_RANK], (info, place))
    rank = cell[0]
    if rank <= MAX_RANK:
        call(state[GET_DIMS], (info, dims.ctypes.data, rank))
    else:
        rank = -1
    call(state[RELEASE_INFO], (info,))
    keep(cell)
    return data, rank


@njit(**OPTIONS)
def make_output(state: Any, context: Any, number: Any, dims: Any, rank: Any) -> Any:
    """Address of a new output, and 0 or that of onnxruntime's description of an error."""
    cell = np.zeros(1, np.int64)
    arguments = (context, I64(number), dims.ctypes.data, I64(rank), cell.ctypes.data)
    status: Any = call(state[GET_OUTPUT], arguments)
    if status == 0:
        call(state[GET_DATA], (cell[0], cell.ctypes.data))
    address = cell[0]
    keep(cell)
    return address, status


@njit(**OPTIONS)
def product(dims: Any, begin: Any, end: Any) -> Any:
    """How many elements some axes have."""
    total = I64(1)
    for axis in range(begin, end):
        total *= dims[axis]
    return total


@njit(**OPTIONS)
def copy_places(address: Any, size: Any, places: Any) -> Any:
    """Indices as numbers of half the size, which are not looked at again; False if one is astray.

    Negative ones count from the end.
    """
    source, is_astray = carray(integers_at(address), (places.size,)), False
    for i in range(places.size):
        place = source[i]
        place += size & (place >> I64(63))
        is_astray |= place < 0 or place >= size
        places[i] = np.uint32(place)
    return not is_astray


@njit(**OPTIONS)
def in_parts(state: Any, context: Any, job: Any, parts: Any) -> None:
    """Have onnxruntime's threads do all parts of a job, or do the only one here."""
    if parts == 1:
        call(state[WORK], (job.ctypes.data, I64(0)))
        return
    arguments = (context, state[WORK], I64(parts), I64(0), job.ctypes.data)
    call(state[PARALLEL_FOR], arguments)


@njit(**OPTIONS)
def failed(state: Any, number: Any) -> Any:
    """onnxruntime's description of an error."""
    return call(state[CREATE_STATUS], (I64(BAD_ARGUMENT), state[MESSAGES + number]))


@cfunc("int64(int64, int64)", **OPTIONS)
def compute(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    kernel = carray(integers_at(address), (1,))[0]
    return call(kernel, (I64(address), I64(context)))
