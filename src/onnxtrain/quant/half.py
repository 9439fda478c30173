"""Frozen weights in half precision: two bytes each, floats only while a product reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..errors import QuantizationError, model_errors
from ..graph import ModelLike, OpBuilder, load
from ..graph.io import deliver
from ..lora.layers import Layer
from ..normalize.constants import lift_constants
from .blocks import Quantized, linear_layers

TYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


@model_errors("Storing weights in half precision")
def half_weights(
    model: ModelLike,
    dtype: str = "float16",
    *,
    targets: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
) -> Quantized:
    """Store the weights of linear layers as float16 or bfloat16; the arithmetic stays float32.

    For weights that are not trained: the base of adapters, or layers that are frozen. Each is cast
    to float32 where it is read. onnxruntime's CPU kernels compute in float32, so this saves memory
    and disk, and no time: large weights are floats only while a product reads them, as those of
    `quantize` are. Tables that rows are looked up in are stored so too, and only the rows are cast.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        dtype: "float16", which has more digits, or "bfloat16", which has the range of float32.
        targets: the layers, as `onnxtrain.lora.add` takes them; by default all linear ones.
        exclude: layers that stay as they are, in the same form.
        output: also write the model to this path.

    Raises:
        QuantizationError: there is no such type, nothing to store, or a weight that float16 has no
            room for.
    """
    if dtype not in TYPES:
        raise QuantizationError(f"dtype is 'float16' or 'bfloat16', not {dtype!r}.")
    base = lift_constants(load(model))
    layers = [
        layer for layer in linear_layers(base, targets, exclude) if layer.dtype == ir.DataType.FLOAT
    ]
    if not layers:
        raise QuantizationError(
            "There is nothing to store in half precision: no MatMul or Gemm with a stored weight "
            "of float32 is meant. onnxtrain.lora.layers(model) lists the layers."
        )
    writer = _Writer(base, TYPES[dtype])
    weights = {layer.weight: layer for layer in layers}
    before = sum(_bytes(value) for value in weights)
    for layer in weights.values():
        writer.store(layer)
    names = [layer.name for layer in layers]
    return Quantized(deliver(base, output), names, before, before // 2)


def _bytes(value: ir.Value) -> int:
    assert value.const_value is not None
    return value.const_value.nbytes


class _Writer:
    """Replaces weights of a model."""

    def __init__(self, model: ir.Model, dtype: ir.DataType) -> None:
        self.graph, self.dtype = model.graph, dtype
        self.op = OpBuilder.on(model)

    def store(self, layer: Layer) -> None:
        """A layer's weight in half precision, for all who read it."""
        value = layer.weight
        assert value.const_value is not None
        array = value.const_value.numpy()
        with np.errstate(over="ignore"):
            half = array.astype(self.dtype.numpy())
        if not np.isfinite(half.astype(np.float32)).all():
            raise QuantizationError(
                f"{value.name!r} has numbers that float16 has no room for (above 65504). Use "
                "dtype='bfloat16', or exclude the layer."
            )
        readers = list(value.uses())
        value.const_value = ir.Tensor(half, dtype=self.dtype, name=value.name)
        value.type = ir.TensorType(self.dtype)
        for node, index in readers:
            if node.op_type == "Gather" and index == 0 and not node.domain:
                self._cast_rows(node)
            else:
                floats = self._cast(value)
                self.op.place(self.graph, before=node)
                node.replace_input_with(index, floats)

    def _cast(self, value: ir.Value) -> ir.Value:
        self.op.scope = value.name or ""
        floats = self.op.Cast(self.op.tensor(value), to=ir.DataType.FLOAT).value
        floats.shape = value.shape
        return floats

    def _cast_rows(self, node: ir.Node) -> None:
        """Look up rows in half precision, and cast those."""
        rows = node.outputs[0]
        is_output, name = rows.is_graph_output(), rows.name
        rows.type = ir.TensorType(self.dtype)
        floats = self._cast(rows)
        self.op.place(self.graph, after=node)
        cast = floats.producer()
        rows.replace_all_uses_with(floats, replace_graph_outputs=True)
        assert cast is not None
        cast.replace_input_with(0, rows)
        if is_output:
            rows.name, floats.name = f"{name}.half", name
