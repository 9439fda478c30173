"""Half precision computed in float32, where onnxruntime's CPU kernels do not compute in it.

Arguments, weights and results keep their types; what is between them is float32. That is more
exact than what torch computes, and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
import onnx.helper
import onnx.numpy_helper
import torch

from ..graph.subgraphs import node_protos

FLOAT, FLOAT16, BFLOAT16 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)
SUFFIX = ".float32"


def autocast() -> torch.dtype | None:
    """The type that torch would cast to on a CPU, if it would."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def narrow_types(autocast: torch.dtype | None) -> set[int]:
    """ONNX types that are computed in float32.

    Always bfloat16, which few operators of onnxruntime take on a CPU. Under `torch.autocast` also
    float16: a graph then mixes both types in one operator, as torch's kernels may.
    """
    return {BFLOAT16} if autocast is None else {BFLOAT16, FLOAT16}


def widen(model: onnx.ModelProto, narrow: Collection[int]) -> None:
    """Let a model compute in float32 what it computes in these types."""
    graph = model.graph
    inputs = [v.name for v in graph.input if v.type.tensor_type.elem_type in narrow]
    inputs += [t.name for t in graph.initializer if t.data_type in narrow]
    outputs = {
        v.name: v.type.tensor_type.elem_type
        for v in graph.output
        if v.type.tensor_type.elem_type in narrow
    }
    for nodes in (graph.node, *(function.node for function in model.functions)):
        for node in node_protos(nodes):
            _widen_attributes(node, narrow)
    renamed = {name: name + SUFFIX for name in (*inputs, *outputs)}
    _rename(graph.node, renamed)
    first = [
        onnx.helper.make_node("Cast", [name], [renamed[name]], to=FLOAT)
        for name in dict.fromkeys(inputs)
    ]
    last = [
        onnx.helper.make_node("Cast", [renamed[name]], [name], to=kind)
        for name, kind in outputs.items()
    ]
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    _forget_types(graph, narrow)


def _widen_attributes(node: onnx.NodeProto, narrow: Collection[int]) -> None:
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i in narrow:
            attribute.i = FLOAT
        elif attribute.HasField("t") and attribute.t.data_type in narrow:
            array = onnx.numpy_helper.to_array(attribute.t).astype("float32")
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array, attribute.t.name))


def _rename(nodes: Collection[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for node in node_protos(nodes):
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for attribute in node.attribute:
            for value in attribute.g.output:
                value.name = names.get(value.name, value.name)


def _forget_types(graph: onnx.GraphProto, narrow: Collection[int]) -> None:
    """Drop what is said about values inside, here and in subgraphs, that are float32 now."""
    remaining = [v for v in graph.value_info if v.type.tensor_type.elem_type not in narrow]
    del graph.value_info[:]
    graph.value_info.extend(remaining)
    for node in node_protos(graph.node):
        for attribute in node.attribute:
            for value in (*attribute.g.input, *attribute.g.output, *attribute.g.value_info):
                if value.type.tensor_type.elem_type in narrow:
                    value.type.tensor_type.elem_type = FLOAT
