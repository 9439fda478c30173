"""Arrays as Flower carries them: written from numpy, read with suspicion.

A record is bytes that another machine wrote. Its header is compared with what is expected before
anything is allocated, so that a reply of 200 bytes cannot ask for a terabyte.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from ..errors import InputError

Array = npt.NDArray[Any]
_NUMPY = "numpy.ndarray"
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (ValueError, TypeError, KeyError, SyntaxError, OverflowError, RecursionError)


def to_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Arrays as Flower sends them."""
    return ArrayRecord({n: FlowerArray(np.ascontiguousarray(a)) for n, a in arrays.items()})


def from_record(record: Mapping[str, FlowerArray], like: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays as Flower received them, as float32; names and shapes must be those of `like`."""
    if sorted(record) != sorted(like):
        raise InputError(f"Expected the arrays {list(like)}, got {list(record)[:20]}.")
    return {name: _read(name, record[name], expected.shape) for name, expected in like.items()}


def _read(name: str, array: FlowerArray, shape: tuple[int, ...]) -> Array:
    if array.stype != _NUMPY:
        raise InputError(f"Array {name!r} is sent as {array.stype[:40]!r}, not as {_NUMPY!r}.")
    stream = io.BytesIO(array.data)
    try:
        # Typed since numpy 2.3, which Python 3.10 has not.
        version = np.lib.format.read_magic(stream)  # type: ignore[no-untyped-call, unused-ignore]
        claimed, fortran, dtype = _HEADERS[version](stream)  # type: ignore[no-untyped-call, unused-ignore]
    except _UNREADABLE as error:
        raise InputError(f"Array {name!r} is not in numpy's format: {str(error)[:80]}.") from None
    if claimed != shape or dtype.kind != "f":
        raise InputError(
            f"Array {name!r} must be float of shape {shape}, it is {dtype} of {claimed}."
        )
    body = array.data[stream.tell() :]
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if len(body) != expected:
        raise InputError(f"Array {name!r} has {len(body)} bytes of values instead of {expected}.")
    values = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
    with np.errstate(
        over="ignore"
    ):  # a double beyond single precision is infinite, and refused as that
        return values.astype(np.float32, copy=False)
