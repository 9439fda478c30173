"""What a frozen model makes of its inputs, computed once, and the classifier that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..errors import InputError, ModelError, RunError, model_errors
from ..graph import load, replace_outputs, to_proto
from ..graph.dropout import never_drops
from ..graph.edit import values_by_name
from ..graph.tensor import dims_of
from ..runtime.session.devices import Device, session_options
from .head import NewHead

Array = npt.NDArray[Any]
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"}
)  # fmt: skip


class Features:
    """Computes what the classifier of a model with a new head reads.

    Args:
        head: the model.

    Attributes:
        batch: rows of each run, where the model takes no other number.

    Raises:
        ModelError: what is before the classifier gives other numbers in each run, because
            of a Dropout or a BatchNormalization in training mode: nothing can be computed once.
    """

    @model_errors("Cutting the model before its classifier")
    def __init__(self, head: NewHead) -> None:
        model = load(head.model)
        replace_outputs(model, [values_by_name(model.graph)[head.features]])
        RemoveUnusedNodesPass()(model)
        changing = next((n for n in model.graph.all_nodes() if _changes(n)), None)
        if changing is not None:
            raise ModelError(
                f"The {changing.op_type} {changing.name!r} before the classifier is in training "
                "mode or draws at random: features differ from run to run. Export the model for "
                "inference, or train it whole."
            )
        inputs = [v for v in model.graph.inputs if not v.is_initializer()]
        used = [v for v in inputs if v.uses()]
        for value in inputs:
            if value not in used:
                model.graph.inputs.remove(value)
        self._names = [v.name or "" for v in used]
        first = (dims_of(used[0]) or (None,))[0] if used else None
        self.batch = first if isinstance(first, int) else None
        self._session = Device().session(to_proto(model).SerializeToString(), session_options())

    def __call__(self, inputs: Mapping[str, Array], batch_size: int = 32) -> Array:
        """The features of some rows, in the order of the rows.

        Args:
            inputs: arrays by name of the model's inputs; others are left alone.
            batch_size: rows per run.
        """
        missing = [n for n in self._names if n not in inputs]
        if missing:
            raise InputError(f"The model takes {missing[0]!r}; entry are {', '.join(inputs)}.")
        rows = len(inputs[self._names[0]])
        size = self.batch or batch_size
        parts = [
            self._run({n: np.asarray(inputs[n][i : i + size]) for n in self._names})
            for i in range(0, rows, size)
        ]
        if not parts:
            raise InputError("There are no rows.")
        return np.concatenate(parts)

    def _run(self, feeds: dict[str, Array]) -> Array:
        rows = len(feeds[self._names[0]])
        if self.batch is not None and rows < self.batch:  # filled up with the last row
            feeds = {n: _filled(a, self.batch) for n, a in feeds.items()}
        try:
            result = np.asarray(self._session.run(None, feeds)[0])
        except Exception as error:  # onnxruntime's errors have no common base class
            raise RunError(f"The model failed: {error}") from error
        return result[:rows]


def _filled(array: Array, rows: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])


@model_errors("Taking the classifier out of the model")
def head_model(head: NewHead, shape: Sequence[int]) -> onnx.ModelProto:
    """The classifier alone, which takes features; its parameters have the names of the whole model.

    Args:
        head: the model with a new head.
        shape: of the features, as `Features` gives them; the number of rows stays open.

    Raises:
        ModelError: something behind the classifier reads more of the model than the features.
    """
    model = load(head.model)
    graph = model.graph
    features = values_by_name(graph)[head.features]
    entry = ir.Value(
        name=head.features, type=features.type, shape=ir.Shape(["rows", *map(int, shape[1:])])
    )
    entry.type = entry.type or ir.TensorType(ir.DataType.FLOAT)
    features.name = f"{head.features}/computed"
    features.replace_all_uses_with(entry)
    graph.inputs.append(entry)
    RemoveUnusedNodesPass()(model)
    for value in [v for v in graph.inputs if v is not entry and not v.is_initializer()]:
        if value.uses():
            raise ModelError(
                f"What is behind the classifier reads {value.name!r}, an input of the model, and "
                "not the features only."
            )
        graph.inputs.remove(value)
    for value in {values_by_name(graph)[head.scores], graph.outputs[0]}:
        value.shape = ir.Shape(["rows", head.classes])
    return to_proto(model)


def _changes(node: ir.Node) -> bool:
    """Whether a node gives another result for the same input."""
    if node.domain not in {"", "ai.onnx"}:
        return False
    if node.op_type == "BatchNormalization":
        mode = node.attributes.get("training_mode")
        return mode is not None and bool(mode.as_int())
    if node.op_type == "Dropout":
        return not never_drops(node)
    return node.op_type in RANDOM
