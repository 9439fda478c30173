"""Rewrite, before it is read, what onnx-ir cannot hold: maps and sparse tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper


def representable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy without the types and tensors that onnx-ir has no class for.

    The type of a list of dictionaries (what a ZipMap returns) is left out; sparse initializers and
    sparse Constant nodes become dense.
    """
    if not any(
        _has_map(v.type) for v in (*proto.graph.output, *proto.graph.value_info)
    ) and not any(_has_sparse(g) for g in _graphs(proto.graph)):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in (*copy.graph.output, *copy.graph.value_info):
        if _has_map(info.type):
            info.ClearField("type")
    for graph in _graphs(copy.graph):
        graph.initializer.extend(dense(t, t.values.name) for t in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                    tensor = dense(attribute.sparse_tensor, node.output[0])
                    attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return copy


def dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    """A sparse tensor written out; indices are flat positions or coordinates."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        array.reshape(-1)[indices] = values
    else:
        array[tuple(indices.T)] = values
    return numpy_helper.from_array(array, name)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _has_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("map_type"):
        return True
    return kind.HasField("sequence_type") and _has_map(kind.sequence_type.elem_type)


def _has_sparse(graph: onnx.GraphProto) -> bool:
    return bool(graph.sparse_initializer) or any(
        a.type == onnx.AttributeProto.SPARSE_TENSOR
        for node in graph.node
        if node.op_type == "Constant"
        for a in node.attribute
    )
