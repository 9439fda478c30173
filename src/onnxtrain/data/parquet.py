"""Parquet: a chunk is a row group, decoded some rows at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from ..errors import DataError, MissingPackageError
from .arrow_columns import to_arrays
from .files import reading
from .formats import LARGEST_CHUNK, Block, Chunk, Format, Selection
from .parquet_footer import column_sizes

REMEDY = "Write it again, for example with pandas."
KNOWN_FOOTERS = 64
"""Footers that are kept: to read one again for every row group costs more than the row group."""


def pyarrow_parquet() -> Any:
    """The module; an error names the package."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError("pyarrow", "Reading parquet files", "parquet") from None
    return parquet


class Parquet(Format):
    """Files of Apache Parquet."""

    def __init__(self, largest: int = LARGEST_CHUNK) -> None:
        super().__init__(largest)
        self._footers: OrderedDict[str, Any] = OrderedDict()

    def chunks(self, path: str) -> Iterator[tuple[int, int]]:
        """Row groups, as the footer tells them."""
        parquet = pyarrow_parquet()
        with reading(path, "parquet", REMEDY) as file:
            footer = parquet.read_metadata(file)
            self._remember(path, footer)
            for number in range(footer.num_row_groups):
                yield number, footer.row_group(number).num_rows

    def blocks(self, path: str, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Rows of a row group; pages are unpacked as they are needed."""
        parquet = pyarrow_parquet()
        with reading(path, "parquet", REMEDY) as file:
            source = parquet.ParquetFile(
                file, metadata=self._footers.get(path), buffer_size=2**20, pre_buffer=False
            )
            names = self.check_columns(path, source.schema_arrow.names, selection)
            self._check_group(path, source.metadata, chunk, names, file)
            batches = source.iter_batches(
                batch_size=min(selection.size, max(chunk.rows, 1)),
                row_groups=[chunk.place],
                columns=names,
                use_threads=False,
            )
            at, skip = 0, selection.skip
            for batch in batches:
                begin, at = at, at + batch.num_rows
                if at > skip:
                    rows = batch.slice(max(skip - begin, 0))
                    yield to_arrays(rows.select(names), path, chunk.first + max(skip, begin))

    def _check_group(
        self, path: str, footer: Any, chunk: Chunk, names: Sequence[str], file: BinaryIO
    ) -> None:
        """The file may have changed; and what is unpacked at once is a page, or all of it."""
        if not 0 <= chunk.place < footer.num_row_groups:
            raise DataError(f"{path!r} has changed: it has no row group {chunk.place} any more.")
        if 0 <= footer.row_group(chunk.place).total_byte_size <= self.largest:
            return
        for parts, size in column_sizes(file, chunk.place):
            if parts and parts[0] in names:
                self.check_size(
                    path,
                    f"the column {'.'.join(parts)!r} of row group {chunk.place}",
                    size,
                    "Write it with smaller row groups (row_group_size= of pyarrow and pandas)",
                )

    def _remember(self, path: str, footer: Any) -> None:
        self._footers[path] = footer
        while len(self._footers) > KNOWN_FOOTERS:
            self._footers.popitem(last=False)
