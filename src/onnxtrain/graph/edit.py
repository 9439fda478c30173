"""Small surgery on graphs that several stages need."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from ..errors import ModelError, UnknownNameError
from .builder import Names
from .nodes import identity
from .subgraphs import subgraphs
from .tensor import Dim

GATE = "onnxtrain.recompute"
"""How the names of nodes begin that delay what reads them; `clean_up` leaves them alone."""


def copy_node(
    node: ir.Node, inputs: Sequence[ir.Value | None], names: Names, suffix: str = "again"
) -> ir.Node:
    """A node of the same operator on other inputs; its outputs are described like the originals."""
    outputs = [
        ir.Value(
            name=names.fresh(f"{o.name or node.op_type}_{suffix}"),
            type=o.type,
            shape=None if o.shape is None else o.shape.copy(),
        )
        for o in node.outputs
    ]
    return ir.Node(
        node.domain,
        node.op_type,
        inputs,
        node.attributes.values(),
        outputs=outputs,
        name=names.fresh(f"{node.name or node.op_type}_{suffix}"),
    )


def become(node: ir.Node, op_type: str, *inputs: ir.Value) -> None:
    """Make a node another operator with one output and no attributes."""
    node.resize_outputs(1)
    node.op_type = op_type
    node.attributes.clear()
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def replace_value(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let every reader of `old` read `new`.

    A graph output keeps its name: a new value that nobody else reads takes it over, any other is
    given it by an Identity.
    """
    if not old.is_graph_output():
        old.replace_all_uses_with(new)
        return
    producer, name = old.producer(), old.name
    assert producer is not None
    is_read = any(user is not producer for user, _ in new.uses())
    if new.producer() is not None and not is_read and not new.is_graph_output():
        take_over(old, new)
        new.type, new.shape = old.type or new.type, old.shape or new.shape
        return
    copy = identity(new, f"{producer.name}/Identity")
    copy.outputs[0].type, copy.outputs[0].shape = old.type, old.shape
    graph.insert_after(producer, copy)
    old.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
    old.name = f"{name}/replaced"
    copy.outputs[0].name = name


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let a new value have the readers, the place among the outputs and the name of an old one."""
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name, new.name = f"{name}/replaced", name


def name_apart(model: ir.Model) -> ir.Model:
    """Give a node or value whose name another one has a name of its own: two are refused.

    Inputs, outputs and weights of the model keep theirs.
    """
    graph = model.graph
    fixed = [*graph.inputs, *graph.initializers.values(), *graph.outputs]
    nodes, values = Names([]), Names(v.name for v in fixed if v.name)
    known = {id(v) for v in fixed}
    for node in graph.all_nodes():
        if node.name:
            node.name = nodes.fresh(node.name)
        for output in node.outputs:
            if output.name and id(output) not in known:
                output.name = values.fresh(output.name)
    return model


def remove_nodes(graph: ir.Graph, nodes: Collection[ir.Node]) -> None:
    """Remove nodes; those inside their subgraphs no longer read outer values either."""
    for node in nodes:  # first: a value that only a removed body reads may go in the same call
        for inner in subgraphs(node):
            inner.outputs.clear()
            remove_nodes(inner, list(inner))
    graph.remove(nodes, safe=True)


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """Every named value of a graph (not of its subgraphs)."""
    values = {v.name: v for v in graph.inputs if v.name}
    values.update(graph.initializers)
    for node in graph:
        values.update((o.name, o) for o in node.outputs if o.name)
    return values


def all_names(graph: ir.Graph) -> list[str]:
    """Names in use: of values and nodes, those of subgraphs included."""
    names = [*values_by_name(graph), *(n.name for n in graph if n.name)]
    for node in graph.all_nodes():
        names.extend(o.name for o in node.outputs if o.name)
        if node.name:
            names.append(node.name)
    return names


def set_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Make these values, by name, the outputs of the model."""
    values = values_by_name(model.graph)
    for name in names:
        if name not in values:
            raise UnknownNameError("output", name, list(values))
    replace_outputs(model, [values[n] for n in names])


def replace_outputs(model: ir.Model, values: Sequence[ir.Value]) -> None:
    """Make these values the outputs of the model."""
    outputs = model.graph.outputs
    outputs.clear()
    outputs.extend(values)


class Inputs:
    """Adds inputs to a model; a name that is taken is an error."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.values = {v.name: v for v in model.graph.inputs}

    def add(self, name: str, type_: ir.TypeProtocol | None, shape: Sequence[Dim]) -> ir.Value:
        """A new input."""
        if name in self.values:
            raise ModelError(f"The model has an input named {name!r} already; rename it.")
        value = ir.Value(name=name, type=type_, shape=ir.Shape(list(shape)))
        self.graph.inputs.append(value)
        self.values[name] = value
        return value

    def dims(self, name: str) -> list[int]:
        """Sizes of an input whose shape is known, as a parameter's is."""
        shape = self.values[name].shape
        assert shape is not None
        return [int(d) for d in shape.numpy()]
