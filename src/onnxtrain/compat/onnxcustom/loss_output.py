"""Add a loss to a model, so that the first API can train it as one graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ... import losses
from ...errors import ModelError, UnknownNameError
from ...graph import ModelLike, OpBuilder, Tensor, load, to_proto
from ...graph import parameters as params
from ...graph.labels import declare
from ...normalize import normalize
from . import formulas
from .onnx_helper import dtype_to_var_type, get_train_initializer, rename_value

SCORES = {
    "squared_error": "squared_error",
    "l2": "squared_error",
    "absolute_error": "absolute_error",
    "l1": "absolute_error",
    "elastic": "elastic",
    "log": "log",
    "log_loss": "log",
    "log_scores": "log_scores",
}


def add_loss_output(
    onx: ModelLike,
    score_name: str = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Mapping[str, Any] | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """Append a loss, summed over the observations, as first output, and an input for the labels.

    The loss has the shape [1, 1].

    Args:
        onx: the model; it is not changed.
        score_name: ``"squared_error"`` (``"l2"``): Σ (z − y)²; ``"absolute_error"`` (``"l1"``):
            Σ |z − y|; ``"elastic"``: Σ l1·|z − y| + l2·(z − y)², with `l1_weight` and
            `l2_weight`; ``"log"``: the log loss of probabilities, one column per class, with
            integer labels and `eps`; ``"log_scores"``: the same from raw scores, one
            column (sigmoid) or one per class (softmax).
        loss_name: name of the loss.
        label_name: name of the new input; a value of that name inside the model is renamed.
        weight_name: name of an input with one weight per observation.
        penalty: weight → ``{"l1": a, "l2": b}`` or one number, the factor of l2. It is added to
            the sum of the losses, not to their mean.
        output_index: the prediction, by number or name; by default the only output, or the last
            one of a classifier with labels and probabilities.
        kwargs: constants of the loss.

    Example:
        >>> import onnx.parser
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 2] X) => (float[N, 1] Y) <float[2, 1] w = {1, 2}> { Y = MatMul(X, w) }
        ... ''')
        >>> trained = add_loss_output(model, penalty={"w": {"l2": 0.1}})
        >>> [i.name for i in trained.graph.input], [o.name for o in trained.graph.output]
        (['X', 'label'], ['loss', 'Y'])
    """
    if score_name not in SCORES:
        raise UnknownNameError("score", score_name, list(SCORES))
    model = load(onx)
    weights = params.float_initializers(model)
    params.to_inputs(model, weights)  # so that no pass folds them
    model = normalize(model)
    _free(model, label_name)
    if loss_name in {o.name for o in model.graph.outputs}:
        raise ModelError(f"The model has an output {loss_name!r} already; choose a loss_name.")
    build = _LossBuilder(model, label_name, weight_name)
    loss = build.loss(SCORES[score_name], build.prediction(output_index), kwargs)
    for name, factors in (penalty or {}).items():
        loss = loss + build.penalty(name, factors)
    loss = build.op.Reshape(loss, build.op.const(np.ones(2, np.int64)))
    build.finish(loss, loss_name)
    return to_proto(model)


def _free(model: ir.Model, name: str) -> None:
    """Make a name available: what has it in the model gets another."""
    if name in {v.name for v in model.graph.inputs}:
        raise ModelError(f"The model has an input {name!r} already; choose another label_name.")
    rename_value(model, name, f"{name}_model")


class _LossBuilder:
    def __init__(self, model: ir.Model, label: str, weight: str | None) -> None:
        self.model, self.label, self.weight = model, label, weight
        self.op: OpBuilder = OpBuilder.on(model)
        self.op.scope = "loss"
        self.inputs: list[ir.Value] = []

    def input(self, name: str, dtype: ir.DataType, shape: Any) -> Tensor:
        tensor = self.op.graph_input(name, dtype, shape)
        self.inputs.append(tensor.value)
        return tensor

    def prediction(self, index: int | str | None) -> Tensor:
        outputs = list(self.model.graph.outputs)
        names = [o.name or "" for o in outputs]
        if isinstance(index, str):
            if index not in names:
                raise UnknownNameError("output", index, names)
            index = names.index(index)
        if index is None:
            if len(outputs) > 2:
                raise ModelError(
                    f"The model has {len(outputs)} outputs ({', '.join(names)}); say with "
                    "output_index which one is the prediction."
                )
            index = len(outputs) - 1
        return self.op.tensor(outputs[index])

    def loss(self, kind: str, z: Tensor, constants: dict[str, Any]) -> Tensor:
        allowed = {"elastic": {"l1_weight", "l2_weight"}, "log": {"eps"}, "log_scores": set()}
        unknown = set(constants) - allowed.get(kind, set())
        if unknown:
            raise ModelError(f"The loss {kind!r} has no parameter {sorted(unknown)[0]!r}.")
        return getattr(self, f"_{kind}")(z, **constants)  # type: ignore[no-any-return]

    def _label_like(self, z: Tensor) -> Tensor:
        return self.input(self.label, z.dtype, list(z.shape or ["N", 1]))

    def _classes(self, count: int | None) -> Tensor:
        """Labels below `count`, if it is known."""
        declare(self.model.metadata_props, self.label, count, None)
        return self.input(self.label, ir.DataType.INT64, ["N"])

    def total(self, terms: Tensor, per_row: bool = False) -> Tensor:
        """The sum of the losses of elements (or of rows), weighted when asked for."""
        if self.weight is not None:
            weights = self.input(self.weight, terms.dtype, ["N"])
            terms = terms * (weights if per_row else self.op.Unsqueeze(weights, [1]))
        total: Tensor = self.op.ReduceSum(terms, keepdims=0)
        return total

    def _squared_error(self, z: Tensor) -> Tensor:
        label = self._label_like(z)
        if self.weight is None:  # one node, whose gradient needs no memory in between
            total: Tensor = self.op.ReduceSumSquare(z - label, keepdims=0)
            return total
        return self.total(losses.MSELoss().elements(self.op, z, label))

    def _absolute_error(self, z: Tensor) -> Tensor:
        return self.total(losses.L1Loss().elements(self.op, z, self._label_like(z)))

    def _elastic(self, z: Tensor, l1_weight: float = 0.5, l2_weight: float = 0.5) -> Tensor:
        terms = formulas.elastic(l1_weight, l2_weight)
        return self.total(terms(self.op, self._label_like(z), z))

    def _log(self, z: Tensor, eps: float = 1e-6) -> Tensor:
        """−log of the probability of the right class."""
        limited = self.op.Clip(z, self.op.like(eps, z), self.op.like(1 - eps, z))
        logarithms = self.op.Log(limited)
        logarithms.value.shape = z.value.shape
        loss = losses.NLLLoss(ignore_index=None)
        return self.total(loss.elements(self.op, logarithms, self._labels(z)), True)

    def _labels(self, z: Tensor) -> Tensor:
        size = z.dim(-1)
        return self._classes(size if isinstance(size, int) else None)

    def _log_scores(self, z: Tensor) -> Tensor:
        if z.dim(-1) != 1:
            return self.total(formulas.softmax_log(self.op, self._labels(z), z), True)
        labels = self.op.Unsqueeze(self._classes(2), [1])
        return self.total(formulas.sigmoid_log(self.op, labels, z))

    def penalty(self, name: str, factors: Any) -> Tensor:
        known = {v.name: v for v in self.model.graph.inputs if v.const_value is not None}
        if name not in known:
            raise UnknownNameError("weight", name, [n or "" for n in known])
        by_kind = factors if isinstance(factors, Mapping) else {"l2": factors}
        unknown = set(by_kind) - {"l1", "l2"}
        if unknown:
            raise UnknownNameError("penalty", sorted(unknown)[0], ["l1", "l2"])
        l1, l2 = (float(by_kind.get(kind) or 0) for kind in ("l1", "l2"))
        if not (l1 or l2):
            raise ModelError(f"The penalty of {name!r} has neither l1 nor l2.")
        return formulas.penalty(self.op, self.op.tensor(known[name]), l1, l2)

    def finish(self, loss: Tensor, name: str) -> None:
        graph = self.model.graph
        loss.value.name = name
        loss.value.shape = ir.Shape([1, 1])
        self.op.attach(graph, mark=True)
        outputs = [loss.value, *graph.outputs]
        graph.outputs.clear()
        graph.outputs.extend(outputs)
        params.to_initializers(self.model)
        graph.inputs.extend(self.inputs)


def penalty_loss_onnx(
    name: str,
    dtype: Any,
    l1: float | None = None,
    l2: float | None = None,
    existing_names: Iterable[str] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Initializers and nodes that compute ``l1·Σ|w| + l2·Σw²`` of a weight.

    Args:
        name: the weight.
        dtype: its numpy type.
        l1: factor of the absolute values.
        l2: factor of the squares.
        existing_names: names that are taken; the set is extended when it is one.

    Returns:
        TensorProtos and NodeProtos; the output of the last node is the penalty.
    """
    taken = existing_names if isinstance(existing_names, set) else set(existing_names or ())

    def fresh(stem: str) -> str:
        free, number = stem, 0
        while free in taken:
            number += 1
            free = f"{stem}_{number}"
        taken.add(free)
        return free

    if not l1 and not l2:
        raise ModelError(f"The penalty of {name!r} needs l1 or l2.")
    tensors, nodes, terms = [], [], []
    for factor, reduce in ((l1, "ReduceL1"), (l2, "ReduceSumSquare")):
        if not factor:
            continue
        tag = "l1" if reduce == "ReduceL1" else "l2"
        constant, reduced, term = (fresh(f"{name}_{tag}_{part}") for part in ("c", "r", "p"))
        tensors.append(
            onnx.helper.make_tensor(constant, dtype_to_var_type(dtype), [], [float(factor)])
        )
        nodes.append(onnx.helper.make_node(reduce, [name], [reduced], keepdims=0))
        nodes.append(onnx.helper.make_node("Mul", [reduced, constant], [term]))
        terms.append(term)
    if len(terms) == 2:
        nodes.append(onnx.helper.make_node("Add", terms, [fresh(f"{name}_penalty")]))
    return tensors, nodes


__all__ = ["add_loss_output", "get_train_initializer", "penalty_loss_onnx"]
