"""Categorical columns of a table: one-hot for training, and a model that takes the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

from .output import UserError, count

Array = npt.NDArray[Any]
AUTO = "auto"
MOST = 1000
"""Categories of a column; more are no categories but names or numbers."""
FEATURES = "onnxtrain/features"
ML_OPSET = 3


@dataclass
class Categories:
    """Which columns are categories, and which ones the training data have.

    Args:
        asked: names of columns; ``["auto"]`` for all that hold text.
        known: column → its categories in order, filled by the training data.
        features: the columns that are the input, in order.
    """

    asked: Sequence[str]
    known: dict[str, list[Any]] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)

    def encode(self, columns: Mapping[str, Array], chosen: Sequence[str], where: str) -> Array:
        """One column of numbers per numeric column and per category of a categorical one."""
        if not self.features:
            self._learn(columns, chosen, where)
        parts = [self._part(name, columns[name]) for name in chosen]
        return np.concatenate(parts, axis=1) if parts else np.empty((0, 0))

    def _learn(self, columns: Mapping[str, Array], chosen: Sequence[str], where: str) -> None:
        absent = [n for n in self.asked if n != AUTO and n not in chosen]
        if absent:
            raise UserError(
                f"--categorical: {absent[0]!r} is no column of {where} that is an input; these "
                f"are {', '.join(chosen[:12])}."
            )
        for name in chosen:
            kind = columns[name].dtype.kind
            if name not in self.asked and not (AUTO in self.asked and kind in "US"):
                continue
            if kind == "f":
                raise UserError(
                    f"--categorical: column {name!r} of {where} holds numbers with fractions or "
                    "empty cells; categories are text or whole numbers."
                )
            values = np.unique(columns[name]).tolist()
            if len(values) > MOST:
                raise UserError(
                    f"--categorical: column {name!r} of {where} has {len(values):,} different "
                    f"values, more than {MOST:,}: that is no category. Leave it out (--features)."
                )
            self.known[name] = values
        self.features = list(chosen)

    def _part(self, name: str, column: Array) -> Array:
        if name not in self.known:
            return column.reshape(-1, 1)
        categories = np.array(self.known[name])
        return np.asarray(column.reshape(-1, 1) == categories[None, :], np.float64)

    def unknown(self, columns: Mapping[str, Array]) -> str:
        """What to say of values that the training data lack; "" if there are none."""
        for name, values in self.known.items():
            other = ~np.isin(columns[name], values)
            if other.any():
                first = columns[name][int(other.argmax())]
                rows = count(int(other.sum()), "row")
                return f"{rows} with no known {name}: {str(first)!r} is not in the training data"
        return ""

    @property
    def widths(self) -> dict[str, int]:
        """How many numbers each column becomes."""
        return {name: len(self.known.get(name, "1")) for name in self.features}

    @property
    def is_number(self) -> Array:
        """For every number of the input whether it comes from a column of numbers."""
        marks = [[name not in self.known] * width for name, width in self.widths.items()]
        return np.array([mark for part in marks for mark in part])

    def explain(self, width: int, model_takes: int) -> str:
        """Why the columns do not fit the model."""
        parts = ", ".join(f"{n} {w}" for n, w in self.widths.items() if n in self.known)
        return (
            f"The columns make {width} numbers, and the model takes {model_takes}: one for each "
            f"column of numbers, and for the categories {parts}. Use a model with an input of "
            f"{width}, or choose columns with --features."
        )


def write_table_model(model: Path, categories: Categories, name: str, target: Path) -> None:
    """Write a model that takes each column by its name, rows × 1, text included.

    Args:
        model: what the run has trained.
        categories: how its columns became numbers.
        name: the input of the model that they are.
        target: the file to write.
    """
    trained = onnx.load(model)
    front = _front(trained, categories, name)
    inner = compose.add_prefix(trained, "model/")
    merged = compose.merge_models(front, inner, [(FEATURES, f"model/{name}")])
    taken = {v.name for v in merged.graph.input}
    outputs = list(merged.graph.output)
    del merged.graph.output[:]
    for output in outputs:
        plain = output.name.removeprefix("model/")
        plain = f"{plain}_output" if plain in taken else plain
        merged.graph.node.append(helper.make_node("Identity", [output.name], [plain]))
        output.name = plain
        merged.graph.output.append(output)
    merged.metadata_props.extend(trained.metadata_props)
    onnx.save(merged, target)


def _front(trained: onnx.ModelProto, categories: Categories, name: str) -> onnx.ModelProto:
    """From columns to the input of the trained model."""
    (value,) = (v for v in trained.graph.input if v.name == name)
    inputs, nodes, parts = [], [], []
    for i, column in enumerate(categories.features):
        known = categories.known.get(column)
        part = column
        if known is None:
            kind = TensorProto.FLOAT
        else:
            is_text = isinstance(known[0], str)
            kind = TensorProto.STRING if is_text else TensorProto.INT64
            which: dict[str, Any] = {"cats_strings" if is_text else "cats_int64s": known}
            part = f"onnxtrain/category_{i}"
            hot = f"{part}_hot"
            nodes += [
                helper.make_node(
                    "OneHotEncoder", [column], [hot], domain="ai.onnx.ml", zeros=1, **which
                ),
                helper.make_node("Flatten", [hot], [part], axis=1),
            ]
        inputs.append(helper.make_tensor_value_info(column, kind, ["N", 1]))
        parts.append(part)
    sizes = [d.dim_value for d in value.type.tensor_type.shape.dim][1:]
    elements = value.type.tensor_type.elem_type
    shape = numpy_helper.from_array(np.array([-1, *sizes], np.int64), "onnxtrain/shape")
    nodes += [
        helper.make_node("Concat", parts, ["onnxtrain/joined"], axis=1),
        helper.make_node("Reshape", ["onnxtrain/joined", "onnxtrain/shape"], ["onnxtrain/shaped"]),
        helper.make_node("Cast", ["onnxtrain/shaped"], [FEATURES], to=elements),
    ]
    output = helper.make_tensor_value_info(FEATURES, elements, ["N", *sizes])
    graph = helper.make_graph(nodes, "table", inputs, [output], [shape])
    opsets = [o for o in trained.opset_import if o.domain != "ai.onnx.ml"]
    ml = [o for o in trained.opset_import if o.domain == "ai.onnx.ml"]
    opsets += ml or [helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=trained.ir_version)
