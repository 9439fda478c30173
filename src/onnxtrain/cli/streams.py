"""Data that are larger than memory: files that are read while the model is trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data import Stream, decode_sample, read_picture
from ..data.files import is_pattern
from ..data.samples import PICTURES
from ..data.stream import ENDINGS
from .match import Dataset, Task, matched, remember_classes, target_name
from .output import UserError
from .sources import Columns, Named

if TYPE_CHECKING:
    from .settings import Settings

Array = npt.NDArray[Any]
ALWAYS = (".tar", ".arrow", ".arrows", ".feather", ".ipc")
"""Endings of files that are streamed without being asked to."""
MOST_CLASSES = 100_000
LOOKED_AT = 64
"""Rows from which follows what the columns are."""


def is_streamed(where: str, settings: Settings) -> bool:
    """Whether data are read while they are trained on: patterns, shards, or with ``--stream``."""
    ending = os.path.splitext(where)[1].lower()
    if settings.stream and ending not in ENDINGS:
        raise UserError(f"--stream reads {', '.join(ENDINGS)} files, and --data is {where!r}.")
    several = is_pattern(where) and not os.path.exists(where)
    return settings.stream or ending in ALWAYS or (several and ending in ENDINGS)


def read_stream(where: str, task: Task, settings: Settings) -> Dataset:
    """A data set that gives the model's inputs batch by batch, each checked as arrays are."""
    if settings.categorical:
        raise UserError(
            "--categorical needs all values of a column before the first step, and streamed data "
            "are not read before: encode them when the files are written."
        )
    options: dict[str, Any] = {
        "buffer_rows": settings.buffer_rows, "interleave": settings.interleave, "dtype": None,
    }  # fmt: skip
    if os.path.splitext(where)[1].lower() == ".tar":
        return _samples(where, task, options)
    return _table(where, task, options)


def _table(where: str, task: Task, options: dict[str, Any]) -> Dataset:
    head = Stream(where, **options).first(LOOKED_AT)
    target = target_name(task, head, where, last=True)
    inputs = [v.name for v in task.fed]
    needed: list[str] | None = None
    if task.features:
        needed = [*task.features, target]
    elif len(inputs) > 1 or inputs[0] in head:
        needed = [*(n for n in inputs if n in head), target]

    def inputs_of(block: dict[str, Array]) -> Mapping[str, Any]:
        return matched(Columns(block, where), task)

    stream = Stream(where, needed, map=inputs_of, **options)
    _find_classes(stream, task, target, head[target], where)
    inputs_of({n: v for n, v in head.items() if needed is None or n in needed})
    note = "" if task.target else f"the target is the column {target!r}; --target chooses another"
    return Dataset(batches=stream, where=where, note=note)


def _samples(where: str, task: Task, options: dict[str, Any]) -> Dataset:
    """Tar shards: the arrays of a sample are named by their endings, ``x.npy`` is ``x``."""

    def decode(sample: Mapping[str, bytes]) -> dict[str, Array]:
        pictures = [n for n in sample if n.rpartition(".")[2] in PICTURES]
        others = {n: content for n, content in sample.items() if n not in pictures}
        arrays = {_short(n): value for n, value in decode_sample(others).items()}
        for name in pictures:
            value = task.fed[0] if len(pictures) == 1 and len(task.fed) == 1 else None
            arrays[value.name if value else _short(name)] = _picture(sample[name], task)
        return arrays

    def inputs_of(block: dict[str, Array]) -> Mapping[str, Any]:
        return matched(Named(block, where), task)

    stream = Stream(where, map=inputs_of, decode=decode, **options)
    head = stream.first(LOOKED_AT)
    target = target_name(task, head, where)
    _find_classes(stream, task, target, head[target], where)
    inputs_of(head)
    return Dataset(batches=stream, where=where)


def _short(ending: str) -> str:
    """``x.npy`` → ``x``; what has one part only stays."""
    return ending.rpartition(".")[0] or ending


def _picture(content: bytes, task: Task) -> Array:
    """A picture in the size and layout of the model's input."""
    value = task.fed[0]
    channels_last, channels, height, width = task.images.layout(value)
    pixels = read_picture(content, "L" if channels == 1 else "RGB", (width, height))
    if not channels_last:
        pixels = pixels.transpose(2, 0, 1)
    if value.dtype == "uint8":
        return pixels
    numbers = pixels[None].astype(np.float32) / np.float32(255)
    image: Array = task.images.normalized(numbers, channels_last)[0]
    return image


def _find_classes(stream: Stream, task: Task, target: str, head: Array, where: str) -> None:
    """Text labels: all classes are looked for in the target column, before the training."""
    if not task.loss.takes_labels or head.dtype.kind not in "US" or task.classes:
        return
    classes: set[str] = set()
    for values in stream.scan(target):
        classes.update(map(str, np.unique(values)))
        if len(classes) > MOST_CLASSES:
            raise UserError(
                f"{where} has more than {MOST_CLASSES} different labels. Is the target the right "
                "column? Choose it with --target."
            )
    remember_classes(task, sorted(classes))
