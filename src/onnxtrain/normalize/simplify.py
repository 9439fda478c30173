"""Exporters' detours taken out of the forward graph before it is differentiated."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graph.edit import replace_value
from ..graph.tensor import dims_of


def simplify(model: ir.Model) -> ir.Model:
    """Replace a sequence that is only split and indexed by a plain Split."""
    for node in list(model.graph):
        if node.op_type == "SplitToSequence" and not node.domain:
            _as_split(model.graph, node)
    return model


def _as_split(graph: ir.Graph, node: ir.Node) -> None:
    """``SequenceAt(SplitToSequence(x), i)`` with constant sizes and index is part of a Split."""
    x, sequence = node.inputs[0], node.outputs[0]
    sizes = _sizes(node)
    users = [user for user, _ in sequence.uses()]
    if sizes is None or sequence.is_graph_output() or not users:
        return
    indices = [_constant(user.inputs[1]) for user in users]
    if any(user.op_type != "SequenceAt" for user in users) or any(i is None for i in indices):
        return
    name = f"{sequence.name}_sizes"
    split = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([len(sizes)]),
        const_value=ir.tensor(np.array(sizes, np.int64), name=name),
    )
    graph.register_initializer(split)
    new = ir.Node(
        "", "Split", [x, split], {"axis": ir.AttrInt64("axis", _axis(node))},
        num_outputs=len(sizes), name=f"{node.name or sequence.name}/Split",
    )  # fmt: skip
    graph.insert_before(node, new)
    for i, output in enumerate(new.outputs):
        output.name = f"{sequence.name}_{i}"
        output.type = x.type if x is not None else None
    for user, index in zip(users, indices):
        part = new.outputs[int(index) % len(sizes)]  # type: ignore[arg-type]
        part.shape = user.outputs[0].shape
        replace_value(graph, user.outputs[0], part)
        graph.remove(user, safe=True)
    graph.remove(node, safe=True)


def _axis(node: ir.Node) -> int:
    attribute = node.attributes.get("axis")
    return attribute.as_int() if attribute else 0


def _constant(value: ir.Value | None) -> int | None:
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return int(value.const_value.numpy().reshape(()))


def _sizes(node: ir.Node) -> list[int] | None:
    """Sizes of the pieces, when they are known and keep their axis."""
    x = node.inputs[0]
    dims = dims_of(x) if x is not None else None
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if dims is None or split is None or split.const_value is None:
        return None
    total, sizes = dims[_axis(node)], split.const_value.numpy()
    if sizes.ndim == 1:
        return [int(s) for s in sizes]
    if not isinstance(total, int):
        return None
    size = int(sizes)
    whole, rest = divmod(total, size)
    return [size] * whole + [rest] * bool(rest)
