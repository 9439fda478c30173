"""The Gradient operator: a node that names a part of its own graph and stands for its derivative.

``Gradient(xs=["w"], zs=["x"], y="loss")`` gives d loss / d w, where w and x have the values of the
node's inputs. The names point to values without being operands, so they are made operands first:
then every other step can move and rename what it likes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..compile import vector_jacobian
from ..errors import ModelError, UnknownNameError
from ..graph.builder import OpBuilder
from ..graph.edit import copy_node, remove_nodes, set_outputs, take_over, values_by_name
from ..graph.infer import infer_shapes
from ..graph.io import clone
from ..graph.subgraphs import captured_values
from ..normalize import normalize
from ..normalize.preview_training import DOMAIN
from ..normalize.rewrite import describe


@dataclass(frozen=True)
class Derivative:
    """A Gradient node whose names have become operands.

    Attributes:
        node: the node.
        xs, zs: the values that are varied, and the other ones that `y` depends on.
        y: what is differentiated.
    """

    node: ir.Node
    xs: list[ir.Value]
    zs: list[ir.Value]
    y: ir.Value

    @classmethod
    def of(cls, node: ir.Node) -> Derivative:
        """Read a node that `name_operands` has completed."""
        xs, zs = _names(node, "xs"), _names(node, "zs")
        named = [v for v in node.inputs[len(xs) + len(zs) :] if v is not None]
        return cls(node, named[: len(xs)], named[len(xs) : -1], named[-1])

    @property
    def points(self) -> list[ir.Value]:
        """The values at which the derivative is taken, for `xs` and then for `zs`."""
        return [v for v in self.node.inputs[: len(self.xs) + len(self.zs)] if v is not None]


def is_gradient(node: ir.Node) -> bool:
    """Whether this is the operator Gradient."""
    return node.domain == DOMAIN and node.op_type == "Gradient"


def expand_gradients(model: ir.Model) -> ir.Model:
    """Normalize a model, and put derivatives in the place of its Gradient nodes."""
    _refuse_inner(model)
    name_operands(model)
    model = normalize(_typed(model))
    while (node := next(filter(is_gradient, model.graph), None)) is not None:
        model = infer_shapes(_expand(model, Derivative.of(node)))  # others may stand on it
    model.opset_imports.pop(DOMAIN, None)
    return model


def name_operands(model: ir.Model) -> None:
    """Append to every Gradient node the values that its attributes name."""
    values = values_by_name(model.graph)
    for node in [n for n in model.graph if is_gradient(n)]:
        names = [*_names(node, "xs"), *_names(node, "zs"), _target(node)]
        if len(node.inputs) != len(names) - 1 or None in node.inputs:
            raise ModelError(
                f"{describe(node)} has {len(node.inputs)} inputs and names {len(names) - 1} "
                "values in xs and zs: it takes one input for each."
            )
        for name in names:
            if name not in values:
                raise UnknownNameError("value", name, list(values))
        _refuse_copies(node, [values[n] for n in _names(node, "xs")])
        node.resize_inputs(2 * len(names) - 1)
        for place, name in enumerate(names, len(names) - 1):
            node.replace_input_with(place, values[name])


def _refuse_inner(model: ir.Model) -> None:
    main = set(model.graph)
    inner = [n for n in model.graph.all_nodes() if is_gradient(n) and n not in main]
    if inner:
        raise ModelError(
            f"{describe(inner[0])} is in the body of another node. Gradient names values of its "
            "own graph: put it into the main graph."
        )


def _refuse_copies(node: ir.Node, xs: Sequence[ir.Value]) -> None:
    """A copy and its source become one value when a model is simplified."""
    for x in xs:
        producer = x.producer()
        if producer is not None and producer.op_type == "Identity":
            raise ModelError(
                f"{describe(node)} differentiates with respect to {x.name!r}, which is a copy of "
                f"{producer.inputs[0].name if producer.inputs[0] else None!r}. Name that one."
            )


def _names(node: ir.Node, attribute: str) -> list[str]:
    return list(node.attributes[attribute].as_strings()) if attribute in node.attributes else []


def _target(node: ir.Node) -> str:
    if "y" not in node.attributes:
        raise ModelError(f"{describe(node)} has no attribute y: it says what to differentiate.")
    return node.attributes["y"].as_string()


def _typed(model: ir.Model) -> ir.Model:
    """A derivative has the type of what is varied; types of others may depend on it."""
    for node in [n for n in model.graph if is_gradient(n)]:
        xs = Derivative.of(node).xs
        known = _types_of(model, [str(x.name) for x in xs])
        for dx, x in zip(node.outputs, known):
            dx.type, dx.shape = x.type, x.shape
    return infer_shapes(model)


def _types_of(model: ir.Model, names: list[str]) -> list[ir.Value]:
    """Values as inference describes them, in a copy that ends with them."""
    upstream = clone(model)
    graph = upstream.graph
    values = values_by_name(graph)
    needed = set(_before([values[n] for n in names]))
    set_outputs(upstream, names)
    remove_nodes(graph, [n for n in graph if n not in needed])
    values = values_by_name(infer_shapes(upstream).graph)
    return [values[n] for n in names]


def _before(values: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that some values are computed by, of the main graph."""
    nodes: dict[ir.Node, None] = {}
    todo = list(values)
    while todo:
        node = todo.pop().producer()
        if node is not None and node not in nodes:
            nodes[node] = None
            todo.extend(v for v in (*node.inputs, *captured_values(node)) if v is not None)
    return list(nodes)


def _expand(model: ir.Model, derivative: Derivative) -> ir.Model:
    """Append the derivative and let it have the places of the node's outputs."""
    graph = model.graph
    xs, y = _evaluated(model, derivative)
    used = {
        str(dx.name): str(x.name)
        for dx, x in zip(derivative.node.outputs, xs)
        if dx.uses() or dx.is_graph_output()
    }
    outputs, inputs = [o.name or "" for o in graph.outputs], {v.name for v in graph.inputs}
    varied = list(dict.fromkeys(used.values()))
    model, gradients = vector_jacobian(infer_shapes(model), varied, [str(y.name)])
    values = values_by_name(model.graph)
    _seed_with_ones(
        model, [v for v in model.graph.inputs if v.name not in inputs], values[str(y.name)]
    )
    node = values[next(iter(used))].producer()
    for name, x in used.items():
        take_over(values[name], values[gradients[x]])
    set_outputs(model, outputs)
    assert node is not None
    remove_nodes(model.graph, [node])
    model.graph.sort()
    return model


def _seed_with_ones(model: ir.Model, seeds: Sequence[ir.Value], y: ir.Value) -> None:
    """The derivative of a tensor is that of the sum of its elements."""
    op = OpBuilder.on(model)
    target = op.tensor(y)
    ones = op.full(op.shape_of(target), 1.0, target.dtype)
    for seed in seeds:
        seed.replace_all_uses_with(ones.value)
        model.graph.inputs.remove(seed)
    op.attach(model.graph, mark=True)


def _evaluated(model: ir.Model, derivative: Derivative) -> tuple[list[ir.Value], ir.Value]:
    """What is varied and its result, at the points of the derivative."""
    named = [*derivative.xs, *derivative.zs]
    if all(a is b for a, b in zip(named, derivative.points)):
        return derivative.xs, derivative.y
    op = OpBuilder.on(model)
    places = {v: op.Identity(op.tensor(at)).value for v, at in zip(named, derivative.points)}
    for value, copy in places.items():
        copy.type, copy.shape = value.type, value.shape
    for node in _between(derivative.y, places):
        if any(v in places for v in captured_values(node)):
            raise ModelError(
                f"{describe(derivative.node)} evaluates {describe(node)} at other values than the "
                "model, and its body reads them from outside. Give the values that xs and zs name."
            )
        again = copy_node(node, [places.get(v, v) if v else None for v in node.inputs], op.names)
        places.update(zip(node.outputs, again.outputs))
        op.nodes.append(again)
    op.attach(model.graph)
    return [places[x] for x in derivative.xs], places.get(derivative.y, derivative.y)


def _between(y: ir.Value, starts: Collection[ir.Value]) -> list[ir.Node]:
    """Nodes on the way from some values to another, in order."""
    depends: dict[ir.Value, bool] = dict.fromkeys(starts, True)
    order: list[ir.Node] = []
    stack = [y]
    while stack:
        value = stack[-1]
        node = value.producer()
        if value in depends or node is None:
            depends.setdefault(value, False)
            stack.pop()
            continue
        operands = [v for v in (*node.inputs, *captured_values(node)) if v is not None]
        waiting = [v for v in operands if v not in depends]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        on_the_way = any(depends[v] for v in operands)
        depends.update(dict.fromkeys(node.outputs, on_the_way))
        if on_the_way:
            order.append(node)
    return order
