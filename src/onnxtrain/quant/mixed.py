"""Products in half precision, with a scaled loss: for providers that have such arithmetic."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import QuantizationError, model_errors
from ..graph import ModelLike, OpBuilder, load
from ..graph.edit import take_over
from ..graph.io import deliver
from ..graph.nodes import initializer
from ..graph.parameters import LOSS_SCALE, STOP_GRADIENT, mark_constant
from ..graph.schema import signature
from ..normalize import lift_constants
from ..normalize.custom_types import infer_with_custom
from .half import TYPES

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""What is computed in half precision, as torch.autocast does; all else stays float32."""


@model_errors("Putting products into half precision")
def mixed_precision(
    model: ModelLike,
    dtype: str = "float16",
    *,
    loss_scale: float = 65536.0,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """A model whose products (and their gradients) are computed in float16 or bfloat16.

    Weights stay float32 and are cast where they are read, as under torch.autocast. Gradients in
    float16 underflow, so they are those of a loss that is multiplied by a scale; `Optimizer`
    divides by it, skips an update whose gradients are not finite and halves the scale, and doubles
    it after 2000 good ones. The scale is a frozen parameter, and so part of checkpoints. With
    bfloat16, which has the range of float32, there is none.

    onnxruntime's CPU provider has float16 kernels for a few operators and computes the others in
    float32 between two casts: there this is slower, and of use to try it out. It has no bfloat16.
    What runs on a GPU was not run by us.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        dtype: "float16" or "bfloat16".
        loss_scale: to begin with.
        output: also write the model to this path.
    """
    if dtype not in TYPES:
        raise QuantizationError(f"dtype is 'float16' or 'bfloat16', not {dtype!r}.")
    if not 1.0 <= loss_scale <= 2.0**24:
        raise QuantizationError(f"loss_scale is {loss_scale!r}; it is a number from 1 to 2**24.")
    base = infer_with_custom(lift_constants(load(model)))
    if LOSS_SCALE in base.graph.initializers:
        raise QuantizationError("The model's products are in half precision already.")
    op = OpBuilder.on(base)
    products = [node for node in base.graph if _is_product(node, TYPES[dtype], op.opset)]
    if not products:
        raise QuantizationError(
            "There is nothing to put into half precision: the model has no MatMul, Gemm or Conv of "
            "float32 in its main graph."
        )
    for node in products:
        _in_half(base.graph, op, node, TYPES[dtype])
    if TYPES[dtype] == ir.DataType.FLOAT16:
        _scale_gradients(base.graph, op, loss_scale)
    op.register_constants(base.graph, mark=True)
    return deliver(base, output)


def _is_product(node: ir.Node, dtype: ir.DataType, opset: int) -> bool:
    """Whether a node is a product of float32 whose operator has the type (Conv has no bfloat16)."""
    if node.op_type not in PRODUCTS or node.domain not in {"", "ai.onnx"}:
        return False
    known = signature(node.op_type, opset)
    allowed = known.types(known.input(0))
    is_float = all(v is None or v.dtype == ir.DataType.FLOAT for v in node.inputs)
    return is_float and f"tensor({dtype.name.lower()})" in allowed


def _in_half(graph: ir.Graph, op: OpBuilder, node: ir.Node, dtype: ir.DataType) -> None:
    """Cast what a product reads, and what it gives."""
    op.scope = f"{node.name or node.op_type}.half"
    for index, value in enumerate(node.inputs):
        if value is not None:
            node.replace_input_with(index, op.Cast(op.tensor(value), to=dtype).value)
    op.place(graph, before=node)
    old = node.outputs[0]
    old.type = ir.TensorType(dtype)
    new = op.Cast(op.tensor(old), to=ir.DataType.FLOAT).value
    new.shape = old.shape
    cast = new.producer()
    assert cast is not None
    op.place(graph, after=node)
    take_over(old, new)
    old.name = op.names.fresh(f"{new.name}.half")
    cast.replace_input_with(0, old)


def _scale_gradients(graph: ir.Graph, op: OpBuilder, loss_scale: float) -> None:
    """Let the gradients of all outputs be multiplied by a number; the outputs stay as they are.

    y becomes stop(y) + (s·y − stop(s·y)): the difference is exactly 0, and its slope is s.
    """
    state = initializer(graph, LOSS_SCALE, np.array([loss_scale, 0.0], np.float32))
    mark_constant(state)
    op.names.reserve(LOSS_SCALE)
    for value in list(graph.outputs):
        node = value.producer()
        if node is None or value.dtype != ir.DataType.FLOAT:
            continue
        op.scope = f"{value.name}.loss_scale"
        y = op.tensor(value)
        scale = op.Reshape(
            op.Slice(op.tensor(state), [0], [1], [0]), op.const(np.zeros(0, np.int64))
        )
        scaled = y * scale
        still = [op.Identity(y), op.Mul(y, scale)]
        for tensor in still:
            stopped = tensor.value.producer()
            assert stopped is not None
            stopped.name = op.names.fresh(f"{STOP_GRADIENT}/{stopped.name}")
        new = (still[0] + (scaled - still[1])).value
        new.type, new.shape = value.type, value.shape
        own = set(op.nodes)
        op.place(graph, after=node)
        take_over(value, new)
        value.name = op.names.fresh(f"{new.name}.unscaled")
        for reader in own:
            for index, operand in enumerate(reader.inputs):
                if operand is new:
                    reader.replace_input_with(index, value)
