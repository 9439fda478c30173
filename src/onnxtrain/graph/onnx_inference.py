"""onnx's own shape inference, and when it should follow the contents of vectors."""

from __future__ import annotations

from typing import Any

import onnx
import onnx.shape_inference

from .evaluate import evaluate

LONG = 4096
"""Elements of a vector from which on it is not the shape of anything."""
ARITHMETIC_OF_SHAPES = frozenset(
    {"Add", "Cast", "Concat", "Constant", "Div", "Gather", "Identity", "Mul", "Slice", "Squeeze",
     "Sub", "Unsqueeze"}
)  # fmt: skip
"""What exporters compute axes and sizes with when they do not fold constants."""


def infer_shapes_of(proto: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """`onnx.shape_inference.infer_shapes` that follows values which are shapes.

    With `data_prop` onnx keeps one entry per element for every vector that is sliced, added or
    multiplied, also for a parameter of a million numbers. Such a model is inferred without,
    what follows from its constants computed before; only if a shape stays open all the same,
    values are followed as in all other models.
    """
    if _has_long_vectors(proto.graph):
        found = _infer_from_constants(proto, options)
        if _is_complete(found.graph):
            return found
    return onnx.shape_inference.infer_shapes(proto, data_prop=True, **options)


def _has_long_vectors(graph: onnx.GraphProto) -> bool:
    dims = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.input]
    return any(len(d) == 1 and d[0] > LONG for d in (*dims, *(t.dims for t in graph.initializer)))


def _infer_from_constants(proto: onnx.ModelProto, options: dict[str, Any]) -> onnx.ModelProto:
    """Inference with constant nodes evaluated for it; the model itself keeps them."""
    constant = _constant_nodes(proto.graph)
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    made = _values(proto, constant) if constant else None
    if made is not None:
        left = [n for n in proto.graph.node if not made.keys() & set(n.output)]
        del light.graph.node[:]
        light.graph.node.extend(left)
        light.graph.initializer.extend(made.values())
    light = onnx.shape_inference.infer_shapes(light, data_prop=False, **options)
    infos = [
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in light.graph.initializer[len(proto.graph.initializer) :]
    ]
    del light.graph.initializer[len(proto.graph.initializer) :]
    del light.graph.node[:]
    light.graph.node.extend(proto.graph.node)
    light.graph.value_info.extend(infos)
    return light


def _constant_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes that see nothing but initializers and each other, and give no graph output."""
    inputs, outputs = {v.name for v in graph.input}, {v.name for v in graph.output}
    known = {t.name for t in graph.initializer} - inputs
    found = []
    for node in graph.node:
        if node.domain or node.op_type not in ARITHMETIC_OF_SHAPES:
            continue
        if known.issuperset(filter(None, node.input)) and outputs.isdisjoint(node.output):
            found.append(node)
            known.update(node.output)
    return found


def _values(
    proto: onnx.ModelProto, nodes: list[onnx.NodeProto]
) -> dict[str, onnx.TensorProto] | None:
    """What the nodes compute, by name; None where that cannot be told."""
    names = [name for node in nodes for name in node.output if name]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in names]
    graph = onnx.helper.make_graph(nodes, "constants", [], outputs, proto.graph.initializer)
    model = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    values = evaluate(model, {})
    if values is None:
        return None
    return {n: onnx.numpy_helper.from_array(v, n) for n, v in zip(names, values)}


def _is_complete(graph: onnx.GraphProto) -> bool:
    """Whether every result of a node has a known shape (and none is inside a subgraph)."""
    known = {v.name for v in (*graph.value_info, *graph.output) if _is_known(v.type)}
    return all(
        not any(a.HasField("g") for a in node.attribute)
        and all(name in known for name in node.output if name)
        for node in graph.node
    )


def _is_known(value: onnx.TypeProto) -> bool:
    """A dimension that onnx knows nothing of gets a name of its own, ``unk__<N>``."""
    return value.tensor_type.HasField("shape") and all(
        d.HasField("dim_value") or (d.dim_param and not d.dim_param.startswith("unk__"))
        for d in value.tensor_type.shape.dim
    )
