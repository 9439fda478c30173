"""Columns of Apache Arrow as arrays of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError

Array = npt.NDArray[Any]


def to_arrays(batch: Any, path: str, first: int) -> dict[str, Array]:
    """The columns of a record batch by name.

    Args:
        batch: of pyarrow.
        path: where it comes from, for messages.
        first: number of its first row there.
    """
    try:
        batch.validate(full=True)  # what a damaged file says about its own buffers is not believed
    except Exception as error:
        raise DataError(
            f"{path!r} is damaged in the rows from {first} on: {str(error)[:300]}. Write it again."
        ) from error
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"{path!r} has two columns named {twice!r}: rename one of them.")
    return {
        name: _Column(path, name, first).array(batch.column(number))
        for number, name in enumerate(names)
    }


class _Column:
    """Where a column is, for messages."""

    def __init__(self, path: str, name: str, first: int) -> None:
        self.path, self.name, self.first = path, name, first

    def array(self, column: Any) -> Array:
        """One row of the array per row of the column; lists of equal length are dimensions."""
        import pyarrow as pa
        import pyarrow.types as kinds

        kind = column.type
        if isinstance(kind, pa.FixedShapeTensorType):
            return self._tensor(column.storage, tuple(kind.shape), kind.permutation)
        if isinstance(kind, pa.BaseExtensionType):
            return self.array(column.storage)
        if kinds.is_dictionary(kind):
            return self.array(column.dictionary_decode())
        if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
            self._refuse_null(column)
            return self._lists(column)
        if not kinds.is_floating(kind):
            self._refuse_null(column)
        values = column.to_numpy(zero_copy_only=False)
        is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
        return values.astype(np.str_) if is_text else np.asarray(values)

    def _tensor(self, storage: Any, shape: tuple[int, ...], permutation: Any) -> Array:
        if permutation is not None and list(permutation) != sorted(permutation):
            raise DataError(
                f"The column {self.name!r} of {self.path!r} has tensors with their axes in "
                "another order: write them in the order of the memory."
            )
        self._refuse_null(storage)
        values = self.array(storage.flatten())
        return values.reshape(len(storage), *shape)

    def _lists(self, column: Any) -> Array:
        import pyarrow.compute as pc

        lengths = np.asarray(pc.list_value_length(column).to_numpy(zero_copy_only=False))
        if len(lengths) and (lengths != lengths[0]).any():
            row = int(np.flatnonzero(lengths != lengths[0])[0])
            raise DataError(
                f"The column {self.name!r} of {self.path!r} has {lengths[0]} values in row "
                f"{self.first} and {lengths[row]} in row {self.first + row}. Fill the rows up to "
                "one length, or read it with map=."
            )
        values = self.array(column.flatten())
        each = int(lengths[0]) if len(lengths) else 0
        if len(values) != each * len(column):
            raise DataError(f"{self.path!r} is damaged: a list of {self.name!r} has lost values.")
        return values.reshape(len(column), each, *values.shape[1:])

    def _refuse_null(self, column: Any) -> None:
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            row = int(np.flatnonzero(missing)[0])
            raise DataError(
                f"The column {self.name!r} of {self.path!r} has no value in row "
                f"{self.first + row}. Fill it in or remove the row; only columns of floats may "
                "have gaps, which are read as NaN."
            )
