"""A classifier for other classes in the place of the one that a model has."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..errors import ModelError, model_errors
from ..graph import ModelLike, OpBuilder, Tensor, load, replace_outputs
from ..graph.inline import inline_calls
from ..graph.io import deliver
from ..graph.nodes import initializer, ints, known, rank_of
from ..graph.tensor import dims_of
from ..normalize.constants import lift_constants
from ..operators import REARRANGING
from .find import POOLING, PROBABILITIES, Classifier, find_classifier

Array = npt.NDArray[Any]
CLASS_NAMES = "class_names"
"""Key of a model's metadata under which the names of its classes stand, as a JSON list."""
OPSET = 7
"""From here on Gemm and arithmetic broadcast by themselves."""
WINDOW = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


@dataclass(frozen=True)
class NewHead:
    """A model with a new classifier.

    Attributes:
        model: the model; it has one output, with the scores of the new classes or their
            probabilities, as it was before.
        parameters: names of the new weight and bias.
        layer: what was replaced: its name, and its numbers of features and classes.
        classes: how many there are now.
        features: name of the value that the classifier reads.
        scores: name of the value that a loss of classes compares: the output, or what is before
            its Softmax.
        output: name of the output.
        dropped: other outputs that the model had.
        was_shared: whether the old weight is read elsewhere, an embedding say, and stays there.
    """

    model: onnx.ModelProto
    parameters: tuple[str, ...]
    layer: str
    classes: int
    features: str
    scores: str
    output: str
    dropped: tuple[str, ...] = ()
    was_shared: bool = False


@model_errors("Replacing the classifier")
def new_head(
    model: ModelLike,
    classes: int | Sequence[str],
    *,
    of: str | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
) -> NewHead:
    """A model with a classifier for other classes; everything before it stays as it is.

    The classifier is the last linear layer or convolution before an output, with nothing behind it
    but pooling, reshaping, a bias, and Softmax or Sigmoid. A Sigmoid becomes a Softmax, because one
    of the new classes is right. A weight that was quantised, or that something else reads too, is
    left alone: the new one is its own, of float32.

    Args:
        model: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        classes: how many, or their names, which become a part of the model's metadata.
        of: the output whose classifier is meant, where there are several.
        seed: of the new weight.
        output: also write the model to this path.

    Raises:
        ModelError: there is no classifier, or several; it says what there is.

    Example:
        >>> import onnx.parser
        >>> photo = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
        ...     { s = MatMul(x, w) y = Softmax(s) }
        ... ''')
        >>> head = new_head(photo, ["cat", "dog", "owl", "fox"])
        >>> head.layer, head.parameters
        ('w (3 → 2)', ('w.weight', 'w.bias'))
    """
    count = classes if isinstance(classes, int) else len(classes)
    if count < 2:
        raise ModelError(f"A classifier needs two classes or more, and there is {count}.")
    changed = load(model)
    if changed.functions:
        inline_calls(changed, lambda _: True)
    changed = lift_constants(changed)
    if changed.opset_imports.get("", 1) < OPSET:
        raise ModelError(
            f"new_head needs opset {OPSET}, and the model has {changed.opset_imports.get('', 1)}. "
            "Raise it with onnx.version_converter.convert_version(model, 18)."
        )
    writer = _Writer(changed, find_classifier(changed, of), count, seed)
    writer.replace()
    if not isinstance(classes, int):
        changed.metadata_props[CLASS_NAMES] = json.dumps(list(classes))
    elif CLASS_NAMES in changed.metadata_props:
        del changed.metadata_props[CLASS_NAMES]  # those of the old ones
    return writer.described(deliver(changed, output))


class _Writer:
    """Writes a classifier into a model."""

    def __init__(self, model: ir.Model, old: Classifier, classes: int, seed: int) -> None:
        self.model, self.old, self.classes = model, old, classes
        self.rng = np.random.default_rng(seed)
        self.op = OpBuilder.on(model)
        self.op.scope = old.layer.name
        self.parameters: list[str] = []
        self.is_matrix = False
        """Whether the new layer gives one row of scores for each image, and nothing more."""
        self.dropped = tuple(o.name or "" for o in model.graph.outputs if o is not old.output)
        self.layer, self.output = str(old.layer), old.output.name or ""

    def replace(self) -> None:
        """Put the new classifier in, and take out what only the old one needed."""
        op, graph, old = self.op, self.model.graph, self.old
        features = old.node.inputs[0]
        assert features is not None
        features.name = features.name or op.names.fresh(f"{old.layer.name}.features")
        scores = self._scores(self._layer(features))
        function, result = self._probabilities(), scores
        if function:
            result = op.exactly(function, scores, axis=1)
            scores.value.name = op.names.fresh(f"{self.output}.scores")
        op.attach(graph, mark=True)
        self.features = _past_dropout(features).name or ""
        batch = (dims_of(old.output) or (None,))[0]
        old.output.name = f"{self.output}/replaced"
        result.value.name = self.output
        for value in (scores.value, result.value):
            value.shape = ir.Shape([batch, self.classes])
            value.type = ir.TensorType(ir.DataType.FLOAT)
        self.scores = scores.value.name or ""
        replace_outputs(self.model, [result.value])
        weight = old.layer.weight
        RemoveUnusedNodesPass()(self.model)
        self.was_shared = weight.name in graph.initializers and bool(weight.uses())

    def described(self, model: onnx.ModelProto) -> NewHead:
        """What was made."""
        return NewHead(
            model, tuple(self.parameters), self.layer, self.classes, self.features, self.scores,
            self.output, self.dropped, self.was_shared,
        )  # fmt: skip

    def _layer(self, features: ir.Value) -> Tensor:
        """The new layer: weights as PyTorch begins them, and a bias of zeros."""
        op, layer, node = self.op, self.old.layer, self.old.node
        features.type = features.type or ir.TensorType(layer.dtype)
        x = op.tensor(features)
        if x.dtype != ir.DataType.FLOAT:
            x = op.Cast(x, to=ir.DataType.FLOAT)
        bound = 1 / np.sqrt(layer.inputs * np.prod(layer.kernel, dtype=np.int64))
        rows = (self.classes, layer.inputs, *layer.kernel)
        weight = self.rng.uniform(-bound, bound, rows).astype(np.float32)
        zeros = np.zeros(self.classes, np.float32)
        if layer.kernel:
            window = {n: node.attributes[n].value for n in WINDOW if n in node.attributes}
            return op.exactly(
                "Conv", x, self._parameter("weight", weight), self._parameter("bias", zeros),
                **window,
            )  # fmt: skip
        if node.op_type == "Gemm" or rank_of(features) == 2:
            self.is_matrix = True
            return op.exactly(
                "Gemm", x, self._parameter("weight", weight), self._parameter("bias", zeros),
                transB=1,
            )  # fmt: skip
        transposed = np.ascontiguousarray(weight.T)
        return x @ self._parameter("weight", transposed) + self._parameter("bias", zeros)

    def _parameter(self, name: str, array: Array) -> Tensor:
        """A new parameter, called as the old one where nobody else has that name."""
        graph, layer = self.model.graph, self.old.layer
        full_name = f"{layer.name}.{name}"
        taken = graph.initializers.get(full_name)
        if taken is not None and self._is_own(taken):
            del graph.initializers[full_name]
            taken.name = self.op.names.fresh(f"{full_name}.replaced")
            graph.register_initializer(taken)
        elif taken is not None or any(o.name == full_name for n in graph for o in n.outputs):
            full_name = self.op.names.fresh(f"{layer.name}.head.{name}")
        self.op.names.reserve(full_name)
        self.parameters.append(full_name)
        return self.op.tensor(initializer(graph, full_name, array))

    def _is_own(self, value: ir.Value) -> bool:
        """Whether only the old classifier reads a value."""
        own = {self.old.node, *self.old.tail}
        return not value.is_graph_input() and all(_leads_to(node, own) for node, _ in value.uses())

    def _scores(self, result: Tensor) -> Tensor:
        """What stays of the nodes behind the classifier, and one row of scores for each image."""
        tail = self._before_probabilities()
        pooled = max((i for i, n in enumerate(tail) if n.op_type in POOLING), default=-1)
        for index, node in enumerate(tail):
            if node.op_type == "Cast" or self._is_per_class(node):
                continue
            if node.op_type in REARRANGING and index > pooled:
                continue
            result = self._again(node, result)
        if self.is_matrix:
            return result
        return self.op.Reshape(result, np.array([0, self.classes], np.int64))

    def _before_probabilities(self) -> list[ir.Node]:
        """The nodes between the classifier and the function that makes probabilities."""
        operators = [n.op_type in PROBABILITIES for n in self.old.tail]
        return list(self.old.tail[: operators.index(True)] if any(operators) else self.old.tail)

    def _probabilities(self) -> str:
        """The function that makes probabilities of the scores; "" without one."""
        behind = [n.op_type for n in self.old.tail[len(self._before_probabilities()) :]]
        if not behind:
            return ""
        return "LogSoftmax" if {"Log", "LogSoftmax"} & set(behind) else "Softmax"

    def _is_per_class(self, node: ir.Node) -> bool:
        """Whether a node adds or multiplies a number for each of the old classes."""
        stored = [known(v) for v in node.inputs[:2]]
        sizes = [t.size for t in stored if t is not None]
        is_arithmetic = node.op_type in {"Add", "Div", "Mul", "Sub"}
        return is_arithmetic and (self.old.layer.outputs in sizes or max(sizes, default=1) > 1)

    def _again(self, node: ir.Node, x: Tensor) -> Tensor:
        """The same node on the new scores."""
        old = self.old.layer.outputs
        operands: list[Any] = [None if v is None else self.op.tensor(v) for v in node.inputs]
        place = 1 if known(node.inputs[0]) is not None else 0
        operands[place] = x
        if node.op_type == "Reshape":
            sizes = ints(node.inputs[1])
            if sizes is None:
                raise ModelError(
                    f"The scores are reshaped by {node.name!r} to a shape that the model computes; "
                    "export it with a constant one."
                )
            operands[1] = np.array([self.classes if s == old else s for s in sizes], np.int64)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        return self.op.emit(node.op_type, operands, 1, **attributes)[0]


def _leads_to(node: ir.Node, own: set[ir.Node]) -> bool:
    """Whether a node belongs to a classifier, or only prepares its weight."""
    if node in own:
        return True
    if node.op_type not in {"Transpose", "Cast", "Identity", "DequantizeLinear"}:
        return False
    result = node.outputs[0]
    return not result.is_graph_output() and all(_leads_to(n, own) for n, _ in result.uses())


def _past_dropout(value: ir.Value) -> ir.Value:
    """What is before Dropout: features that do not change from one epoch to the next."""
    node = value.producer()
    while node is not None and node.op_type in {"Dropout", "Identity"}:
        before = node.inputs[0]
        if before is None:
            break
        value, node = before, before.producer()
    return value
