"""Types behind operators that onnx has no schema for, so that inference does not end there."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ..graph import FLOATS
from ..graph.infer import infer_shapes
from .rewrite import all_nodes, standard

SAME_SHAPE = frozenset(
    {
        "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasSoftmax", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization", "LayerNormalization",
        "RotaryEmbedding", "MoE", "QMoE", "CausalConvWithState", "Scaler",
        "Normalizer", "Imputer", "Binarizer", "Trilu",
    }
)  # fmt: skip
"""Operators whose first output has the shape of their first input."""
TYPE_OF = {
    "QLinearAdd": 0, "QLinearMul": 0, "QLinearSigmoid": 0, "QLinearLeakyRelu": 0,
    "QLinearSoftmax": 0, "QLinearAveragePool": 0, "QLinearGlobalAveragePool": 0,
    "QLinearConv": 7, "QLinearConcat": 1, "QGemm": 8,
}  # fmt: skip
"""Operators whose result has the type of an input, given by its place, also if that is no float."""
DOMAINS = ("", "com.microsoft", "ai.onnx.ml")


def infer_with_custom(model: ir.Model) -> ir.Model:
    """Shape inference that also goes through the contrib operators we can lower."""
    model = infer_shapes(model)
    seen: set[str | None] = set()
    while not (guessed := _guess(model)) <= seen:
        seen |= guessed
        model = infer_shapes(model)
    return model


MATRICES = {"SVMClassifier": 1, "TreeEnsembleClassifier": 1, "TreeEnsembleRegressor": 0}
"""Operators of ai.onnx.ml that onnx infers no shape for, and which of their results is a matrix."""


def _describe_matrix(node: ir.Node) -> bool:
    """Say that a result is a matrix, where nothing is known; whether that is new."""
    place = MATRICES.get(node.op_type, len(node.outputs))
    if node.domain != "ai.onnx.ml" or place >= len(node.outputs):
        return False
    value = node.outputs[place]
    if value.shape is not None:
        return False
    value.shape = ir.Shape([None, None])
    return True


def _guess(model: ir.Model) -> set[str | None]:
    """Type the outputs of operators without a schema from their inputs; names of the outputs."""
    version = model.opset_imports[""]
    guessed: set[str | None] = set()
    for node in all_nodes(model):
        domain = standard(node.domain)
        if _describe_matrix(node):
            guessed.add(node.outputs[-1].name)
        if domain not in DOMAINS or not node.outputs or node.outputs[0].type is not None:
            continue
        if domain != "com.microsoft" and onnx.defs.has(
            node.op_type, model.opset_imports.get(domain, version), domain
        ):
            continue
        first = node.inputs[0] if node.inputs else None
        if first is None or first.type is None:
            continue
        output = node.outputs[0]
        dtype = _result_type(node)
        if dtype is None:
            continue
        output.type = ir.TensorType(dtype)
        if node.op_type in SAME_SHAPE and first.shape is not None:
            output.shape = ir.Shape(first.shape.dims)
        guessed.add(output.name)
    return guessed


def _result_type(node: ir.Node) -> ir.DataType | None:
    place = TYPE_OF.get(node.op_type)
    if place is not None and place < len(node.inputs):
        teller = node.inputs[place]
        return None if teller is None else teller.dtype
    return next((v.dtype for v in node.inputs if v is not None and v.dtype in FLOATS), None)
