"""A loss on top of any model: the sum of some outputs times arrays that are fed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import onnxtrain

Array = np.ndarray[Any, Any]
LOSS = "conformance_loss"
LARGE = 100_000_000
"""Bytes of a model above which shapes are not inferred here."""


def with_loss(
    model: onnx.ModelProto, values: Mapping[str, Array], loss: str = LOSS
) -> onnx.ModelProto:
    """The model with one more output, the first.

    Args:
        model: any model.
        values: the outputs that count, with what they are at the point in question.
        loss: name of the new output; the weights are inputs `weight_of(loss, output)`.
    """
    inferred = _inferred(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, terms = changed.graph, []
    for output, value in values.items():
        weight, term, total = weight_of(loss, output), f"{loss}.{output}.mul", f"{loss}.{output}"
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        if len(values) == 1 and kind == onnx.TensorProto.FLOAT:
            total = loss
        shape = _sizes_of_weight(weight, value.shape, inferred.get(output, []))
        graph.input.append(helper.make_tensor_value_info(weight, kind, shape))
        graph.node.append(helper.make_node("Mul", [output, weight], [term], name=term))
        graph.node.append(helper.make_node("ReduceSum", [term], [total], name=total, keepdims=0))
        if kind != onnx.TensorProto.FLOAT:
            cast, total = total, f"{total}.float"
            graph.node.append(
                helper.make_node("Cast", [cast], [total], name=total, to=onnx.TensorProto.FLOAT)
            )
        terms.append(total)
    if terms != [loss]:
        graph.node.append(helper.make_node("Sum", terms, [loss], name=loss))
    if not any(o.domain in ("", "ai.onnx") for o in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid("", 18))
    outputs = list(graph.output)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(loss, onnx.TensorProto.FLOAT, []))
    graph.output.extend(outputs)
    return changed


def _inferred(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    """What inference says of the sizes of outputs, 0 where it says nothing.

    What the file says of them is taken away first: inference would believe it. Only its symbols
    count, of an output that inference cannot reach (behind an operator of onnxruntime's own, say).
    """
    if model.ByteSize() > LARGE:
        return {}
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        outputs = onnx.shape_inference.infer_shapes(bare).graph.output
    except (onnx.shape_inference.InferenceError, RuntimeError):
        return {}
    said = {o.name: [d.dim_param or 0 for d in _dims(o)] for o in model.graph.output}
    return {o.name: [d.dim_param or d.dim_value for d in _dims(o)] or said[o.name] for o in outputs}


def _dims(output: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = output.type.tensor_type.shape.dim
    return dims


def _sizes_of_weight(
    name: str, shape: tuple[int, ...], inferred: Sequence[int | str]
) -> list[int | str]:
    """A shape with the symbols of the output, as a target has them that is compared with it.

    And with some of its own where inference contradicts what onnxruntime computes. It does for
    pools with `ceil_mode` below opset 22.
    """
    if len(inferred) != len(shape):
        return list(shape)
    return [
        d if isinstance(d, str) else f"{name}.{i}" if d and d != n else n
        for i, (n, d) in enumerate(zip(shape, inferred))
    ]


def weight_of(loss: str, output: str) -> str:
    """Name of the input that an output is multiplied with."""
    return f"{loss}.{output}.weight"


def differentiate(
    model: onnx.ModelProto, wrt: Iterable[str], of: str, no_gradient: Collection[str] = ()
) -> onnx.ModelProto:
    """The gradients of one output; zeros for what it does not depend on."""
    names = list(dict.fromkeys(wrt))
    return onnxtrain.differentiate(
        model, wrt=names, of=of, allow_unused=True, no_gradient=no_gradient
    )


def gradient_names(model: onnx.ModelProto) -> dict[str, str]:
    """From what was differentiated to the outputs that are its gradients."""
    meta = {p.key: p.value for p in model.metadata_props}
    return dict(json.loads(meta["onnxtrain.gradients"]))
