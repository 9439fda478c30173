"""How the contents of small integer tensors follow: the shape arithmetic of exporters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph.slices import taken
from .polynomial import Poly, UnknownError
from .symbolic_facts import MAX_ELEMENTS, Array, Facts, product


def _shape_content(p: Facts, node: ir.Node) -> Array | None:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return None
    bounds = [node.attributes.get(n) for n in ("start", "end")]
    start = bounds[0].as_int() if bounds[0] is not None else 0
    end = bounds[1].as_int() if bounds[1] is not None else len(dims)
    part = dims[start:end]
    return None if None in part else _objects(part)


def _objects(items: list[Any]) -> Array:
    result = np.empty(len(items), object)
    for i, item in enumerate(items):
        result[i] = item
    return result


def _operands(p: Facts, node: ir.Node) -> list[Array]:
    contents = [p.content(v) for v in node.inputs]
    if any(c is None for c in contents):
        raise UnknownError
    return [c for c in contents if c is not None]


def _arithmetic(function: Callable[..., Any]) -> Callable[[Facts, ir.Node], Array | None]:
    def apply(p: Facts, node: ir.Node) -> Array | None:
        return np.asarray(function(*_operands(p, node)))

    return apply


def _integer_division(a: Array, b: Array) -> Array:
    """Towards zero, as in C; polynomials are taken to be positive."""
    if object not in (a.dtype, b.dtype):
        return np.asarray(a / b)
    quotient = np.asarray(a // b)
    if any(isinstance(e, Poly) for e in (*a.ravel(), *b.ravel())):
        return quotient
    return np.asarray(quotient + ((quotient < 0) & (quotient * b != a)))


def _remainder(p: Facts, node: ir.Node) -> Array | None:
    a, b = _operands(p, node)
    as_in_c = node.attributes.get_int("fmod", 0)
    if object not in (a.dtype, b.dtype):
        return np.asarray(np.fmod(a, b) if as_in_c else a % b)
    return np.asarray(a - b * _integer_division(a, b) if as_in_c else a % b)


def _gather_content(p: Facts, node: ir.Node) -> Array | None:
    data, indices = _operands(p, node)
    attribute = node.attributes.get("axis")
    axis = attribute.as_int() if attribute else 0
    return np.asarray(np.take(data, indices.astype(np.int64), axis=axis))


def _slice_content(p: Facts, node: ir.Node) -> Array | None:
    data, *parts = _operands(p, node)
    if data.ndim != 1:
        return None
    start, end = int(parts[0][0]), int(parts[1][0])
    step = int(parts[3][0]) if len(parts) > 3 else 1
    return data[list(taken(len(data), start, end, step))]


def _concat_content(p: Facts, node: ir.Node) -> Array | None:
    return np.concatenate(_operands(p, node), axis=node.attributes["axis"].as_int())


def _cast_content(p: Facts, node: ir.Node) -> Array | None:
    (data,) = _operands(p, node)
    dtype = ir.DataType(node.attributes["to"].as_int())
    if dtype.is_integer():
        return data.astype(object) if data.dtype == object else data.astype(np.int64).astype(object)
    return data.astype(dtype.numpy())


def _axes_content(move: Callable[[Array, tuple[int, ...]], Array]) -> Any:
    def apply(p: Facts, node: ir.Node) -> Array | None:
        data, *axes = _operands(p, node)
        if not axes:
            return np.asarray(np.squeeze(data))
        return np.asarray(move(data, tuple(int(a) for a in np.atleast_1d(axes[0]))))

    return apply


def _reshape_content(p: Facts, node: ir.Node) -> Array | None:
    data, target = _operands(p, node)
    return data.reshape([int(t) for t in target])


def _range_content(p: Facts, node: ir.Node) -> Array | None:
    bounds = [o.reshape(()) for o in _operands(p, node)]
    start, limit, delta = bounds
    if any(bound.dtype.kind == "f" for bound in bounds):
        count = max(math.ceil((limit - start) / delta), 0)
        return np.asarray(start + np.arange(min(count, MAX_ELEMENTS + 1)) * delta, start.dtype)
    numbers = range(int(start[()]), int(limit[()]), int(delta[()]))
    return _objects(list(numbers)) if len(numbers) <= MAX_ELEMENTS else None


def _product_content(p: Facts, node: ir.Node) -> Array | None:
    data = _operands(p, node)[0]
    if data.ndim > 1:
        return None  # the axes may be some of them
    keep = node.attributes.get("keepdims")
    total = product(list(data.ravel()))
    one = np.empty((1,) * data.ndim if keep is None or keep.as_int() else (), object)
    one[...] = total
    return one


def _size_content(p: Facts, node: ir.Node) -> Array | None:
    dims = p.dims(node.inputs[0])
    return None if dims is None or None in dims else _objects([product(dims)]).reshape(())


def _filled_content(p: Facts, node: ir.Node) -> Array | None:
    (shape,) = _operands(p, node)
    attribute = node.attributes.get("value")
    fill = attribute.as_tensor().numpy().reshape(()) if attribute else np.float32(0)
    sizes = [int(s) for s in shape]
    if fill.dtype.kind not in "iu" or math.prod(sizes) > MAX_ELEMENTS:
        return None
    result = np.empty(sizes, object)
    result[...] = int(fill)
    return result


def _expanded_content(p: Facts, node: ir.Node) -> Array | None:
    data, shape = _operands(p, node)
    sizes = [int(s) for s in shape]
    if math.prod(sizes) * max(data.size, 1) > MAX_ELEMENTS**2:
        return None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(sizes)))


def _compare(function: Callable[[Array, Array], Any]) -> Callable[[Facts, ir.Node], Array | None]:
    def apply(p: Facts, node: ir.Node) -> Array | None:
        a, b = _operands(p, node)
        if any(isinstance(e, Poly) for part in (a, b) for e in part.ravel()):
            return None
        return np.asarray(function(a, b)).astype(bool)

    return apply


CONTENTS: dict[str, Callable[[Facts, ir.Node], Array | None]] = {
    "Shape": _shape_content,
    "Identity": _arithmetic(lambda a: a),
    "Add": _arithmetic(lambda a, b: a + b),
    "Sub": _arithmetic(lambda a, b: a - b),
    "Mul": _arithmetic(lambda a, b: a * b),
    "Div": _arithmetic(_integer_division),
    "Mod": _remainder,
    "Neg": _arithmetic(lambda a: -a),
    "Abs": _arithmetic(np.abs),
    "Max": _arithmetic(lambda *parts: functools.reduce(np.maximum, parts)),
    "Min": _arithmetic(lambda *parts: functools.reduce(np.minimum, parts)),
    "Sqrt": _arithmetic(np.sqrt),
    "Equal": _compare(lambda a, b: a == b),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Not": _arithmetic(np.logical_not),
    "And": _arithmetic(np.logical_and),
    "Or": _arithmetic(np.logical_or),
    "Where": _arithmetic(np.where),
    "Expand": _expanded_content,
    "Size": _size_content,
    "ConstantOfShape": _filled_content,
    "Gather": _gather_content,
    "Slice": _slice_content,
    "Concat": _concat_content,
    "Cast": _cast_content,
    "Unsqueeze": _axes_content(np.expand_dims),
    "Squeeze": _axes_content(np.squeeze),
    "Reshape": _reshape_content,
    "Range": _range_content,
    "ReduceProd": _product_content,
}
