"""The same table in every format that is streamed: x [4], y [3] and the number of the row."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.runtime.handmade import batch

COLUMNS = ["x", "target", "row"]


def table(rows: int) -> dict[str, np.ndarray]:
    x, y = batch(7, rows)
    return {"x": x, "target": y, "row": np.arange(rows)}


def write_parquet(folder: Path, rows: int, files: int = 3, group: int = 7) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    for number, part in enumerate(parts(rows, files)):
        columns = {n: pa.array(list(v)) for n, v in part.items()}
        parquet.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=group)
    return str(folder / "*.parquet")


def write_arrow(folder: Path, rows: int, files: int = 3, group: int = 7, kind: str = "file") -> str:
    import pyarrow as pa

    ending = "arrow" if kind == "file" else "arrows"
    for number, part in enumerate(parts(rows, files)):
        columns = {
            "x": pa.FixedSizeListArray.from_arrays(part["x"].reshape(-1), 4),
            "target": pa.FixedSizeListArray.from_arrays(part["target"].reshape(-1), 3),
            "row": pa.array(part["row"]),
            "note": pa.array([f"n{r % 3}" for r in part["row"]]).dictionary_encode(),
        }
        whole = pa.table(columns)
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(folder / f"{number}.{ending}"), whole.schema) as writer:
            writer.write_table(whole, max_chunksize=group)
    return str(folder / f"*.{ending}")


def write_stream(folder: Path, rows: int, files: int = 3, group: int = 7) -> str:
    return write_arrow(folder, rows, files, group, "stream")


def npy(value: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, value)
    return out.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def write_tar(folder: Path, rows: int, files: int = 3, group: int = 7) -> str:
    del group
    for number, part in enumerate(parts(rows, files)):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for x, y, row in zip(*part.values()):
                long = "n" * 120 if row == 5 else ""  # a name that needs an extended header
                add(archive, f"./a/{long}{row:04d}.x.npy", npy(x))
                add(archive, f"./a/{long}{row:04d}.target.npy", npy(y))
                add(archive, f"./a/{long}{row:04d}.row.cls", str(row).encode())
    return str(folder / "{0..2}.tar") if files == 3 else str(folder / "*.tar")


def write_csv(folder: Path, rows: int, files: int = 3, group: int = 7) -> str:
    del group
    heads = [*(f"x{i}" for i in range(4)), *(f"y{i}" for i in range(3)), "row", "note"]
    for number, part in enumerate(parts(rows, files)):
        lines = [",".join(heads)]
        for x, y, row in zip(*part.values()):
            cells = [*map(repr, map(float, x)), *map(repr, map(float, y)), str(row)]
            lines.append(",".join(cells) + ',"a ""quoted""\nnote"')
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "*.csv")


def parts(rows: int, files: int) -> list[dict[str, np.ndarray]]:
    whole = table(rows)
    bounds = np.linspace(0, rows, files + 1).astype(int)
    return [{n: v[a:b] for n, v in whole.items()} for a, b in pairwise(bounds)]


WRITERS: dict[str, Callable[..., str]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "arrow stream": write_stream,
    "tar": write_tar,
    "csv": write_csv,
}
MAPPED: dict[str, dict[str, str | list[str]]] = {
    "tar": {"x": "x.npy", "target": "target.npy", "row": "row.cls"},
    "csv": {"x": [f"x{i}" for i in range(4)], "target": [f"y{i}" for i in range(3)], "row": "row"},
}
"""What `columns` is, where columns are not named as the model's inputs."""
