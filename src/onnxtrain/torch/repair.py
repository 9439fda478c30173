"""Exported models put right for training: names, tying, buffers, modes.

Functions take the outermost module of an export, whose tensors have the names the exporter saw:
``module.`` before those of the user's module, ``loss_fn.`` before those of a loss function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import torch

from ..graph import Names
from ..graph.subgraphs import graph_protos, node_protos

DynamicAxes = Mapping[str, Mapping[int, str]]


def tensors_by_name(flat: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by the name that the exporter knows, tied names included."""
    return {
        **dict(flat.named_parameters(remove_duplicate=False)),
        **dict(flat.named_buffers(remove_duplicate=False)),
    }


def state_name(name: str) -> str:
    """The name in the module's own state_dict; the loss function's tensors keep a prefix."""
    return name.removeprefix("module.")


def aliases(flat: torch.nn.Module) -> dict[str, str]:
    """From every state_dict name to the first name of the same tensor."""
    first: dict[int, str] = {}
    first_names = {}
    for name, tensor in tensors_by_name(flat).items():
        first_names[state_name(name)] = first.setdefault(id(tensor), state_name(name))
    return first_names


def canonical_names(
    proto: onnx.ModelProto, flat: torch.nn.Module, aliases: Mapping[str, str]
) -> dict[str, str]:
    """New names of the initializers that are torch's."""
    known = tensors_by_name(flat)
    return {i.name: aliases[state_name(i.name)] for i in proto.graph.initializer if i.name in known}


def split_merged(proto: onnx.ModelProto, flat: torch.nn.Module) -> None:
    """Give tensors that the exporter merged because they are equal their own initializers."""
    known = tensors_by_name(flat)
    graph = proto.graph
    present = {i.name: i for i in graph.initializer}
    for node in list(graph.node):
        merged = node.op_type == "Identity" and node.input[0] in present
        if not merged or node.output[0] not in known:
            continue
        source, own = node.input[0], node.output[0]
        graph.node.remove(node)
        if source in known and known[source] is known[own]:
            rename(proto, {own: source})
            continue
        tensor = onnx.TensorProto()
        tensor.CopyFrom(present[source])
        tensor.name = own
        graph.initializer.append(tensor)


def drop_zero_biases(proto: onnx.ModelProto) -> None:
    """Leave out the bias of zeros that the dynamo exporter gives to convolutions without one.

    In three dimensions it has a shape that no bias may have, and onnxruntime refuses the model.
    """
    graph = proto.graph
    makers = {name: node for node in graph.node for name in node.output}
    biased = [n for n in graph.node if n.op_type == "Conv" and len(n.input) == 3]
    unread = [n.input.pop() for n in biased if _is_zeros(n.input[2], makers)]
    _remove_unread(graph, unread, makers)


def count_axes_from_the_front(proto: onnx.ModelProto) -> None:
    """Permutations without negative axes, which torch knows and ONNX does not.

    The TorchScript exporter writes them down as they are, and onnxruntime refuses the model.
    """
    transposes = [n for n in node_protos(proto.graph.node) if n.op_type == "Transpose"]
    for order in (a.ints for n in transposes for a in n.attribute if a.name == "perm"):
        order[:] = [axis % len(order) for axis in order]


def _is_zeros(name: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a value is a zero constant, maybe of another type and expanded."""
    node = makers.get(name)
    while node is not None and node.op_type in ("Expand", "Cast", "CastLike"):
        node = makers.get(node.input[0])
    if node is None or node.op_type != "Constant" or node.attribute[0].name != "value":
        return False
    return not onnx.numpy_helper.to_array(node.attribute[0].t).any()


def _remove_unread(
    graph: onnx.GraphProto, names: list[str], makers: Mapping[str, onnx.NodeProto]
) -> None:
    """Remove the nodes that made some values, and what only they needed."""
    reads = Counter(name for each in graph_protos(graph) for n in each.node for name in n.input)
    reads.update(output.name for output in graph.output)
    waiting = list(dict.fromkeys(names))
    while waiting:
        node = makers.get(waiting.pop())
        if node is None or any(reads[name] for name in node.output):
            continue
        graph.node.remove(node)
        reads.subtract(node.input)
        waiting += [name for name in node.input if not reads[name]]


def separate_outputs(proto: onnx.ModelProto) -> None:
    """Give every output a value of its own.

    Where a module returns a tensor twice, or one of its arguments or weights, exporters name the
    same value again, and what is renamed as an output would be renamed everywhere.
    """
    graph = proto.graph
    taken = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    names = _value_names(graph)
    for output in graph.output:
        if output.name in taken:
            own = Names(names).fresh(f"{output.name}_returned")
            graph.node.add(op_type="Identity", input=[output.name], output=[own])
            output.name = own
            names.add(own)
        taken.add(output.name)


def restore_buffers(proto: onnx.ModelProto, flat: torch.nn.Module) -> None:
    """Buffers with the values from before the export: tracing has moved running statistics."""
    known = dict(flat.named_buffers(remove_duplicate=False))
    for initializer in proto.graph.initializer:
        buffer = known.get(initializer.name)
        if buffer is not None and buffer.dtype != torch.bfloat16:  # numpy has no such type
            value = onnx.numpy_helper.from_array(to_array(buffer), initializer.name)
            initializer.CopyFrom(value)


def rename(proto: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename values everywhere in the main graph and its subgraphs; clashes move out of the way."""
    if not names:
        return
    names = dict(names)
    taken = _value_names(proto.graph)
    for new in list(names.values()):
        if new in taken and new not in names:
            names[new] = Names(taken | set(names.values())).fresh(f"{new}_inner")
    _rename_graph(proto.graph, names)


def _value_names(graph: onnx.GraphProto) -> set[str]:
    names: set[str] = set()
    for each in graph_protos(graph):
        names.update(v.name for v in (*each.initializer, *each.input))
        names.update(o for node in each.node for o in node.output)
    return names


def _rename_graph(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for each in graph_protos(graph):
        for node in each.node:
            node.input[:] = [names.get(n, n) for n in node.input]
            node.output[:] = [names.get(n, n) for n in node.output]
        for value in (*each.initializer, *each.input, *each.output, *each.value_info):
            value.name = names.get(value.name, value.name)


def name_dimensions(proto: onnx.ModelProto, dynamic: DynamicAxes) -> None:
    """Dynamic dimensions under the names that were asked for, wherever they occur."""
    symbols: dict[str, str] = {}
    for value in proto.graph.input:
        for axis, name in dynamic.get(value.name, {}).items():
            dim = value.type.tensor_type.shape.dim[axis]
            if dim.dim_param and dim.dim_param != name:
                symbols.setdefault(dim.dim_param, name)
    graph = proto.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_param = symbols[dim.dim_param]


def training_statistics(
    proto: onnx.ModelProto, module: torch.nn.Module, training: bool | None
) -> None:
    """Switch BatchNormalization to the batch's statistics where its module trains.

    The dynamo exporter writes the inference form whatever the mode. A call of the function in user
    code says by itself which statistics it takes.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    for node in proto.graph.node:
        if node.op_type != "BatchNormalization" or len(node.output) > 1:
            continue
        owner = modules.get(node.input[3].rpartition(".")[0])
        decides = owner is not None and training is not None
        if not (training if decides else _traced_in_training(node, owner)):
            continue
        node.attribute.append(onnx.helper.make_attribute("training_mode", 1))
        node.output.extend(f"{node.output[0]}_{what}" for what in ("mean", "variance"))


def _traced_in_training(node: onnx.NodeProto, owner: torch.nn.Module | None) -> bool:
    """Whether torch called the operator with ``training=True``."""
    traced = next((p.value for p in node.metadata_props if p.key.endswith(".fx_node")), "")
    if not traced:
        return owner is not None and owner.training
    return "_native_batch_norm_legit_functional" in traced and ", True, " in traced


def activate_dropout(proto: onnx.ModelProto) -> None:
    """Switch on the Dropout nodes that say nothing about their mode.

    Both exporters write the dropout of `scaled_dot_product_attention` like that, which ONNX takes
    as inference, while torch drops whenever the rate given is above zero. Dropout layers
    in eval mode are left out by both, so there are no others.
    """
    name = "onnxtrain.training_mode"
    nodes = [
        n for n in node_protos(proto.graph.node) if n.op_type == "Dropout" and len(n.input) == 2
    ]
    if not nodes:
        return
    if all(i.name != name for i in proto.graph.initializer):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), name))
    for node in nodes:
        node.input.append(name)


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A torch tensor as an array, without a copy where possible."""
    return tensor.detach().cpu().contiguous().numpy()
