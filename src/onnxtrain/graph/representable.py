"""Rewrite, before it is read, what onnx-ir cannot hold: maps and sparse tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ModelError
from ..runtime.files.external import bits_of
from .subgraphs import graph_protos

DENSE_BYTES = 2**28
"""What the sparse tensors of a model may have when they are written out: far more than any has."""


def representable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy without the types and tensors that onnx-ir has no class for.

    The type of a list of dictionaries (what a ZipMap returns) is left out; sparse initializers and
    sparse Constant nodes become dense.
    """
    if not any(
        _has_map(v.type) for v in (*proto.graph.output, *proto.graph.value_info)
    ) and not any(_has_sparse(g) for g in graph_protos(proto.graph)):
        return proto
    _check_sizes(t for g in graph_protos(proto.graph) for t in _sparse_of(g))
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in (*copy.graph.output, *copy.graph.value_info):
        if _has_map(info.type):
            info.ClearField("type")
    for graph in graph_protos(copy.graph):
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
    try:
        values, indices = map(numpy_helper.to_array, (sparse.values, sparse.indices))
    except (KeyError, TypeError, ValueError) as error:  # a type that there is not, too few numbers
        raise ModelError(
            f"The sparse tensor {name!r} cannot be read: {error}. The file is damaged."
        ) from error
    shape = tuple(sparse.dims)
    is_flat = indices.ndim == 1
    positions = indices.reshape(-1, 1) if is_flat else indices
    limits = np.array([math.prod(shape)] if is_flat else shape, np.int64)
    fits = positions.shape == (values.size, len(limits))
    if not fits or np.any((positions < 0) | (positions >= limits)):
        raise ModelError(
            f"The sparse tensor {name!r} of shape {list(shape)} has indices outside of it. The "
            "file is damaged."
        )
    flat = positions[:, 0] if is_flat else np.ravel_multi_index(tuple(positions.T), shape)
    array = np.zeros(shape, values.dtype)
    array.reshape(-1)[flat] = values
    return numpy_helper.from_array(array, name)


def _check_sizes(tensors: Iterable[onnx.SparseTensorProto]) -> None:
    total = 0
    for sparse in tensors:
        shape = list(sparse.dims)
        total += math.prod(shape) * (bits_of(sparse.values.data_type) or 8) // 8
        if any(d < 0 for d in shape) or total > DENSE_BYTES:
            raise ModelError(
                f"The sparse tensor {sparse.values.name!r} has the shape {shape}. Gradients need "
                f"sparse tensors written out, and more than {DENSE_BYTES >> 20} MB of them are too "
                "many. Make it smaller, or use a dense one."
            )


def _sparse_of(graph: onnx.GraphProto) -> Iterator[onnx.SparseTensorProto]:
    yield from graph.sparse_initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                yield attribute.sparse_tensor


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
