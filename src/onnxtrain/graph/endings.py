"""Which function a value ends in: what a loss takes as scores may be probabilities already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..operators import REARRANGING

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Producer = Callable[[str], "tuple[str, str] | None"]
"""Gives the operator and the first operand of the node that makes a value; None for an input."""

BETWEEN = REARRANGING | {"Clip", "Dropout"}
"""Operators behind which probabilities are still probabilities."""


@dataclass(frozen=True)
class Ending:
    """The last function on the way to a value.

    Attributes:
        value: the value.
        function: ``"Softmax"``, ``"LogSoftmax"`` (also as the logarithm of a Softmax) or
            ``"Sigmoid"``.
        scores: what the function was applied to.
    """

    value: str
    function: str
    scores: str


def ending(value: str, producer: Producer) -> Ending | None:
    """How a value ends; None if that is no probability."""
    name, is_logarithm, seen = value, False, set[str]()
    while name not in seen:
        seen.add(name)
        produced = producer(name)
        if produced is None:
            return None
        op_type, operand = produced
        if op_type in {"Softmax", "LogSoftmax", "Sigmoid"}:
            if not is_logarithm:
                return Ending(value, op_type, operand)
            return Ending(value, "LogSoftmax", operand) if op_type == "Softmax" else None
        if op_type == "Log" and not is_logarithm:
            is_logarithm = True
        elif op_type not in BETWEEN:
            return None
        name = operand
    return None


def producer_in_proto(graph: onnx.GraphProto) -> Producer:
    """Look values up in a GraphProto."""
    nodes = {n.output[0]: n for n in graph.node if n.output and n.input}

    def producer(name: str) -> tuple[str, str] | None:
        node = nodes.get(name)
        return None if node is None or node.domain not in {"", "ai.onnx"} else (
            node.op_type, node.input[0]
        )  # fmt: skip

    return producer


def producer_in(graph: ir.Graph) -> Producer:
    """Look values up in a graph."""
    nodes = {n.outputs[0].name: n for n in graph if n.outputs and n.inputs}

    def producer(name: str) -> tuple[str, str] | None:
        node = nodes.get(name)
        if node is None or node.domain not in {"", "ai.onnx"} or node.inputs[0] is None:
            return None
        return node.op_type, node.inputs[0].name or ""

    return producer
