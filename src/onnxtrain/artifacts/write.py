"""Write several files so that either all of them appear or none does."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..runtime.files.atomic import sync_directory


@contextlib.contextmanager
def all_or_nothing(directory: Path) -> Iterator[Path]:
    """A folder to write into; at the end its files move to `directory`, together.

    A directory that is missing is made, and is gone again if nothing comes into it. Everything is
    on disk before the first file moves, so an error while files are made leaves `directory` as it
    was. The moves themselves are renames within one file system, models last: whoever sees a model
    sees the data it refers to.
    """
    is_new = not directory.is_dir()
    try:
        if is_new:
            directory.mkdir()
        staging = Path(tempfile.mkdtemp(prefix=".onnxtrain-", dir=directory))
    except OSError as error:
        raise type(error)(
            error.errno, f"Cannot write to the artifact directory {str(directory)!r}: {error}"
        ) from error
    try:
        yield staging
        files = sorted(staging.iterdir(), key=lambda f: f.suffix in {".onnx", ".ort"})
        for file in files:
            with file.open("rb+") as handle:
                os.fsync(handle.fileno())
        for file in files:
            os.replace(file, directory / file.name)
        sync_directory(directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new and not any(directory.iterdir()):
            directory.rmdir()
