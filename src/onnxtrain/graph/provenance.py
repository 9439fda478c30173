"""What a small vector consists of, read from the nodes that compute it.

Exporters write the sizes and scales of Resize as ``Concat(Slice(Shape(x), 0, 2), [16, 16])``. A
gradient that knows that the first two are the batch and the channels of x leaves them alone.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from .tensor import Tensor, dims_of

Element: TypeAlias = "int | float | tuple[ir.Value, int] | None"
"""A number, one dimension of a value, or unknown."""


def elements(vector: Tensor) -> list[Element] | None:
    """The elements of a 1-D (or scalar) tensor, None when not even their number is known."""
    return _elements(vector.value)


def numbers(vector: Tensor) -> list[float] | None:
    """The elements when all of them are known numbers."""
    contents = elements(vector)
    known = [e for e in contents or [] if isinstance(e, (int, float))]
    return known if contents is not None and len(known) == len(contents) else None


def _elements(value: ir.Value | None) -> list[Element] | None:
    if value is None:
        return None
    tensor = value.const_value
    if tensor is not None and not value.is_graph_input():
        array = np.atleast_1d(tensor.numpy())
        return [x.item() for x in array] if array.ndim == 1 and array.size <= 64 else None
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type in ("Identity", "Cast", "Unsqueeze", "Squeeze"):
        return _elements(node.inputs[0])
    if node.op_type == "Concat":
        parts = [_elements(v) for v in node.inputs]
        return None if any(p is None for p in parts) else [e for p in parts for e in p or []]
    if node.op_type == "Shape":
        return _dimensions(node)
    if node.op_type in ("Slice", "Gather"):
        return _picked(node)
    return None


def _dimensions(node: ir.Node) -> list[Element] | None:
    source = node.inputs[0]
    dims = None if source is None else dims_of(source)
    if source is None or dims is None:
        return None
    start = node.attributes["start"].as_int() if "start" in node.attributes else None
    end = node.attributes["end"].as_int() if "end" in node.attributes else None
    sizes: list[Element] = [d if isinstance(d, int) else (source, i) for i, d in enumerate(dims)]
    return sizes[start:end]


def _picked(node: ir.Node) -> list[Element] | None:
    source = _elements(node.inputs[0])
    whole: list[list[int]] = []
    for contents in map(_elements, node.inputs[1:]):
        indices = [int(i) for i in contents or [] if isinstance(i, int)]
        if contents is None or len(indices) != len(contents):
            return None
        whole.append(indices)
    if source is None:
        return None
    if node.op_type == "Gather":
        inside = all(-len(source) <= i < len(source) for i in whole[0])
        return [source[i] for i in whole[0]] if inside else None
    step = whole[3][0] if len(whole) > 3 else 1
    return source[slice(whole[0][0], whole[1][0], step)] if step > 0 else None
