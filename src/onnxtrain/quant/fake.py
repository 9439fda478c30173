"""Fake quantisation into a model: QuantizeLinear and DequantizeLinear with scales that are learned.

A scale is s = s₀·f. The factor f is what is trained, from 1 on: an optimizer that makes steps of
its own size (Adam) then changes every scale by the same share, however small it is. Its gradient is
that of LSQ, g·∂L/∂s with g = 1/√(N·Q), for whoever follows gradients as they are (SGD): written as

    s = stop(s₀·f) + (k·f − stop(k·f)),   k = g/s₀

whose value is s₀·f to the last bit, because the difference is exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.nodes import initializer
from ..graph.parameters import STOP_GRADIENT, mark_constant
from .constants import Array
from .scales import Start

BIAS = "onnxtrain.qat_bias"
"""How the names of the nodes begin whose first operand is the bias as it is deployed."""
LARGEST = 2.0**31 - 2**8
"""The largest float that is an int32, a little below."""


@dataclass(frozen=True)
class Quantizer:
    """Scale and zero point in the graph."""

    scale: Tensor
    zero: Tensor
    axis: int | None


class Writer:
    """Writes quantisers into a model.

    Args:
        model: is changed.
        learn_scales: whether scales are trained.
    """

    def __init__(self, model: ir.Model, learn_scales: bool) -> None:
        self.model, self.graph, self.learn = model, model.graph, learn_scales
        self.op = OpBuilder.on(model)
        self.first = model.graph[0]
        self.factors: list[str] = []

    def quantizer(self, name: str, start: Start) -> Quantizer:
        """Scale and zero point for a tensor of this name."""
        zero = self._constant(f"{name}_zero_point", start.zero, start.dtype)
        if not self.learn:
            scale = self._constant(f"{name}_scale", start.scale)
            return Quantizer(scale, zero, start.axis)
        return Quantizer(self._learned(f"{name}_scale", start), zero, start.axis)

    def _learned(self, name: str, start: Start) -> Tensor:
        op = self.op
        op.scope = name
        factor = self._parameter(f"{name}_factor", np.ones_like(start.scale))
        begin = self._constant(f"{name}_start", start.scale)
        slope = (start.gradient_scale / start.scale.astype(np.float64)).astype(np.float32)
        slopes = self._constant(f"{name}_slope", slope)
        value = self._stopped(factor * begin)
        moved = factor * slopes
        scale = value + (moved - self._stopped(factor * slopes))
        name = op.names.fresh(name)
        scale.value.name = name
        scale.value.type, scale.value.shape = begin.value.type, ir.Shape(start.scale.shape)
        op.place(self.graph, before=self.first)
        return scale

    def weight(self, node: ir.Node, index: int, quantizer: Quantizer) -> None:
        """Let a layer read its weight rounded."""
        value = node.inputs[index]
        assert value is not None
        y = self._rounded(value, quantizer)
        self.op.place(self.graph, before=node)
        node.replace_input_with(index, y.value)

    def activation(
        self,
        value: ir.Value,
        readers: Sequence[tuple[ir.Node, int]],
        quantizer: Quantizer,
    ) -> None:
        """Let these readers of a value read it rounded; an output of the model stays as it is."""
        y = self._rounded(value, quantizer)
        producer = value.producer()
        if producer is None:
            self.op.place(self.graph, before=self.first)
        else:
            self.op.place(self.graph, after=producer)
        for node, index in readers:
            node.replace_input_with(index, y.value)

    def bias(self, node: ir.Node, index: int, inputs: Quantizer, weights: Quantizer) -> None:
        """Let a layer read its bias in whole steps of both scales, as integer kernels add it.

        The gradient passes to the bias as if it was not rounded.
        """
        op, value = self.op, node.inputs[index]
        assert value is not None
        op.scope = f"{value.name}_quantized"
        tensor = op.tensor(value)
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        step = inputs.scale * weights.scale
        step.value.name = op.names.fresh(f"{value.name}_scale")
        codes = op.Clip(op.Round(tensor / step), -LARGEST, LARGEST)
        whole = op.Cast(codes, to=ir.DataType.INT32)
        whole.value.name = op.names.fresh(f"{value.name}_quantized")
        one = weights.axis is None
        # One step for the whole vector is a tensor of one element, which needs no axis
        deployed = self._stopped(op.DequantizeLinear(whole, step, axis=None if one else 0))
        deployed.value.type = ir.TensorType(ir.DataType.FLOAT)
        rounded = deployed + (tensor - self._stopped(op.Identity(tensor)))
        last = rounded.value.producer()
        assert last is not None
        last.name = op.names.fresh(f"{BIAS}/{value.name}")
        rounded.value.type, rounded.value.shape = value.type, value.shape
        op.place(self.graph, before=node)
        node.replace_input_with(index, rounded.value)

    def finish(self) -> None:
        """Give the graph the constants that the nodes read."""
        self.op.register_constants(self.graph, mark=True)

    def _rounded(self, value: ir.Value, quantizer: Quantizer) -> Tensor:
        op = self.op
        op.scope = f"{value.name}_quantized"
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
        codes = op.QuantizeLinear(
            op.tensor(value), quantizer.scale, quantizer.zero, axis=quantizer.axis
        )
        codes.value.name = op.names.fresh(f"{value.name}_quantized")
        codes.value.shape = value.shape
        y = op.DequantizeLinear(codes, quantizer.scale, quantizer.zero, axis=quantizer.axis)
        y.value.name = op.names.fresh(f"{value.name}_dequantized")
        y.value.type, y.value.shape = value.type, value.shape
        return y

    def _stopped(self, x: Tensor) -> Tensor:
        node = x.value.producer()
        assert node is not None
        node.name = self.op.names.fresh(f"{STOP_GRADIENT}/{node.name}")
        return x

    def _parameter(self, name: str, array: Array) -> Tensor:
        name = self.op.names.fresh(name)
        self.factors.append(name)
        return self.op.tensor(initializer(self.graph, name, array))

    def _constant(self, name: str, array: Array, dtype: ir.DataType | None = None) -> Tensor:
        name = self.op.names.fresh(name)
        tensor = ir.Tensor(array, dtype=dtype or ir.DataType.FLOAT, name=name)
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape),
            const_value=tensor,
        )  # fmt: skip
        self.graph.register_initializer(value)
        mark_constant(value)
        return self.op.tensor(value)
