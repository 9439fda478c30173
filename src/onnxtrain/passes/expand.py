"""Operators without a rule are replaced by their function body, where the schema has one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from ..autodiff import walk_between
from ..autodiff.registry import lookup
from ..graph.infer import infer_shapes
from ..graph.inline import inline_bodies, schema_body
from ..graph.parameters import mark_constant
from ..graph.subgraphs import subgraphs


def expand_functions(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Expand nodes on the path from `wrt` to `of` that have no rule but a function body.

    Bodies may use operators that have a body themselves: this repeats until nothing changes.
    Nodes off the path stay as they are. In a control-flow node on the path everything that has no
    rule is expanded, because which of its values matter is only known to that node's rule.
    """
    while True:
        opset = model.opset_imports[""]
        bodies = []
        for node in _without_rule(model, wrt, of, no_gradient):
            body = schema_body(node, opset, opset)
            if body is not None:
                bodies.append((node, body))
        if not bodies:
            return model
        known = set(model.graph.all_nodes())
        inline_bodies(model, bodies)
        _lift(model, known)
        model = infer_shapes(model)


def _without_rule(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> Iterator[ir.Node]:
    walk, targets = walk_between(model, wrt, of, no_gradient)
    for node in walk.on_path(targets):
        if lookup(node.domain, node.op_type) is None:
            yield node
        for inner in (n for graph in subgraphs(node) for n in graph.all_nodes()):
            if lookup(inner.domain, inner.op_type) is None:
                yield inner


def _lift(model: ir.Model, known: set[ir.Node]) -> None:
    """The Constant nodes of the bodies become initializers of the main graph."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Constant" or node.domain or node in known:
            continue
        value = node.outputs[0]
        tensor = ir.convenience.get_const_tensor(value)
        assert tensor is not None, "schema bodies hold tensors and numbers only"
        assert node.graph is not None
        lifted = ir.Value(
            name=value.name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        value.name = None
        mark_constant(lifted)
        value.replace_all_uses_with(lifted)
        node.graph.remove(node, safe=True)
        model.graph.register_initializer(lifted)
