"""Model-local functions are inlined, except those that have a gradient rule of their own."""

from __future__ import annotations

import onnx
import onnx.inliner
import onnx_ir as ir

from ..errors import ModelError
from ..graph.infer import through_proto
from ..graph.inline import inline_calls
from .rewrite import standard


def inline_functions(model: ir.Model) -> ir.Model:
    """Replace calls of model-local functions by their bodies.

    A function for which a gradient is registered under its domain and name stays a call: whoever
    registered the rule wants it used.
    """
    if not model.functions:
        return model
    from ..autodiff.registry import lookup

    def inlined(function: ir.Function) -> bool:
        return lookup(function.domain, function.name) is None

    version = model.opset_imports[""]
    for function in model.functions.values():
        _same_spelling(function)
    if not all(_agrees(f, version) for f in model.functions.values() if inlined(f)):
        with_rules = [(f.domain, f.name) for f in model.functions.values() if not inlined(f)]
        model = _inline_converting(model, with_rules)
    for function in model.functions.values():
        if inlined(function) and "" in function.opset_imports:
            function.opset_imports[""] = version
    _unify_other_domains(model)
    inline_calls(model, inlined)
    return model


def _same_spelling(function: ir.Function) -> None:
    if "ai.onnx" in function.opset_imports:
        function.opset_imports[""] = function.opset_imports.pop("ai.onnx")


def _agrees(function: ir.Function, version: int) -> bool:
    """Whether all operators of the body mean the same in the model's opset."""
    own = function.opset_imports.get("", version)
    if own == version:
        return True
    for node in function.all_nodes():
        if standard(node.domain) or node.op_type == "Constant":
            continue
        if not (onnx.defs.has(node.op_type, own) and onnx.defs.has(node.op_type, version)):
            return False
        here = onnx.defs.get_schema(node.op_type, version)
        if onnx.defs.get_schema(node.op_type, own).since_version != here.since_version:
            return False
    return True


def _inline_converting(model: ir.Model, excluded: list[tuple[str, str]]) -> ir.Model:
    """Bodies of another opset are converted by onnx while it inlines them."""

    def inline(proto: onnx.ModelProto) -> onnx.ModelProto:
        try:
            if excluded:
                return onnx.inliner.inline_selected_functions(proto, excluded, exclude=True)
            return onnx.inliner.inline_local_functions(proto, convert_version=True)
        except Exception as error:
            raise ModelError(
                "A model-local function uses another ai.onnx opset than the model, and onnx "
                f"cannot convert it: {error}"
            ) from error

    return through_proto(model, inline)


def _unify_other_domains(model: ir.Model) -> None:
    """Versions of custom domains mean nothing here, but must not contradict each other."""
    for function in model.functions.values():
        for domain in list(function.opset_imports):
            if domain:
                version = model.opset_imports.setdefault(domain, function.opset_imports[domain])
                function.opset_imports[domain] = version
