"""Where gradient rules are kept, and the decorators that say what kind of rule one is.

    @gradient("Softmax")
    def softmax(op, dy, y, x, *, axis=-1):
        return y * (dy - op.ReduceSum(dy * y, [axis], keepdims=1))

A rule gets the builder, the gradient of the output, the output, the inputs in schema order
(None where an optional one is absent) and the attributes as keywords. It returns one gradient
per input, or a bare value when only the first input has one; None means "no gradient".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..plugins import import_gradients

RuleFunction: TypeAlias = Callable[..., Any]
KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "ai.onnx.training"})
"""Domains whose operators have their rules here, or none."""


@dataclass(frozen=True)
class Rule:
    """A registered rule.

    Attributes:
        function: the formula.
        op_type, domain: the operator it belongs to.
        kind: "single" (`dy`, `y` of the first output), "multi" (tuples over all outputs),
            "elementwise" (like single; the walk sums over broadcast axes), "zero" (the derivative
            is zero almost everywhere: the gradient stops here), or "graph" (control flow: the
            function gets the walk itself).
        attributes: names of the attributes the function takes; None when it takes any.
        stops: input positions that never have a gradient.
        note: one line for docs/ops.md.
        straight_through: integer operands carry a gradient here, in the float type of the value
            they stand for: the quantizers, and the operators that only move data between them.
        takes_codes: an integer input carries its gradient on, if it has one: a cast of what integer
            arithmetic gives to a float type. Unlike `straight_through` it gives none to outputs.
        inner: for kind "graph": gives the walks over the subgraphs and the values they start from.
    """

    function: RuleFunction
    op_type: str
    domain: str
    kind: str
    attributes: frozenset[str] | None
    stops: frozenset[int]
    note: str
    straight_through: bool = False
    takes_codes: bool = False
    inner: RuleFunction | None = None


_RULES: dict[tuple[str, str], Rule] = {}


def register(
    op_types: Iterable[str],
    function: RuleFunction,
    *,
    kind: str = "single",
    domain: str = "",
    stops: Iterable[int] = (),
    note: str = "",
    replace: bool = False,
    straight_through: bool = False,
    takes_codes: bool = False,
    inner: RuleFunction | None = None,
) -> None:
    """Add one rule for one or more operators."""
    domain = "" if domain == "ai.onnx" else domain
    parameters = inspect.signature(function).parameters.values()
    names: frozenset[str] | None = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = None
    for op_type in op_types:
        key = (domain, op_type)
        if key in _RULES and not replace:
            raise ValueError(
                f"A gradient for {domain or 'ai.onnx'}::{op_type} is registered already; "
                "pass replace=True to put another in its place."
            )
        _RULES[key] = Rule(
            function, op_type, domain, kind, names, frozenset(stops), note, straight_through,
            takes_codes, inner,
        )  # fmt: skip


def unregister(op_type: str, domain: str = "") -> None:
    """Remove a rule; nothing happens when there is none."""
    _RULES.pop(("" if domain == "ai.onnx" else domain, op_type), None)


def lookup(domain: str, op_type: str) -> Rule | None:
    """The rule of an operator, or None; other packages may add some of their own domains."""
    key = ("" if domain == "ai.onnx" else domain, op_type)
    rule = _RULES.get(key)
    if rule is None and key[0] not in KNOWN_DOMAINS:
        import_gradients()
        rule = _RULES.get(key)
    return rule


def is_registered(op_type: str, domain: str = "") -> bool:
    """Whether an operator has a rule."""
    return lookup(domain, op_type) is not None


def is_rule(function: RuleFunction, op_type: str, domain: str = "") -> bool:
    """Whether this is the rule of an operator, and not another that was put in its place."""
    rule = lookup(domain, op_type)
    return rule is not None and rule.function is function


def rules() -> dict[tuple[str, str], Rule]:
    """All rules, by (domain, operator)."""
    return dict(_RULES)


def _decorator(kind: str) -> Callable[..., Callable[[RuleFunction], RuleFunction]]:
    def decorate(*op_types: str, **options: Any) -> Callable[[RuleFunction], RuleFunction]:
        def wrap(function: RuleFunction) -> RuleFunction:
            register(op_types, function, kind=kind, **options)
            return function

        return wrap

    return decorate


gradient = _decorator("single")
"""Rule of an operator with one differentiable output: ``f(op, dy, y, *inputs, **attributes)``."""

gradient_multi = _decorator("multi")
"""Rule of an operator with several outputs: ``f(op, dys, ys, *inputs, **attributes)``, with
tuples as long as the node's outputs; ``dys[i]`` is None for an output the loss does not use."""

elementwise = _decorator("elementwise")
"""Like `gradient`, for operators that broadcast: the walk sums to each input's shape."""

graph_gradient = _decorator("graph")
"""Rule of a control-flow operator: ``f(walk, node, dys)`` gives pairs of a value, which is
an input of the node or captured by its subgraphs, and its gradient."""


def zero_gradient(*op_types: str, domain: str = "", note: str = "derivative is zero") -> None:
    """Operators whose derivative is zero or does not exist: a gradient that reaches them stops."""

    def stop(op: Any, dy: Any, y: Any, *inputs: Any) -> tuple[None, ...]:
        return (None,) * len(inputs)

    register(op_types, stop, kind="zero", domain=domain, note=note)
