"""Fit data to a model: which array goes where, in which type, and what does not fit.

Everything that can be wrong with data is said here, before anything is written.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..data import Stream
from ..summary import ValueSummary
from .arrays import is_number, reading
from .images import ImageSettings
from .output import UserError, count
from .recipes import IGNORED, LossRecipe
from .sources import Batches, Columns, Named, Ordered, Pictures, Source

if TYPE_CHECKING:
    from .categories import Categories
    from .language import LanguageTask
    from .new_head import HeadTask
    from .scaling import Scale
    from .similarity import SimilarityTask

Array = npt.NDArray[Any]
USUAL_TARGETS = ("labels", "label", "target", "targets", "y", "Y", "class", "classes", "cls")


@dataclass
class Task:
    """What the model takes and what the loss compares."""

    inputs: Sequence[ValueSummary]
    output: ValueSummary
    loss: LossRecipe
    target: str | None = None
    features: Sequence[str] = ()
    classes: list[str] = field(default_factory=list)
    """Names of the classes, once data with text labels were read."""
    ignore_index: int = IGNORED
    head: HeadTask | None = None
    """The model with a new classifier, where one was asked for."""
    language: LanguageTask | SimilarityTask | None = None
    """What reads text, where the data are text."""
    categories: Categories | None = None
    """Columns of a table that are categories, where there are any."""
    scale: Scale | None = None
    """Of the targets, where they were standardised."""
    images: ImageSettings = field(default_factory=ImageSettings)
    """How pictures become numbers."""

    @property
    def fed(self) -> list[ValueSummary]:
        """Inputs other than one that is the target already."""
        return [v for v in self.inputs if v.name != self.loss.target]


@dataclass
class Dataset:
    """Data that fit: arrays by name of the input, targets included; or batches."""

    arrays: dict[str, Array] = field(default_factory=dict)
    batches: Any = None
    where: str = ""
    files: Array | None = None
    """The file of each row, where a row is an image and the arrays do not hold it."""
    left_out: int = 0
    """Rows that were not taken, because none of their labels counts."""
    note: str = ""
    """What there is to say about them."""

    @property
    def rows(self) -> int | None:
        """How many are in memory; None for batches."""
        return len(next(iter(self.arrays.values()))) if self.arrays else None

    @property
    def total(self) -> int | None:
        """How many there are, in memory or not, if that is known."""
        return self.batches.rows if isinstance(self.batches, Stream) else self.rows

    def head(self, rows: int) -> dict[str, Array]:
        """The first rows as the model takes them; empty for batches of the user's own."""
        if not isinstance(self.batches, Stream):
            return self.part(slice(0, rows)).arrays
        return self.batches.head(rows)

    @property
    def digest(self) -> str:
        """Enough to notice other data."""
        return self.batches.digest() if isinstance(self.batches, Stream) else ""

    @property
    def data(self) -> Any:
        """What `Trainer.fit` takes."""
        return self.arrays if self.arrays else self.batches

    def part(self, rows: Any) -> Dataset:
        """Some of the rows."""
        files = None if self.files is None else self.files[rows]
        arrays = {k: v[rows] for k, v in self.arrays.items()}
        return Dataset(arrays, None, self.where, files, note=self.note)


def match(source: Source, task: Task) -> Dataset:
    """Arrays in the names, types and shapes of the model."""
    if isinstance(source, Batches):
        return Dataset(batches=source.source, where=source.where)
    arrays = matched(source, task)
    note = ""
    if task.categories is not None and isinstance(source, Columns):
        note = task.categories.unknown(source.columns)
    return _with_labels(Dataset(arrays, where=source.where, note=note), task)


def matched(source: Source, task: Task) -> dict[str, Array]:
    """The rows of a source by name of the input, targets included."""
    inputs, target = assign(source, task)
    arrays = {v.name: fit_input(v, inputs[v.name], source.where) for v in task.fed}
    arrays[task.loss.target] = _target(task, target, source.where)
    lengths = {name: len(a) if a.ndim else 0 for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{n!r} has {length}" for n, length in lengths.items())
        raise UserError(
            f"{source.where}: the arrays have different numbers of rows: {shown}. Every row needs "
            "its inputs and its target."
        )
    if not min(lengths.values()):
        raise UserError(f"{source.where} holds no rows. Training needs at least one.")
    return arrays


def _with_labels(data: Dataset, task: Task) -> Dataset:
    """Only the rows that have something to learn: a batch of none of them would have no loss."""
    if not task.loss.takes_labels:
        return data
    labels = data.arrays[task.loss.target]
    counts = (labels != task.ignore_index).reshape(len(labels), -1).any(axis=1)
    if counts.all():
        return data
    if not counts.any():
        raise UserError(
            f"{data.where}: every label is {task.ignore_index}, which does not count, so there is "
            "nothing to learn. Choose the targets with --target, or another --ignore-index."
        )
    chosen = data.part(counts)
    chosen.left_out = len(labels) - int(counts.sum())
    return chosen


def picture_labels(source: Pictures, task: Task) -> Dataset:
    """The labels of a folder of images, and its files, without the images."""
    remember_classes(task, source.classes, "Use the same folders.")
    labels = _labels(task, source.labels, f"{source.where}: the target")
    files = np.array(source.files, dtype=object)
    return Dataset({task.loss.target: labels}, where=source.where, files=files)


def count_classes(source: Source, task: Task) -> int | list[str]:
    """How many classes data have, or their names where they have some."""
    if isinstance(source, Batches):
        raise UserError(
            f"--new-head counts the classes, and {source.where} gives batches: give arrays, a "
            "table or a folder of images."
        )
    if isinstance(source, Pictures):
        rows = np.bincount(source.labels, minlength=len(source.classes))
        for name, number in zip(source.classes, rows):
            if not number:
                raise UserError(
                    f"The folder {name!r} in {source.where} holds no images: fill it or remove it."
                )
        return source.classes
    _, target = assign(source, task)
    if target.dtype.kind in "US":
        return [str(c) for c in np.unique(target)]
    if target.ndim == 2 and target.shape[1] > 1:
        return int(target.shape[1])
    if target.dtype.kind not in "iufb" or not np.isfinite(target).all():
        raise UserError(f"{source.where}: the target holds no numbers of classes and no text.")
    labels = target[target != task.ignore_index]
    return int(labels.max()) + 1 if labels.size else 0


# --- which array is what --------------------------------------------------------------------------


def assign(source: Source, task: Task) -> tuple[dict[str, Array], Array]:
    """The arrays of a source by name of the input, and the targets, as they are in the file."""
    if isinstance(source, Pictures):
        if task.loss.kind != "class":
            raise UserError(
                f"{source.where} is a folder of classes, and this loss takes numbers as targets: "
                "use --loss cross_entropy."
            )
        if len(task.fed) != 1:
            raise UserError(
                f"The model takes {_names(task.fed)}, and a folder of images gives one input."
            )
        remember_classes(
            task, source.classes, "Use a model with as many outputs, or fewer folders."
        )
        return {task.fed[0].name: load_pictures(source, task.fed[0], task.images)}, source.labels
    if isinstance(source, Ordered):
        names = [v.name for v in task.fed]
        if len(source.arrays) != len(names) + 1:
            raise UserError(
                f"{source.where} has {len(source.arrays)} arrays; the model needs "
                f"{len(names) + 1}: {', '.join(names)} and then the targets."
            )
        return dict(zip(names, source.arrays)), source.arrays[-1]
    if isinstance(source, Columns):
        return _from_columns(source, task)
    assert isinstance(source, Named)
    return _from_names(source, task)


def _from_names(source: Named, task: Task) -> tuple[dict[str, Array], Array]:
    arrays = source.arrays
    target = target_name(task, arrays, source.where)
    rest = [n for n in arrays if n != target]
    missing = [v.name for v in task.fed if v.name not in arrays]
    if missing and len(task.fed) == 1 and len(rest) == 1:  # x and y: no doubt what is meant
        return {task.fed[0].name: arrays[rest[0]]}, arrays[target]
    if missing:
        raise UserError(
            f"{source.where} has no array {missing[0]!r}, which the model takes as input. It holds "
            f"{', '.join(map(repr, arrays))}; the model's inputs are {_names(task.fed)}. Rename "
            "the arrays to the inputs."
        )
    return {v.name: arrays[v.name] for v in task.fed}, arrays[target]


def target_column(source: Columns, task: Task) -> str:
    """The column that is the target: the one named, one of the usual names, or the last."""
    return target_name(task, source.columns, source.where, last=True)


def _from_columns(source: Columns, task: Task) -> tuple[dict[str, Array], Array]:
    columns = source.columns
    target = target_column(source, task)
    rest = [n for n in columns if n != target]
    for name in task.features:
        if name not in columns:
            raise UserError(_no_column(name, columns, source.where, "--features"))
    chosen = list(task.features) or rest
    if len(task.fed) > 1 or (task.fed and task.fed[0].name in rest and not task.features):
        missing = [v.name for v in task.fed if v.name not in columns]
        if missing:
            raise UserError(
                f"{source.where} has no column {missing[0]!r}, which the model takes as input. "
                f"Its columns are {_shown(columns)}; name them as the inputs: {_names(task.fed)}."
            )
        return {v.name: as_input(columns[v.name], v) for v in task.fed}, columns[target]
    value = task.fed[0]
    if task.categories is not None:
        features = task.categories.encode(columns, chosen, source.where)
        _refuse_text(columns, [n for n in chosen if n not in task.categories.known], source.where)
        takes = math.prod(d for d in (value.shape or ())[1:] if isinstance(d, int))
        if features.shape[1] != takes and None not in (value.shape or (None,)):
            raise UserError(task.categories.explain(features.shape[1], takes))
        return {value.name: as_input(features, value)}, columns[target]
    _refuse_text(columns, chosen, source.where)
    features = np.stack([columns[n] for n in chosen], axis=1) if chosen else np.empty((0, 0))
    return {value.name: as_input(features, value)}, columns[target]


def _refuse_text(columns: dict[str, Array], chosen: Sequence[str], where: str) -> None:
    name = next((n for n in chosen if columns[n].dtype.kind in "US"), None)
    if name is None:
        return
    texts = [
        row
        for row, cell in enumerate(columns[name])
        if str(cell).strip() and not is_number(str(cell))
    ]
    cell = f"{str(columns[name][texts[0]])!r} in row {texts[0] + 1}" if texts else "no rows"
    slips = f"{len(texts)} of its {len(columns[name])} cells are not numbers: mend them. "
    mend = slips if 2 * len(texts) < len(columns[name]) else ""
    raise UserError(
        f"Column {name!r} of {where} holds text ({cell}), and the model takes numbers. {mend}If "
        f"it holds categories, say --categorical {name} (or auto); otherwise choose other columns "
        "with --features a,b,c."
    )


def _first(array: Array) -> str:
    return repr(str(array.reshape(-1)[0])) if array.size else "no rows"


def as_input(array: Array, value: ValueSummary) -> Array:
    """A column, or columns, in the rank of the input when only one reshape is possible."""
    shape = value.shape
    if shape is None or array.ndim == len(shape):
        return array
    known = [d for d in shape[1:] if isinstance(d, int)]
    if len(known) == len(shape) - 1 and math.prod(known) == math.prod(array.shape[1:]):
        return array.reshape(len(array), *known)
    return array


def target_name(task: Task, names: dict[str, Array], where: str, *, last: bool = False) -> str:
    """The array that holds the targets: the one named, one of the usual names, or what is left."""
    if task.target is not None:
        if task.target not in names:
            raise UserError(_no_column(task.target, names, where, "--target"))
        return task.target
    for name in (task.loss.target, *USUAL_TARGETS):
        if name in names and name not in [v.name for v in task.fed]:
            return name
    rest = [n for n in names if n not in [v.name for v in task.fed]]
    if rest and (last or len(rest) == 1):
        return rest[-1]
    raise UserError(
        f"{where} does not say which array holds the targets. It holds {_shown(names)}; name it "
        f"with --target, or call it {task.loss.target!r}."
    )


def _no_column(name: str, names: dict[str, Array], where: str, option: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(names), 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{option}: {where} has no column or array {name!r}.{hint} It has {_shown(names)}."


def _names(values: Sequence[ValueSummary]) -> str:
    return ", ".join(repr(v.name) for v in values)


def _shown(names: dict[str, Array]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
    return ", ".join(map(repr, listed[:12])) + more


# --- inputs ---------------------------------------------------------------------------------------


def fit_input(value: ValueSummary, array: Array, where: str) -> Array:
    """An array in the type and rank of an input; an error where it does not fit."""
    name = f"{where}: input {value.name!r}"
    if array.ndim == 1:
        array = as_input(array, value)
    if array.dtype.kind in "USO":
        raise UserError(
            f"{name} holds text or objects ({array.dtype}), and the model takes {value.dtype}. "
            "Convert it to numbers first."
        )
    array = convert(array, value.dtype, name)
    _check_finite(array, name)
    if value.shape is not None:
        check_shape(array, value.shape, name)
    return array


def convert(array: Array, dtype: str, name: str) -> Array:
    """An array in the model's type; an error when numbers would change."""
    try:
        expected = np.dtype(dtype)
    except TypeError:
        raise UserError(f"{name} is of type {dtype}, which data files cannot hold.") from None
    if array.dtype == expected:
        return np.ascontiguousarray(array)
    if expected.kind in "iub" and array.dtype.kind == "f":
        rounded = array.astype(expected)
        if not np.array_equal(rounded, array):
            raise UserError(
                f"{name} holds {array.dtype} with fractions or NaN, and the model takes {dtype}. "
                "Round or encode the values first."
            )
        return rounded
    if expected.kind == "u" and array.size and array.min() < 0:
        raise UserError(f"{name} holds negative numbers, and the model takes {dtype}.")
    return np.ascontiguousarray(array.astype(expected))


def _check_finite(array: Array, name: str) -> None:
    if array.dtype.kind != "f" or not array.size:
        return
    bad = ~np.isfinite(array)
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1)) if array.ndim else [0]
        raise UserError(
            f"{name} holds NaN or infinite values in {count(len(rows), 'row')}, the first is row "
            f"{rows[0]}. Remove these rows or fill the values in."
        )


def check_shape(array: Array, shape: Sequence[int | str | None], name: str) -> None:
    """Compare with the shape that the model declares, except for the batch."""
    from .inspect import shown

    if array.ndim != len(shape):
        raise UserError(
            f"{name} has {count(array.ndim, 'dimension')}, {array.shape}, and the model takes "
            f"{len(shape)}: {shown(tuple(shape))}. Reshape the data, for example with "
            "array.reshape(len(array), ...)."
        )
    for axis, (have, want) in enumerate(zip(array.shape[1:], shape[1:]), 1):
        if isinstance(want, int) and have != want:
            raise UserError(
                f"{name} has size {have} on axis {axis}, and the model takes {want}: the data are "
                f"{shown(array.shape)}, the model takes {shown(tuple(shape))}."
            )


# --- targets --------------------------------------------------------------------------------------


def _target(task: Task, array: Array, where: str) -> Array:
    name = f"{where}: the target"
    if task.loss.takes_labels:
        return _labels(task, array, name)
    if array.dtype.kind in "USO":
        raise UserError(
            f"{name} holds text ({_first(array)}), and this loss compares numbers. For "
            "classes use --loss cross_entropy; otherwise choose another column with --target."
        )
    array = _like_output(array, task.output, name)
    array = convert(array, task.output.dtype, name)
    _check_finite(array, name)
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 1.0)
    if task.loss.kind == "binary" and (low < 0 or high > 1):
        raise UserError(
            f"{name} lies between {low:g} and {high:g}; binary cross entropy takes 0 to 1. Scale "
            "it, or use another --loss."
        )
    if task.loss.kind == "sign" and not np.isin(array, (-1, 1)).all():
        raise UserError(f"{name} must be -1 or 1 for the hinge loss; recode it (0 becomes -1).")
    return array


def _like_output(array: Array, output: ValueSummary, name: str) -> Array:
    """Targets in the shape of the output: (N,) becomes (N, 1) where the model gives that."""
    shape = output.shape
    if shape is None:
        return array
    if array.ndim == 1:
        array = as_input(array, output)
    if len(shape) == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    check_shape(array, shape, f"{name} (it is compared with the output {output.name!r})")
    return array


def _labels(task: Task, array: Array, name: str) -> Array:
    if array.dtype.kind == "O":
        raise UserError(f"{name} holds Python objects; store class numbers as integers.")
    if array.dtype.kind in "US":
        array = _encode(task, array, name)
    elif array.dtype.kind == "f" and not (np.isfinite(array) & (array == np.round(array))).all():
        shown = next(v for v in array.reshape(-1) if not float(v).is_integer())
        raise UserError(
            f"{name} holds {shown:g}, and this loss takes class numbers: 0, 1, 2 … For "
            "numbers as targets use --loss mse; otherwise choose another column with --target."
        )
    array = array.astype(np.int64)
    shape = task.output.shape
    if shape is not None and len(shape) > 1:
        axis = len(shape) - 1 if task.loss.kind == "token" else 1
        classes = shape[axis]
        if array.ndim == 2 and array.shape[1] == 1 and len(shape) == 2:
            array = array[:, 0]
        if array.ndim == 2 and len(shape) == 2 and array.shape[1] == classes:
            array = _from_one_hot(array, name)
        check_shape(array, (*shape[:axis], *shape[axis + 1 :]), name)
        _check_range(array, classes if isinstance(classes, int) else None, name, task.ignore_index)
    else:
        _check_range(array, None, name, task.ignore_index)
    return np.ascontiguousarray(array)


def _from_one_hot(array: Array, name: str) -> Array:
    if not (np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all()):
        raise UserError(f"{name} has one column per class, and its rows are not one-hot.")
    return np.asarray(array.argmax(axis=1))


def _check_range(array: Array, classes: int | None, name: str, ignored: int) -> None:
    labels = array[array != ignored]
    if not labels.size:
        return
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and (classes is None or high < classes):
        return
    is_wrong = (array < 0) if classes is None else (array < 0) | (array >= classes)
    is_wrong &= array != ignored
    rows = np.flatnonzero(is_wrong.reshape(len(array), -1).any(axis=1))
    value = int(array[is_wrong][0])
    allowed = (
        "class numbers start at 0"
        if classes is None
        else f"the model has {classes} classes, 0 to {classes - 1}"
    )
    from_one = low == 1 and high == classes
    fix = (
        "They seem to count from 1: subtract 1."
        if from_one
        else f"Correct them, or use a model with {high + 1} outputs."
        if low >= 0
        else f"If {value} means that a label does not count, say --ignore-index {value}; otherwise "
        "correct these rows or remove them."
    )
    raise UserError(
        f"{name} has labels from {low} to {high}, and {allowed}; {count(len(rows), 'row')} out of "
        f"range, the first is row {rows[0]} with {value}. {fix}"
    )


def _encode(task: Task, array: Array, name: str) -> Array:
    """Text labels as numbers: the classes in alphabetical order, those of the training data."""
    if not task.classes:
        remember_classes(task, [str(c) for c in np.unique(array)])
    unknown = sorted(set(map(str, np.unique(array))) - set(task.classes))
    if unknown:
        raise UserError(
            f"{name} has the class {unknown[0]!r}, which the training data do not have: they have "
            f"{', '.join(task.classes[:10])}."
        )
    number = {c: i for i, c in enumerate(task.classes)}
    codes = np.array([number[str(v)] for v in array.reshape(-1)], np.int64)
    return codes.reshape(array.shape)


def remember_classes(task: Task, classes: list[str], fix: str = "") -> None:
    """Keep the names of the classes; other ones than before, or too many, are an error."""
    if task.classes and task.classes != classes:
        raise UserError(
            f"The classes differ between training and validation data: {', '.join(task.classes)} "
            f"and {', '.join(classes)}. Both need the same folders."
        )
    shape = task.output.shape
    known = shape[1] if shape is not None and len(shape) > 1 else None
    if isinstance(known, int) and len(classes) > known:
        raise UserError(
            f"The data have {len(classes)} classes ({', '.join(classes[:6])} …), and the model has "
            f"{known}. {fix or 'Is the target the right column? Choose it with --target.'}"
        )
    task.classes = classes


# --- pictures -------------------------------------------------------------------------------------


def load_pictures(
    source: Pictures, value: ValueSummary, images: ImageSettings | None = None
) -> Array:
    """Pictures in the size and layout of an input, normalised unless it takes uint8."""
    images = images or ImageSettings()
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            f'The folder of images {source.where!r} needs Pillow: pip install "onnxtrain[images]".'
        ) from None
    channels_last, channels, height, width = images.layout(value)
    mode = "L" if channels == 1 else "RGB"
    pictures = [_picture(Image, f, mode, (width, height)) for f in source.files]
    pixels = np.stack(pictures).reshape(len(pictures), height, width, channels)
    if not channels_last:
        pixels = pixels.transpose(0, 3, 1, 2)
    if value.dtype == "uint8":
        return pixels
    return images.normalized(pixels.astype(np.float32) / np.float32(255), channels_last)


THUMBNAIL = (96, 96)


def thumbnail(file: Path) -> Array:
    """An image in the size in which reports show it."""
    from PIL import Image

    return _picture(Image, file, "RGB", THUMBNAIL)


def _picture(module: Any, file: Path, mode: str, extent: tuple[int, int]) -> Array:
    with (
        reading(file, "an image", "Remove it or replace it.") as stream,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", module.DecompressionBombWarning)
        with module.open(stream) as image:
            return np.asarray(image.convert(mode).resize(extent))
