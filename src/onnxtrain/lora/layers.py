"""The linear layers and convolutions of a model, in whatever form an exporter wrote them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ..graph import FLOATS, Names
from ..graph.nodes import permutation

MS = "com.microsoft"
SCOPES = "pkg.torch.onnx.name_scopes"
"""Where torch's newer exporter notes the path of modules that a node comes from."""
STORED_NAME = re.compile(r"(?:[./]MatMul)?\.(?:q?weight|weight_\w+|weight\.\d+)$")
"""The end of a weight's name: of torch's modules, and of onnxruntime-genai's quantised layers."""
ANONYMOUS = re.compile(r"(?:val_|onnx::\w+_|_?v?)\d+")
"""Names that exporters give to what they computed themselves, a transposed weight say."""


@dataclass(frozen=True)
class Layer:
    """A linear layer, or a convolution.

    Attributes:
        name: its path of modules where that is known: ``model.layers.0.self_attn.q_proj``.
        nodes: the nodes that apply the weight; several where layers share it.
        weight: the initializer that holds it: floats, or integers with scales elsewhere.
        dtype: of the numbers that it is multiplied with.
        transposed: whether a row of what is stored belongs to an output, not to an input.
        inputs, outputs: numbers of features, or of channels.
        kernel: sizes of a convolution's kernel; () for a linear layer.
        group: of a convolution.
    """

    name: str
    nodes: tuple[ir.Node, ...] = field(repr=False)
    weight: ir.Value = field(repr=False)
    dtype: ir.DataType
    transposed: bool
    inputs: int
    outputs: int
    kernel: tuple[int, ...] = ()
    group: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the weight is stored as the numbers that are multiplied with."""
        tensor = self.weight.const_value
        return tensor is not None and tensor.dtype == self.dtype

    def __str__(self) -> str:
        kernel = f", kernel {'×'.join(map(str, self.kernel))}" if self.kernel else ""
        return f"{self.name} ({self.inputs} → {self.outputs}{kernel})"


@dataclass(frozen=True)
class _Stored:
    """Where an operand comes from: an initializer, and what is done to it on the way."""

    value: ir.Value
    transposed: bool
    dtype: ir.DataType


def find_layers(model: ir.Model) -> list[Layer]:
    """The layers of a model's main graph, in order; nodes that share a weight are one layer."""
    groups: dict[tuple[ir.Value, bool], list[tuple[ir.Node, Layer]]] = {}
    for node in model.graph:
        layer = _layer(node)
        if layer is not None:
            groups.setdefault((layer.weight, layer.transposed), []).append((node, layer))
    names, layers = Names(), []
    for members in groups.values():
        _, first = members[0]
        nodes = tuple(node for node, _ in members)
        shared = {**vars(first), "nodes": nodes, "name": names.fresh(first.name)}
        layers.append(Layer(**shared))
    return layers


def _layer(node: ir.Node) -> Layer | None:
    """The layer that one node is, by itself."""
    if node.domain == MS and node.op_type == "MatMulNBits":
        return _of_blocks(node)
    if node.domain not in {"", "ai.onnx"} or len(node.inputs) < 2:
        return None
    if node.op_type in {"MatMul", "Gemm"}:
        return _linear(node)
    return _convolution(node) if node.op_type == "Conv" else None


def _linear(node: ir.Node) -> Layer | None:
    stored = _stored(node.inputs[1])
    dims = stored and _sizes(stored.value)
    if stored is None or not dims or len(dims) != 2 or integer(node, "transA", 0):
        return None
    transposed = stored.transposed != bool(integer(node, "transB", 0))
    inputs, outputs = reversed(dims) if transposed else dims
    name = name_of(node, stored.value)
    return Layer(name, (node,), stored.value, stored.dtype, transposed, inputs, outputs)


def _convolution(node: ir.Node) -> Layer | None:
    stored = _stored(node.inputs[1])
    dims = stored and _sizes(stored.value)
    if stored is None or not dims or len(dims) < 3 or stored.transposed:
        return None
    group = integer(node, "group", 1)
    name = name_of(node, stored.value)
    return Layer(
        name, (node,), stored.value, stored.dtype, True, dims[1] * group, dims[0],
        tuple(dims[2:]), group,
    )  # fmt: skip


def _of_blocks(node: ir.Node) -> Layer | None:
    """MatMulNBits: integers of a few bits, a scale for each block of them."""
    weight, scales = node.inputs[1], node.inputs[2]
    if weight is None or weight.const_value is None or scales is None or scales.const_value is None:
        return None
    inputs, outputs = integer(node, "K", 0), integer(node, "N", 0)
    dtype = scales.const_value.dtype
    return Layer(name_of(node, weight), (node,), weight, dtype, True, inputs, outputs)


def _stored(value: ir.Value | None) -> _Stored | None:
    """The initializer behind an operand, through what leaves it a weight."""
    transposed, dtype = False, None
    while value is not None and (node := value.producer()) is not None:
        if node.domain not in {"", "ai.onnx"}:
            return None
        if node.op_type == "Transpose" and (permutation(node) or [1, 0]) == [1, 0]:
            transposed = not transposed
        elif node.op_type == "DequantizeLinear":
            scale = node.inputs[1]
            if scale is None or scale.const_value is None:
                return None
            dtype = dtype or scale.const_value.dtype
        elif node.op_type == "Cast":
            dtype = dtype or ir.DataType(integer(node, "to", 0))
        elif node.op_type != "Identity":
            return None
        value = node.inputs[0]
    if value is None or value.const_value is None or value.name is None:
        return None
    dtype = dtype or value.const_value.dtype
    return _Stored(value, transposed, dtype) if dtype in FLOATS else None


def _sizes(value: ir.Value) -> list[int]:
    return [] if value.const_value is None else [int(d) for d in value.const_value.shape.numpy()]


def integer(node: ir.Node, name: str, default: int) -> int:
    """An attribute that is a whole number."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def name_of(node: ir.Node, weight: ir.Value) -> str:
    """What to call a layer: the path of modules that its weight, its scopes or its node tell."""
    stored = weight.name or ""
    if STORED_NAME.search(stored):
        return STORED_NAME.sub("", stored)
    scopes = _scopes(node.metadata_props.get(SCOPES, ""))
    if len(scopes) > 1 and scopes[-2]:
        return scopes[-2]
    path = (node.name or "").strip("/")
    if "/" in path:
        return path.rpartition("/")[0].replace("/", ".")
    if ANONYMOUS.fullmatch(stored):
        return node.name or stored
    return stored


def _scopes(written: str) -> Sequence[str]:
    """The list that an exporter wrote; () for anything else: the file comes from outside."""
    try:
        scopes: Any = ast.literal_eval(written[:4096])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    is_list = isinstance(scopes, list) and all(isinstance(s, str) for s in scopes)
    return scopes if is_list else ()
