"""The reverse walk: from the loss back to the parameters, one rule per node.

Everything that is the same for all operators is here, once: which values matter, the reverse
order, summing over broadcast axes, accumulating several contributions, missing gradients, the
number of gradients a rule returns, and the error that lists all blocking nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from ..errors import Blocker, GradientRuleError, NoGradientError, OnnxTrainError
from ..graph import FLOATS, OpBuilder, Tensor
from ..graph.subgraphs import captured_values
from ..graph.tensor import dims_of
from . import sequences
from .composites import Composite, find_composites
from .poles import is_guarded, zero_where
from .registry import Rule, lookup
from .side_by_side import join


def is_differentiable(value: ir.Value | None) -> bool:
    """Whether a value can carry a gradient: a tensor (or sequence of tensors) of floats."""
    return value is not None and (value.dtype is None or value.dtype in FLOATS)


class Walk:
    """One reverse pass over one graph.

    Args:
        graph: the graph, or the nodes in forward order, to differentiate; new nodes are not added
            to it but collected in `op.nodes`.
        op: the builder.
        wrt: values whose gradients are wanted.
        stop: names of nodes, or operator types, whose outputs count as constants.
    """

    def __init__(
        self,
        graph: Iterable[ir.Node],
        op: OpBuilder,
        wrt: Iterable[ir.Value],
        stop: Collection[str] = (),
    ) -> None:
        self.op, self.wrt, self.stop = op, tuple(wrt), frozenset(stop)
        self.nodes = list(graph)
        self._targets = set(self.wrt)
        self.active = self._forward_active()
        self.composites = find_composites(self.nodes)
        self._grads: dict[ir.Value, list[Tensor]] = {}

    # -- what matters ------------------------------------------------------------------------

    def _forward_active(self) -> set[ir.Value]:
        """Values that depend differentiably on `wrt`."""
        active = set(self.wrt)
        for node in self.nodes:
            if self._stops_at(node):
                continue
            if any(v in active for v in self.sources(node)):
                active.update(o for o in node.outputs if self._carries(node, o))
        return active

    @staticmethod
    def _carries(node: ir.Node, value: ir.Value | None) -> bool:
        """Whether a gradient may pass between a node and one of its operands."""
        if is_differentiable(value):
            return True
        rule = lookup(node.domain, node.op_type)
        return value is not None and rule is not None and rule.straight_through

    def _stops_at(self, node: ir.Node) -> bool:
        if self.stop and (node.name in self.stop or node.op_type in self.stop):
            return True
        rule = lookup(node.domain, node.op_type)
        return rule is not None and rule.kind == "zero"

    def sources(self, node: ir.Node) -> list[ir.Value]:
        """Inputs and captured values through which a gradient may flow."""
        rule = lookup(node.domain, node.op_type)
        stops = rule.stops if rule is not None else frozenset[int]()
        takes_codes = rule is not None and rule.takes_codes
        direct = [
            v
            for i, v in enumerate(node.inputs)
            if v is not None and i not in stops and (takes_codes or self._carries(node, v))
        ]
        return direct + [v for v in captured_values(node) if is_differentiable(v)]

    def on_path(self, targets: Iterable[ir.Value]) -> list[ir.Node]:
        """Nodes between `wrt` and `targets`, in forward order."""
        needed = {t for t in targets if t in self.active}
        path = []
        for node in reversed(self.nodes):
            if self._stops_at(node) or not any(o in needed for o in node.outputs):
                continue
            inputs = [v for v in self.sources(node) if v in self.active]
            if inputs:
                needed.update(inputs)
                path.append(node)
        return path[::-1]

    def levels(
        self, targets: Sequence[ir.Value]
    ) -> Iterator[tuple[Walk, Sequence[ir.Value], list[ir.Node]]]:
        """This walk and those over subgraphs on its path: each with its targets and its path."""
        path = self.on_path(targets)
        yield self, targets, path
        for node in path:
            rule = lookup(node.domain, node.op_type)
            if rule is not None and rule.inner is not None:
                for walk, values in rule.inner(self, node):
                    yield from walk.levels(values)

    def connected(self, targets: Iterable[ir.Value]) -> set[ir.Value]:
        """Values from which a differentiable path leads to a target."""
        leading = {v for node in self.on_path(targets) for v in self.sources(node)}
        return leading.union(targets)

    def check(self, targets: Sequence[ir.Value], opset_of: dict[str, int]) -> None:
        """Raise one error that lists every node on the path that has no rule."""
        blocked = self.blockers(targets, opset_of)
        if blocked:
            raise NoGradientError(blocked)

    def blockers(self, targets: Sequence[ir.Value], opset_of: dict[str, int]) -> list[Blocker]:
        """Nodes on the path, those inside subgraphs included, that have no rule."""
        return [
            walk.blocker(node, path, values, opset_of)
            for walk, values, path in self.levels(targets)
            for node in path
            if lookup(node.domain, node.op_type) is None
        ]

    def blocker(
        self,
        node: ir.Node,
        path: Sequence[ir.Node],
        targets: Sequence[ir.Value],
        opset_of: dict[str, int],
    ) -> Blocker:
        """What is told of a node without a rule: its path to the targets, the parameters lost."""
        reached: set[ir.Value] = set(self.sources(node))
        for other in reversed(path):
            if any(o in reached for o in other.outputs):
                reached.update(self.sources(other))
        parameters = tuple(v.name or "" for v in self.wrt if v in reached)
        return Blocker(
            node.name or node.outputs[0].name or "",
            node.op_type,
            node.domain,
            opset_of.get(node.domain, 1),
            parameters,
            self._path_from_loss(node, path, targets),
            "no gradient rule, no function body",
        )

    def _path_from_loss(
        self, node: ir.Node, path: Sequence[ir.Node], targets: Sequence[ir.Value]
    ) -> tuple[str, ...]:
        """Names from the loss to the node, following the first consumer found."""
        consumers: dict[ir.Value, ir.Node] = {}
        for other in path:
            for value in self.sources(other):
                consumers.setdefault(value, other)
        way, current, seen = [], node, {node}
        while True:
            way.append(f"{current.name or current.op_type}")
            if any(o in targets for o in current.outputs):
                break
            following = next((consumers[o] for o in current.outputs if o in consumers), None)
            if following is None or following in seen:
                break
            seen.add(following)
            current = following
        names = [t.name or "" for t in targets][:1]
        shown = way if len(way) <= 6 else [*way[:3], "…", *way[-2:]]
        return (*names, *reversed(shown))

    # -- the pass ----------------------------------------------------------------------------

    def add(self, value: ir.Value, gradient: Tensor) -> None:
        """Add a contribution to the gradient of a value."""
        self._grads.setdefault(value, []).append(gradient)

    def take(self, value: ir.Value) -> Tensor | None:
        """The whole gradient of a value: the sum of its contributions, None without any."""
        parts = self._grads.get(value)
        if not parts:
            return None
        if len(parts) > 1:
            self.op.scope = f"{value.name}_grad"
            if sequences.is_sequence(value):
                total = sequences.add(self.op, parts)
            else:
                parts = join(self.op, parts)
                total = parts[0]
                for part in parts[1:]:  # a chain of Add runs faster than one Sum
                    total = total + part
            self.describe(total, value)
            self._grads[value] = [total]
        return self._grads[value][0]

    def withdraw(self, value: ir.Value) -> Tensor | None:
        """The gradient of a value so far, taken away to be given back with something added."""
        gradient = self.take(value)
        self._grads.pop(value, None)
        return gradient

    @staticmethod
    def describe(gradient: Tensor, value: ir.Value) -> None:
        """A gradient has the type and shape of its value."""
        if gradient.value.type is None and value.type is not None:
            gradient.value.type = value.type
        if gradient.value.shape is None and value.shape is not None:
            gradient.value.shape = value.shape.copy()

    def run(self) -> None:
        """Propagate the gradients that were added back through all nodes."""
        for node in reversed(self.nodes):
            if self._stops_at(node):
                continue
            dys = tuple(self.take(o) for o in node.outputs)
            if all(dy is None for dy in dys):
                continue
            if not any(v in self.active for v in self.sources(node)):
                continue
            whole = self.composites.get(node)
            if whole is not None and self._in_one_go(whole):
                self._apply_composite(whole, dys)
                continue
            rule = lookup(node.domain, node.op_type)
            assert rule is not None, "check() lists nodes without a rule first"
            self._apply(node, rule, dys)

    def _in_one_go(self, whole: Composite) -> bool:
        """Whether nobody asked for a gradient in the middle, or to stop there."""
        needed = any(v in self._targets or v in self._grads for v in whole.inner)
        return not needed and not any(self._stops_at(n) for n in whole.nodes)

    def _apply_composite(self, whole: Composite, dys: tuple[Tensor | None, ...]) -> None:
        op, last = self.op, whole.last
        op.scope, op.node = f"{last.name or last.op_type}_grad", last
        for value, gradient in whole.gradient(self, dys):
            self._accept(value, gradient)
        op.scope, op.node = "", None

    def _apply(self, node: ir.Node, rule: Rule, dys: tuple[Tensor | None, ...]) -> None:
        op = self.op
        op.scope, op.node = f"{node.name or node.op_type}_grad", node
        try:
            if rule.kind == "graph":
                for value, gradient in rule.function(self, node, dys):
                    self._accept(value, gradient)
                return
            self._apply_formula(node, rule, dys)
        except OnnxTrainError:
            raise
        except Exception as error:
            raise GradientRuleError(
                f"The gradient rule of {node.domain or 'ai.onnx'}::{node.op_type} failed at node "
                f"{node.name!r}: {type(error).__name__}: {error}"
            ) from error
        finally:
            op.scope, op.node = "", None

    def _apply_formula(self, node: ir.Node, rule: Rule, dys: tuple[Tensor | None, ...]) -> None:
        op = self.op
        inputs = [None if v is None else op.tensor(v) for v in node.inputs]
        inputs += [None] * (_positional(rule) - len(inputs))
        ys = tuple(op.tensor(o) for o in node.outputs)
        attributes = attributes_of(node, rule.attributes)
        guarded = is_guarded(node)  # before the rule uses `ys`
        if rule.kind == "multi":
            result = rule.function(op, dys, ys, *inputs, **attributes)
        elif dys[0] is None:
            return
        else:
            result = rule.function(op, dys[0], ys[0], *inputs, **attributes)
        gradients = list(result) if isinstance(result, (tuple, list)) else [result]
        if guarded and dys[0] is not None:
            gradients = [None if g is None else zero_where(op, dys[0], g) for g in gradients]
        if len(gradients) > len(inputs):
            raise GradientRuleError(
                f"The gradient rule of {node.op_type} returned {len(gradients)} gradients for "
                f"{len(inputs)} inputs at node {node.name!r}."
            )
        for i, (value, gradient) in enumerate(zip(node.inputs, gradients)):
            if value is None or gradient is None or i in rule.stops or value not in self.active:
                continue
            if rule.kind == "elementwise":
                summed = op.sum_to(gradient, op.tensor(value), dims_of(node.outputs[0]), ys[0])
                self._accept(value, summed)
            else:
                self._accept(value, gradient)

    def _accept(self, value: ir.Value, gradient: Tensor | None) -> None:
        if gradient is not None and value in self.active:
            self.describe(gradient, value)
            self.add(value, gradient)


def _positional(rule: Rule) -> int:
    """How many inputs the rule's function names (absent optional ones are passed as None)."""
    code = rule.function.__code__
    return max(0, code.co_argcount - 3)


def attributes_of(node: ir.Node, names: frozenset[str] | None) -> dict[str, Any]:
    """Attributes as plain Python values; only those in `names` unless it is None."""
    return {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if (names is None or name in names)
        and attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    }
