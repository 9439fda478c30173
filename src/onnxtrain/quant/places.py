"""Which weights and activations of a model are quantised."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..errors import UnknownNameError
from ..lora.layers import name_of
from .constants import is_constant, value_of
from .folding import output_axis

LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
WITH_OUTPUT = frozenset({"Conv", "ConvTranspose"})
"""Layers whose integer kernels give integers; products give floats as fast."""
CUTTING = frozenset({"Clip", "Relu"})
"""What goes into the layer before it: cutting off at 0 is what unsigned codes do."""
MOVING = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that only move numbers, so that what is rounded before them is rounded after them."""


@dataclass(frozen=True)
class QuantizedLayer:
    """A node whose product is computed with integers.

    Attributes:
        node: the node.
        name: path of modules, or the name of the weight.
        weight: index of the operand that is stored; None where both are computed.
        axis: of the weight that its outputs lie along; None if there is none.
    """

    node: ir.Node
    name: str
    weight: int | None
    axis: int | None

    @property
    def data(self) -> list[ir.Value]:
        """The operands that are computed."""
        both = [v for v in self.node.inputs[:2] if v is not None]
        return [v for i, v in enumerate(both) if i != self.weight]


def find_quantized_layers(model: ir.Model, exclude: Sequence[str] = ()) -> list[QuantizedLayer]:
    """The layers of the main graph that can be quantised, but for excluded ones.

    Raises:
        UnknownNameError: a pattern in `exclude` fits none.
    """
    layers = [layer for node in model.graph if (layer := _layer(node)) is not None]
    unused = set(exclude)
    chosen = []
    for layer in layers:
        fitting = {p for p in exclude if matches(layer, p)}
        unused -= fitting
        if not fitting:
            chosen.append(layer)
    if unused:
        raise UnknownNameError("layer", sorted(unused)[0], [layer.name for layer in layers])
    return chosen


def matches(layer: QuantizedLayer, pattern: str) -> bool:
    """Whether a name or pattern means a layer, by its own name or by that of its node."""
    names = (layer.name, layer.node.name or "", layer.node.op_type)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)


def _layer(node: ir.Node) -> QuantizedLayer | None:
    if node.op_type not in LAYERS or node.domain not in {"", "ai.onnx"} or len(node.inputs) < 2:
        return None
    operands = node.inputs[:2]
    stored = [i for i, v in enumerate(operands) if is_constant(v)]
    if not all(v is not None and v.dtype in (None, ir.DataType.FLOAT) for v in operands):
        return None
    if node.op_type == "MatMul" and not stored:
        known = all(v is not None and v.dtype == ir.DataType.FLOAT for v in operands)
        return QuantizedLayer(node, node.name or "MatMul", None, None) if known else None
    if len(stored) != 1 or (stored == [0] and node.op_type != "MatMul"):
        return None
    weight = value_of(operands[stored[0]])
    if weight is None or weight.dtype != "float32" or weight.ndim < 2:
        return None
    axis = output_axis(node) if stored == [1] and (weight.ndim == 2 or _is_conv(node)) else None
    source = _source(operands[stored[0]])
    return QuantizedLayer(node, name_of(node, source), stored[0], axis)


def _is_conv(node: ir.Node) -> bool:
    return node.op_type in WITH_OUTPUT


def _source(value: ir.Value | None) -> ir.Value:
    """The initializer that a constant operand is made of."""
    assert value is not None
    node = value.producer()
    while node is not None and node.inputs and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


@dataclass(frozen=True)
class Activation:
    """A value that is rounded, and who reads it so."""

    value: ir.Value
    readers: tuple[tuple[ir.Node, int], ...]


def find_activations(
    model: ir.Model, layers: Sequence[QuantizedLayer], integer_kernels: bool
) -> list[Activation]:
    """The values that are rounded.

    Where there are integer kernels (8 bits): what layers read, before it is moved around, and what
    convolutions give, for all their readers. Otherwise what layers read, for them alone:
    onnxruntime moves integers through operators (MaxPool, say) that have no kernels for 4 or 16.
    """
    nodes = {layer.node for layer in layers}
    if not integer_kernels:
        return _read_by_layers(layers)
    leading = _leading_to(model, nodes)
    chosen: dict[ir.Value, None] = {}
    for layer in layers:
        for value in layer.data:
            root = root_of(value)
            if not is_constant(root):
                chosen[root] = None
        if _is_conv(layer.node):
            result = _behind_cut(layer.node.outputs[0])
            if result in leading:
                chosen[result] = None
    return [Activation(v, tuple((use.node, use.idx) for use in v.uses())) for v in chosen]


def _read_by_layers(layers: Sequence[QuantizedLayer]) -> list[Activation]:
    readers: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for layer in layers:
        for index, value in enumerate(layer.node.inputs[:2]):
            if value is not None and index != layer.weight and not is_constant(value):
                readers.setdefault(value, []).append((layer.node, index))
    return [Activation(value, tuple(uses)) for value, uses in readers.items()]


def root_of(value: ir.Value) -> ir.Value:
    """The value whose numbers this one has, in other places."""
    node = value.producer()
    while node is not None and node.op_type in MOVING and not node.domain:
        source = node.inputs[0]
        if source is None or value is not node.outputs[0]:
            break
        value = source
        node = value.producer()
    return value


def _behind_cut(value: ir.Value) -> ir.Value:
    readers = list(value.uses())
    if len(readers) == 1 and not value.is_graph_output():
        node = readers[0].node
        if node.op_type in CUTTING and not node.domain and readers[0].idx == 0:
            return node.outputs[0]
    return value


def _leading_to(model: ir.Model, nodes: Collection[ir.Node]) -> set[ir.Value]:
    """The values that one of these nodes depends on."""
    leading: set[ir.Value] = set()
    for node in reversed(list(model.graph)):
        if node in nodes or not leading.isdisjoint(node.outputs):
            leading.update(v for v in node.inputs if v is not None)
    return leading
