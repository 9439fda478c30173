"""Texts from files and objects: txt, jsonl, parquet, lists, Hugging Face data sets."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError, TextError
from ..runtime.files.readfile import open_regular, refuse_growth

FORMATS = "a .txt, .jsonl (one JSON object per line), .csv or .parquet file"
MAX_CELL = 2**26
"""Characters of a cell of a table."""


Row = tuple[Any, str]
"""What a row holds, and where it is."""


@dataclass(frozen=True)
class Document:
    """A text to learn, and what stands before it without being learned."""

    text: str
    prompt: str = ""


def read_documents(source: Any, column: str = "text", *, by_line: bool = False) -> list[Document]:
    """The texts of a file, or of an object that gives rows.

    Rows are texts, or have a column with one. Rows that have ``prompt`` and ``completion`` instead
    are learned in their second part only.

    Args:
        source: a path (.txt, .jsonl, .csv, .parquet), or an iterable of texts or of dicts, such as
            a ``datasets.Dataset``.
        column: the column that holds the text.
        by_line: every line of a .txt file is a text of its own; otherwise the file is one.

    Raises:
        TextError: with the place of what is wrong.
    """
    if isinstance(source, (str, os.PathLike)):
        rows = read_rows(source, by_line=by_line)
        where = os.fspath(source)
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
        rows = [(row, f"row {i}") for i, row in enumerate(source)]
        where = f"The {type(source).__name__}"
    else:
        raise TextError(
            f"Texts of type {type(source).__name__} are not understood. Use {FORMATS}, a list of "
            "texts, or rows with a column of text."
        )
    documents = [_document(row, column, f"{where}, {place}") for row, place in rows]
    documents = [d for d in documents if d.text]
    if not documents:
        raise TextError(f"{where} holds no text.")
    return documents


def read_rows(path: str | os.PathLike[str], *, by_line: bool = False) -> list[Row]:
    """The rows of a file, whatever they hold, each with the place where it is."""
    file = Path(path)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise TextError(f"Text of type {file.suffix or str(file)!r} is not known. Use {FORMATS}.")
    try:
        return list(reader(file, by_line))
    except FileNotFoundError:
        raise TextError(f"There is no file {str(file)!r}.") from None
    except IsADirectoryError:
        raise TextError(f"{str(file)!r} is a folder. Use {FORMATS}.") from None


def _document(row: Any, column: str, where: str) -> Document:
    if isinstance(row, str):
        return Document(row)
    if not isinstance(row, Mapping):
        raise TextError(f"{where} is {_kind(row)}, and rows are texts or have columns.")
    if column in row:
        return Document(_text(row, column, where))
    if "prompt" in row and "completion" in row:
        return Document(_text(row, "completion", where), _text(row, "prompt", where))
    names = ", ".join(repr(str(n)) for n in list(row)[:8]) or "none"
    chat = " Write conversations out as text with the model's own template." * ("messages" in row)
    raise TextError(
        f"{where} has no column {column!r}, and no 'prompt' with a 'completion'; it has {names}. "
        f"Name the column of the text (--text-column).{chat}"
    )


def _text(row: Mapping[Any, Any], name: str, where: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TextError(f"{where}: {name!r} is {_kind(value)}, and it must be text.")
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a flag", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), type(value).__name__)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with open_regular(path, TextError) as file:
        number = 0
        try:
            for raw in file:
                number += 1
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise TextError(
                f"{str(path)!r}, line {number} is not text in UTF-8 ({error.reason} at byte "
                f"{error.start}). Save the file as UTF-8."
            ) from None


def _txt(path: Path, by_line: bool) -> Iterator[Row]:
    if by_line:
        for number, line in _lines(path):
            if line.strip():
                yield line.rstrip("\r\n"), f"line {number}"
    else:
        yield "".join(line for _, line in _lines(path)), "the whole"


def _jsonl(path: Path, by_line: bool) -> Iterator[Row]:
    del by_line
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            yield json.loads(line), f"line {number}"
        except (ValueError, RecursionError) as error:
            raise TextError(
                f"{str(path)!r}, line {number} is not valid JSON ({error}). Each line is one "
                'object: {"text": "…"}.'
            ) from None


def _csv(path: Path, by_line: bool) -> Iterator[Row]:
    """A table whose first row names the columns; tabs separate those of a .tsv file."""
    del by_line
    csv.field_size_limit(MAX_CELL)
    lines = _lines(path)
    reader = csv.reader(
        (line for _, line in lines), delimiter="\t" if path.suffix.lower() == ".tsv" else ","
    )
    try:
        names = next(reader, None)
        if names is None or len(set(names)) < len(names):
            raise TextError(f"{str(path)!r} needs a first line that names each column once.")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise TextError(
                    f"{str(path)!r}, line {reader.line_num} has {len(cells)} columns, and the "
                    f"first line {len(names)}. Put texts with commas into quotation marks."
                )
            yield dict(zip(names, cells)), f"line {reader.line_num}"
    except csv.Error as error:
        raise TextError(
            f"{str(path)!r}, line {reader.line_num} cannot be read as csv ({error})."
        ) from None


def _parquet(path: Path, by_line: bool) -> Iterator[Row]:
    del by_line
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingPackageError("pyarrow", f"Reading {str(path)!r}", "parquet") from None
    try:
        with open_regular(path, TextError) as file:
            about = parquet.read_metadata(file)
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
            unpacked = max(
                about.num_rows * about.num_columns, sum(g.total_byte_size for g in groups)
            )
            refuse_growth(path, unpacked, "write it without compression.", TextError)
            file.seek(0)
            rows = parquet.read_table(file).to_pylist()
    except (TextError, FileNotFoundError, IsADirectoryError):
        raise
    except Exception as error:  # pyarrow's errors have no common base, and not all are documented
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise TextError(f"{str(path)!r} cannot be read as parquet ({reason}).") from error
    for number, row in enumerate(rows):
        yield row, f"row {number}"


READERS = {".txt": _txt, ".text": _txt, ".md": _txt, ".jsonl": _jsonl, ".ndjson": _jsonl,
           ".csv": _csv, ".tsv": _csv, ".parquet": _parquet, ".pq": _parquet}  # fmt: skip
