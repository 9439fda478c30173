"""Models are written at the opset of the model they come from, where that can be.

Stages before this one work at opset 18 to 21. What they built goes back to an older version only if
every operator has a form there that means the same; otherwise it stays as it is.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from ..graph.older_forms import OLDER
from ..normalize.lower_opset import accepts
from ..normalize.rewrite import Lowering, all_nodes, rewrite, standard

OLDEST = 13
"""Below it Squeeze, Softmax and the broadcasting of sums are others, and nothing is gained."""

SAME = frozenset(
    {
        "Add", "BatchNormalization", "CumSum", "Div", "GRU", "GreaterOrEqual", "Identity", "If",
        "LSTM", "LeakyRelu", "LessOrEqual", "Loop", "Mul", "PRelu", "Pad", "Pow", "RNN", "Relu",
        "Reshape", "Scan", "ScatterElements", "ScatterND", "Shape", "Split", "Sub", "Where",
    }
)  # fmt: skip
"""Operators whose versions from 13 to 18 differ in types, attributes and operands only, so that
what an older schema accepts means what it meant."""


def at_opset(model: ir.Model, version: int) -> ir.Model:
    """The model at an older opset, or as it is if one of its operators has no form there."""
    now = model.opset_imports[""]
    if not OLDEST <= version < now:
        return model
    if not all(_has_a_form(node, now, version) for node in all_nodes(model)):
        return model
    lowered = model.clone()
    older = {name for name, (newest, _) in OLDER.items() if version < newest}
    if rewrite(lowered, {("", name): _lowering(name) for name in older}, version):
        return model  # a rank that nobody knows
    lowered.opset_imports[""] = version
    return lowered


def _has_a_form(node: ir.Node, now: int, version: int) -> bool:
    if standard(node.domain):
        return True
    if not onnx.defs.has(node.op_type, version):
        return False
    new, old = (onnx.defs.get_schema(node.op_type, v) for v in (now, version))
    if new.since_version == old.since_version:
        return True
    if node.op_type in OLDER and version < OLDER[node.op_type][0]:
        return all(v is None or v.const_value is not None for v in node.inputs[1:])
    dtypes = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None}
    return (
        node.op_type in SAME
        and set(node.attributes) <= set(old.attributes)
        and len(node.inputs) <= old.max_input
        and all(accepts(node, dtype, version) for dtype in dtypes if dtype is not None)
    )


def _lowering(op_type: str) -> Lowering:
    def lower(op: OpBuilder, *inputs: Tensor | None, **attributes: Any) -> Tensor:
        operands = [inputs[0], *(None if v is None else v.const for v in inputs[1:])]
        result = OLDER[op_type][1](op, op_type, operands, attributes)
        return op.exactly(op_type, *inputs, **attributes) if result is None else result

    return lower
