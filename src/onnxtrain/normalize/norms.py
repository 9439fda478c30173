"""Norms of any order that exporters write as powers: (Σ|x|ᵖ)^(1/p).

Of a zero vector, and where an entry is zero and p < 1, the chain rule gives 0·∞. The gradient of a
norm there is 0, as in torch, and as that of ReduceL2: the powers are taken where they have a slope.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .custom_types import infer_with_custom
from .rewrite import all_nodes, rewrite_typed, standard

DOMAIN, NAME = "onnxtrain", "PowerNorm"


def smooth_norms(model: ir.Model) -> ir.Model:
    """Write norms so that their gradient at zero is 0."""
    norms = {node: inner for node in all_nodes(model) if (inner := _inner(node)) is not None}
    for node, inner in norms.items():
        _make_norm(node, *inner)
    if not norms:
        return model
    model.opset_imports[DOMAIN] = 1
    model = infer_with_custom(model)
    return rewrite_typed(model, {(DOMAIN, NAME): power_norm}, model.opset_imports[""])


def _inner(node: ir.Node) -> tuple[ir.Node, ir.Value, float] | None:
    """Of a node that ends a norm: its sum, the vector, and the order."""
    total = _produced_by(node.inputs[0], "ReduceSum") if _is(node, "Pow") else None
    power = _produced_by(total.inputs[0], "Pow") if total is not None else None
    size = _produced_by(power.inputs[0], "Abs") if power is not None else None
    if total is None or power is None or size is None or size.inputs[0] is None:
        return None
    order, root = _number(power.inputs[1]), _number(node.inputs[1])
    is_norm = order and root and math.isclose(order * root, 1.0, rel_tol=1e-6)
    return (total, size.inputs[0], order) if is_norm and order is not None else None


def _is(node: ir.Node, kind: str) -> bool:
    return not standard(node.domain) and node.op_type == kind


def _produced_by(value: ir.Value | None, kind: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and _is(node, kind) else None


def _number(value: ir.Value | None) -> float | None:
    """A stored number, also behind casts."""
    while value is not None and (_produced_by(value, "Cast") or _produced_by(value, "CastLike")):
        producer = value.producer()
        assert producer is not None
        value = producer.inputs[0]
    stored = value.const_value if value is not None else None
    return float(stored.numpy().reshape(-1)[0]) if stored is not None and stored.size == 1 else None


def _make_norm(node: ir.Node, total: ir.Node, vector: ir.Value, order: float) -> None:
    axes = total.inputs[1] if len(total.inputs) > 1 else None
    node.resize_inputs(2)
    node.replace_input_with(0, vector)
    node.replace_input_with(1, axes)
    node.domain, node.op_type = DOMAIN, NAME
    for attribute in total.attributes.values():
        node.attributes.add(attribute)
    node.attributes.add(ir.AttrFloat32("order", order))


def power_norm(
    op: OpBuilder, x: Tensor, axes: Tensor | None = None,
    *, order: float, keepdims: int = 1, noop_with_empty_axes: int = 0,
) -> Tensor:  # fmt: skip
    """(Σ|x|ᵖ)^(1/p), with slope 0 where it is 0."""
    how = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
    size, one, none = op.Abs(x), op.like(1.0, x), op.like(0.0, x)
    is_zero = op.Equal(size, none)
    power = op.like(order, x)
    powers = op.Pow(op.Where(is_zero, one, size) if order < 1 else size, power)
    if order < 0:  # one zero makes the norm zero
        ended = op.ReduceMax(op.Where(is_zero, one, none), axes, **how) > 0.0
    else:
        powers = op.Where(is_zero, none, powers) if order < 1 else powers
    total = op.ReduceSum(powers, axes, **how)
    if order > 0:
        ended = op.Equal(total, none)
    return op.Where(ended, none, op.Pow(op.Where(ended, one, total), op.like(1 / order, x)))
