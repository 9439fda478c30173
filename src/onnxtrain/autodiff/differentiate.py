"""Stage 3: append the gradient of one or more outputs to a normalized model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ..errors import ModelError, UnknownNameError, UnreachableError, model_errors
from ..graph import Constants, Dim, Names, OpBuilder, Tensor
from ..graph.edit import all_names, values_by_name
from ..graph.nodes import identity
from ..graph.onnx_inference import UNKNOWN
from .rules.elementwise import SEED
from .walk import Walk


@model_errors("Differentiating the model")
def differentiate_model(
    model: ir.Model,
    wrt: Sequence[str],
    of: Sequence[str],
    *,
    vjp: bool = False,
    no_gradient: Collection[str] = (),
    allow_unused: bool = False,
) -> tuple[ir.Model, dict[str, str]]:
    """Append the backward half.

    Args:
        model: a normalized model whose parameters are graph inputs.
        wrt: names of the values to differentiate with respect to.
        of: names of the values to differentiate; one scalar unless `vjp`.
        vjp: take the gradient of each value of `of` as a new input `<name>_grad`.
        no_gradient: names of nodes, or operator types, whose outputs count as constants.
        allow_unused: give zeros for a value the loss does not depend on, instead of an error.

    Returns:
        The model, with one more output per name of `wrt`, and the names of these outputs.
    """
    graph = model.graph
    names = Names(all_names(graph))
    values = values_by_name(graph)
    sources = [_find(values, name) for name in wrt]
    targets = [_find(values, name) for name in of]
    opset = model.opset_imports[""]
    op = OpBuilder(names, Constants(names), opset)
    walk = Walk(graph, op, sources, no_gradient)
    walk.check(targets, dict(model.opset_imports))
    connected = walk.connected(targets)
    unreachable = [n for n, v in zip(wrt, sources) if v not in connected]
    if unreachable and not allow_unused:
        raise UnreachableError(unreachable, ", ".join(of))
    for target in targets:
        walk.add(target, _seed(op, graph, target, vjp))
    walk.run()
    op.scope = "gradient"
    results = [_result(op, walk, value) for value in sources]
    built = set(op.nodes)
    op.attach(graph)
    gradients = {}
    for name, gradient in zip(wrt, results):
        output = _named(graph, names, built, gradient, f"{name}_grad")
        graph.outputs.append(output)
        gradients[name] = output.name or ""
    return model, gradients


def _find(values: Mapping[str, ir.Value], name: str) -> ir.Value:
    if name not in values:
        raise UnknownNameError("parameter, input or value", name, list(values))
    return values[name]


@model_errors("Following gradients through the model")
def reachable(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str] = ()
) -> list[str]:
    """Those names of `wrt` from which a differentiable path leads to a value of `of`."""
    values = values_by_name(model.graph)
    for name in (*wrt, *of):
        _find(values, name)
    walk, targets = walk_between(model, wrt, of, no_gradient)
    connected = walk.connected(targets)
    return [n for n in wrt if values[n] in connected]


def walk_between(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str] = ()
) -> tuple[Walk, list[ir.Value]]:
    """A walk to look at which nodes gradients pass, and the values of `of` to ask it about.

    Names that the model does not have are left out: `differentiate_model` reports them.
    """
    values = values_by_name(model.graph)
    names = Names()
    op = OpBuilder(names, Constants(names), model.opset_imports[""])
    sources, targets = ([values[n] for n in chosen if n in values] for chosen in (wrt, of))
    return Walk(model.graph, op, sources, no_gradient), targets


def _seed(op: OpBuilder, graph: ir.Graph, target: ir.Value, vjp: bool) -> Tensor:
    """The gradient that the walk starts with: ones for a scalar loss, an input for a vjp."""
    if target.dtype is None:
        raise ModelError(f"The type of {target.name!r} is not known.")
    if vjp:
        seed = ir.Value(
            name=op.names.fresh(f"{target.name}_grad"),
            type=target.type,  # that of a sequence is a sequence
            shape=None if target.shape is None else ir.Shape(target.shape.dims),
        )
        seed.meta[SEED] = True
        graph.inputs.append(seed)
        return op.tensor(seed)
    loss = op.tensor(target)
    shape, dims = loss.static_shape, loss.shape
    if dims is not None and any(d != 1 and _is_known(d) for d in dims):
        raise ModelError(
            f"{target.name!r} has shape {list(dims)}, and only a scalar has a gradient. "
            "Reduce it to one number first (ReduceMean, ReduceSum), or ask for the "
            "vector–Jacobian form with `vjp=True` (--vjp on the command line), in which its "
            "gradient is an input."
        )
    if shape is not None:
        return op.const(np.ones(shape), target.dtype)
    return op.full(op.shape_of(loss), 1, target.dtype)


def _is_known(dim: Dim) -> bool:
    """A number, or a symbol that the model itself names."""
    return isinstance(dim, int) or (dim is not None and not dim.startswith(UNKNOWN))


def _result(op: OpBuilder, walk: Walk, value: ir.Value) -> Tensor:
    gradient = walk.take(value)
    if gradient is None:
        gradient = op.zeros_like(op.tensor(value))
    walk.describe(gradient, value)
    return gradient


def _named(
    graph: ir.Graph, names: Names, built: Collection[ir.Node], gradient: Tensor, name: str
) -> ir.Value:
    """Give a gradient its output name; a value that is an input or output already is copied."""
    value = gradient.value
    name = names.fresh(name)
    if value.producer() not in built or value.is_graph_output():
        node = identity(value, f"{name}/Identity")
        graph.append(node)
        value = node.outputs[0]
    value.name = name
    return value
