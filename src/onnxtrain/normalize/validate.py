"""What can be told before anything is changed: is this a model that can be worked with?"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ..errors import ModelError
from .rewrite import all_graphs, describe, standard

OLDEST_IR = 3
LAYOUT_DOMAINS = {
    "com.microsoft.nchwc": "onnxruntime's blocked CPU layout (NCHWc)",
    "com.ms.internal.nhwc": "onnxruntime's internal NHWC layout",
}


def validate(model: ir.Model) -> ir.Model:
    """Refuse what cannot be handled, put nodes into an order that can be run."""
    _check_versions(model)
    _check_domains(model)
    _check_operands(model)
    _fix_dimensions(model)
    try:
        model.graph.sort()
    except ValueError as error:
        raise ModelError(
            f"The graph {model.graph.name!r} has a cycle: a node needs, directly or not, its own "
            "output. ONNX graphs must be acyclic; loops are written with the Loop operator."
        ) from error
    return model


def _check_versions(model: ir.Model) -> None:
    imports = model.opset_imports
    if "ai.onnx" in imports:  # the other spelling of the empty domain
        imports.setdefault("", imports["ai.onnx"])
        del imports["ai.onnx"]
    if "" not in imports:
        if any(not standard(n.domain) for n in model.graph.all_nodes()):
            raise ModelError(
                "The model uses ai.onnx operators and has no opset import for them, so their "
                "version is unknown. Add one: model.opset_import.add(domain='', version=…)."
            )
        imports[""] = onnx.defs.onnx_opset_version() if not model.functions else 18
        imports[""] = min(imports[""], 18)
    newest = onnx.defs.onnx_opset_version()
    if imports[""] > newest:
        raise ModelError(
            f"The model uses ai.onnx opset {imports['']}; the installed onnx {onnx.__version__} "
            f"knows up to {newest}. Upgrade onnx, or export the model with an older opset."
        )
    if imports[""] < 1:
        raise ModelError(f"There is no ai.onnx opset {imports['']}.")
    version = model.ir_version or 0
    if version > onnx.IR_VERSION:
        raise ModelError(
            f"The model has IR version {version}; the installed onnx {onnx.__version__} knows up "
            f"to {onnx.IR_VERSION}. Upgrade onnx."
        )
    if version < OLDEST_IR:
        raise ModelError(
            f"The model has IR version {version}; the first with operator sets is {OLDEST_IR}. "
            "Is it an ONNX model?"
        )


def _check_domains(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if node.domain in LAYOUT_DOMAINS:
            raise ModelError(
                f"{describe(node)} works in {LAYOUT_DOMAINS[node.domain]}: the model was saved by "
                "onnxruntime with layout optimisations, which only the machine it was saved on is "
                "sure to run. Save it with graph_optimization_level = ORT_ENABLE_EXTENDED (or "
                "ORT_ENABLE_BASIC), or use the model from before."
            )


def _check_operands(model: ir.Model) -> None:
    """Every operand comes from somewhere."""
    graphs = all_graphs(model)
    known = {v for g in graphs for v in (*g.inputs, *g.initializers.values())}
    for graph in graphs:
        for node in graph:
            for value in node.inputs:
                if value is not None and value.producer() is None and value not in known:
                    raise ModelError(
                        f"{describe(node)} reads {value.name!r}, which is neither a graph input "
                        "nor an initializer nor the output of a node."
                    )
        for value in graph.outputs:
            if value.producer() is None and value not in known:
                raise ModelError(f"Nothing computes the graph output {value.name!r}.")


def _fix_dimensions(model: ir.Model) -> None:
    """Some exporters (Paddle) write -1 for a dimension that is not fixed."""
    for graph in all_graphs(model):
        inputs = set(graph.inputs)
        for value in (*graph.inputs, *graph.outputs, *(o for n in graph for o in n.outputs)):
            shape = value.shape
            if shape is None or not any(isinstance(d, int) and d < 0 for d in shape.dims):
                continue
            free = [
                f"{value.name}_{axis}" if value in inputs else None for axis in range(len(shape))
            ]
            value.shape = ir.Shape(
                [f if isinstance(d, int) and d < 0 else d for d, f in zip(shape.dims, free)]
            )
