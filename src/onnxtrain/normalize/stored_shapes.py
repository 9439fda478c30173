"""Shapes that a file declares are hints, as they are to onnxruntime.

Tools change a model and leave the shapes of before: an input gets a symbolic batch and everything
behind it still says 1, or a declared output contradicts what its node gives. onnxruntime infers
its own, warns and runs. So shapes are inferred without the file's, and what it says is used only
where inference is at a loss: the rank, and dimensions too if whoever wrote them knew of the
symbols that the inputs have now. What it says of outputs, which is wrong most often, waits until
the model is in an opset in which all is known that can be known.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TypeAlias

import onnx
import onnx_ir as ir

from ..errors import ShapeInferenceError
from ..graph.infer import infer_shapes
from ..graph.onnx_inference import UNKNOWN
from ..graph.tensor import Dim, dims_of
from .custom_types import infer_with_custom
from .rewrite import all_graphs, standard
from .symbolic import infer_symbolic

Stored: TypeAlias = dict[str, tuple[Dim, ...]]
DECLARED = "onnxtrain.declared_outputs"
AXES_ARE_INPUTS = 18
"""First opset that symbolic inference reads; older models are raised before."""


NAMELESS = frozenset({"none", "unknown"})


def open_nameless(model: ir.Model) -> ir.Model:
    """Forget symbols of inputs that are no names ("?"): two of them need not be one size."""
    for value in model.graph.inputs:
        dims = dims_of(value)
        if dims is not None and any(map(_is_nameless, dims)):
            value.shape = ir.Shape([None if _is_nameless(d) else d for d in dims])
    return model


def _is_nameless(dim: Dim) -> bool:
    return isinstance(dim, str) and (
        not any(map(str.isalnum, dim)) or dim.casefold() in NAMELESS or dim == "-1"
    )


def infer_anew(model: ir.Model) -> ir.Model:
    """Infer the shapes of all results; the file's fill the gaps."""
    model.metadata_props.pop(DECLARED, None)  # a note between two stages here, of nobody else
    stored = _take(model)
    if not stored:
        return model
    stored = _reliable(model.graph, stored)
    model = infer_with_custom(model)
    if model.opset_imports[""] >= AXES_ARE_INPUTS:
        model = infer_symbolic(model)
    outputs = {v.name: stored.pop(v.name) for v in model.graph.outputs if v.name in stored}
    model = _filled(model, stored)
    model.metadata_props[DECLARED] = json.dumps(outputs)
    return model


def infer_or_forget(model: ir.Model) -> ir.Model:
    """Infer shapes where more is known than before; what contradicts it is forgotten.

    Of a branch that is never taken an exporter tells a shape that it cannot have, and nobody finds
    out before the integers that it is made of have been computed.
    """
    try:
        return infer_shapes(model)
    except ShapeInferenceError:
        _take(model)
        return infer_shapes(model)


def use_declared_outputs(model: ir.Model) -> ir.Model:
    """Fill the gaps that are left with what the file says of the outputs."""
    declared = json.loads(model.metadata_props.pop(DECLARED, "{}"))
    return _filled(model, {name: tuple(dims) for name, dims in declared.items()})


def _filled(model: ir.Model, stored: Stored) -> ir.Model:
    before = {v: v.shape for g in all_graphs(model) for n in g for v in n.outputs}
    filled = [_fill(value, stored[value.name]) for value in before if value.name in stored]
    if not any(filled):
        return model
    try:
        return infer_shapes(model)
    except ShapeInferenceError:  # what the file says contradicts what is known after all
        for value, shape in before.items():
            value.shape = shape
        return model


def _take(model: ir.Model) -> Stored:
    """Take away the shapes of results; those of operators without a schema keep their rank."""
    stored: Stored = {}
    opsets = model.opset_imports
    for graph in all_graphs(model):
        for node in graph:
            domain = standard(node.domain)
            has_schema = onnx.defs.has(node.op_type, opsets.get(domain, 1), domain)
            for value in node.outputs:
                dims = dims_of(value)
                if dims is None or not isinstance(value.type, ir.TensorType) or not value.name:
                    continue
                stored[value.name] = dims
                value.shape = None if has_schema else ir.Shape([None] * len(dims))
    return stored


def _reliable(graph: ir.Graph, stored: Stored) -> Stored:
    """What of the stored shapes may be used; the rest is None.

    Dimensions inside the graph: if all inputs have fixed sizes, or some stored shape has a symbol
    of the inputs. Dimensions of declared outputs: names that say nothing but themselves.
    """
    outputs = {v.name for v in graph.outputs}
    symbols = {d for v in graph.inputs for d in dims_of(v) or (None,) if not isinstance(d, int)}
    inner = {d for name, dims in stored.items() if name not in outputs for d in dims}
    written_for_these = not symbols or any(d is not None and d in symbols for d in inner)
    times = Counter(d for dims in stored.values() for d in dims)

    def reliable(name: str, dim: Dim) -> Dim:
        if _is_open(dim) and dim not in symbols:  # a number that inference may give to another
            return None
        if name in outputs:
            own = isinstance(dim, str) and dim not in symbols and times[dim] == 1
            return dim if own else None
        return dim if written_for_these else None

    return {name: tuple(reliable(name, d) for d in dims) for name, dims in stored.items()}


def _fill(value: ir.Value, stored: tuple[Dim, ...]) -> bool:
    """Use what was stored where nothing follows; whether anything was."""
    known = dims_of(value)
    if not isinstance(value.type, ir.TensorType) or len(known or stored) != len(stored):
        return False
    inferred = known or (None,) * len(stored)
    dims = tuple(
        hint if hint is not None and _is_open(dim) else dim for dim, hint in zip(inferred, stored)
    )
    if dims == known:
        return False
    value.shape = ir.Shape(list(dims))
    return True


def _is_open(dim: Dim) -> bool:
    """onnx names a dimension that it knows nothing of ``unk__<N>``."""
    return dim is None or str(dim).startswith(UNKNOWN)
