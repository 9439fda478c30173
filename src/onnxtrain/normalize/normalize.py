"""The normalizing stage: a literal list of steps, each Model → Model."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import ModelError
from ..graph.infer import convert_version, infer_shapes, through_proto

MIN_OPSET, MAX_OPSET, MAX_IR = 18, 21, 10
"""What is emitted: the range that every onnxruntime from 1.20 on runs, in browsers too."""


def normalize(model: ir.Model) -> ir.Model:
    """Bring a model into the form that the other stages understand."""
    for step in STEPS:
        model = step(model)
    return model


def lift_constants(model: ir.Model) -> ir.Model:
    """Turn Constant nodes, in subgraphs too, into initializers of the main graph."""
    _name_constants(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.LiftSubgraphInitializersToMainGraphPass()(model)
    common.RemoveInitializersFromInputsPass()(model)
    return model


def _name_constants(model: ir.Model) -> None:
    """Names inside branches may repeat; once lifted to one graph they must not."""
    common.NameFixPass()(model)


def inline_functions(model: ir.Model) -> ir.Model:
    """Replace calls of model-local functions by their bodies."""
    if not model.functions:
        return model
    return through_proto(model, onnx.inliner.inline_local_functions)


def one_opset(model: ir.Model) -> ir.Model:
    """Raise the opset of ai.onnx to at least 18; leave 18 to 21 as they are."""
    version = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if version is None:
        raise ModelError("The model does not import the ai.onnx operator set.")
    if version < MIN_OPSET:
        model = convert_version(model, MIN_OPSET)
    elif version > MAX_OPSET:
        model.opset_imports[""] = MAX_OPSET
    model.ir_version = min(max(model.ir_version, 8), MAX_IR)
    return lift_constants(model)


STEPS = (inline_functions, lift_constants, one_opset, infer_shapes)
