"""Models for the estimators: a default network, the scores inside a given model, the loss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from .. import losses
from ..autodiff import reachable
from ..compat.onnxcustom.base import SelectionError
from ..compat.onnxcustom.formulas import penalty, sigmoid_log, softmax_log
from ..compile import trainable_by_default
from ..errors import ModelError, UnknownNameError
from ..graph import FLOATS, ModelLike, OpBuilder, Tensor, load, to_proto
from ..graph import parameters as params
from ..graph.edit import values_by_name
from ..normalize import normalize

ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid", "identity": "Identity"}
LABEL, WEIGHT, LOSS = "onnxtrain.label", "onnxtrain.sample_weight", "onnxtrain.loss"
BETWEEN = {"Identity", "Cast", "Div", "Concat", "Sub", "Reshape", "Squeeze", "Flatten"}
"""Operators that may stand between the probabilities of a classifier and its scores."""


class Network(NamedTuple):
    """A model reduced to its prediction.

    Attributes:
        model: standard operators, with the trained weights as inputs that remember a value.
        output: name of the prediction: values, or raw scores.
        link: what turns scores into probabilities: ``"softmax"``, ``"sigmoid"`` or ``""``.
        weights: names of the trained weights.
    """

    model: ir.Model
    output: str
    link: str
    weights: list[str]

    @property
    def width(self) -> int | None:
        """Number of columns of the prediction, when it is known."""
        value = values_by_name(self.model.graph)[self.output]
        if value.shape is None or len(value.shape) < 2:
            return None
        size = value.shape[-1]
        return size if isinstance(size, int) else None


def mlp(
    n_features: int,
    n_outputs: int,
    hidden: Sequence[int],
    activation: str,
    link: str,
    dtype: Any,
    rng: np.random.RandomState,
) -> onnx.ModelProto:
    """A multi-layer perceptron with the initial weights that scikit-learn would draw."""
    if activation not in ACTIVATIONS:
        raise SelectionError(f"activation is one of {', '.join(ACTIVATIONS)}, not {activation!r}.")
    sizes = [n_features, *hidden, n_outputs]
    if min(sizes) < 1:
        raise SelectionError(f"hidden_layer_sizes must be positive, not {tuple(hidden)!r}.")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, tensors, value = [], [], "X"
    factor = 2.0 if activation == "logistic" else 6.0
    for i, (before, after) in enumerate(pairwise(sizes)):
        bound = np.sqrt(factor / (before + after))
        weight, bias = f"layer{i}.weight", f"layer{i}.bias"
        for name, shape in ((weight, (before, after)), (bias, (after,))):
            array = rng.uniform(-bound, bound, shape).astype(dtype)
            tensors.append(onnx.numpy_helper.from_array(array, name))
        last = i == len(sizes) - 2
        score = "scores" if link else "prediction"
        result = score if last else f"layer{i}.sum"
        nodes.append(onnx.helper.make_node("Gemm", [value, weight, bias], [result]))
        value = result
        if not last:
            value = f"layer{i}.activation"
            nodes.append(onnx.helper.make_node(ACTIVATIONS[activation], [result], [value]))
    outputs = [onnx.helper.make_tensor_value_info(value, kind, ["N", n_outputs])]
    if link:
        op = {"softmax": "Softmax", "sigmoid": "Sigmoid"}[link]
        nodes.append(onnx.helper.make_node(op, ["scores"], ["probabilities"]))
        outputs = [onnx.helper.make_tensor_value_info("probabilities", kind, ["N", n_outputs])]
    graph = onnx.helper.make_graph(
        nodes,
        "mlp",
        [onnx.helper.make_tensor_value_info("X", kind, ["N", n_features])],
        outputs,
        tensors,
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def network(
    model: ModelLike, weights: Sequence[str] | None, output: str | None, classifier: bool
) -> Network:
    """Find in a model what the estimator trains.

    For a classifier these are the scores in front of the last Softmax or Sigmoid; a model that
    ends without one gives scores.
    """
    loaded = normalize(load(model))
    graph = loaded.graph
    inputs = [v.name or "" for v in graph.inputs if v.name not in graph.initializers]
    if len(inputs) != 1:
        raise ModelError(
            f"The model takes {', '.join(inputs)}; an estimator needs a model with one input."
        )
    chosen = _prediction(loaded, output)
    link = ""
    if classifier:
        chosen, link = _scores(chosen)
    known = params.float_initializers(loaded)
    for name in weights or ():
        if name not in known:
            raise UnknownNameError("float initializer", name, known)
    graph.outputs.clear()
    graph.outputs.append(chosen)
    of = [chosen.name or ""]
    trained = reachable(loaded, weights, of) if weights else trainable_by_default(loaded, of)
    lost = [n for n in weights or () if n not in trained]
    if lost:
        raise ModelError(f"The prediction {chosen.name!r} does not depend on {lost[0]!r}.")
    if not trained:
        raise ModelError(f"The prediction {chosen.name!r} depends on no weight: nothing to train.")
    params.to_inputs(loaded, trained)
    return Network(loaded, chosen.name or "", link, trained)


def _prediction(model: ir.Model, name: str | None) -> ir.Value:
    outputs = {o.name or "": o for o in model.graph.outputs}
    if name is not None:
        if name not in outputs:
            raise UnknownNameError("output", name, list(outputs))
        return outputs[name]
    floats = [o for o in outputs.values() if o.dtype in FLOATS]
    if not floats:
        raise ModelError(f"None of the outputs {', '.join(outputs)} is a float tensor.")
    return floats[-1]


def _scores(value: ir.Value) -> tuple[ir.Value, str]:
    """The scores behind probabilities, and the function that was between them."""
    todo, seen = [value], set()
    while todo:
        current = todo.pop()
        node = current.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type in {"Softmax", "LogSoftmax", "Sigmoid"} and node.inputs[0] is not None:
            return node.inputs[0], "sigmoid" if node.op_type == "Sigmoid" else "softmax"
        if node.op_type in BETWEEN:
            todo.extend(v for v in reversed(node.inputs) if v is not None)
    return value, ""


# -- the loss --------------------------------------------------------------------------------------


class Penalty(NamedTuple):
    """``l1·Σ|w| + ½·l2·Σw²`` over matrices (biases are left alone)."""

    l1: float = 0.0
    l2: float = 0.0


def training_model(net: Network, loss: str, factors: Penalty) -> onnx.ModelProto:
    """The model with ``Σ w·loss / Σ w + penalty`` as first output.

    Args:
        net: what is trained.
        loss: ``"softmax"``, ``"sigmoid"``, ``"squared_error"``, ``"absolute_error"``, ``"huber"``.
        factors: of the penalties on the weights.
    """
    model = net.model.clone()
    build = _Loss(model, net)
    total = build.mean(build.terms(loss), columns=loss != "softmax")
    for term in build.penalties(factors):
        total = total + term
    total = build.op.Reshape(total, build.op.const(np.zeros(0, np.int64)))
    total.value.name, total.value.shape = LOSS, ir.Shape([])
    graph = model.graph
    build.op.attach(graph, mark=True)
    graph.outputs.clear()
    graph.outputs.append(total.value)
    params.to_initializers(model)
    graph.inputs.extend(build.inputs)
    return to_proto(model)


class _Loss:
    def __init__(self, model: ir.Model, net: Network) -> None:
        self.op: OpBuilder = OpBuilder.on(model)
        self.op.scope = "loss"
        values = values_by_name(model.graph)
        self.z = self.op.tensor(values[net.output])
        self.weights = [self.op.tensor(values[n]) for n in net.weights]
        self.inputs: list[ir.Value] = []

    def input(self, name: str, dtype: ir.DataType, shape: Any) -> Tensor:
        tensor = self.op.graph_input(name, dtype, shape)
        self.inputs.append(tensor.value)
        return tensor

    def terms(self, loss: str) -> Tensor:
        """The loss of every row."""
        kinds = {
            "softmax": self._softmax,
            "sigmoid": self._sigmoid,
            "squared_error": self._squared_error,
            "absolute_error": self._absolute_error,
            "huber": self._huber,
        }
        return kinds[loss]()

    def mean(self, terms: Tensor, columns: bool) -> Tensor:
        """The weighted mean over observations of one loss per row, in a column or a vector."""
        op = self.op
        weights = self.input(WEIGHT, terms.dtype, ["N"])
        rows = op.Unsqueeze(weights, [1]) if columns else weights
        count = op.Max(op.ReduceSum(weights, keepdims=0), op.like(1e-30, terms))
        return op.ReduceSum(terms * rows, keepdims=0) / count

    def penalties(self, factors: Penalty) -> list[Tensor]:
        if not (factors.l1 or factors.l2):
            return []
        matrices = [w for w in self.weights if w.rank > 1 and 1 not in (w.shape or ())[:1]]
        return [penalty(self.op, w, factors.l1, 0.5 * factors.l2) for w in matrices]

    def _target(self) -> Tensor:
        return self.input(LABEL, self.z.dtype, list(self.z.shape or ["N", 1]))

    def _labels(self) -> Tensor:
        return self.input(LABEL, ir.DataType.INT64, ["N"])

    def _per_row(self, terms: Tensor) -> Tensor:
        mean: Tensor = self.op.ReduceMean(terms, [1], keepdims=1)
        return terms if self.z.dim(-1) == 1 else mean

    def _squared_error(self) -> Tensor:
        return self._per_row(losses.MSELoss().elements(self.op, self.z, self._target()) * 0.5)

    def _absolute_error(self) -> Tensor:
        return self._per_row(losses.L1Loss().elements(self.op, self.z, self._target()))

    def _huber(self) -> Tensor:
        """½·d² up to |d| = 1, |d| − ½ beyond."""
        return self._per_row(losses.HuberLoss().elements(self.op, self.z, self._target()))

    def _softmax(self) -> Tensor:
        return softmax_log(self.op, self._labels(), self.z)

    def _sigmoid(self) -> Tensor:
        """One score for two classes, or one per class, each against all others."""
        labels, width = self.op.Unsqueeze(self._labels(), [1]), self.z.dim(-1)
        if width != 1:
            assert isinstance(width, int)
            labels = self.op.Equal(labels, self.op.const(np.arange(width, dtype=np.int64)))
        return self._per_row(sigmoid_log(self.op, labels, self.z))
