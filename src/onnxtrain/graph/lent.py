"""Tensors of a ModelProto that belongs to somebody else.

onnx-ir writes names of values into the tensors that they hold, when a value is renamed and when
it is serialized. The tensors of a ModelProto are the user's, so they get names of their own here.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir
from onnx_ir.serde import TensorProtoTensor


class LentTensor(TensorProtoTensor):
    """A tensor that shares the data of a TensorProto but not its name."""

    def __init__(self, proto: onnx.TensorProto) -> None:
        super().__init__(proto)
        self._name: str | None = proto.name

    @property  # type: ignore[override, unused-ignore]
    def name(self) -> str | None:  # type: ignore[override, unused-ignore]
        """The name that it has here."""
        return self._name

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value

    @property
    def raw(self) -> onnx.TensorProto:
        """The TensorProto, a copy where it has another name here."""
        proto = super().raw
        if proto.name == (self._name or ""):
            return proto
        copy = onnx.TensorProto()
        copy.CopyFrom(proto)
        copy.name = self._name or ""
        return copy


def lend_tensors(model: ir.Model) -> None:
    """Let no change of the model reach the ModelProto that it was read from."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        for graph in (body, *body.subgraphs()):
            if isinstance(graph, ir.Graph):
                _lend_initializers(graph)
            _lend_attributes(graph)


def _lend_initializers(graph: ir.Graph) -> None:
    for value in graph.initializers.values():
        if isinstance(value.const_value, TensorProtoTensor):
            value.const_value = LentTensor(value.const_value.raw)


def _lend_attributes(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                tensor = attribute.as_tensor()
                if isinstance(tensor, TensorProtoTensor):
                    node.attributes[name] = ir.AttrTensor(name, LentTensor(tensor.raw))
