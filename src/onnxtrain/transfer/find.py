"""The classifier of a model: the layer whose outputs are the scores of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..errors import ModelError, UnknownNameError
from ..graph import FLOATS
from ..graph.nodes import known
from ..lora.layers import Layer, find_layers
from ..operators import REARRANGING

PROBABILITIES = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
POOLING = frozenset(
    {
        "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean",
        "ReduceSum",
    }
)  # fmt: skip
"""Operators that make one score of the scores of many places."""
ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})
BEHIND = PROBABILITIES | POOLING | REARRANGING | {"Clip", "Dropout", "LeakyRelu", "Log", "Relu"}
"""Operators of one operand that may stand between a classifier and the output."""
QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "QGemm", "Integer", "DynamicQuantize")
SEEN = 6
"""How many operators an error tells that names what there is instead of a classifier."""


@dataclass(frozen=True)
class Classifier:
    """A classifier, and what is between it and an output.

    Attributes:
        output: of the model, that has its scores or what follows from them.
        layer: the linear layer or convolution.
        node: of the layer, on the way to this output.
        tail: the nodes behind it, those next to it first.
    """

    output: ir.Value
    layer: Layer
    node: ir.Node
    tail: tuple[ir.Node, ...]

    def __str__(self) -> str:
        return str(self.layer)


def find_classifier(model: ir.Model, output: str | None = None) -> Classifier:
    """The classifier behind an output, or the only one that the model has.

    Args:
        model: weights are initializers.
        output: which output has the scores; by default the one behind which a classifier is found.

    Raises:
        ModelError: there is none, or there are several; with what was seen instead.
    """
    outputs = {o.name or "": o for o in model.graph.outputs}
    if output is not None and output not in outputs:
        raise UnknownNameError("output", output, list(outputs))
    asked = list(outputs.values()) if output is None else [outputs[output]]
    layers = {node: layer for layer in find_layers(model) for node in layer.nodes}
    classifiers, reasons = list[Classifier](), list[str]()
    for value in asked:
        result = _behind(value, layers)
        if isinstance(result, Classifier):
            classifiers.append(result)
        else:
            reasons.append(result)
    if len(classifiers) == 1:
        return classifiers[0]
    if classifiers:
        listed = ", ".join(f"{one.output.name!r} has {one}" for one in classifiers)
        raise ModelError(
            f"The model has {len(classifiers)} classifiers: {listed}. Say which output is meant: "
            f"output={classifiers[0].output.name!r} (--loss-output {classifiers[0].output.name})."
        )
    raise ModelError(
        f"The model has no classifier that can be replaced. {' '.join(reasons)} A classifier is a "
        "MatMul, Gemm or Conv with a stored weight, with nothing behind it but pooling, reshaping, "
        "a bias and Softmax or Sigmoid. Name its output (output=, --loss-output), or take the "
        "model as it was before it was cut, fused or quantised."
    )


def _behind(output: ir.Value, layers: dict[ir.Node, Layer]) -> Classifier | str:
    """The classifier behind an output, or what is there instead."""
    tail, value = list[ir.Node](), output
    if output.dtype is not None and output.dtype not in FLOATS:
        return f"The output {output.name!r} is {output.dtype.name.lower()} and holds no scores."
    while (node := value.producer()) is not None:
        if node in layers:
            if layers[node].group != 1:
                return _seen(output, [*tail, node], "a convolution of groups")
            return Classifier(output, layers[node], node, tuple(reversed(tail)))
        before = _operand(node)
        if before is None:
            why = "quantised" if any(q in node.op_type for q in QUANTIZED) else ""
            return _seen(output, [*tail, node], why)
        tail.append(node)
        value = before
    return _seen(output, tail, "an input of the model")


def _operand(node: ir.Node) -> ir.Value | None:
    """The operand that carries the scores through a node; None if the node changes more."""
    if node.domain not in {"", "ai.onnx"} or not node.inputs:
        return None
    if node.op_type in BEHIND:
        return node.inputs[0]
    if node.op_type in ARITHMETIC and len(node.inputs) == 2:
        first, second = node.inputs
        if known(second) is not None:
            return first
        if known(first) is not None and node.op_type in {"Add", "Mul"}:
            return second
    return None


def _seen(output: ir.Value, nodes: Sequence[ir.Node], what: str) -> str:
    """What an output comes from, as a sentence."""
    chain = " ← ".join(_op(node) for node in nodes[-SEEN:])
    end = f" ({what})" if what else ""
    more = "… ← " if len(nodes) > SEEN else ""
    return f"The output {output.name!r} comes from {more}{chain or 'nothing'}{end}."


def _op(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in {"", "ai.onnx"} else node.op_type
