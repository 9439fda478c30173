"""The bounds of `runtime.sound`, for models of the protobuf library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import onnx

from ..errors import ModelError, ModelFileError
from ..runtime.files.external import EXTERNAL, MAX_NESTING, bits_of
from ..runtime.files.growth import Key, key_of
from ..runtime.files.sound import Body, check_functions, check_tensor, refuse_second
from .external import tensors_of
from .subgraphs import subgraph_protos

RAW = "raw_data"
EXACT_BYTES = 2**20
"""Tensors up to this size are copied to see how long their raw data are."""
_TYPED = {
    "float_data": {1: 1, 14: 2},
    "int32_data": dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20, 24), 1),
    "string_data": {8: 1},
    "int64_data": {7: 1},
    "double_data": {11: 1, 15: 2},
    "uint64_data": {12: 1, 13: 1},
}
"""Field of a tensor → element types that it holds the values of, and entries per element."""


def check_sound(proto: onnx.ModelProto, what: str) -> bool:
    """Refuse what cannot be built; tells whether the model has external data.

    Raises:
        ModelFileError: a tensor contradicts itself, or functions grow beyond all bounds.
    """
    has_external = False
    for tensor in tensors_of(proto):
        _check_tensor(tensor, what)
        has_external |= tensor.data_location == EXTERNAL
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        _check_dimensions(value, what)
    _check_names(proto.graph.node, what)
    functions: dict[Key, Callable[[], Body]] = {}
    for function in proto.functions:
        _check_names(function.node, what)
        key = key_of(function.domain, function.name, getattr(function, "overload", ""))
        refuse_second(key, functions, what)
        functions[key] = partial(_body, function.node)
    check_functions(functions, partial(_body, proto.graph.node), what)
    return has_external


def _check_tensor(tensor: onnx.TensorProto, what: str) -> None:
    data = {f: len(getattr(tensor, f)) for f in _TYPED if getattr(tensor, f)}
    length = _raw_length(tensor)
    if length:
        data[RAW] = length
    if tensor.data_location == EXTERNAL:
        check_tensor(tensor.name, tensor.dims, {**data, "external data": 0}, None, what)
    else:
        check_tensor(tensor.name, tensor.dims, data, _expected(tensor, data), what)


def _raw_length(tensor: onnx.TensorProto) -> int:
    """Bytes of raw data; of large ones only about, since to look at them is to copy them."""
    if not tensor.HasField(RAW):
        return 0
    size, bits = int(tensor.ByteSize()), bits_of(tensor.data_type)
    if size <= EXACT_BYTES or bits is None:
        return len(tensor.raw_data)
    expected = (math.prod(tensor.dims) * bits + 7) // 8
    return expected if 0 <= size - expected <= EXACT_BYTES else size


def _expected(tensor: onnx.TensorProto, data: dict[str, int]) -> int | None:
    """Bytes of raw data, or entries of the field that the element type has; None if not known."""
    kind, count = tensor.data_type, math.prod(tensor.dims)
    if not data:
        return count if kind and count >= 0 else None
    field = next(iter(data))
    if field != RAW:
        is_packed = field == "int32_data" and kind in _PACKED
        return None if is_packed else count * _TYPED[field].get(kind, 0)
    bits = bits_of(kind)
    return None if bits is None else (count * bits + 7) // 8


_PACKED = {21, 22, 23, 25, 26}
"""Types below a byte: releases of onnx have packed them in different ways."""


def _check_dimensions(value: onnx.ValueInfoProto, what: str) -> None:
    for dimension in value.type.tensor_type.shape.dim:
        if dimension.dim_value < -1:  # -1 is how some exporters write that a size is not fixed
            raise ModelError(
                f"{what}: {value.name!r} has the dimension {dimension.dim_value}, and sizes cannot "
                "be negative. The file is damaged."
            )


def _check_names(nodes: Iterable[onnx.NodeProto], what: str, depth: int = 0) -> None:
    for node in nodes:
        if isinstance(node.name, bytes):  # protobuf gives bytes for what is not UTF-8
            raise ModelFileError(
                f"{what}: the name {node.name!r} of a node is no text. The file is damaged, or "
                "was written by a program that does not write UTF-8: name the node anew."
            )
        if depth <= MAX_NESTING:  # what is deeper is refused elsewhere
            for graph in subgraph_protos(node):
                _check_names(graph.node, what, depth + 1)


def _body(nodes: Iterable[onnx.NodeProto]) -> Body:
    return Body.of(_operators(nodes, 0))


def _operators(nodes: Iterable[onnx.NodeProto], depth: int) -> Iterator[Key]:
    if depth > MAX_NESTING:
        raise ModelFileError(f"graphs are nested more than {MAX_NESTING} deep")
    for node in nodes:
        yield key_of(node.domain, node.op_type, getattr(node, "overload", ""))
        for graph in subgraph_protos(node):
            yield from _operators(graph.node, depth + 1)
