"""What differentiating may do to the forward graph, checked node by node.

It may ask a node for more of its results: outputs the operator has, or values of its bodies. It
may not change what the graph computes, nor replace, remove or rename a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import pytest

from onnxtrain import compile as spine
from onnxtrain.autodiff import differentiate_model

LONGER = {"scan_output_axes", "scan_output_directions"}
"""Attributes with one entry per output."""


@dataclass(frozen=True)
class NodeBefore:
    """A node as it was."""

    node: ir.Node
    name: str | None
    operator: tuple[str, str]
    inputs: list[str | None]
    outputs: list[str | None]
    attributes: dict[str, Any]
    bodies: dict[str, GraphBefore]

    @classmethod
    def of(cls, node: ir.Node) -> NodeBefore:
        graphs = {
            k: a.as_graph() for k, a in node.attributes.items() if a.type == ir.AttributeType.GRAPH
        }
        return cls(
            node,
            node.name,
            (node.domain, node.op_type),
            _names(node.inputs),
            _names(node.outputs),
            _plain(node, graphs),
            {k: GraphBefore.of(g) for k, g in graphs.items()},
        )

    def check(self) -> None:
        """Compare with what the node is now."""
        node, where = self.node, f"{self.operator[1]} {self.name!r}"
        assert (node.domain, node.op_type) == self.operator, f"{where} is {node.op_type} now"
        assert node.name == self.name, f"{where} is named {node.name!r} now"
        inputs = _names(node.inputs)
        assert inputs[: len(self.inputs)] == self.inputs, f"{where} reads {inputs} now"
        for extra in node.inputs[len(self.inputs) :]:  # a Loop carries what the backward needs
            is_sequence = extra is not None and isinstance(extra.type, ir.SequenceType)
            assert extra is None or (is_sequence and node.op_type == "Loop"), f"{where}: {extra}"
        _check_order(self.outputs, _names(node.outputs), where)
        now = _plain(node, self.bodies)
        for name in LONGER & self.attributes.keys():
            before = self.attributes[name]
            now[name] = now[name][: len(before)]
        assert now == self.attributes, f"{where} has other attributes"
        for name, body in self.bodies.items():
            assert node.attributes[name].as_graph() is body.graph
            body.check(where)


@dataclass(frozen=True)
class GraphBefore:
    """A graph, or a body, as it was."""

    graph: ir.Graph
    inputs: list[str | None]
    outputs: list[str | None]
    nodes: list[NodeBefore]

    @classmethod
    def of(cls, graph: ir.Graph) -> GraphBefore:
        return cls(
            graph, _names(graph.inputs), _names(graph.outputs), [NodeBefore.of(n) for n in graph]
        )

    def check(self, where: str = "the graph") -> None:
        """Compare with what the graph is now."""
        old = [n.node for n in self.nodes]
        now = list(self.graph)
        assert [n for n in now if n in set(old)] == old, f"nodes of {where} are gone or moved"
        between = now[: now.index(old[-1])] if old else []
        new = {n.op_type for n in between if n not in set(old)}
        assert new <= {"SequenceEmpty"}, f"{where} has {sorted(new)} among its nodes now"
        inputs = _names(self.graph.inputs)
        assert inputs[: len(self.inputs)] == self.inputs, f"inputs of {where}: {inputs}"
        _check_order(self.outputs, _names(self.graph.outputs), where)
        for node in self.nodes:
            node.check()


def _names(values: Sequence[ir.Value | None]) -> list[str | None]:
    return [None if v is None else v.name for v in values]


def _plain(node: ir.Node, without: Any) -> dict[str, Any]:
    """Attributes that are no graphs."""
    found = {}
    for name, attribute in node.attributes.items():
        if name not in without:
            value = attribute.value
            if attribute.type == ir.AttributeType.TENSOR:
                value = value.numpy().tolist()
            found[name] = list(value) if isinstance(value, (list, tuple)) else value
    return found


def _check_order(before: Sequence[str | None], now: Sequence[str | None], where: str) -> None:
    """What was there is there, in the same order; what had no name may have one."""
    assert len(now) >= len(before), f"outputs of {where} are gone: {list(before)}, {list(now)}"
    named = [n for n in before if n]
    assert [n for n in now if n in set(named)] == named, f"outputs of {where}: {list(now)}"


@pytest.fixture(autouse=True)
def forward_stays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Look at the forward graph wherever a test differentiates a model; how many nodes it had."""
    seen: list[int] = []

    def watch(model: ir.Model, *args: Any, **options: Any) -> tuple[ir.Model, dict[str, str]]:
        before = GraphBefore.of(model.graph)
        result = differentiate_model(model, *args, **options)
        before.check()
        seen.append(len(before.nodes))
        return result

    monkeypatch.setattr(spine, "differentiate_model", watch)
    return seen
