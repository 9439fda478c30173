"""Replace nodes by other nodes: the driver behind every adapter and lowering of this stage.

A lowering reads like the definition of the operator: it gets the op builder, the node's inputs
(None where absent) and its attributes as keywords, and returns the outputs.

    def quick_gelu(op, x, *, alpha=1.702):
        return x * op.Sigmoid(x * alpha)

An attribute that the lowering does not name is an error, never ignored: it might change the
meaning. A lowering that names `outputs` is told which outputs the node declares, and one that
names `node` gets the node itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..errors import ModelError, OnnxTrainError, UnknownRankError
from ..graph import Constants, Names, OpBuilder, Tensor
from ..graph.infer import infer_shapes
from ..graph.parameters import mark_constant

Lowering: TypeAlias = Callable[..., Any]
Table: TypeAlias = Mapping[tuple[str, str], Lowering]
WEIGHT = "onnxtrain.weight"


def standard(domain: str) -> str:
    """The domain with both spellings of ai.onnx made one."""
    return "" if domain == "ai.onnx" else domain


def all_graphs(model: ir.Model) -> list[ir.Graph]:
    """The main graph and every subgraph in it (not the bodies of functions)."""
    graphs: dict[ir.Graph, None] = {model.graph: None}
    for node in model.graph.all_nodes():
        if isinstance(node.graph, ir.Graph):
            graphs[node.graph] = None
    return list(graphs)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """All nodes of the main graph and its subgraphs."""
    return iter(model.graph.all_nodes())


def names_in(model: ir.Model) -> Names:
    """All names in use."""
    names = Names()
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
            names.reserve(value.name or "")
        for node in graph:
            names.reserve(node.name or "")
            for output in node.outputs:
                names.reserve(output.name or "")
    return names


def describe(node: ir.Node) -> str:
    """A node as error messages call it."""
    name = node.name or next((o.name for o in node.outputs if o.name), "") or "?"
    return f"node {name!r} ({standard(node.domain) or 'ai.onnx'}::{node.op_type})"


def rewrite(model: ir.Model, table: Table, opset: int) -> list[tuple[ir.Node, Exception]]:
    """Replace every node that has an entry in the table, in subgraphs too.

    Returns:
        The nodes that had to wait because the rank of an operand is not known yet, with the
        error that says which.
    """
    todo = [n for n in all_nodes(model) if (standard(n.domain), n.op_type) in table]
    if not todo:
        return []
    names = names_in(model)
    constants = Constants(names)
    waiting: list[tuple[ir.Node, Exception]] = []
    for node in todo:
        try:
            op = _replace(node, table[standard(node.domain), node.op_type], names, constants, opset)
        except UnknownRankError as error:
            waiting.append((node, error))
            continue
        for value in {v: None for n in op.nodes for v in n.inputs if v is not None}:
            if WEIGHT in value.meta and value.name not in model.graph.initializers:
                model.graph.register_initializer(value)
    for constant in constants.values():
        if constant.uses() or constant.is_graph_output():
            mark_constant(constant)
            model.graph.register_initializer(constant)
    return waiting


def rewrite_typed(model: ir.Model, table: Table, opset: int) -> ir.Model:
    """Like `rewrite`, with shape inference in between for lowerings that need a rank."""
    waiting = rewrite(model, table, opset)
    before = None
    while waiting:
        if before == len(waiting):
            node, error = waiting[0]
            raise ModelError(f"{describe(node)} cannot be rewritten: {error}") from error
        before = len(waiting)
        model = infer_shapes(model)
        waiting = rewrite(model, table, opset)
    return model


def _replace(
    node: ir.Node, lowering: Lowering, names: Names, constants: Constants, opset: int
) -> OpBuilder:
    op = OpBuilder(names, constants, opset)
    op.scope = node.name or node.op_type
    try:
        results = _results(op, node, lowering)
    except OnnxTrainError:
        raise
    except Exception as error:
        raise ModelError(
            f"{describe(node)} cannot be rewritten: {type(error).__name__}: {error}"
        ) from error
    used = [i for i, o in enumerate(node.outputs) if o.uses() or o.is_graph_output()]
    missing = [i for i in used if i >= len(results) or results[i] is None]
    if missing:
        raise ModelError(
            f"{describe(node)}: output {missing[0]} is used, and it cannot be expressed with "
            "standard operators. Remove what uses it."
        )
    old = [node.outputs[i] for i in used]
    new = _own_values(op, [results[i] for i in used])
    _drop_unused(op, {t.value for t in new})
    graph = node.graph
    assert graph is not None
    for before, after in zip(old, (t.value for t in new)):
        if before.type is None:  # keep what the builder knows
            before.type = after.type
        before.const_value = None
    for value in node.outputs:  # names are handed over, so that nothing outside notices
        names.reserve(value.name or "")
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], op.nodes, old, [t.value for t in new]
    )
    return op


def weight(
    op: OpBuilder, name: str, array: np.ndarray[Any, Any], *, trained: bool = True
) -> Tensor:
    """An initializer of its own, named after the node that is being rewritten."""
    full = op.names.fresh(f"{op.scope}.{name}")
    tensor: ir.TensorProtocol
    if array.dtype == object:
        tensor = ir.StringTensor([s.encode() for s in array], shape=ir.Shape(array.shape))
    else:
        tensor = ir.tensor(array, name=full)
    value = ir.Value(
        name=full,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    value.meta[WEIGHT] = True
    if not trained:
        mark_constant(value)
    return op.tensor(value)


def _own_values(op: OpBuilder, results: Sequence[Tensor]) -> list[Tensor]:
    """Outputs must be distinct and made by the new nodes: everything else is copied."""
    produced = {o for n in op.nodes for o in n.outputs}
    own: list[Tensor] = []
    for result in results:
        if result.value not in produced or any(result.value is t.value for t in own):
            result = op.Identity(result)  # noqa: PLW2901
        own.append(result)
    return own


def _drop_unused(op: OpBuilder, keep: set[ir.Value]) -> None:
    for node in reversed(list(op.nodes)):
        if not any(o in keep or o.uses() for o in node.outputs):
            for i in range(len(node.inputs)):
                node.replace_input_with(i, None)
            op.nodes.remove(node)


def _results(op: OpBuilder, node: ir.Node, lowering: Lowering) -> list[Any]:
    parameters = inspect.signature(lowering).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) - 1
    inputs = [None if v is None else op.tensor(v) for v in node.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    if len(inputs) > positional and not variadic:
        raise ModelError(
            f"{describe(node)}: input {positional} ({node.inputs[positional]!r}) is not supported."
        )
    inputs += [None] * (positional - len(inputs))
    attributes = {n: a.value for n, a in node.attributes.items()}
    unknown = sorted(set(attributes) - keywords) if not open_ended else []
    if unknown:
        raise ModelError(
            f"{describe(node)}: attribute {unknown[0]!r} = {attributes[unknown[0]]!r} is not "
            "supported."
        )
    if "outputs" in keywords:
        attributes["outputs"] = tuple(bool(o.name) for o in node.outputs)
    if "node" in keywords:
        attributes["node"] = node
    result = lowering(op, *inputs, **attributes)
    return list(result) if isinstance(result, (tuple, list)) else [result]
