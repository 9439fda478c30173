"""What a model takes and gives, described by the user: as objects, or as a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....errors import ModelError


class DescriptionError(ModelError):
    """A model description that is not well formed or does not fit the model."""


class IODescription:
    """Name, shape and type of an input or output.

    Args:
        name: under which it is fed or fetched.
        shape: numbers, or names for dimensions that may change.
        dtype: a torch type; for `generate_sample` only.
        num_classes: integers of a sample stay below it.

    Example:
        >>> IODescription("src", ["batch", 35], torch.int64, num_classes=100)
        IODescription('src', ['batch', 35], torch.int64)
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: torch.dtype | None = None,
        num_classes: int | None = None,
    ) -> None:
        self.name_ = name
        self.shape_ = shape
        self.dtype_ = dtype
        self.num_classes_ = num_classes

    def __repr__(self) -> str:
        return f"IODescription({self.name_!r}, {self.shape_!r}, {self.dtype_})"


class ModelDescription:
    """Inputs (the label last) and outputs (the loss first) of a model."""

    def __init__(self, inputs: Sequence[IODescription], outputs: Sequence[IODescription]) -> None:
        self.inputs_ = list(inputs)
        self.outputs_ = list(outputs)

    def __repr__(self) -> str:
        return f"ModelDescription({self.inputs_!r}, {self.outputs_!r})"


def generate_sample(desc: IODescription, device: Any = None) -> torch.Tensor:
    """A random tensor that fits a description; a named dimension has size 1."""
    size = [1 if isinstance(s, str) or s is None else int(s) for s in desc.shape_]
    dtype = desc.dtype_ or torch.float32
    if desc.num_classes_:
        return torch.randint(0, desc.num_classes_, size, dtype=dtype, device=device)
    if dtype.is_floating_point:
        return torch.randn(size, dtype=dtype, device=device)
    return torch.ones(size, dtype=dtype, device=device)


@dataclass(frozen=True)
class Described:
    """An input or output as both generations see it."""

    name: str
    shape: tuple[Any, ...]

    def symbols(self, rank: int) -> dict[int, str]:
        """Named dimensions of a tensor with `rank` dimensions."""
        return {i: d for i, d in enumerate(self.shape[:rank]) if isinstance(d, str)}


def from_objects(items: Sequence[IODescription]) -> list[Described]:
    """Descriptions of the older generation."""
    return [Described(i.name_, tuple(i.shape_)) for i in items]


# --- dictionaries ---------------------------------------------------------------------------------


def from_dict(desc: Any) -> tuple[list[Described], list[Described], str | None]:
    """Check a dictionary; gives inputs, outputs and the name of the loss.

    The form is ``{"inputs": [(name, [dims])…], "outputs": [(name, [dims][, is_loss])…]}``.
    """
    if not isinstance(desc, Mapping):
        raise DescriptionError(
            f"Invalid model_desc: it must be a dictionary, not {type(desc).__name__}."
        )
    errors: dict[str, Any] = {}
    for key in ("inputs", "outputs"):
        if key not in desc:
            errors[key] = ["required field"]
        elif not isinstance(desc[key], (list, tuple)) or not desc[key]:
            errors[key] = ["must be of list type"] if desc[key] else ["min length is 1"]
        else:
            wrong = _wrong_entries(desc[key], outputs=key == "outputs")
            if wrong:
                errors[key] = [wrong]
    for key in desc:
        if key not in ("inputs", "outputs"):
            errors[key] = ["unknown field"]
    if errors:
        raise DescriptionError(f"Invalid model_desc: {errors}")
    inputs = [Described(e[0], tuple(e[1])) for e in desc["inputs"]]
    outputs = [Described(e[0], tuple(e[1])) for e in desc["outputs"]]
    losses = [e[0] for e in desc["outputs"] if len(e) > 2 and e[2]]
    return inputs, outputs, losses[0] if losses else None


def _wrong_entries(entries: Sequence[Any], *, outputs: bool) -> dict[int, list[str]]:
    errors: dict[int, list[str]] = {}
    losses = 0
    for i, entry in enumerate(entries):
        message = _wrong_entry(entry, outputs)
        if message is None and len(entry) > 2 and entry[2]:
            losses += 1
            if losses > 1:
                # spelled as the predecessor did: scripts compare the text
                message = "only one is_loss can bet set to True"
        if message is not None:
            errors[i] = [message]
    return errors


def _wrong_entry(entry: Any, outputs: bool) -> str | None:
    sizes = (2, 3) if outputs else (2,)
    if not isinstance(entry, (tuple, list)) or len(entry) not in sizes:
        form = "(name, shape[, is_loss])" if outputs else "(name, shape)"
        return f"each description must be a tuple {form}"
    if not isinstance(entry[0], str):
        return "the first element of the tuple (aka name) must be a string"
    if not isinstance(entry[1], (list, tuple)):
        return "the second element of the tuple (aka shape) must be a list"
    if not all(isinstance(d, (int, str)) and not isinstance(d, bool) for d in entry[1]):
        return "each shape must be either a string or integer"
    if len(entry) > 2 and not isinstance(entry[2], bool):
        return "the third element of the tuple (aka is_loss) must be a boolean"
    return None
