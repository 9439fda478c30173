"""Large weights of few bits become floats only while a product reads them.

A DequantizeLinear of a constant, or a Cast of one in half precision, depends on nothing, so a
runtime may run it at any time before its readers: onnxruntime runs all of them first, and has every
weight as floats at once. Here each product (MatMul or Gemm) gets its own copy of the node, which
waits for the product's other operand through a gate on the scale (on the weight itself, where it
has none). The backward half reads such a weight a second time: its copy waits for the gradient, so
that the floats are not kept from the forward half. At any moment about one weight is floats; the
integers are in memory once.

Where the other operand is dequantised too, the forward product is left alone, because onnxruntime
can run it on integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..errors import model_errors
from ..graph import FLOATS, OpBuilder, Tensor
from ..graph.edit import GATE, copy_node
from ..graph.few_bits import LARGE_BYTES
from ..graph.nodes import known
from ..operators import REARRANGING
from .cleanup import remove_dead
from .gates import arithmetic_gate, reshape_gate, zero_after
from .segments import weight

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
READERS = frozenset({"Gemm", "MatMul"})
ON_THE_WAY = REARRANGING | {"Slice"}
"""What may lie between the weight and its product."""


@model_errors("Delaying quantised weights")
def delay_weights(model: ir.Model) -> ir.Model:
    """Let every product have its own floats of a quantised weight; the model is changed."""
    graph = model.graph
    floats = _float_weights(graph)
    readers = [node for node in graph if _reads(node, floats)]
    if readers:
        work = _Delay(model, floats)
        for node in readers:
            work.delay(node)
        work.op.register_constants(graph)
        remove_dead(graph)
    return model


def _float_weights(graph: ir.Graph) -> set[ir.Value]:
    """The values that are a quantised constant as floats, turned around or cut at most."""
    floats: set[ir.Value] = set()
    for node in graph:
        if node.domain or len(node.outputs) != 1 or not node.inputs:
            continue
        result = node.outputs[0]
        if node.op_type == "DequantizeLinear" or _is_half(node):
            is_weight = all(v is None or known(v) is not None for v in node.inputs)
            is_weight = is_weight and weight(result) >= LARGE_BYTES
        else:
            first, *others = node.inputs
            is_weight = first in floats and node.op_type in ON_THE_WAY
            is_weight = is_weight and all(v is None or known(v) is not None for v in others)
        if is_weight:
            floats.add(result)
    return floats


def _is_half(node: ir.Node) -> bool:
    """Whether a node makes floats of numbers in half precision."""
    source = node.inputs[0]
    is_cast = node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.FLOAT
    return is_cast and source is not None and source.dtype in HALVES


def _reads(node: ir.Node, floats: set[ir.Value]) -> bool:
    if node.op_type not in READERS or node.domain or floats.isdisjoint(node.inputs):
        return False
    others = _others(node, floats)
    return bool(others) and not any(_is_dequantised(v) for v in others)


def _others(node: ir.Node, floats: set[ir.Value]) -> list[ir.Value]:
    """Operands of a product that are no constants."""
    return [
        v
        for v in node.inputs
        if v is not None and v not in floats and known(v) is None and v.dtype in FLOATS
    ]


def _is_dequantised(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type == "DequantizeLinear"


class _Delay:
    """One application of the pass to one model.

    Attributes:
        floats: see `_float_weights`.
        op: builds the new nodes.
    """

    def __init__(self, model: ir.Model, floats: set[ir.Value]) -> None:
        self.graph, self.floats = model.graph, floats
        self.op = OpBuilder.on(model)
        self._zeros: dict[tuple[ir.Value, ...], Tensor] = {}
        self._copies: dict[tuple[ir.Value, tuple[ir.Value, ...]], ir.Value] = {}

    def delay(self, reader: ir.Node) -> None:
        """Let a product read floats that are made once its other operands are there."""
        awaited = tuple(_others(reader, self.floats))
        for index, value in enumerate(reader.inputs):
            if value in self.floats:
                assert value is not None
                reader.replace_input_with(index, self._copy(value, awaited))
        self.op.place(self.graph, before=reader)

    def _copy(self, value: ir.Value, awaited: tuple[ir.Value, ...]) -> ir.Value:
        key = value, awaited
        if key not in self._copies:
            node = value.producer()
            assert node is not None
            inputs = list(node.inputs)
            if node.op_type == "DequantizeLinear":
                inputs[1] = self._gate(inputs[1], awaited)
            elif _is_half(node):
                inputs[0] = self._gate(inputs[0], awaited)
            else:
                assert inputs[0] is not None
                inputs[0] = self._copy(inputs[0], awaited)
            self._copies[key] = self._add(node, inputs)
        return self._copies[key]

    def _add(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
        copied = copy_node(node, inputs, self.op.names)
        self.op.nodes.append(copied)
        return copied.outputs[0]

    def _gate(self, scale: ir.Value | None, awaited: tuple[ir.Value, ...]) -> ir.Value:
        assert scale is not None
        self.op.scope = f"{GATE}/{awaited[0].name}"
        if awaited not in self._zeros:
            self._zeros[awaited] = zero_after(self.op, awaited)
        self.op.scope = f"{GATE}/{scale.name}"
        gate = reshape_gate if scale.shape else arithmetic_gate
        return gate(self.op, scale, self._zeros[awaited])
