"""Opset 22 to the newest → 21.

Most newer versions of operators only accept more types: they are relabelled. Where attributes
were added, a value that means what 21 does is dropped and any other gets a rewrite or an error;
operators that 21 does not have are replaced by the lowerings of `newer`, or by the function body
of their schema.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.inline import inline_bodies, schema_body
from .constants import lift_constants
from .custom_types import infer_with_custom
from .newer import NEWER
from .rewrite import Lowering, all_nodes, describe, rewrite, standard


def lower_opset(model: ir.Model, to: int) -> ir.Model:
    """Bring a typed model above opset `to` (21) down to it."""
    version = model.opset_imports[""]
    while True:
        waiting = rewrite(model, NEWER, to)
        if waiting:
            node, error = waiting[0]
            raise ModelError(f"{describe(node)} cannot be rewritten: {error}") from error
        if not _inline_newer(model, version, to):
            break
        model = infer_with_custom(lift_constants(model))
    for node in all_nodes(model):
        if not standard(node.domain) and onnx.defs.has(node.op_type, version):
            _drop_new_attributes(node, to)
    _cast_around(model, to)
    _refuse_types(model, to)
    model.opset_imports[""] = to
    return model


def _inline_newer(model: ir.Model, version: int, to: int) -> bool:
    """Replace what only newer opsets have by its function body; whether there was any."""
    bodies = []
    for node in all_nodes(model):
        if standard(node.domain) or not onnx.defs.has(node.op_type, version):
            continue
        if onnx.defs.has(node.op_type, to):
            continue
        body = schema_body(node, version, to)
        if body is None:
            raise ModelError(
                f"{describe(node)} was introduced after opset {to}, and there is no way to write "
                f"it with the operators of {to}. Export the model with opset {to} or lower."
            )
        bodies.append((node, body))
    if bodies:
        model.opset_imports[""] = to  # the bodies are labelled so; the version is put back
        inline_bodies(model, bodies)
        model.opset_imports[""] = version
    return bool(bodies)


def _drop_new_attributes(node: ir.Node, to: int) -> None:
    """Drop attributes that 21 does not have when they say what 21 does anyway."""
    known = onnx.defs.get_schema(node.op_type, to).attributes
    for name, attribute in list(node.attributes.items()):
        if name in known:
            continue
        if not _harmless(node, name, attribute.value):
            raise ModelError(
                f"{describe(node)}: attribute {name!r} = {attribute.value!r} has no meaning in "
                f"opset {to}, which is what is written. Export the model with opset {to} or lower."
            )
        del node.attributes[name]


def _harmless(node: ir.Node, name: str, value: object) -> bool:
    if name == "round_mode":  # only matters for float8e8m0, which opset 21 does not have
        return True
    if name == "stash_type":
        return node.inputs[0] is not None and node.inputs[0].dtype not in _HALVES
    if name in ("precision", "output_dtype"):
        scale = node.inputs[1]
        return value == 0 or (scale is not None and scale.dtype == value)
    return False


_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _refuse_types(model: ir.Model, to: int) -> None:
    """Name the first node with an element type that its operator does not know at `to`."""
    for node in all_nodes(model):
        if standard(node.domain) or not onnx.defs.has(node.op_type, to):
            continue
        for value in (*node.inputs, *node.outputs):
            dtype = value.dtype if value is not None else None
            if dtype is not None and not accepts(node, dtype, to):
                raise ModelError(
                    f"{describe(node)} works on {dtype.name}, which it cannot in opset {to}, the "
                    f"newest that is written. Export the model with opset {to} or lower."
                )


def _cast_around(model: ir.Model, to: int) -> None:
    """Compute in float32 what the older operator does not offer for half-precision types."""
    table: dict[tuple[str, str], Lowering] = {}
    for node in all_nodes(model):
        if standard(node.domain) or not onnx.defs.has(node.op_type, to):
            continue
        narrow = {v.dtype for v in node.inputs if v is not None and v.dtype in _HALVES}
        if any(not accepts(node, dtype, to) for dtype in narrow if dtype is not None):
            table["", node.op_type] = _in_float32(node.op_type, to)
    if table:
        rewrite(model, table, to)


def accepts(node: ir.Node, dtype: ir.DataType, to: int) -> bool:
    """Whether the operands and results of an element type may have it at opset `to`."""
    schema = onnx.defs.get_schema(node.op_type, to)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    name = f"tensor({dtype.name.lower()})"
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, value in enumerate(values):
            if value is None or value.dtype != dtype or not isinstance(value.type, ir.TensorType):
                continue
            formal = formals[min(i, len(formals) - 1)].type_str
            if name not in allowed.get(formal, [formal]):
                return False
    return True


def _in_float32(op_type: str, to: int) -> Lowering:
    def lower(
        op: OpBuilder, *inputs: Tensor | None, outputs: tuple[bool, ...], **attributes: Any
    ) -> list[Tensor]:
        back = next((x.dtype for x in inputs if x is not None and x.dtype in _HALVES), None)
        if back is None:  # another node of the same operator, in full precision already
            return list(op.emit(op_type, inputs, len(outputs), **attributes))
        wide = [
            op.Cast(x, to=ir.DataType.FLOAT) if x is not None and x.dtype == back else x
            for x in inputs
        ]
        results = op.emit(op_type, wide, len(outputs), **attributes)
        return [op.Cast(y, to=back) if y.dtype == ir.DataType.FLOAT else y for y in results]

    return lower
