"""A loss on top of any model: the sum of some outputs times arrays that are fed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

import onnxtrain

Array = np.ndarray[Any, Any]
LOSS = "conformance_loss"


def with_loss(
    model: onnx.ModelProto, values: Mapping[str, Array], loss: str = LOSS
) -> onnx.ModelProto:
    """The model with one more output, the first.

    Args:
        model: any model.
        values: the outputs that count, with what they are at the point in question.
        loss: name of the new output; the weights are inputs `weight_of(loss, output)`.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph, terms = changed.graph, []
    for output, value in values.items():
        weight, term, total = weight_of(loss, output), f"{loss}.{output}.mul", f"{loss}.{output}"
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        graph.input.append(helper.make_tensor_value_info(weight, kind, value.shape))
        graph.node.append(helper.make_node("Mul", [output, weight], [term], name=term))
        graph.node.append(helper.make_node("ReduceSum", [term], [total], name=total, keepdims=0))
        if kind != onnx.TensorProto.FLOAT:
            cast, total = total, f"{total}.float"
            graph.node.append(
                helper.make_node("Cast", [cast], [total], name=total, to=onnx.TensorProto.FLOAT)
            )
        terms.append(total)
    graph.node.append(helper.make_node("Sum", terms, [loss], name=loss))
    outputs = list(graph.output)
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(loss, onnx.TensorProto.FLOAT, []))
    graph.output.extend(outputs)
    return changed


def weight_of(loss: str, output: str) -> str:
    """Name of the input that an output is multiplied with."""
    return f"{loss}.{output}.weight"


def differentiate(model: onnx.ModelProto, wrt: Iterable[str], of: str) -> onnx.ModelProto:
    """The gradients of one output; zeros for what it does not depend on."""
    return onnxtrain.differentiate(model, wrt=list(dict.fromkeys(wrt)), of=of, allow_unused=True)


def gradient_names(model: onnx.ModelProto) -> dict[str, str]:
    """From what was differentiated to the outputs that are its gradients."""
    meta = {p.key: p.value for p in model.metadata_props}
    return dict(json.loads(meta["onnxtrain.gradients"]))
