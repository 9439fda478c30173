"""The gradient of a small forward formula, appended where a private gradient operator stood.

The predecessor's gradient operators are what our own rules compute. So a lowering writes down the
forward formula and asks for its vector–Jacobian product; no mathematics is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ....compile import vector_jacobian
from ....errors import UnknownRankError
from ....graph import Constants, Names, OpBuilder, Tensor
from ....graph.infer import infer_shapes
from ....graph.subgraphs import subgraphs

Forward: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...]]"


def vjp(
    op: OpBuilder,
    forward: Forward,
    inputs: Sequence[Tensor | None],
    dys: Sequence[Tensor | None],
    wrt: Sequence[int],
) -> list[Tensor]:
    """Gradients of ``forward(op, *inputs)`` at the positions `wrt`, given those of its outputs.

    Args:
        op: the builder that gets the nodes.
        forward: writes the formula; None stands for an operand that is absent.
        inputs: its operands.
        dys: the gradient of each output, None for one that nothing depends on.
        wrt: positions in `inputs` whose gradients are wanted.
    """
    model, holders, names = _forward_model(op, forward, inputs, dys)
    model = infer_shapes(model)
    differentiated = [names[i] for i in wrt]
    targets = [f"y{i}" for i, dy in enumerate(dys) if dy is not None]
    model, gradients = vector_jacobian(model, differentiated, targets)
    return _inline(op, model, holders, dys, [gradients[n] for n in differentiated])


def _forward_model(
    op: OpBuilder,
    forward: Forward,
    inputs: Sequence[Tensor | None],
    dys: Sequence[Tensor | None],
) -> tuple[ir.Model, dict[str, Tensor], list[str]]:
    names = Names()
    inner = OpBuilder(names, Constants(names), op.opset)
    holders: dict[str, Tensor] = {}
    operands: list[Tensor | None] = []
    initializers: list[ir.Value] = []
    labels: list[str] = []
    for i, outer in enumerate(inputs):
        labels.append(f"x{i}")
        if outer is None:
            operands.append(None)
            continue
        _ = outer.rank  # raises when unknown: the lowering then waits for shape inference
        operand = inner.graph_input(f"x{i}", outer.dtype, outer.shape or ())
        value = operand.value
        if outer.const is not None:
            value.const_value = outer.value.const_value
            initializers.append(value)
        holders[f"x{i}"] = outer
        operands.append(operand)
    results = forward(inner, *operands)
    results = (results,) if isinstance(results, Tensor) else tuple(results)
    outputs = []
    for i, _dy in enumerate(dys):
        result = results[i]
        value = inner.Identity(result).value
        value.name, value.type = f"y{i}", ir.TensorType(result.dtype)
        outputs.append(value)
    constants = [c for c in inner.constants.values() if c.uses()]
    graph = ir.Graph(
        [t.value for t in operands if t is not None and t.value not in initializers],
        [o for o, dy in zip(outputs, dys) if dy is not None],
        nodes=inner.nodes,
        initializers=[*initializers, *constants],
        opset_imports={"": op.opset},
        name="vjp",
    )
    return ir.Model(graph, ir_version=8), holders, labels


def _inline(
    op: OpBuilder,
    model: ir.Model,
    holders: dict[str, Tensor],
    dys: Sequence[Tensor | None],
    gradients: Sequence[str],
) -> list[Tensor]:
    """Move the nodes of `model` into the builder, with its inputs replaced."""
    graph = model.graph
    outer: dict[str, Tensor] = dict(holders)
    outer.update((f"y{i}_grad", dy) for i, dy in enumerate(dys) if dy is not None)
    outputs = {o.name: o for o in graph.outputs}
    results = [outputs[name] for name in gradients]
    while graph.outputs:
        graph.outputs.pop()
    for value in list(graph.inputs):
        value.replace_all_uses_with(outer[value.name or ""].value)
    for name, value in list(graph.initializers.items()):
        known = outer.get(name)
        if known is None:
            assert value.const_value is not None
            known = op.const(value.const_value.numpy(), value.const_value.dtype)
        value.replace_all_uses_with(known.value)
    nodes = list(graph)
    graph.remove(nodes)
    _rename(op, nodes)
    op.nodes.extend(nodes)
    return [op.tensor(v) for v in results]


def _rename(op: OpBuilder, nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        node.name = op.names.fresh(f"{op.scope}/{node.op_type}")
        for output in node.outputs:
            if output.name:
                output.name = op.names.fresh(f"{op.scope}/{output.name}")
        for body in subgraphs(node):
            for value in (*body.inputs, *body.initializers.values()):
                value.name = op.names.fresh(f"{op.scope}/{value.name}")
            _rename(op, list(body))


def unknown_rank(name: str) -> UnknownRankError:
    """Says that a lowering has to wait until the shape of a value is known."""
    return UnknownRankError(f"The shape of {name!r} is not known.")


def one(results: Any) -> Tensor:
    """The first of several results."""
    first: Tensor = results[0] if isinstance(results, (tuple, list)) else results
    return first
