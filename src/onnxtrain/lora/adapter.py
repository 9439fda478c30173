"""An adapter by itself: small matrices for the layers of a base model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import AdapterError, model_errors
from ..graph import ModelLike, load
from ..runtime.state.checkpoint_state import CheckpointState
from .add import Values, adapter_shapes
from .config import Config, Description, description_of
from .layers import Layer
from .values import Array

Parameters = CheckpointState | str | os.PathLike[str] | Mapping[str, Any] | None
"""Where trained values are: a checkpoint, its file, or arrays by name."""


@dataclass(frozen=True)
class LayerAdapter:
    """The adapter of one layer: its weight W becomes W + scale · A·B.

    Attributes:
        a: [inputs, rank]; for a convolution [rank, inputs, *kernel].
        b: [rank, outputs]; for a convolution [outputs, rank, 1, …].
        magnitude: with DoRA, the norm that the weights of each output are given.
    """

    a: Array
    b: Array
    magnitude: Array | None = None

    def delta(self, scale: float) -> Array:
        """What is added to the weight, [inputs, outputs] or [outputs, inputs, *kernel]."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        if a.ndim == 2:
            return scale * (a @ b)
        return scale * np.tensordot(b.reshape(b.shape[:2]), a, 1)

    def adapted(self, weight: Array, scale: float) -> Array:
        """The weight that it makes of a layer's."""
        total = weight.astype(np.float64) + self.delta(scale)
        if self.magnitude is not None:
            total *= self.magnitude.astype(np.float64) / np.linalg.norm(total, axis=0)
        return total.astype(weight.dtype)


@dataclass(frozen=True)
class Adapter:
    """What training an adapted model gives; independent of any file format.

    Attributes:
        config: rank, alpha and the like.
        layers: the matrices, by name of layer.
        base: fingerprint of the weights it was trained on, or how it begins; "" where that is not
            known.
        saved: parameters of the model itself that were trained in full, by name.
    """

    config: Config
    layers: Mapping[str, LayerAdapter] = field(repr=False)
    base: str = ""
    saved: Mapping[str, Array] = field(default_factory=dict, repr=False)

    @classmethod
    @model_errors("Reading the adapter")
    def of(cls, model: ModelLike, parameters: Parameters = None) -> Adapter:
        """The adapter of an adapted model.

        Args:
            model: what `onnxtrain.lora.add` gave.
            parameters: trained values: a `CheckpointState`, the path of a checkpoint, or arrays by
                name; without any, those in the model.
        """
        loaded = load(model)
        description = description_of(loaded.metadata_props)
        if description is None:
            raise AdapterError(
                "The model has no adapters: it is a base model, or they are merged into it. Give "
                "the one that onnxtrain.lora.add made."
            )
        return _read(loaded, description, parameters)

    def values(self) -> Values:
        """How `add_adapters` gets the values of each layer."""

        def of_layer(layer: Layer) -> tuple[Array, Array, Array | None]:
            one, dtype = self.layers[layer.name], layer.dtype.numpy()
            self._check(layer)
            magnitude = None if one.magnitude is None else one.magnitude.astype(dtype)
            return one.a.astype(dtype), one.b.astype(dtype), magnitude

        return of_layer

    def matched(self, layers: Sequence[Layer]) -> list[Layer]:
        """Those of a base model's layers that it adapts.

        Raises:
            AdapterError: it was made for another base.
        """
        known = {layer.name: layer for layer in layers}
        missing = [name for name in self.layers if name not in known]
        if missing:
            raise AdapterError(
                f"The adapter was made for another base: the model has no layer {missing[0]!r}"
                f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}. It has "
                f"{', '.join(list(known)[:6])} …"
            )
        for name in self.layers:
            self._check(known[name])
        return [known[name] for name in self.layers]

    def check_base(self, fingerprint: str) -> None:
        """Raise unless the weights are those that it was trained on."""
        if not fingerprint.startswith(self.base):
            raise AdapterError(
                "The adapter was made for another base: names and shapes of the layers fit, the "
                "numbers in them differ. Give the model that it was trained on, not one that an "
                "adapter is merged into already."
            )

    def _check(self, layer: Layer) -> None:
        one = self.layers[layer.name]
        shapes = (one.a.shape, one.b.shape)
        if shapes != adapter_shapes(layer, self.config.rank):
            raise AdapterError(
                f"The adapter was made for another base: for {layer} it has matrices of shapes "
                f"{shapes[0]} and {shapes[1]}, rank {self.config.rank}."
            )


def _read(model: ir.Model, description: Description, parameters: Parameters) -> Adapter:
    if isinstance(parameters, (str, os.PathLike)):
        parameters = CheckpointState.load_checkpoint(parameters)
    values = {name: _value(model, parameters, name) for name in description.parameters}
    layers = {
        place.layer: LayerAdapter(*(values[name] for name in place.parameters))
        for place in description.places
    }
    saved = {name: values[name] for name in description.saved}
    return Adapter(description.config, layers, description.base, saved)


def _value(model: ir.Model, parameters: Parameters, name: str) -> Array:
    if isinstance(parameters, CheckpointState):
        if name in parameters.parameters:
            return np.array(parameters.parameters[name].data)
    elif isinstance(parameters, Mapping):
        if name in parameters:
            return np.array(parameters[name])
    elif parameters is None:
        value = model.graph.initializers.get(name)
        if value is not None and value.const_value is not None:
            return value.const_value.numpy()
    raise AdapterError(
        f"There is no value for the adapter's parameter {name!r}: the checkpoint belongs to "
        "another model, or to one without this adapter."
    )
