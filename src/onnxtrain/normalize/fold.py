"""Integer arithmetic on constants is done now: pads, axes and sizes become visible to inference.

Only integers and booleans are folded, never floats: a float constant may be a weight (ADR 1). A
single number that is read as an integer is none, since no gradient reaches it, and neither are
integers that are scaled by single numbers and rounded: the places that a resized axis reads.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..graph import FLOATS, Names
from ..graph.evaluate import evaluate
from ..graph.nodes import initializer
from ..graph.parameters import CONSTANT, mark_constant
from .rewrite import names_in, standard
from .stored_shapes import infer_or_forget
from .symbolic import infer_symbolic

MAX_ELEMENTS = 1024
MAX_RESULT = 1 << 20
"""Elements that a folded result may have; what is larger is computed when the model runs."""
GROWING = frozenset({"EyeLike", "Einsum", "OneHot", "Pad", "Resize", "Upsample"})
"""Operators whose results can be large when nothing tells their shape, and their inputs small."""
ARITHMETIC = frozenset(
    {
        "Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Div", "Floor", "Max", "Min", "Mul",
        "Neg", "Reshape", "Round", "Squeeze", "Sub", "Unsqueeze",
    }
)  # fmt: skip
"""What places are computed with. Every runtime gives the same numbers."""
LONGEST_ARITHMETIC = 32
"""Nodes of such a computation."""
WHOLE = frozenset(
    {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8}
)


def fold_integers(model: ir.Model) -> ir.Model:
    """Replace nodes that compute small integer constants by initializers, in subgraphs too."""
    if _fold(model):
        model = infer_symbolic(infer_or_forget(model))
    return model


def _fold(model: ir.Model) -> bool:
    changed = False
    arrays: list[Any] | None
    names: Names | None = None
    for node in list(model.graph.all_nodes()):
        if _is_length(node):
            arrays = [_length(node)]
        elif _is_constant(node):
            arrays = _evaluate([node], model.opset_imports[""])
        elif (rounded := _rounded(node)) is not None:
            arrays = _evaluate(rounded, model.opset_imports[""])
        else:
            continue
        if arrays is None:
            continue
        if names is None:
            names = names_in(model)
        for output, array in zip(node.outputs, arrays):
            own = node.graph is model.graph  # names of bodies need not be unique outside
            name = output.name or "" if own else names.fresh(output.name or "folded")
            output.name = f"{output.name}_folded"
            value = initializer(model.graph, name, array)
            mark_constant(value)
            output.replace_all_uses_with(value)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        changed = True
    return changed


def _is_length(node: ir.Node) -> bool:
    """Whether a node tells how many integers a vector has, and they have been counted already.

    onnx follows such numbers in a graph and not in its bodies, where repeats become a rank.
    """
    if standard(node.domain) or node.op_type != "Shape" or node.attributes:
        return False
    vector, (output,) = node.inputs[0], node.outputs
    if vector is None or vector.dtype not in WHOLE or output.is_graph_output():
        return False
    shape = vector.shape
    return shape is not None and len(shape) == 1 and shape.is_static() and bool(output.uses())


def _length(node: ir.Node) -> Any:
    """The length of a node's vector, as a vector."""
    vector = node.inputs[0]
    assert vector is not None
    assert vector.shape is not None
    return np.array(vector.shape.numpy(), np.int64)


def _is_constant(node: ir.Node) -> bool:
    if standard(node.domain) or not node.inputs or node.op_type in ("Loop", "If", "Scan"):
        return False
    if any(o.dtype not in WHOLE or o.is_graph_output() or not o.uses() for o in node.outputs):
        return False
    is_number = node.op_type in ("Cast", "CastLike") and _is_number(node.inputs[0])
    is_known = is_number or all(v is None or _is_small(v) for v in node.inputs)
    return is_known and _size(node) <= MAX_RESULT


def _rounded(node: ir.Node) -> list[ir.Node] | None:
    """The nodes that make integers of single floats and other integers, this one last."""
    output, value = node.outputs[0], node.inputs[0] if node.inputs else None
    is_cast = node.op_type == "Cast" and not standard(node.domain)
    if not is_cast or output.dtype not in WHOLE or output.is_graph_output() or not output.uses():
        return None
    computed_by = dict[ir.Node, None]()
    is_known = value is not None and _is_arithmetic(value, computed_by)
    return [*computed_by, node] if computed_by and is_known else None


def _is_arithmetic(value: ir.Value, computed_by: dict[ir.Node, None]) -> bool:
    """Whether a value is computed of single numbers and small integers; what by, in order."""
    node = value.producer()
    if node is None:
        return _is_small(value) or _is_number(value) or _is_folded(value)
    if node in computed_by:
        return True
    if node.op_type not in ARITHMETIC or standard(node.domain):
        return False
    operands = [v for v in node.inputs if v is not None]
    if len(computed_by) >= LONGEST_ARITHMETIC or not all(
        _is_arithmetic(v, computed_by) for v in operands
    ):
        return False
    computed_by[node] = None
    return len(computed_by) <= LONGEST_ARITHMETIC


def _size(node: ir.Node) -> int:
    """Elements that the results have at most; only some operators make more of a few."""
    if all(o.shape is not None and o.shape.is_static() for o in node.outputs):
        return sum(math.prod(o.shape.numpy()) for o in node.outputs if o.shape is not None)
    arrays = [v.const_value.numpy() for v in node.inputs if v is not None and v.const_value]
    if node.op_type in ("ConstantOfShape", "Expand", "Tile"):
        return math.prod(max(int(n), 1) for n in arrays[-1].reshape(-1)) * max(arrays[0].size, 1)
    if node.op_type == "Range":
        start, limit, delta = (int(a.reshape(-1)[0]) for a in arrays)
        return abs(limit - start) // max(abs(delta), 1) + 1
    return MAX_RESULT + 1 if node.op_type in GROWING else 0


def _is_small(value: ir.Value) -> bool:
    tensor = _constant(value)
    return tensor is not None and tensor.dtype in WHOLE and tensor.size <= MAX_ELEMENTS


def _is_number(value: ir.Value | None) -> bool:
    """Whether a value is one constant number, of whatever type."""
    tensor = None if value is None else _constant(value)
    return tensor is not None and tensor.size == 1 and tensor.dtype in FLOATS


def _is_folded(value: ir.Value) -> bool:
    """Whether a value is a small constant that is no weight: sizes that were made floats, say."""
    tensor = _constant(value) if CONSTANT in value.metadata_props else None
    return tensor is not None and tensor.dtype in FLOATS and tensor.size <= MAX_ELEMENTS


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    is_no_constant = value.is_graph_input() or value.producer() is not None
    return None if is_no_constant else value.const_value


def _evaluate(nodes: list[ir.Node], opset: int) -> list[Any] | None:
    """The results of the last node, None where they cannot be told."""
    feeds = {
        v.name or "": v.const_value.numpy()
        for node in nodes
        for v in node.inputs
        if v is not None and v.producer() is None and v.const_value is not None
    }
    outputs = nodes[-1].outputs
    graph = onnx.helper.make_graph(
        [ir.to_proto(node) for node in nodes],
        "constant",
        [onnx.ValueInfoProto(name=n) for n in feeds],
        [onnx.ValueInfoProto(name=o.name) for o in outputs],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    arrays = evaluate(model, feeds)
    expected = [o.dtype.numpy() for o in outputs if o.dtype is not None]
    if arrays is None or any(a.dtype != kind for a, kind in zip(arrays, expected)):
        return None
    return arrays
