"""Stream: data sets larger than memory, for `Trainer`."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import (
    DataError,
    MissingPackageError,
    OnnxTrainError,
    OnnxTrainWarning,
    StateError,
    outside_level,
)
from ..runtime.loop.batches import Batches, Part, check_names
from .arrow import Arrow
from .csv_lines import Csv
from .files import PathLike, expand
from .formats import LARGEST_CHUNK, Block, Chunk, Format, Selection, cut, join, length
from .order import Order, spans
from .parquet import Parquet
from .tar import Decode, Tar

Array = npt.NDArray[Any]
Map = Callable[[Block], Mapping[str, Any]]
Columns = Mapping[str, "str | Sequence[str]"] | Sequence[str]

FILE, ROW = "__file__", "__row__"
"""Columns that say where a row comes from."""
BLOCK_ROWS = 4096
"""Rows that are unpacked at once."""
ENDINGS: dict[str, type[Format]] = {
    ".parquet": Parquet, ".pq": Parquet, ".arrow": Arrow, ".feather": Arrow, ".ipc": Arrow,
    ".arrows": Arrow, ".tar": Tar, ".csv": Csv, ".tsv": Csv,
}  # fmt: skip
"""Ending of a file → its format."""


class Stream:
    """Rows of files that are read while they are trained on, and never all at once.

    `Trainer.fit` and `Trainer.evaluate` take it as data. Each process reads its own part. The order
    of the rows is shuffled in three ways (the chunks of the files, `interleave` places that are
    read side by side, and `buffer_rows` rows in memory), follows from the seed alone, and is the
    same for any number of processes up to `interleave`. So a training goes on exactly, in the
    middle of an epoch, from the epoch and the batch that its checkpoint names.

    Args:
        files: a path, a pattern such as ``"shards/*.parquet"`` or ``"train-{0000..0099}.tar"``, or
            a list of them. Parquet (a chunk is a row group), Arrow IPC and Feather (a record
            batch), tar shards as of WebDataset (samples), csv (some megabytes of lines).
        columns: what the model's inputs are: names of columns, or a dict from the input to its
            column, or to several that are put side by side. By default columns are named as inputs.
        map: makes the inputs of some rows, a dict of arrays, from their columns, another.
        dtype: of numbers with fractions; None leaves them as they are in the files.
        decode: for tar shards, makes arrays of the content of one sample, which comes as bytes by
            ending; by default `decode_sample`.
        buffer_rows: rows in memory, of all processes together, that are shuffled.
        interleave: places of the data that are read side by side, at most one for each chunk.
        largest_chunk: bytes that may be read at once.

    Example:
        >>> data = Stream("shards/*.parquet", columns={"x": ["a", "b"], "labels": "class"})
        ... # doctest: +SKIP
        >>> trainer.fit(data, epochs=3, batch_size=256)  # doctest: +SKIP
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        columns: Columns | None = None,
        *,
        map: Map | None = None,  # noqa: A002
        dtype: npt.DTypeLike | None = np.float32,
        decode: Decode | None = None,
        buffer_rows: int = 8192,
        interleave: int = 8,
        largest_chunk: int = LARGEST_CHUNK,
    ) -> None:
        for name, value in (("buffer_rows", buffer_rows), ("interleave", interleave)):
            if value < 1:
                raise DataError(f"{name} must be at least 1, not {value}.")
        self.files, self.map, self.dtype = expand(files), map, dtype
        self.columns, self.buffer_rows, self.interleave = columns, buffer_rows, interleave
        self._decodes = decode is not None
        self._format = _make_format(self.files, decode, largest_chunk)
        self._index: list[Chunk] | None = None

    @property
    def chunks(self) -> list[Chunk]:
        """What is read from one place on; the files are looked through when it is first asked for.

        That reads the footers of parquet files, the headers of Arrow batches and of tar members,
        and all of a csv file.
        """
        if self._index is None:
            self._index = list(self._look())
        return self._index

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(chunk.rows for chunk in self.chunks)

    def _look(self) -> Iterator[Chunk]:
        for number, path in enumerate(self.files):
            first = 0
            for place, rows in self._format.chunks(path):
                if rows < 0:
                    raise DataError(f"{path!r} is damaged: it says that it has {rows} rows.")
                if rows:
                    yield Chunk(number, place, rows, first)
                    first += rows

    def batches(
        self,
        names: Sequence[str],
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> StreamBatches:
        """What `Trainer` asks for: batches in the order of the model's inputs.

        Args:
            names: of the inputs.
            batch_size: rows of a batch, of all processes together.
            shuffle: a new order in every epoch.
            seed: from which it follows.
            drop_last: leave out a last, smaller batch.
        """
        if batch_size < 1:
            raise DataError(f"batch_size must be at least 1, not {batch_size}.")
        return StreamBatches(self, names, batch_size, shuffle, seed, drop_last)

    def scan(self, column: str) -> Iterator[Array]:
        """The values of one column, block by block, as they stand in the files."""
        selection = Selection(None if self._decodes else [column])  # `decode` gives other names
        for chunk in self.chunks:
            for block in self.blocks(chunk, selection):
                yield self._format.finish(block)[column]

    def first(self, rows: int, names: Sequence[str] | None = None) -> Block:
        """The first rows as they are read: columns, decoded but not mapped."""
        parts, missing = [], rows
        selection = Selection(self.read_columns(names), size=min(rows, BLOCK_ROWS))
        for chunk in self.chunks:
            for block in self.blocks(chunk, selection):
                parts.append(cut(block, 0, missing))
                missing -= length(parts[-1])
                if missing <= 0:
                    return self._format.finish(join(parts))
        if not parts:
            raise DataError(f"{self.files[0]!r} holds no rows. Training needs at least one.")
        return self._format.finish(join(parts))

    def head(self, rows: int) -> dict[str, Any]:
        """The first rows as the model takes them."""
        return dict(self._values(self.first(rows), is_read=True))

    def blocks(self, chunk: Chunk, selection: Selection) -> Iterator[Block]:
        """Rows of a chunk; fewer or more than it has is an error."""
        path, rows = self.files[chunk.file], selection.skip
        for block in self._format.blocks(path, chunk, selection):
            rows += length(block)
            yield block
        if rows != chunk.rows:
            raise DataError(
                f"{path!r} has changed or is damaged: {chunk.rows} rows were there from row "
                f"{chunk.first} on, and now it has {rows}."
            )

    def read_columns(self, names: Sequence[str] | None) -> list[str] | None:
        """The columns of the files that are needed; None for all."""
        if isinstance(self.columns, Mapping):
            values = self.columns.values()
            return list(
                dict.fromkeys(n for v in values for n in ([v] if isinstance(v, str) else v))
            )
        if self.columns is not None:
            return list(self.columns)
        return list(names) if names is not None and self.map is None and not self._decodes else None

    def inputs(self, block: Block, names: Sequence[str]) -> list[Any]:
        """The values of a batch in the order of the model's inputs."""
        try:
            values = self._values(block)
        except MissingPackageError:
            raise
        except Exception as error:
            place, cause = self._place_of(error, block)
            raised = "" if isinstance(cause, OnnxTrainError) else f"{type(cause).__name__}: "
            raise DataError(f"{place}: {raised}{cause}") from error
        check_names(values, names)
        return [values[n] for n in names]

    def _values(self, block: Block, *, is_read: bool = False) -> Mapping[str, Any]:
        """The inputs of some rows, by name."""
        if not is_read:
            block = self._format.finish({n: v for n, v in block.items() if n not in (FILE, ROW)})
        if isinstance(self.columns, Mapping):
            block = {name: _beside(block, column) for name, column in self.columns.items()}
        if self.dtype is not None and self.map is None:
            block = {
                n: v.astype(self.dtype, copy=False) if v.dtype.kind == "f" else v
                for n, v in block.items()
            }
        return block if self.map is None else self.map(block)

    def _place_of(self, error: Exception, block: Block) -> tuple[str, Exception]:
        """Which row cannot be used, and why: each is tried alone, which only an error is worth."""
        files, rows = block[FILE], block[ROW]
        for at, (file, row) in enumerate(zip(files, rows)):
            alone = self._error_of(cut(block, at, at + 1))
            if alone is not None:
                return f"{self.files[int(file)]}, row {int(row)}", alone
        return f"{self.files[int(files[0])]} and others", error

    def _error_of(self, block: Block) -> Exception | None:
        try:
            self._values(block)
        except Exception as error:  # of the user's own code too
            return error
        return None

    def digest(self) -> str:
        """Of names and rows: enough to notice other data."""
        content = hashlib.sha256()
        for path in self.files:
            content.update(os.path.basename(path).encode("utf-8", "surrogateescape") + b"\n")
        for chunk in self.chunks:
            content.update(f"{chunk.file} {chunk.place} {chunk.rows}\n".encode())
        return content.hexdigest()

    def __repr__(self) -> str:
        return f"Stream({self.files[0]!r}{' …' if len(self.files) > 1 else ''})"


def _make_format(files: Sequence[str], decode: Decode | None, largest: int) -> Format:
    kind = _kind(files)
    if decode is not None and kind is not Tar:
        raise DataError("decode= is for samples in tar shards; tables are read with map=.")
    return Tar(largest, decode) if decode is not None else kind(largest)


def _kind(files: Sequence[str]) -> type[Format]:
    kinds: dict[type[Format], str] = {}
    for path in files:
        ending = os.path.splitext(path)[1].lower()
        if ending not in ENDINGS:
            raise DataError(
                f"{path!r} cannot be streamed: its name ends in none of {', '.join(ENDINGS)}."
            )
        kinds[ENDINGS[ending]] = path
    if len(kinds) > 1:
        raise DataError(f"The data files are of different kinds: {', '.join(kinds.values())}.")
    return next(iter(kinds))


def _beside(block: Block, column: str | Sequence[str]) -> Array:
    """One column, or several as the columns of a matrix."""
    if isinstance(column, str):
        return block[column]
    return np.stack([block[name] for name in column], axis=1)


class StreamBatches(Batches):
    """Batches of a stream, or one process's part of them.

    Args:
        stream: where the rows come from.
        names: the model's inputs.
        batch_size: rows of a batch, of all processes.
        shuffle: a new order in every epoch.
        seed: from which it follows.
        drop_last: leave out a last, smaller batch.
        ordered: without `shuffle`, keep the order of the files, which only one process alone can.
        rank: of this process.
        count: of processes, each of which reads its own lanes; 0 for one that yields whole batches.
    """

    def __init__(
        self,
        stream: Stream,
        names: Sequence[str],
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        *,
        ordered: bool = True,
        rank: int = 0,
        count: int = 0,
    ) -> None:
        self.stream, self.names, self.batch_size = stream, list(names), batch_size
        self.drop_last, self.rank, self.count = drop_last, rank, count
        self.columns = stream.read_columns(names)
        rows = [chunk.rows for chunk in stream.chunks]
        if not rows:
            raise DataError(f"{stream.files[0]!r} holds no rows. Training needs at least one.")
        lanes = min(stream.interleave, len(rows)) if shuffle or not ordered else 1
        window = max(1, stream.buffer_rows // lanes)
        self.order = Order(rows, lanes, window, shuffle, seed)
        self.rows = self.order.total
        whole, rest = divmod(self.rows, batch_size)
        self.size = whole + bool(rest and not drop_last)
        self._state: dict[str, Any] | None = None

    def part(self, rank: int, count: int, *, ordered: bool) -> Batches | None:
        """This process's lanes; None if there are fewer lanes than processes."""
        order = self.order
        mine = StreamBatches(
            self.stream, self.names, self.batch_size, order.shuffle, order.seed, self.drop_last,
            ordered=ordered, rank=rank, count=count,
        )  # fmt: skip
        if mine.order.lanes >= count:
            return mine
        if rank == 0 and (order.shuffle or not ordered):
            warnings.warn(
                f"The data are read from {mine.order.lanes} places, and there are {count} "
                "processes: each reads all rows and takes its share. Write more files, row groups "
                f"or batches, and give interleave={count} or more.",
                OnnxTrainWarning,
                stacklevel=outside_level(),
            )
        return None

    def epoch(self, number: int, skip: int = 0) -> Iterator[list[Any]]:
        """The batches of one pass; those that are left out are not read."""
        order, size = self.order, self.batch_size
        mine = range(self.rank, order.lanes, max(self.count, 1))
        lanes = {n: Lane(self, number, n, skip * size) for n in mine}
        for index in range(skip, self.size or 0):
            first, stop = index * size, min((index + 1) * size, self.rows)
            blocks = []
            for lane, source in lanes.items():
                count = order.lane_rows(lane, stop) - order.lane_rows(lane, first)
                blocks += source.take(count)
            rows = sum(map(length, blocks))
            values = self.stream.inputs(join(blocks), self.names) if rows else []
            yield Part(values, rows, stop - first) if self.count else values

    def state(self) -> dict[str, Any]:
        """What a checkpoint remembers: that from which the order follows, beside the seed."""
        if self._state is None:
            self._state = {
                "digest": self.stream.digest(),
                "rows": self.rows,
                "lanes": self.order.lanes,
                "window": self.order.window,
                "batch_size": self.batch_size,
            }
        return self._state

    def check_state(self, saved: Mapping[str, Any]) -> None:
        """Refuse to go on with other rows, or in another order."""
        now = self.state()
        wrong = [name for name in now if saved.get(name) != now[name]]
        if not saved or not wrong:
            return
        before = {
            "digest": "other files, or files with other rows",
            "rows": f"{saved.get('rows')} rows, and now there are {now['rows']}",
            "lanes": f"{saved.get('lanes')} places read side by side (interleave)",
            "window": f"{saved.get('window')} rows shuffled in each place (buffer_rows)",
            "batch_size": f"a batch_size of {saved.get('batch_size')}",
        }
        raise StateError(
            f"The checkpoint was written with {before[wrong[-1]]}: the rest of the epoch would not "
            "be the rows that are missing. Give the same data and settings, or fit without resume."
        )


class Lane:
    """The rows of one lane in their order, from some position of the epoch on."""

    def __init__(self, batches: StreamBatches, epoch: int, number: int, position: int) -> None:
        self.stream, self.columns = batches.stream, batches.columns
        self.epoch, self.number = epoch, number
        order = self.order = batches.order
        self.rows = order.lane_rows(number, order.total)
        done = order.lane_rows(number, position)
        self._window, self._used = divmod(done, order.window)
        self._source = self._read(self._window * order.window)
        self._rest: Block = {}
        self._ready: Block | None = None

    def take(self, count: int) -> list[Block]:
        """The next rows, as one block or several."""
        blocks: list[Block] = []
        while count:
            if self._ready is None:
                self._ready = self._fill()
            block = cut(self._ready, self._used, self._used + count)
            self._used += length(block)
            count -= length(block)
            blocks.append(block)
            if self._used == length(self._ready):
                self._ready, self._used, self._window = None, 0, self._window + 1
        return blocks

    def _fill(self) -> Block:
        """The next window, shuffled."""
        missing = min(self.order.window, self.rows - self._window * self.order.window)
        rows, blocks = missing, []
        while missing:
            if not length(self._rest):
                self._rest = next(self._source)
            block = cut(self._rest, 0, missing)
            missing -= length(block)
            self._rest = cut(self._rest, length(block), length(self._rest))
            blocks.append(block)
        window = join(blocks)
        order = self.order.shuffled(self.epoch, self.number, self._window, rows)
        return window if order is None else {n: v[order] for n, v in window.items()}

    def _read(self, skip: int) -> Iterator[Block]:
        size = min(BLOCK_ROWS, self.order.window)
        for span in spans(self.order, self.epoch, self.number, skip):
            chunk = self.stream.chunks[span.chunk]
            at = span.start
            for block in self.stream.blocks(chunk, Selection(self.columns, span.start, size)):
                used = cut(block, 0, span.stop - at)
                rows = chunk.first + np.arange(at, at + length(used))
                file = np.full(length(used), chunk.file, np.int32)
                yield {**used, FILE: file, ROW: rows}
                at += length(used)
                if at >= span.stop:
                    break
