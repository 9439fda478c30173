"""onnx's own shape inference, and when it should follow the contents of vectors."""

from __future__ import annotations

import math
from typing import Any

import onnx
import onnx.shape_inference

from ..errors import ModelError
from ..runtime.files.external import bits_of
from .einsum_shapes import has_einsum_with_dots, infer_einsums
from .evaluate import evaluate
from .subgraphs import graph_protos

HUGE = 2**40
"""Bytes of a value that no machine holds."""
MAX_EVALUATED = 2**24
"""Elements that constants may have, all together, that are computed to infer shapes."""
SHAPE_ELEMENTS = 4096
"""Elements of a vector from which on it is not the shape of anything."""
UNKNOWN = "unk__"
"""How the names begin that onnx gives to dimensions that it knows nothing of."""
ARITHMETIC_OF_SHAPES = frozenset(
    {"Add", "Cast", "Concat", "Constant", "Div", "Gather", "Identity", "Mul", "Reshape", "Slice",
     "Squeeze", "Sub", "Unsqueeze"}
)  # fmt: skip
"""What exporters compute axes and sizes with when they do not fold constants."""


def infer_shapes_of(
    proto: onnx.ModelProto,
    *,
    follows_values: bool = True,
    follows_long_vectors: bool = True,
    **options: Any,
) -> onnx.ModelProto:
    """`onnx.shape_inference.infer_shapes` that follows values which are shapes.

    With `data_prop` onnx keeps one entry per element for every vector that is sliced, added or
    multiplied, also for a parameter of a million numbers. So a model is inferred without first,
    which also shows whether a value is of a size that nothing can hold. If a shape stays open
    and there are long vectors, what follows from constants is computed; only if one stays open
    all the same, values are followed. Without `follows_values` onnx is asked once, and not to;
    without `follows_long_vectors` shapes stay open rather than that gigabytes are taken.

    Raises:
        ModelError: a value would have more than a terabyte.
    """

    def infer(model: onnx.ModelProto) -> onnx.ModelProto:
        if follows_values:
            return _infer(model, options, follows_long_vectors)
        return onnx.shape_inference.infer_shapes(model, data_prop=False, **options)

    if has_einsum_with_dots(proto.graph):
        return open_elements(infer_einsums(proto, infer))
    return open_elements(infer(proto))


def _infer(
    proto: onnx.ModelProto, options: dict[str, Any], follows_long_vectors: bool
) -> onnx.ModelProto:
    plain = onnx.shape_inference.infer_shapes(proto, data_prop=False, **options)
    _refuse_huge(plain.graph)
    if _is_complete(plain.graph):
        return plain
    if _has_long_vectors(plain.graph):
        inferred = _infer_from_constants(proto, _sizes(plain.graph), options)
        if _is_complete(inferred.graph) or not follows_long_vectors:
            return inferred
    return onnx.shape_inference.infer_shapes(proto, data_prop=True, **options)


OVERFLOWN = -(2**30)
"""Dimensions below: onnx before 1.23 counts a Concat in 32 bits. Files say -1 for what is open."""


def _refuse_huge(graph: onnx.GraphProto) -> None:
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.tensor_type
        fixed = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value")]
        size = math.prod(max(d, 0) for d in fixed) * (bits_of(kind.elem_type) or 8) // 8
        if size > HUGE or min(fixed, default=0) < OVERFLOWN:
            needs = f"take {size >> 40} TB" if size > HUGE else "take more than can be counted"
            raise ModelError(
                f"The value {value.name!r} has dimensions {' × '.join(map(str, fixed))} and would "
                f"{needs}: no machine can run this model. Look at the node that computes it, and "
                "at its constants."
            )


def _has_long_vectors(graph: onnx.GraphProto) -> bool:
    values = (*graph.input, *graph.value_info)
    dims = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]
    return any(
        len(d) == 1 and d[0] > SHAPE_ELEMENTS for d in (*dims, *(t.dims for t in graph.initializer))
    )


def _sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Elements of values whose shape is fixed."""
    sizes = {t.name: math.prod(t.dims) for t in graph.initializer}
    for value in graph.value_info:
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            sizes[value.name] = math.prod(d.dim_value for d in dims)
    return sizes


def _infer_from_constants(
    proto: onnx.ModelProto, sizes: dict[str, int], options: dict[str, Any]
) -> onnx.ModelProto:
    """Inference with constant nodes evaluated for it; the model itself keeps them."""
    constant = _constant_nodes(proto.graph, sizes)
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    folded = _values(proto, constant) if constant else None
    if folded is not None:
        left = [n for n in proto.graph.node if not folded.keys() & set(n.output)]
        del light.graph.node[:]
        light.graph.node.extend(left)
        light.graph.initializer.extend(folded.values())
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


def _constant_nodes(graph: onnx.GraphProto, sizes: dict[str, int]) -> list[onnx.NodeProto]:
    """Nodes that see nothing but initializers and each other, and give no graph output.

    What would be large is left out, and so is what follows from it: sizes of shapes are small.
    """
    inputs, outputs = {v.name for v in graph.input}, {v.name for v in graph.output}
    known = {t.name for t in graph.initializer} - inputs
    constant = []
    total = 0
    for node in graph.node:
        if node.domain or node.op_type not in ARITHMETIC_OF_SHAPES:
            continue
        if known.issuperset(filter(None, node.input)) and outputs.isdisjoint(node.output):
            size = max((sizes.get(o, 0) for o in node.output), default=0) or _bound(node, sizes)
            if total + size > MAX_EVALUATED:
                continue
            total += size
            sizes.update(dict.fromkeys(node.output, size))
            constant.append(node)
            known.update(node.output)
    return constant


def _bound(node: onnx.NodeProto, sizes: dict[str, int]) -> int:
    """Elements that a node's result has at most, whatever its inputs are."""
    input_sizes = [sizes.get(name, 1) for name in node.input]
    if node.op_type in ("Add", "Div", "Gather", "Mul", "Sub"):  # broadcasting; one row per index
        return math.prod(input_sizes)
    return sum(input_sizes)


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


def open_elements(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Forget the names that inference has invented for sizes of a sequence's elements.

    Elements differ in size. One name for all of them makes onnxruntime put one into the memory of
    another.
    """
    graphs = list(graph_protos(proto.graph))
    types = [value.type for g in graphs for value in (*g.value_info, *g.output)]
    tensors = [t.tensor_type for t in types]
    elements = [t.sequence_type.elem_type.tensor_type for t in types if t.HasField("sequence_type")]
    names = {d.dim_param for t in elements for d in t.shape.dim if d.dim_param.startswith(UNKNOWN)}
    for kind in (*tensors, *elements) if names else ():
        for dim in kind.shape.dim:
            if dim.dim_param in names:
                dim.ClearField("dim_param")
    return proto


def _is_complete(graph: onnx.GraphProto) -> bool:
    """Whether every result of a node has a known shape (and none is inside a subgraph)."""
    known = {v.name for v in (*graph.value_info, *graph.output) if _is_known(v.type)}
    return all(
        not any(a.HasField("g") for a in node.attribute)
        and all(name in known for name in node.output if name)
        for node in graph.node
    )


def _is_known(value: onnx.TypeProto) -> bool:
    return value.tensor_type.HasField("shape") and all(
        d.HasField("dim_value") or (d.dim_param and not d.dim_param.startswith(UNKNOWN))
        for d in value.tensor_type.shape.dim
    )
