"""ai.onnx.ml operators that scikit-learn converters write, as standard operators.

Coefficients, attributes there, become initializers with the node's name in front
(`<node>.coefficients`), so that they can be trained. Scalers and the like keep their numbers as
constants: trained only when named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.nodes import identity
from .ml_common import both, floats, labels, transform
from .rewrite import Lowering, all_nodes, describe, weight
from .svm import svm_classifier, svm_regressor

DOMAIN = "ai.onnx.ml"


def _row(op: OpBuilder, name: str, numbers: Sequence[float]) -> Tensor:
    return weight(op, name, np.array(numbers, np.float32), trained=False)


def _linear(
    op: OpBuilder, x: Tensor, coefficients: Sequence[float], intercepts: Sequence[float], rows: int
) -> Tensor:
    x = op.Unsqueeze(x, [0]) if x.rank == 1 else x
    x = floats(op, x)
    matrix = weight(op, "coefficients", np.array(coefficients, np.float32).reshape(rows, -1))
    shift = weight(op, "intercepts", np.array(intercepts, np.float32)) if intercepts else None
    return op.Gemm(x, matrix, shift, transB=1)


def linear_regressor(
    op: OpBuilder,
    x: Tensor,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """X·Wᵀ + b."""
    return transform(op, _linear(op, x, coefficients, intercepts, targets), post_transform)


def linear_classifier(
    op: OpBuilder,
    x: Tensor,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> Any:
    """Label and scores of each row; one row of coefficients is the second of two classes."""
    classes = len(classlabels_ints) or len(classlabels_strings)
    rows = len(intercepts) or classes
    raw = _linear(op, x, coefficients, intercepts, rows)
    if rows == 1 and classes == 2:
        chosen = op.Cast(op.Squeeze(raw, [1]) > 0, to=ir.DataType.INT64)
        scores = both(op, raw, post_transform)
    else:
        chosen = op.ArgMax(raw, axis=1, keepdims=0)
        scores = transform(op, raw, post_transform)
    return labels(op, chosen, classlabels_ints, classlabels_strings), scores


def scaler(
    op: OpBuilder, x: Tensor, *, offset: Sequence[float] = (), scale: Sequence[float] = ()
) -> Tensor:
    """(x - offset)·scale."""
    x = floats(op, x)
    x = x - _row(op, "offset", offset) if offset else x
    return x * _row(op, "scale", scale) if scale else x


def normalizer(op: OpBuilder, x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Each row divided by its norm; a row of zeros stays."""
    x = floats(op, x)
    if norm == "MAX":
        size = op.ReduceMax(x, [-1], keepdims=1)
    elif norm == "L1":
        size = op.ReduceL1(x, [-1], keepdims=1)
    elif norm == "L2":
        size = op.ReduceL2(x, [-1], keepdims=1)
    else:
        raise ModelError(f"Normalizer with norm {norm!r} is not supported.")
    return x / op.Where(op.Equal(size, 0.0), op.like(1.0, x), size)


def imputer(
    op: OpBuilder,
    x: Tensor,
    *,
    imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    """Missing values replaced, column by column."""
    if imputed_value_floats:
        filled = _row(op, "imputed", imputed_value_floats)
        if np.isnan(replaced_value_float):
            missing = op.IsNaN(x)
        else:
            missing = op.Equal(x, op.like(replaced_value_float, x))
        return op.Where(missing, filled, x)
    values = weight(op, "imputed", np.array(imputed_value_int64s, np.int64), trained=False)
    return op.Where(op.Equal(x, op.like(replaced_value_int64, x)), values, x)


def feature_vectorizer(
    op: OpBuilder, *inputs: Tensor, inputdimensions: Sequence[int] = ()
) -> Tensor:
    """Columns side by side, as floats."""
    columns = [op.Unsqueeze(x, [1]) if x.rank == 1 else x for x in inputs]
    return op.Concat(*(floats(op, c) for c in columns), axis=1)


def array_feature_extractor(op: OpBuilder, x: Tensor, indices: Tensor) -> Tensor:
    """Columns picked by position."""
    flat = op.Reshape(indices, [-1])
    x = op.Unsqueeze(x, [0]) if x.rank == 1 else x
    return op.Gather(x, flat, axis=-1)


def binarizer(op: OpBuilder, x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """1 above the threshold, 0 elsewhere."""
    return op.Cast(x > op.like(threshold, x), to=x.dtype)


def drop_zipmaps(model: ir.Model) -> ir.Model:
    """Let a model return class probabilities as a tensor, not as a list of dictionaries."""
    for node in [n for n in all_nodes(model) if (n.domain, n.op_type) == (DOMAIN, "ZipMap")]:
        output, source = node.outputs[0], node.inputs[0]
        if output.uses():
            raise ModelError(
                f"{describe(node)} makes a list of dictionaries that other nodes use, and these "
                "have no gradient. Convert the model again with options={…: {'zipmap': False}}."
            )
        graph = node.graph
        assert graph is not None
        assert source is not None
        copy = identity(source, node.name or "", output.name or "")
        result = copy.outputs[0]
        for i, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[i] = result
        graph.insert_after(node, copy)
        graph.remove(node, safe=True)
    return model


ML: dict[tuple[str, str], Lowering] = {
    (DOMAIN, "LinearRegressor"): linear_regressor,
    (DOMAIN, "LinearClassifier"): linear_classifier,
    (DOMAIN, "SVMClassifier"): svm_classifier,
    (DOMAIN, "SVMRegressor"): svm_regressor,
    (DOMAIN, "Scaler"): scaler,
    (DOMAIN, "Normalizer"): normalizer,
    (DOMAIN, "Imputer"): imputer,
    (DOMAIN, "FeatureVectorizer"): feature_vectorizer,
    (DOMAIN, "ArrayFeatureExtractor"): array_feature_extractor,
    (DOMAIN, "Binarizer"): binarizer,
}
