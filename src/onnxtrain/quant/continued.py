"""A model that is quantised already becomes one that is trained further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ..graph.nodes import initializer
from ..lora.layers import MS
from ..passes.cleanup import remove_unread_initializers
from .constants import Array, attribute, value_of
from .fake import Quantizer, Writer
from .places import root_of
from .scales import Start

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
INTEGER_OPERATORS = frozenset(
    {"ConvInteger", "MatMulInteger", "QGemm", "QLinearConv", "QLinearMatMul", "QLinearAdd"}
)
UNKNOWN_SIZE = 1024
"""Elements in a row of an activation whose shape is not known; only SGD's speed depends on it."""


def is_quantized(model: ir.Model) -> bool:
    """Whether a model has QDQ nodes around a value that is computed, or integer weights."""
    return any(n.op_type in {QUANTIZE, DEQUANTIZE} and not n.domain for n in model.graph)


def has_integer_operators(model: ir.Model) -> str:
    """Operators of the model that hide their floats; "" if there are none.

    onnxruntime's tool writes QDQ in its own domain for types that the model's opset lacks.
    """
    hidden = {n.op_type for n in model.graph} & INTEGER_OPERATORS
    own = {n.op_type for n in model.graph if n.domain == MS} & {QUANTIZE, DEQUANTIZE}
    return ", ".join(sorted(hidden | {f"{MS}.{name}" for name in own}))


def reopen(model: ir.Model, learn_scales: bool) -> Writer:
    """Integers as floats that are rounded again, constant scales as learned ones."""
    nodes = [n for n in model.graph if n.op_type in {QUANTIZE, DEQUANTIZE} and not n.domain]
    names = _set_aside(model.graph, nodes)
    writer = Writer(model, learn_scales)
    scales = _Scales(writer, names)
    biases = []
    for node in nodes:
        codes = value_of(node.inputs[0]) if node.op_type == DEQUANTIZE else None
        if codes is None:
            scales.learn(node)
        elif codes.dtype == np.int32:
            biases.append(node)
        else:
            _open_weight(writer, scales, node)
    for node in biases:
        _open_bias(writer, scales, node)
    writer.finish()
    remove_unread_initializers(model.graph)
    return writer


def _set_aside(graph: ir.Graph, nodes: Sequence[ir.Node]) -> dict[ir.Value, str]:
    """Rename what is stored for these nodes, so that what takes its place can have its name.

    Gives the names.
    """
    names = {v: v.name for n in nodes for v in n.inputs if v is not None and v.name}
    stored = {v: name for v, name in names.items() if graph.initializers.get(name) is v}
    for value, name in stored.items():
        del graph.initializers[name]
        value.name = f"{name}.stored"
        graph.initializers[value.name] = value
    return stored


class _Scales:
    """The learned scales, by the node that reads them."""

    def __init__(self, writer: Writer, names: Mapping[ir.Value, str]) -> None:
        self.writer, self.names = writer, names
        self.of_node: dict[ir.Node, Quantizer] = {}
        self._known: dict[tuple[ir.Value | None, ir.Value | None], Quantizer] = {}

    def learn(self, node: ir.Node, weight: Array | None = None) -> Quantizer | None:
        """Let a node read a learned scale in the place of a constant one."""
        stored = node.inputs[1]
        scale = value_of(stored)
        if scale is None or stored is None or attribute(node, "block_size", 0):
            return None
        source = node.inputs[0]
        before = None if source is None else source.producer()
        if before is not None and before in self.of_node and _same(before, node):
            quantizer = self.of_node[before]
        else:
            zero = node.inputs[2] if len(node.inputs) > 2 else None
            key = stored, zero
            if key not in self._known:
                self._known[key] = self._quantizer(node, scale, weight)
            quantizer = self._known[key]
        self.of_node[node] = quantizer
        node.replace_input_with(1, quantizer.scale.value)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            node.replace_input_with(2, quantizer.zero.value)
        return quantizer

    def _quantizer(self, node: ir.Node, scale: Array, weight: Array | None) -> Quantizer:
        zero = value_of(node.inputs[2]) if len(node.inputs) > 2 else None
        codes = node.outputs[0] if node.op_type == QUANTIZE else node.inputs[0]
        dtype = codes.dtype if codes is not None and codes.dtype is not None else ir.DataType.UINT8
        if zero is not None:
            dtype = ir.DataType.from_numpy(zero.dtype)
        if zero is None:
            zero = np.zeros(scale.shape, dtype.numpy())
        axis = attribute(node, "axis", 1) if scale.size > 1 else None
        size = _row_size(node.inputs[0]) if weight is None else max(weight.size // scale.size, 1)
        name = self.names.get(node.inputs[1], "") if node.inputs[1] is not None else ""
        stem = name[: -len("_scale")] if name.endswith("_scale") else name
        start = Start(scale.reshape(-1), zero.reshape(-1), dtype, axis, size)
        return self.writer.quantizer(stem, start)


def _same(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Whether two nodes that follow each other have equal scales, wherever these are stored."""
    pairs = zip(quantize.inputs[1:3], dequantize.inputs[1:3])
    for a, b in pairs:
        left, right = value_of(a), value_of(b)
        if a is b:
            continue
        if left is None or right is None or not np.array_equal(left.ravel(), right.ravel()):
            return False
    return True


def _row_size(value: ir.Value | None) -> int:
    shape = None if value is None else value.shape
    dims = [] if shape is None else list(shape)[1:]
    if shape is None or not all(isinstance(d, int) for d in dims):
        return UNKNOWN_SIZE
    return max(int(np.prod([int(d) for d in dims if isinstance(d, int)])), 1)


def _open_weight(writer: Writer, scales: _Scales, node: ir.Node) -> None:
    """Integers that are stored become floats, and a QuantizeLinear that makes them again."""
    floats = value_of(node.outputs[0])
    stored = node.inputs[0]
    assert floats is not None
    assert stored is not None
    quantizer = scales.learn(node, floats)
    if quantizer is None:
        return
    value = _float_initializer(writer, scales.names.get(stored, "weight"), floats)
    op = writer.op
    op.scope = f"{value.name}_quantized"
    again = op.QuantizeLinear(
        op.tensor(value), quantizer.scale, quantizer.zero, axis=quantizer.axis
    )
    again.value.name = op.names.fresh(f"{value.name}_quantized")
    op.place(writer.graph, before=node)
    node.replace_input_with(0, again.value)
    if len(node.inputs) < 3 or node.inputs[2] is None:
        node.resize_inputs(3)
        node.replace_input_with(2, quantizer.zero.value)


def _open_bias(writer: Writer, scales: _Scales, node: ir.Node) -> None:
    """A bias in int32 becomes floats; a layer whose operands are rounded rounds it again."""
    stored, result = node.inputs[0], node.outputs[0]
    floats = value_of(result)
    assert floats is not None
    assert stored is not None
    value = _float_initializer(writer, scales.names.get(stored, "weight"), floats)
    readers = list(result.uses())
    result.replace_all_uses_with(value)
    for reader, index in readers:
        of_operands = [
            scales.of_node.get(p)
            for v in reader.inputs[:2]
            if v is not None and (p := root_of(v).producer()) is not None
        ]
        if index == 2 and len(of_operands) == 2 and all(of_operands):
            data, weights = of_operands
            assert data is not None
            assert weights is not None
            writer.bias(reader, 2, data, weights)
    writer.graph.remove(node, safe=True)


def _float_initializer(writer: Writer, name: str, floats: Array) -> ir.Value:
    stem = name[: -len("_quantized")] if name.endswith("_quantized") else f"{name}.float"
    return initializer(writer.graph, writer.op.names.fresh(stem), floats.astype(np.float32))
