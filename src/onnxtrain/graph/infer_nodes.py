"""Shapes of nodes that were just built, before they are part of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx
import onnx_ir as ir

from .infer_bodies import infer_with_bodies
from .onnx_inference import UNKNOWN, infer_shapes_of
from .subgraphs import graph_protos, subgraphs

CONSTANT_BYTES = 1024
"""Constants up to this size go along with their values: shapes, axes, scales."""


def infer_nodes(nodes: Sequence[ir.Node], opset: int) -> None:
    """Give the outputs of new nodes, and the values inside their subgraphs, types and shapes.

    Names must be unique across all subgraphs, as the builder makes them. A shape that whoever built
    a node has given to its output stays, where inference would not know the dimensions.
    """
    results = {o for node in nodes for o in node.outputs}
    inside = [v for node in nodes for v in _inside(node)]
    read = {v: None for node in _all(nodes) for v in node.inputs if v is not None}
    outer = [v for v in read if v not in results and v not in set(inside)]
    inputs, constants = [], []
    for value in outer:
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input() and tensor.nbytes <= CONSTANT_BYTES:
            constants.append(ir.to_proto(ir.tensor(tensor.numpy(), tensor.dtype, name=value.name)))
        else:
            inputs.append(ir.serde.serialize_value(value))
    graph = onnx.helper.make_graph(
        [ir.to_proto(node) for node in nodes], "new", inputs, [], constants
    )
    described = [v for v in results if v.name and v.shape is not None and v.type is not None]
    graph.value_info.extend(ir.serde.serialize_value(v) for v in described)
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )

    inferred = {
        info.name: info
        for below in graph_protos(infer_with_bodies(model, infer_shapes_of).graph)
        for info in (*below.value_info, *below.input, *below.output)
    }
    known_names = {d.dim_param for info in inputs for d in _dims(info)}
    for value in (*results, *inside):
        info = inferred.get(value.name or "")
        if info is not None:
            _name_apart(info, known_names, nodes[0].name or "")
            ir.serde.deserialize_value_info_proto(info, value)


def _dims(info: onnx.ValueInfoProto) -> Iterable[onnx.TensorShapeProto.Dimension]:
    dims: Iterable[onnx.TensorShapeProto.Dimension] = info.type.tensor_type.shape.dim
    return dims


def _name_apart(info: onnx.ValueInfoProto, known_names: Collection[str], scope: str) -> None:
    """Let a dimension that onnx has named not have the name of one from another inference."""
    for dim in _dims(info):
        if dim.dim_param.startswith(UNKNOWN) and dim.dim_param not in known_names:
            dim.dim_param = f"{dim.dim_param}/{scope}"


def _all(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    flat: list[ir.Node] = []
    for node in nodes:
        flat.append(node)
        for graph in subgraphs(node):
            flat.extend(_all(graph))
    return flat


def _inside(node: ir.Node) -> list[ir.Value]:
    """Values that live in the subgraphs of a node."""
    values: list[ir.Value] = []
    for graph in subgraphs(node):
        values.extend(graph.inputs)
        for inner in graph:
            values.extend(inner.outputs)
            values.extend(_inside(inner))
    return values
