"""Weights in blocks of few-bit integers, made by onnxruntime's own tool."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir

from ..errors import ModelError, model_errors
from ..graph import ModelLike, OpBuilder, load
from ..graph.edit import take_over
from ..graph.external import external_tensors, let_go
from ..graph.few_bits import same_bytes
from ..graph.io import deliver
from ..lora.layers import Layer, find_layers, integer, name_of
from ..lora.targets import matching
from ..lora.values import Array, weight_of
from ..normalize.constants import lift_constants
from ..passes.cleanup import remove_dead, remove_unread_initializers

MS = "com.microsoft"
PART, ALIGNMENT = 2**26, 64
"""Bytes of memory that is asked for at once: more than the C library has gaps for."""
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}
"""What the tool quantises."""


@dataclass(frozen=True)
class Quantized:
    """What was quantised.

    Attributes:
        model: the model; weights in files where an output path was given.
        layers: names of the layers and tables.
        bytes_before, bytes_after: of their weights, scales included.
    """

    model: onnx.ModelProto
    layers: list[str]
    bytes_before: int
    bytes_after: int


@model_errors("Quantising the model")
def quantize(
    model: ModelLike,
    bits: int = 4,
    block_size: int = 32,
    *,
    targets: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    embeddings: bool = False,
    symmetric: bool = True,
    accuracy_level: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> Quantized:
    """Store the weights of linear layers as integers of a few bits, a scale for each block.

    Each becomes a `MatMulNBits` of onnxruntime, as ``onnxruntime.quantization`` makes it: layers
    that an exporter wrote as Gemm, or with a transposed weight, too. Weights are quantised one
    after the other, so a model in files needs little memory.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        bits: of each weight, 4 or 8.
        block_size: how many weights share a scale: 16, 32, 64, 128 or 256.
        targets: the layers, as `onnxtrain.lora.add` takes them; by default all linear ones.
        exclude: layers that stay as they are, in the same form.
        embeddings: quantise the tables that rows are looked up in too, with 4 bits only.
        symmetric: no zero points: the integer in the middle of the range is 0.
        accuracy_level: of the operator: 0 and 1 compute with floats, with 4 onnxruntime rounds the
            activations to 8 bits when it runs the model, which is faster. Training ignores it.
        output: also write the model to this path.

    Raises:
        ModelError: there is nothing to quantise, a setting that the operator does not have, or an
            onnxruntime without the tool.
    """
    _check(bits, block_size, embeddings)
    base = lift_constants(load(model))
    layers = linear_layers(base, targets, exclude)
    tables = _tables(base, exclude) if embeddings else []
    if not layers and not tables:
        raise ModelError(
            "There is nothing to quantise: no MatMul or Gemm with a stored weight of floats is "
            "meant. onnxtrain.lora.layers(model) lists the layers."
        )
    sources = {os.path.realpath(tensor.path) for tensor in external_tensors(base)}
    tool = _Tool(base, bits, block_size, symmetric, accuracy_level)
    for layer in layers:
        tool.quantize_layer(layer)
    for node, name in tables:
        tool.quantize_table(node, name)
    tool.finish()
    names = [*(layer.name for layer in layers), *(name for _, name in tables)]
    return Quantized(
        deliver(base, output, sources=sources), names, tool.bytes_before, tool.bytes_after
    )


def _check(bits: int, block_size: int, embeddings: bool) -> None:
    if bits not in (4, 8):
        raise ModelError(f"bits={bits!r}: weights are stored in 4 or 8 bits.")
    if block_size not in (16, 32, 64, 128, 256):
        raise ModelError(f"block_size={block_size!r}: choose 16, 32, 64, 128 or 256.")
    if embeddings and bits != 4:
        raise ModelError(
            "embeddings=True goes with bits=4: onnxruntime's tool has tables of 4 bits."
        )


def linear_layers(
    model: ir.Model, targets: str | Sequence[str] | None, exclude: str | Sequence[str]
) -> list[Layer]:
    """The linear layers with stored floats that are meant, and not excluded."""
    layers = [
        layer
        for layer in find_layers(model)
        if layer.is_plain and not layer.kernel and layer.dtype in FLOATS
    ]
    unwanted = matching(model, layers, exclude, "exclude") if exclude else []
    left_out = {layer.name for layer in unwanted}
    meant = layers if targets is None else matching(model, layers, targets)
    return [layer for layer in meant if layer.name not in left_out]


def _tables(model: ir.Model, exclude: str | Sequence[str]) -> list[tuple[ir.Node, str]]:
    """Nodes that look up rows in a stored table, and what to call it."""
    tables = []
    for node in model.graph:
        if node.op_type != "Gather" or node.domain or integer(node, "axis", 0):
            continue
        tensor = None if node.inputs[0] is None else node.inputs[0].const_value
        if tensor is None or tensor.dtype not in FLOATS or len(tensor.shape) != 2:
            continue
        assert node.inputs[0] is not None
        name = name_of(node, node.inputs[0])
        if name not in exclude:
            tables.append((node, name))
    return tables


class _Tool:
    """onnxruntime's quantiser, used for one weight after the other."""

    def __init__(
        self, model: ir.Model, bits: int, block_size: int, symmetric: bool, accuracy_level: int
    ) -> None:
        self.model, self.graph = model, model.graph
        self.settings: dict[str, Any] = {
            "bits": bits,
            "block_size": block_size,
            "is_symmetric": symmetric,
            "accuracy_level": accuracy_level,
        }
        self.op = OpBuilder.on(model)
        self.bytes_before = self.bytes_after = 0
        self._stored: dict[tuple[ir.Value | None, str], list[ir.Value]] = {}
        self._memory = _Memory()

    def quantize_layer(self, layer: Layer) -> None:
        """Let all nodes of a layer multiply with its integers."""
        for node in layer.nodes:
            key = layer.weight, f"MatMul {layer.transposed}"
            if key not in self._stored:
                factor = _factor(node)
                weight = weight_of(layer) if factor == 1 else weight_of(layer) * factor
                self._stored[key] = self._integers("MatMul", layer.name, weight)
                del weight
                let_go(None if layer.weight is None else layer.weight.const_value)
            attributes = {"K": layer.inputs, "N": layer.outputs}
            self._replace(node, "MatMulNBits", [node.inputs[0], *self._stored[key]], attributes)

    def quantize_table(self, node: ir.Node, name: str) -> None:
        """Let a node look up rows of integers."""
        table, ids = node.inputs[:2]
        key = table, "Gather"
        if key not in self._stored:
            assert table is not None
            assert table.const_value is not None
            self._stored[key] = self._integers("Gather", name, table.const_value.numpy())
            let_go(table.const_value)
        codes, *others = self._stored[key]
        attributes = {"gather_axis": 0, "quantize_axis": 1}
        self._replace(node, "GatherBlockQuantized", [codes, ids, *others], attributes)

    def finish(self) -> None:
        """Take out the weights that nobody reads any more."""
        self.model.opset_imports.setdefault(MS, 1)
        remove_dead(self.graph)
        remove_unread_initializers(self.graph)

    def _integers(self, op_type: str, name: str, weight: Array) -> list[ir.Value]:
        """Codes, scales and zero points of a weight, as initializers of the model."""
        tensors = _quantized(op_type, name, np.ascontiguousarray(weight), self.settings)
        self.bytes_before += weight.nbytes
        values = []
        for tensor in tensors:
            tensor.name = self.op.names.fresh(f"{name}.{tensor.name}")
            converted = self._memory.copy_of(ir.serde.deserialize_tensor(tensor))
            self.bytes_after += converted.nbytes
            value = ir.Value(
                name=tensor.name, type=ir.TensorType(converted.dtype),
                shape=ir.Shape(converted.shape.numpy()), const_value=converted,
            )  # fmt: skip
            self.graph.register_initializer(value)
            values.append(value)
        return values

    def _replace(
        self, node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], more: dict[str, int]
    ) -> None:
        names = {"bits", "block_size", *(["accuracy_level"] if "K" in more else [])}
        attributes = {k: v for k, v in self.settings.items() if k in names} | more
        old, op = node.outputs[0], self.op
        op.scope = f"{node.name or node.op_type}_Q{self.settings['bits']}"
        converted = [ir.AttrInt64(k, int(v)) for k, v in attributes.items()]
        new = ir.Node(MS, op_type, inputs, converted, name=op.names.fresh(op.scope))
        op.nodes.append(new)
        value = new.outputs[0]
        value.name, value.type = op.names.fresh(f"{op.scope}_out"), old.type
        bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
        if bias is not None:
            beta = node.attributes.get_float("beta", 1.0)
            shift = op.tensor(bias) if beta == 1 else op.tensor(bias) * beta
            value = (op.tensor(value) + shift).value
        value.type, value.shape = old.type, old.shape
        op.attach(self.graph, before=node, mark=True)
        take_over(old, value)
        self.graph.remove(node, safe=True)


class _Memory:
    """Memory for what is kept of each weight, apart from what comes and goes.

    The C library would put it into the gaps that a weight and its copies leave, which then are too
    small for the next weight: of 790 MB of floats 800 more than the integers stayed in memory.
    """

    def __init__(self) -> None:
        self._part = np.empty(0, np.uint8)

    def copy_of(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The tensor with its bytes here."""
        data = np.frombuffer(tensor.tobytes(), np.uint8)
        size = data.size + -data.size % ALIGNMENT
        if size > self._part.size:
            self._part = np.empty(max(size, PART), np.uint8)
        copy, self._part = self._part[: data.size], self._part[size:]
        copy[:] = data
        return same_bytes(
            ir.Tensor(copy, dtype=ir.DataType.UINT8), tensor.dtype, 0,
            tensor.shape.numpy(), tensor.name or "",
        )  # fmt: skip


def _factor(node: ir.Node) -> float:
    """What a product is multiplied with besides its operands."""
    return node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0


def _quantized(
    op_type: str, name: str, weight: Array, settings: dict[str, Any]
) -> list[onnx.TensorProto]:
    """What onnxruntime's tool makes of a model with one weight: codes, scales, zero points."""
    tool_of = _tool_of_onnxruntime()
    model = _model_of(op_type, weight)
    axis = (("MatMul", 0), ("Gather", 1))
    try:
        config = tool_of.DefaultWeightOnlyQuantConfig(
            op_types_to_quantize=(op_type,), quant_axes=axis, **settings
        )
        tool = tool_of.MatMulNBitsQuantizer(model, algo_config=config)
    except TypeError as error:
        raise ModelError(
            f"The tool of this onnxruntime does not know a setting ({error}). Update onnxruntime, "
            "or quantise the model elsewhere; it can be trained here."
        ) from error
    with _log_level(tool_of.logger, logging.WARNING):  # else two lines for each weight
        tool.process()
    graph = tool.model.model.graph
    node = graph.node[0]
    if node.domain != MS:
        raise ModelError(
            f"onnxruntime's tool left the weight of {name!r} as it is: it has the shape "
            f"{weight.shape}. Leave the layer out with exclude={[name]!r}."
        )
    stored = {tensor.name: tensor for tensor in graph.initializer}
    return [stored[n] for n in node.input if n in stored]


def _tool_of_onnxruntime() -> ModuleType:
    """onnxruntime's tool; importing it sets up the program's own log, which is undone here."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        return importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    except ImportError as error:
        raise ModelError(
            "Quantising needs the tool of onnxruntime 1.22 or newer, which cannot be imported here "
            f"({error}). Quantise the model elsewhere; it can be trained here."
        ) from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@contextmanager
def _log_level(logger: logging.Logger, level: int) -> Iterator[None]:
    """Let a logger be quieter for a while, and not louder."""
    before = logger.level
    logger.setLevel(max(level, logger.getEffectiveLevel()))
    try:
        yield
    finally:
        logger.setLevel(before)


def _model_of(op_type: str, weight: Array) -> onnx.ModelProto:
    """A model with one product, or one table; the tool logs its names, so they are ours."""
    stored = "weight"
    kind = oh.np_dtype_to_tensor_dtype(weight.dtype)
    if op_type == "MatMul":
        x = oh.make_tensor_value_info("x", kind, ["n", weight.shape[0]])
        node = oh.make_node("MatMul", ["x", stored], ["y"], name="MatMul")
    else:
        x = oh.make_tensor_value_info("x", onnx.TensorProto.INT64, ["n"])
        node = oh.make_node("Gather", [stored, "x"], ["y"], name="Gather")
    y = oh.make_tensor_value_info("y", kind, ["n", weight.shape[1]])
    graph = oh.make_graph([node], "g", [x], [y], [onnx.numpy_helper.from_array(weight, stored)])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
