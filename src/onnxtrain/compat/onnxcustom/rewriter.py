"""Models with some of their nodes replaced."""

from __future__ import annotations

import onnx

from ...errors import ModelError, UnknownNameError
from ...graph import Names, load, to_proto
from ...graph.subgraphs import graph_protos, subgraph_protos
from .onnx_helper import as_proto

_UNREDUCED = {
    "ReduceSum": "Identity",
    "ReduceMean": "Identity",
    "ReduceL1": "Abs",
    "ReduceSumSquare": "Mul",
}
_THROUGH = {"Identity", "Mul", "Div", "Neg", "Reshape", "Squeeze", "Unsqueeze", "Cast"}


def unreduced_onnx_loss(onx: onnx.ModelProto, output_name: str = "score") -> onnx.ModelProto:
    """The loss of every observation instead of their sum.

    The node that reduces the loss is replaced by its element-wise counterpart, and the result is
    the only output.

    Args:
        onx: a model with a loss.
        output_name: the loss among its outputs.
    """
    model = as_proto(onx)
    graph = model.graph
    if output_name not in {o.name for o in graph.output}:
        raise UnknownNameError("output", output_name, [o.name for o in graph.output])
    producers = {name: node for node in graph.node for name in node.output}
    node = producers[output_name]
    while node.op_type not in _UNREDUCED:
        sources = [producers[i] for i in node.input if i in producers]
        reducing = [n for n in sources if n.op_type in {*_UNREDUCED, *_THROUGH}]
        if node.op_type not in _THROUGH or not reducing:
            raise ModelError(
                f"{output_name!r} is not made by a reduction (ReduceSum, ReduceMean, ReduceL1, "
                f"ReduceSumSquare) but by {node.op_type}; its terms cannot be told apart."
            )
        if node.op_type in {"Reshape", "Squeeze", "Unsqueeze"}:  # one number is many now
            del node.input[1:], node.attribute[:]
            node.op_type = "Identity"
        node = reducing[0]
    kind, source = node.op_type, node.input[0]
    node.op_type = _UNREDUCED[kind]
    del node.input[:], node.attribute[:]
    node.input.extend([source] * (2 if kind == "ReduceSumSquare" else 1))
    output = next(o for o in graph.output if o.name == output_name)
    element = output.type.tensor_type.elem_type
    del graph.output[:], graph.value_info[:]
    graph.output.append(onnx.helper.make_tensor_value_info(output_name, element, None))
    return without_unused(model)


def without_unused(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop the nodes that no output needs."""
    needed = {o.name for o in model.graph.output}
    live = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            live.append(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(live))
    constants = [i for i in model.graph.initializer if i.name in needed]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model


def onnx_rewrite_operator(
    onx: onnx.ModelProto, op_type: str, sub_onx: onnx.ModelProto, recursive: bool = True
) -> onnx.ModelProto:
    """Replace every node of an operator by a small graph.

    Args:
        onx: the model; it is not changed.
        op_type: the operator to replace.
        sub_onx: a model with as many inputs and outputs as the nodes have.
        recursive: also in the bodies of If, Loop and Scan.
    """
    if not any(op_type == n.op_type for n in load(onx).graph.all_nodes()):
        return as_proto(onx)
    model = as_proto(onx)
    names = Names(_all_names(model.graph))
    _rewrite(model.graph, op_type, sub_onx.graph, names, recursive)
    ours = {o.domain: o for o in model.opset_import}
    for opset in sub_onx.opset_import:
        if opset.domain not in ours:
            model.opset_import.append(opset)
        elif ours[opset.domain].version != opset.version:
            raise ModelError(
                f"The replacement uses opset {opset.version} of {opset.domain or 'ai.onnx'!r}, the "
                f"model {ours[opset.domain].version}. Write it for the model's version."
            )
    return to_proto(load(model))


def _all_names(graph: onnx.GraphProto) -> set[str]:
    names: set[str] = set()
    for each in graph_protos(graph):
        names.update(v.name for v in (*each.input, *each.initializer))
        for node in each.node:
            names.update([node.name, *node.output])
    return names


def _rewrite(
    graph: onnx.GraphProto, op_type: str, sub: onnx.GraphProto, names: Names, recursive: bool
) -> None:
    nodes = []
    for node in graph.node:
        if recursive:
            for inner in subgraph_protos(node):
                _rewrite(inner, op_type, sub, names, recursive)
        if node.op_type != op_type:
            nodes.append(node)
            continue
        if len(node.input) != len(sub.input) or len(node.output) != len(sub.output):
            raise ModelError(
                f"Node {node.name!r} ({op_type}) has {len(node.input)} inputs and "
                f"{len(node.output)} outputs, the replacement {len(sub.input)} and "
                f"{len(sub.output)}."
            )
        nodes.extend(_inlined(graph, node, sub, names))
    del graph.node[:]
    graph.node.extend(nodes)


def _inlined(
    graph: onnx.GraphProto, node: onnx.NodeProto, sub: onnx.GraphProto, names: Names
) -> list[onnx.NodeProto]:
    mapped = dict(zip([i.name for i in sub.input], node.input))
    mapped.update(zip([o.name for o in sub.output], node.output))
    for tensor in sub.initializer:
        mapped[tensor.name] = names.fresh(tensor.name)
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = mapped[tensor.name]
    nodes = []
    for inner in sub.node:
        for name in inner.output:
            if name and name not in mapped:
                mapped[name] = names.fresh(name)
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = names.fresh(f"{node.name or node.op_type}/{inner.name or inner.op_type}")
        for field in (copy.input, copy.output):
            renamed = [mapped.get(n, n) for n in field]
            del field[:]
            field.extend(renamed)
        nodes.append(copy)
    return nodes
