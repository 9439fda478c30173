"""How a model takes images: what it does to their numbers before the first layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..errors import model_errors
from ..graph import ModelLike, load
from ..graph.nodes import known, permutation
from ..graph.tensor import dims_of
from ..normalize.constants import lift_constants

Array = npt.NDArray[Any]
CHANNELS = (1, 3)
NARROW, WIDE = 0.5, 600.0
"""How far apart the numbers of black and white may be when the first layer gets them."""


@dataclass(frozen=True)
class Normalization:
    """What a model does to its images by itself: ``scale · x + shift`` for each channel.

    Attributes:
        scale: one number, or one per channel.
        shift: likewise.
        white: what the number of a white pixel is, 1 or 255, that fits; None if neither does.
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    @property
    def white(self) -> int | None:
        """The first of 1 and 255 with which black and white end up on both sides of 0, or near."""
        scale, shift = float(np.mean(self.scale)), float(np.mean(self.shift))
        for white in (1, 255):
            ends = (shift, scale * white + shift)
            low, high = min(ends), max(ends)
            margin = 0.05 * (high - low)
            if NARROW <= high - low <= WIDE and low <= margin and high >= -margin:
                return white
        return None


@model_errors("Reading how the model takes images")
def normalization(model: ModelLike) -> Normalization | None:
    """The arithmetic between a model's image input and its first layer; None without any.

    Args:
        model: with one input of images, N×C×H×W or N×H×W×C.
    """
    graph = lift_constants(load(model)).graph
    images = [v for v in graph.inputs if not v.is_initializer() and len(dims_of(v) or ()) == 4]
    if len(images) != 1:
        return None
    front = _Front(images[0])
    while front.take():
        pass
    return front.result


class _Front:
    """Follows an input through arithmetic with constants."""

    def __init__(self, value: ir.Value) -> None:
        self.value = value
        dims = dims_of(value) or ()
        self.axis = 3 if dims[3] in CHANNELS and dims[1] not in CHANNELS else 1
        self.scale: Array = np.ones(1)
        self.shift: Array = np.zeros(1)
        self.is_arithmetic = False

    @property
    def result(self) -> Normalization | None:
        """What was found."""
        if not self.is_arithmetic:
            return None
        return Normalization(tuple(self.scale.tolist()), tuple(self.shift.tolist()))

    def take(self) -> bool:
        """Go through the next node; False if it is no arithmetic of this kind."""
        readers = tuple(self.value.uses())
        if len(readers) != 1:
            return False
        node, place = readers[0]
        if node.domain not in {"", "ai.onnx"}:
            return False
        if node.op_type == "Transpose":
            order = permutation(node)
            if order is None or sorted(order) != [0, 1, 2, 3]:
                return False
            self.axis = order.index(self.axis)
        elif node.op_type == "BatchNormalization" and place == 0:
            if not self._batch_norm(node):
                return False
        elif node.op_type in {"Add", "Div", "Mul", "Sub"}:
            if not self._combine(node, place):
                return False
        elif node.op_type not in {"Cast", "Identity"}:
            return False
        self.value = node.outputs[0]
        return True

    def _combine(self, node: ir.Node, place: int) -> bool:
        number = self._per_channel(node.inputs[1 - place])
        if number is None or (place == 1 and node.op_type in {"Div", "Sub"}):
            return False
        if node.op_type in {"Div", "Mul"}:
            if node.op_type == "Div" and not number.all():
                return False
            factor = number if node.op_type == "Mul" else 1 / number
            self.scale, self.shift = self.scale * factor, self.shift * factor
        else:
            self.scale = np.broadcast_to(self.scale, np.broadcast(self.scale, number).shape)
            self.shift = self.shift + (number if node.op_type == "Add" else -number)
        self.is_arithmetic = True
        return True

    def _batch_norm(self, node: ir.Node) -> bool:
        """With the statistics that it has: scale · (x − mean) / √(variance + ε) + bias."""
        mode = node.attributes.get("training_mode")
        tensors = [known(v) for v in node.inputs[1:5]]
        if self.axis != 1 or len(tensors) < 4 or (mode is not None and mode.as_int()):
            return False
        if any(t is None or t.size not in CHANNELS for t in tensors):
            return False
        scale, bias, mean, variance = (t.numpy().astype(float) for t in tensors if t is not None)
        epsilon = node.attributes.get("epsilon")
        spread = np.sqrt(variance + (1e-5 if epsilon is None else epsilon.as_float()))
        if not (np.isfinite(spread).all() and spread.all()):
            return False
        self.scale = self.scale * scale / spread
        self.shift = (self.shift - mean) * scale / spread + bias
        self.is_arithmetic = True
        return True

    def _per_channel(self, value: ir.Value | None) -> Array | None:
        """The numbers of a constant: one for all, or one for each channel; None for others."""
        tensor = known(value)
        if tensor is None or tensor.size not in CHANNELS:
            return None
        numbers = tensor.numpy().astype(float)
        if tensor.size > 1:
            shape = (1,) * (4 - numbers.ndim) + numbers.shape
            if len(shape) != 4 or shape[self.axis] != tensor.size:
                return None
        flat = numbers.reshape(-1)
        return flat if np.isfinite(flat).all() else None
