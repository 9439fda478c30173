"""Functions with a backward of their own that a forward graph can tell.

A backward that multiplies the gradient of each element by a number which does not depend on that
gradient (a straight-through estimate, an activation with its derivative written by hand) is the
gradient of

    y = f(x₀) + (x − x₀) · g(x₀),    x₀ = detach(x),

where g is what the backward makes of ones. In this form exporters write it down. Whether a backward
is of this kind is read off what it does, not off its values at one point. A backward that is the
derivative of its forward needs no other form (`own_derivatives`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .autograd_functions import is_checkpoint
from .function_calls import call_backward, call_forward, is_float
from .own_derivatives import is_derivative

Key = tuple[Any, ...]
Form = Callable[[Any, Sequence[Any]], Any]
"""Calls a function, given its class and its arguments, as something exporters know."""
aten = torch.ops.aten
BOTH = frozenset({aten.add.Tensor, aten.sub.Tensor})
"""Linear if both operands are."""
ONE = frozenset({aten.mul.Tensor, aten.mul.Scalar})
"""Linear if one operand is and the other does not depend on the gradient."""
FIRST = frozenset({
    aten.neg.default, aten.clone.default, aten.detach.default, aten.alias.default,
    aten.div.Tensor, aten.div.Scalar,
})  # fmt: skip
"""Linear if the first operand is and no other depends on the gradient."""


class LocalBackwards:
    """Writes such functions in the form above while a module runs.

    Functions whose backward is the derivative of their forward are written as their forward. What
    the first run decides about a function holds for those that follow, in which tensors may have no
    values.
    """

    def __init__(self) -> None:
        self._forms: dict[Key, Form | None] = {}

    @contextlib.contextmanager
    def written_out(self) -> Iterator[None]:
        """`torch.autograd.Function.apply` gives another form for functions that have one."""
        original = torch.autograd.Function.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            form = None if kwargs or is_checkpoint(cls) else self._form_of(cls, args)
            return form(cls, args) if form else original.__get__(None, cls)(*args, **kwargs)

        setattr(torch.autograd.Function, "apply", classmethod(apply))  # noqa: B010 - for mypy
        try:
            yield
        finally:
            setattr(torch.autograd.Function, "apply", original)  # noqa: B010 - as above

    def _form_of(self, cls: Any, args: Sequence[Any]) -> Form | None:
        plain = tuple(a.dtype if isinstance(a, torch.Tensor) else repr(a) for a in args)
        key = (cls, plain)
        if key not in self._forms:
            # Neither what is recorded about this run nor a transform of it concerns the trace.
            with torch._C.DisableTorchFunction():
                self._forms[key] = _decided(cls, args)
        return self._forms[key]


def _decided(cls: Any, args: Sequence[Any]) -> Form | None:
    if _is_local(cls, args):
        return _with_factors
    return _as_forward if is_derivative(cls, args) else None


def _as_forward(cls: Any, args: Sequence[Any]) -> Any:
    return call_forward(cls, args)[0]


def _with_factors(cls: Any, args: Sequence[Any]) -> torch.Tensor:
    constants = [a.detach() if is_float(a) else a for a in args]
    value, context = call_forward(cls, constants)
    result: torch.Tensor = value.detach()
    factors = call_backward(cls, context, torch.ones_like(value))
    for argument, constant, factor in zip(args, constants, factors):
        if factor is not None and is_float(argument):
            result = result + (argument - constant) * factor
    return result


def _is_local(cls: Any, args: Sequence[Any]) -> bool:
    """Whether the backward multiplies each element of the gradient by a number of its own."""
    with torch.no_grad():
        constants = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
        try:
            value, _ = call_forward(cls, constants)
            if not is_float(value):
                return False
            trace = make_fx(_backward_alone(cls, constants))(torch.ones_like(value))
        except Exception:  # whatever it needs, it is not this kind of function
            return False
    shapes = [tuple(a.shape) if is_float(a) else None for a in constants]
    return _is_linear(trace.graph, tuple(value.shape), shapes)


def _backward_alone(cls: Any, args: Sequence[Any]) -> Callable[[torch.Tensor], Any]:
    def backward(dy: torch.Tensor) -> Any:
        _, context = call_forward(cls, args)
        return call_backward(cls, context, dy)

    return backward


def _is_linear(
    graph: torch.fx.Graph, shape: tuple[int, ...], shapes: Sequence[tuple[int, ...] | None]
) -> bool:
    """Whether all that depends on the gradient is linear in it, element by element."""
    depends: set[torch.fx.Node] = set()
    if any(node.op == "call_function" and node.is_impure() for node in graph.nodes):
        return False  # what is changed in place is no longer what it was made as
    for node in graph.nodes:
        if node.op == "placeholder":
            depends.add(node)
        elif node.op == "output":
            results = node.args[0]
            return all(r is None or (r in depends and s == shape) for r, s in zip(results, shapes))
        elif any(operand in depends for operand in node.all_input_nodes):
            if not _keeps_linear(node, depends) or _shape_of(node) != shape:
                return False
            depends.add(node)
    return False


def _keeps_linear(node: torch.fx.Node, depends: set[torch.fx.Node]) -> bool:
    operands = [value in depends for value in node.args if isinstance(value, torch.fx.Node)]
    if node.target in BOTH:
        return len(operands) == 2 and all(operands)
    if node.target in ONE:
        return sum(operands) == 1
    if node.target is aten.masked_fill.Scalar:
        return node.args[0] in depends and sum(operands) == 1 and node.args[2] in (0, False)
    if node.target is aten.where.self:
        condition, *branches = node.args
        return condition not in depends and all(b in depends or _is_zero(b) for b in branches)
    return node.target in FIRST and node.args[0] in depends and sum(operands) == 1


def _is_zero(value: Any) -> bool:
    if value.target in (aten.scalar_tensor.default, aten.full_like.default, aten.full.default):
        return bool(value.args[-1] == 0)
    return value.target in (aten.zeros_like.default, aten.zeros.default)


def _shape_of(node: torch.fx.Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
