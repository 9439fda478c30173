"""Losses and penalties of the second API as small graphs: the formula, and its gradient.

The formulas are those of `onnxtrain.losses`; gradients come from the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ... import losses
from ...compile import Plan, gradients
from ...graph import OpBuilder, Tensor, to_proto
from ...graph.edit import values_by_name
from ...graph.infer import infer_shapes
from ...passes import clean_up

VALUE = "value"
Inputs = Mapping[str, Tensor]
Formula = Callable[[OpBuilder, Inputs], Tensor]


@dataclass
class Graph:
    """A small model in the making: its inputs, and a formula of them.

    Args:
        inputs: names and shapes; a type if it is not that of the function.
        dtype: float type of the function.
        formula: makes the value that is differentiated.
        opset: version of ai.onnx.
    """

    inputs: Mapping[str, tuple[Any, ...]]
    dtype: ir.DataType
    formula: Formula
    opset: int
    types: Mapping[str, ir.DataType] = field(default_factory=dict)

    def model(self) -> ir.Model:
        """The inputs and the formula's value."""
        values = [
            ir.Value(
                name=name,
                type=ir.TensorType(self.types.get(name, self.dtype)),
                shape=ir.Shape(shape),
            )
            for name, shape in self.inputs.items()
        ]
        graph = ir.Graph(values, [], nodes=[], opset_imports={"": self.opset}, name=VALUE)
        model = ir.Model(graph, ir_version=8)
        op: OpBuilder = OpBuilder.on(model)
        value = self.formula(op, {v.name or "": op.tensor(v) for v in values})
        value.value.name = VALUE
        op.attach(graph)
        graph.outputs.append(value.value)
        return infer_shapes(model)


Finish = Callable[[OpBuilder, Inputs, Tensor], dict[str, Tensor]]
FinishGradient = Callable[[OpBuilder, Inputs, Tensor, Tensor], dict[str, Tensor]]
Seed = Callable[[OpBuilder, Inputs], Tensor]


def plain(graph: Graph, finish: Finish) -> onnx.ModelProto:
    """The model whose outputs `finish` makes from the inputs and the formula's value."""
    model = graph.model()
    op: OpBuilder = OpBuilder.on(model)
    values = _tensors(op, model)
    return _finished(model, op, finish(op, values, values[VALUE]))


def differentiated(graph: Graph, of: str, seed: Seed, finish: FinishGradient) -> onnx.ModelProto:
    """The same with the gradient in one of the inputs.

    Args:
        graph: the formula.
        of: the input.
        seed: makes the gradient of the formula's value; what broadcasts to it is enough.
        finish: makes the outputs from the inputs, the value and the gradient.
    """
    plan = Plan(graph.model(), inputs=[of], of=[VALUE], vjp=True, labels_are_checked=True)
    built = gradients(plan)
    model = built.model
    op: OpBuilder = OpBuilder.on(model)
    values = _tensors(op, model)
    incoming = values[built.seeds[VALUE]].value
    start = seed(op, values)
    incoming.replace_all_uses_with(start.value)
    model.graph.inputs.remove(incoming)
    results = finish(op, values, values[VALUE], values[built.gradients[of]])
    return _finished(model, op, results)


def _tensors(op: OpBuilder, model: ir.Model) -> dict[str, Tensor]:
    return {name: op.tensor(value) for name, value in values_by_name(model.graph).items()}


def _finished(model: ir.Model, op: OpBuilder, outputs: dict[str, Tensor]) -> onnx.ModelProto:
    """The model with these outputs; shapes are forgotten, since element by element any will do."""
    named = []
    for name, tensor in outputs.items():
        has_producer = tensor.value.producer() is not None
        named.append(tensor.value if has_producer else op.Identity(tensor).value)
        named[-1].name = name
    op.attach(model.graph)
    model.graph.outputs.clear()
    model.graph.outputs.extend(named)
    model.graph.sort()
    clean_up(model)
    for node in model.graph:  # where the seed is smaller than what it broadcasts to, others are too
        for value in node.outputs:
            value.shape = None
    model = infer_shapes(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None and len(value.shape) > 1:
            value.shape = None
    proto = to_proto(model)
    del proto.graph.value_info[:]
    return proto


# -- losses: X1 is expected, X2 is predicted, Y the loss, Z its gradient in X2 ---------------------


@dataclass
class LossFunction:
    """A loss of two tensors, summed over them with weights per row.

    Args:
        terms: the loss of every element, or of every row, from expected and predicted.
        factor: of the sum.
        classes: whether what is expected are numbers of classes.
        smallest: a term that is smaller counts as this in the loss, not in the gradient.
        largest: likewise one that is larger.
    """

    terms: Callable[[OpBuilder, Tensor, Tensor], Tensor]
    factor: float = 1.0
    classes: bool = False
    smallest: float | None = None
    largest: float | None = None

    def graph(self, dtype: ir.DataType, opset: int, weight: str | None) -> Graph:
        """Inputs and terms."""
        inputs: dict[str, tuple[Any, ...]] = {"X1": ("N", "M"), "X2": ("N", "M")}
        if weight is not None:
            inputs[weight] = ("N",)
        types = {"X1": ir.DataType.INT64} if self.classes else {}
        return Graph(inputs, dtype, lambda op, x: self.terms(op, x["X1"], x["X2"]), opset, types)

    def total(self, op: OpBuilder, terms: Tensor, weights: Tensor | None) -> Tensor:
        """factor · Σ weight · term."""
        if self.smallest is not None and self.largest is not None:
            terms = op.Clip(terms, op.like(self.smallest, terms), op.like(self.largest, terms))
        total: Tensor = op.ReduceSum(terms if weights is None else terms * weights, keepdims=0)
        return total if self.factor == 1 else total * self.factor

    def value(self, dtype: ir.DataType, opset: int, weight: str | None) -> onnx.ModelProto:
        """The graph with the output Y."""
        return plain(
            self.graph(dtype, opset, weight),
            lambda op, x, terms: {"Y": self.total(op, terms, _rows(op, x, weight, terms))},
        )

    def slope(self, dtype: ir.DataType, opset: int, weight: str | None) -> onnx.ModelProto:
        """The graph with the output Z."""
        return self._with_gradient(dtype, opset, weight, lambda op, x, terms, z: {"Z": z})

    def both(self, dtype: ir.DataType, opset: int, weight: str | None) -> onnx.ModelProto:
        """The graph with the outputs Y and Z."""

        def finish(op: OpBuilder, x: Inputs, terms: Tensor, z: Tensor) -> dict[str, Tensor]:
            return {"Y": self.total(op, terms, _rows(op, x, weight, terms)), "Z": z}

        return self._with_gradient(dtype, opset, weight, finish)

    def _with_gradient(
        self, dtype: ir.DataType, opset: int, weight: str | None, finish: FinishGradient
    ) -> onnx.ModelProto:
        def seed(op: OpBuilder, x: Inputs) -> Tensor:
            rows = _rows(op, x, weight, x[VALUE])
            if rows is None:
                return op.const(np.full([1] * x[VALUE].rank, self.factor), dtype)
            return rows if self.factor == 1 else rows * self.factor

        return differentiated(self.graph(dtype, opset, weight), "X2", seed, finish)


def _rows(op: OpBuilder, x: Inputs, weight: str | None, terms: Tensor) -> Tensor | None:
    """The weights of the rows, as they broadcast to the terms."""
    if weight is None:
        return None
    return x[weight] if terms.rank == 1 else op.Unsqueeze(x[weight], [1])


def square() -> Callable[[OpBuilder, Tensor, Tensor], Tensor]:
    """(z − y)²."""
    return lambda op, y, z: losses.MSELoss().elements(op, z, y)


def absolute() -> Callable[[OpBuilder, Tensor, Tensor], Tensor]:
    """|z − y|."""
    return lambda op, y, z: losses.L1Loss().elements(op, z, y)


def elastic(l1: float, l2: float) -> Callable[[OpBuilder, Tensor, Tensor], Tensor]:
    """l1·|z − y| + l2·(z − y)²."""
    return lambda op, y, z: (
        losses.L1Loss().elements(op, z, y) * l1 + losses.MSELoss().elements(op, z, y) * l2
    )


def sigmoid_log(op: OpBuilder, y: Tensor, z: Tensor) -> Tensor:
    """−log of the probability of the class y, 0 or 1, with scores z."""
    return losses.BCEWithLogitsLoss().elements(op, z, op.Cast(y, to=z.dtype))


def softmax_log(op: OpBuilder, y: Tensor, z: Tensor) -> Tensor:
    """−log of the probability of the class y, with a score per class in z."""
    loss = losses.CrossEntropyLoss(reduction="none", ignore_index=None)
    return loss.loss(op, z, op.Reshape(y, op.const([-1])))


def limits(eps: float) -> dict[str, float]:
    """The smallest and the largest loss of a probability between eps and 1 − eps."""
    if eps <= 0:
        return {}
    return {"smallest": -float(np.log1p(-eps)), "largest": -float(np.log(eps))}


# -- penalties -------------------------------------------------------------------------------------


def with_factors(model: onnx.ModelProto, dtype: ir.DataType, **factors: float) -> onnx.ModelProto:
    """A factor of 0 leaves no node; it stays visible as an initializer that nothing reads."""
    for name, factor in factors.items():
        if factor == 0:
            model.graph.initializer.append(onnx.helper.make_tensor(name, int(dtype), [], [factor]))
    return model


def penalty(op: OpBuilder, weight: Tensor, l1: float, l2: float) -> Tensor:
    """l1·Σ|w| + l2·Σw²; a factor of 0 leaves its part out, unless both are 0."""
    terms = []
    if l1 or not l2:
        terms.append(op.ReduceL1(weight, keepdims=0) * l1)
    if l2:
        terms.append(op.ReduceSumSquare(weight, keepdims=0) * l2)
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


@dataclass
class PenaltyFunction:
    """``l1·Σ|X| + l2·Σ X²`` of one tensor, with its gradient times `scale`.

    Args:
        l1: factor of the absolute values.
        l2: factor of the squares.
        others: more inputs, with their shapes.
        scale: the input that multiplies the gradient; None for 1.
    """

    l1: float
    l2: float
    others: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    scale: str | None = None

    def both(self, dtype: ir.DataType, opset: int, finish: FinishGradient) -> onnx.ModelProto:
        """The graph whose outputs `finish` makes from penalty and gradient."""
        graph = Graph(
            {"X": ("N", "M"), **self.others},
            dtype,
            lambda op, x: penalty(op, x["X"], self.l1, self.l2),
            opset,
        )
        name = self.scale
        model = differentiated(
            graph, "X", lambda op, x: x[name] if name else op.const(1.0, dtype), finish
        )
        return with_factors(model, dtype, l1=self.l1, l2=self.l2)


def penalized(
    n_tensors: int, l1: float, l2: float, dtype: ir.DataType, opset: int
) -> onnx.ModelProto:
    """The graph (loss, W0, W1 …) → Y, the loss plus the penalties of all tensors."""
    inputs = {"loss": (), **{f"W{i}": ("N", "M") for i in range(n_tensors)}}

    def formula(op: OpBuilder, x: Inputs) -> Tensor:
        total = x["loss"]
        for name in list(inputs)[1:]:
            total = total + penalty(op, x[name], l1, l2)
        return total

    model = plain(Graph(inputs, dtype, formula, opset), lambda op, x, total: {"Y": total})
    return with_factors(model, dtype, l1=l1, l2=l2)
