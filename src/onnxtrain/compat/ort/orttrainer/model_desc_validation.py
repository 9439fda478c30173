"""The description of a trainer's model, checked, and completed with types when they are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ....errors import InputError
from .descriptions import Described, from_dict

LEARNING_RATE_IO_DESCRIPTION_NAME = "__learning_rate"
ALL_FINITE_IO_DESCRIPTION_NAME = "__all_finite"
LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME = "__loss_scale_input_name"
GRADIENT_ACCUMULATION_IO_DESCRIPTION_NAME = "__gradient_accumulation_name"


class InputDescription(NamedTuple):
    """An input as the user describes it."""

    name: str
    shape: list[int | str]


class InputDescriptionTyped(NamedTuple):
    """An input whose type is known."""

    name: str
    shape: list[int | str]
    dtype: torch.dtype


class OutputDescription(NamedTuple):
    """An output as the user describes it."""

    name: str
    shape: list[int | str]
    is_loss: bool


class OutputDescriptionTyped(NamedTuple):
    """An output whose type is known; `dtype_amp` where mixed precision gives another."""

    name: str
    shape: list[int | str]
    is_loss: bool
    dtype: torch.dtype
    dtype_amp: torch.dtype | None = None


class TrainerDescription:
    """Inputs and outputs of a model, and of what the trainer adds to them.

    Args:
        model_desc: ``{"inputs": [(name, [dims])…], "outputs": [(name, [dims][, is_loss])…]}``.

    Example:
        >>> desc = TrainerDescription(
        ...     {"inputs": [("x", ["batch", 2])], "outputs": [("y", [], True)]})
        >>> desc.inputs[0].shape, desc.outputs[0].is_loss
        (['batch', 2], True)
    """

    _InputDescription = InputDescription
    _InputDescriptionTyped = InputDescriptionTyped
    _OutputDescription = OutputDescription
    _OutputDescriptionTyped = OutputDescriptionTyped

    def __init__(self, model_desc: Mapping[str, Any]) -> None:
        described_inputs, described_outputs, self.loss = from_dict(model_desc)
        self.described: tuple[list[Described], list[Described]] = (
            described_inputs,
            described_outputs,
        )
        self.inputs: list[InputDescription | InputDescriptionTyped] = [
            InputDescription(d.name, list(d.shape)) for d in described_inputs
        ]
        self.outputs: list[OutputDescription | OutputDescriptionTyped] = [
            OutputDescription(d.name, list(d.shape), d.name == self.loss) for d in described_outputs
        ]
        self.learning_rate = InputDescriptionTyped(
            LEARNING_RATE_IO_DESCRIPTION_NAME, [1], torch.float32
        )
        self._all_finite: OutputDescriptionTyped | None = None
        self._gradient_accumulation: OutputDescriptionTyped | None = None
        self._loss_scale_input: InputDescriptionTyped | None = None

    def add_type_to_input_description(self, index: int, dtype: torch.dtype) -> None:
        """Say what type the input with this number has."""
        name, shape = self.inputs[index][:2]
        self.inputs[index] = InputDescriptionTyped(name, shape, _checked(dtype))

    def add_type_to_output_description(
        self, index: int, dtype: torch.dtype, dtype_amp: torch.dtype | None = None
    ) -> None:
        """Say what type the output with this number has."""
        name, shape, is_loss = self.outputs[index][:3]
        self.outputs[index] = OutputDescriptionTyped(
            name,
            shape,
            is_loss,
            _checked(dtype),
            None if dtype_amp is None else _checked(dtype_amp),
        )

    @property
    def all_finite(self) -> OutputDescriptionTyped | None:
        """Whether the gradients of a step were finite; None without mixed precision."""
        return self._all_finite

    @all_finite.setter
    def all_finite(self, name: str) -> None:
        self._all_finite = OutputDescriptionTyped(name, [1], False, torch.bool)

    @property
    def gradient_accumulation(self) -> OutputDescriptionTyped | None:
        """Whether gradients were accumulated; None where every batch is an update."""
        return self._gradient_accumulation

    @gradient_accumulation.setter
    def gradient_accumulation(self, name: str) -> None:
        self._gradient_accumulation = OutputDescriptionTyped(name, [1], False, torch.bool)

    @property
    def loss_scale_input(self) -> InputDescriptionTyped | None:
        """The loss scale; None without mixed precision."""
        return self._loss_scale_input

    @loss_scale_input.setter
    def loss_scale_input(self, name: str) -> None:
        self._loss_scale_input = InputDescriptionTyped(name, [], torch.float32)

    def __repr__(self) -> str:
        rows = ["Model description", *(f"  input   {i}" for i in self.inputs)]
        rows += [f"  output  {o}" for o in self.outputs]
        rows += [f"  learning rate  {self.learning_rate}"]
        added = (self.loss_scale_input, self.all_finite, self.gradient_accumulation)
        return "\n".join([*rows, *(f"  added   {a}" for a in added if a is not None)])


def _checked(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"A type in a model description is a torch.dtype, not {dtype!r}.")
    return dtype


_ORTTrainerModelDesc = TrainerDescription
