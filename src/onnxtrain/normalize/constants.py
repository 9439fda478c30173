"""Constant nodes become initializers of the main graph, wherever they are."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import ModelError
from ..graph import Names
from ..graph.nodes import identity
from ..graph.parameters import mark_constant
from .rewrite import all_graphs, describe, names_in, standard


def lift_constants(model: ir.Model) -> ir.Model:
    """Turn Constant nodes and initializers of subgraphs into initializers of the main graph.

    A lifted tensor is named after the value it was, with a number behind it when two branches
    use the same name. Single numbers are marked as constants: an epsilon is no weight.
    """
    common.NameFixPass()(model)
    common.RemoveInitializersFromInputsPass()(model)
    names = names_in(model)
    main = model.graph
    taken = set(main.initializers)
    for graph in all_graphs(model):
        inner = graph is not main
        for node in [n for n in graph if n.op_type == "Constant" and not standard(n.domain)]:
            value, tensor = node.outputs[0], _tensor(node)
            name = _unique(value.name or "constant", names, taken) if inner else value.name or ""
            lifted = _initializer(name, tensor)
            lifted.metadata_props.update(value.metadata_props)
            if tensor.size <= 1:
                mark_constant(lifted)
            taken.add(name)
            _move(main, graph, value, lifted)
            graph.remove(node, safe=True)
        if inner:
            for name, value in list(graph.initializers.items()):
                held = value.const_value
                assert held is not None
                lifted = _initializer(_unique(name, names, taken), held)
                taken.add(lifted.name or "")
                del graph.initializers[name]
                _move(main, graph, value, lifted)
    return model


def _unique(name: str, names: Names, taken: set[str]) -> str:
    """The name itself unless the main graph or another branch has used it."""
    return name if name not in taken else names.fresh(name)


def _initializer(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(tensor.shape.numpy()),
        const_value=tensor,
    )


def _move(main: ir.Graph, graph: ir.Graph, value: ir.Value, lifted: ir.Value) -> None:
    """Let everything that used `value` use the initializer."""
    if value.is_graph_output():  # an output needs a node in its own graph
        output = value.name
        lifted.name = f"{output}_value"
        copy = identity(lifted, f"{output}/Identity", output or "")
        graph.append(copy)
        for i, result in enumerate(graph.outputs):
            if result is value:
                graph.outputs[i] = copy.outputs[0]
    value.replace_all_uses_with(lifted)
    main.register_initializer(lifted)


def _tensor(node: ir.Node) -> ir.TensorProtocol:
    """What a Constant node holds."""
    if len(node.attributes) != 1:
        raise ModelError(f"{describe(node)} must have exactly one attribute.")
    name, attribute = next(iter(node.attributes.items()))
    value = attribute.value
    if name == "value":
        return attribute.as_tensor()
    if name in ("value_float", "value_floats"):
        return ir.tensor(np.array(value, np.float32))
    if name in ("value_int", "value_ints"):
        return ir.tensor(np.array(value, np.int64))
    if name in ("value_string", "value_strings"):
        strings = [value] if name == "value_string" else list(value)
        data = [s.encode() if isinstance(s, str) else bytes(s) for s in strings]
        shape = ir.Shape([]) if name == "value_string" else ir.Shape([len(data)])
        return ir.StringTensor(data, shape=shape)
    raise ModelError(f"{describe(node)} has the unknown attribute {name!r}.")
