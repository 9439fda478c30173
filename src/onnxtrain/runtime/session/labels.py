"""Check class labels where they enter: an index that wraps around would train wrongly in silence.

The usual case costs a quarter of a microsecond for a small batch: seen without their sign, negative
labels are large numbers, so one maximum tells whether all labels are classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import LabelError

Array = npt.NDArray[Any]
UNSIGNED = {
    np.dtype(f"{sign}{size}"): np.dtype(f"u{size}") for sign in "iu" for size in (1, 2, 4, 8)
}


@dataclass(frozen=True)
class ClassLabels:
    """What a model expects of an input that holds class labels.

    Attributes:
        input: name of the input.
        classes: number of classes; None when it is not known before a run. Then negative labels
            are refused here, and those that are too large by onnxruntime.
        ignore_index: the label that is allowed besides; its elements do not count.
        skip: how many labels at the beginning of each row are not compared with anything: the
            first token of a text is predicted from nothing.
    """

    input: str
    classes: int | None
    ignore_index: int | None
    skip: int = 0

    def unsigned(self, labels: Array) -> Array:
        """A view of labels in which those below 0 are above all others."""
        return labels.view(UNSIGNED.get(labels.dtype, labels.dtype))

    def last(self, dtype: np.dtype[Any]) -> int:
        """The largest label, as a number without sign."""
        return int(np.iinfo(dtype).max) if self.classes is None else self.classes - 1

    def check(self, labels: Array) -> None:
        """Raise an error that names the first label that is no class and not ignored."""
        if labels.size and labels.dtype in UNSIGNED:
            unsigned = self.unsigned(labels)
            if unsigned.item(unsigned.argmax()) > self.last(labels.dtype):
                self.look_closer(labels)

    def look_closer(self, labels: Array) -> None:
        """The same for labels not all of which are classes: some may be ignored."""
        is_wrong = self.unsigned(labels) > self.last(labels.dtype)
        if self.ignore_index is not None:
            is_wrong &= labels != self.ignore_index
        count = int(np.count_nonzero(is_wrong))
        if count:
            position = np.unravel_index(int(is_wrong.argmax()), labels.shape)
            raise LabelError(self._text(labels, [int(i) for i in position], count))

    def _text(self, labels: Array, position: Sequence[int], count: int) -> str:
        value = labels[tuple(position)].item()
        row = f"row {position[0]}" if position else "it"
        where = f" (at {list(position)})" if position and labels.size > len(labels) else ""
        most = "numbers from 0 on" if self.classes is None else f"classes 0 to {self.classes - 1}"
        besides = "" if self.ignore_index is None else f", or {self.ignore_index} to be left out"
        rest = f"; {count} of {labels.size} labels are wrong" if count > 1 else ""
        if labels.dtype.kind == "i" and value == np.iinfo(labels.dtype).min:
            remedy = "Such a number comes from NaN: look for missing values."
        elif value < 0:
            remedy = (
                f"If {value} means that a row does not count, leave such rows out, or name it "
                f"where the loss is made: ignore_index={value} (--ignore-index {value})."
            )
        else:
            remedy = "Correct the labels, or use a model with more classes."
        return (
            f"Input {self.input!r} has the label {value} in {row}{where}, and labels are {most}"
            f"{besides}{rest}. {remedy}"
        )

    def per_row(self, labels: Array) -> int:
        """How many labels of a row are compared, those that are ignored included."""
        sizes = list(labels.shape[1:])
        if self.skip and sizes:
            sizes[0] = max(0, sizes[0] - self.skip)
        return math.prod(sizes)

    def counted(self, labels: Array) -> int:
        """How many labels are compared, those that are ignored left out."""
        if self.skip and labels.ndim > 1:
            labels = labels[:, self.skip :]
        if self.ignore_index is None:
            return int(labels.size)
        return int(np.count_nonzero(labels != self.ignore_index))
