"""How dimensions follow from one another, operator by operator, with symbols kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from ..graph.einsum_shapes import broadcast_dims
from ..graph.slices import taken
from ..operators import BROADCASTING, KEEPS_SHAPE
from .polynomial import Poly
from .symbolic_facts import Array, Facts, SymDim, product

Shapes: TypeAlias = "list[list[SymDim] | None]"


def _same(p: Facts, node: ir.Node) -> Shapes:
    return [p.dims(node.inputs[0])] * len(node.outputs)


def broadcast(shapes: list[list[SymDim] | None]) -> list[SymDim] | None:
    """Dimensions of operands put together by the broadcasting rules."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    return broadcast_dims(known)


def _broadcast(p: Facts, node: ir.Node) -> Shapes:
    return [broadcast([p.dims(v) for v in node.inputs])]


def _matmul(p: Facts, node: ir.Node) -> Shapes:
    a, b = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [None]
    lead = broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else []
    return [None if lead is None else [*lead, a[-2], b[-1]]]


def _transpose(p: Facts, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    attribute = node.attributes.get("perm")
    perm = list(attribute.as_ints()) if attribute else list(range(len(dims)))[::-1]
    return [[dims[i] for i in perm]]


def _reshape(p: Facts, node: ir.Node) -> Shapes:
    dims, target = p.dims(node.inputs[0]), p.content(node.inputs[1])
    if target is None:
        return [None]
    result: list[SymDim] = list(target)
    for i, size in enumerate(target):
        if isinstance(size, int) and size == 0:
            result[i] = None if dims is None else dims[i]
    if -1 in [d for d in result if isinstance(d, int)]:
        hole = result.index(-1)
        rest = result[:hole] + result[hole + 1 :]
        result[hole] = None
        if dims is not None and None not in dims and None not in rest:
            result[hole] = product(dims) // product(rest)
    return [result]


def _flatten(p: Facts, node: ir.Node) -> Shapes:
    dims, axis = p.dims(node.inputs[0]), node.attributes.get_int("axis", 1)
    if dims is None:
        return [None]
    cut = axis + len(dims) if axis < 0 else axis
    return [[None if None in part else product(part) for part in (dims[:cut], dims[cut:])]]


def _expand(p: Facts, node: ir.Node) -> Shapes:
    target = p.content(node.inputs[1])
    return [None if target is None else broadcast([p.dims(node.inputs[0]), list(target)])]


def _constant_of_shape(p: Facts, node: ir.Node) -> Shapes:
    target = p.content(node.inputs[0])
    return [None if target is None else list(target)]


def _concat(p: Facts, node: ir.Node) -> Shapes:
    shapes = [p.dims(v) for v in node.inputs]
    if any(s is None for s in shapes):
        return [None]
    known = [s for s in shapes if s is not None]
    axis = node.attributes["axis"].as_int() % len(known[0])
    result: list[SymDim] = [
        next((s[i] for s in known if s[i] is not None), None) for i in range(len(known[0]))
    ]
    sizes = [s[axis] for s in known]
    total: Poly | int = 0
    for size in sizes:
        total = Poly.of(total) + size
    result[axis] = None if None in sizes else total
    return [result]


def _unsqueeze(p: Facts, node: ir.Node) -> Shapes:
    dims, axes = p.dims(node.inputs[0]), p.content(node.inputs[1])
    if dims is None or axes is None:
        return [None]
    rank = len(dims) + axes.size
    inserted = {int(a) % rank for a in np.atleast_1d(axes)}
    rest = iter(dims)
    return [[1 if i in inserted else next(rest) for i in range(rank)]]


def _squeeze(p: Facts, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    axes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or axes is None:
        return [None]
    squeezed = {int(a) % len(dims) for a in np.atleast_1d(axes)}
    return [[d for i, d in enumerate(dims) if i not in squeezed]]


def _reduce(p: Facts, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    axes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if dims is None or (axes is None and len(node.inputs) > 1 and node.inputs[1] is not None):
        return [None]
    if axes is None or not axes.size:
        return [None]
    keep = node.attributes.get("keepdims")
    reduced = {int(a) % len(dims) for a in np.atleast_1d(axes)}
    if keep is None or keep.as_int():
        return [[1 if i in reduced else d for i, d in enumerate(dims)]]
    return [[d for i, d in enumerate(dims) if i not in reduced]]


def _gather(p: Facts, node: ir.Node) -> Shapes:
    data, indices = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if data is None or indices is None:
        return [None]
    attribute = node.attributes.get("axis")
    axis = (attribute.as_int() if attribute else 0) % len(data)
    return [[*data[:axis], *indices, *data[axis + 1 :]]]


def _slice(p: Facts, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    parts = [p.content(v) for v in node.inputs[1:]]
    starts, ends = parts[0], parts[1]
    axes = parts[2] if len(parts) > 2 else np.arange(len(dims))
    steps = parts[3] if len(parts) > 3 else None
    if axes is None or (len(node.inputs) > 4 and steps is None):
        return [None]
    result = list(dims)
    for i, axis in enumerate(np.atleast_1d(axes)):
        dim, step = int(axis) % len(dims), 1 if steps is None else int(steps[i])
        start = None if starts is None else starts[i]
        end = None if ends is None else ends[i]
        result[dim] = _sliced(dims[dim], start, end, step)
    return [result]


def _sliced(size: SymDim, start: Any, end: Any, step: int) -> SymDim:
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(taken(size, start, end, step))
    if size is None or step != 1 or start is None or end is None:
        return None
    if isinstance(start, int) and start == 0:
        if isinstance(end, Poly) and end == size:
            return size
        if isinstance(end, int) and end >= 2**31 - 1:
            return size
        if isinstance(end, int) and end < 0:
            return Poly.of(size) + end
    if isinstance(start, int) and start > 0 and isinstance(end, int) and end >= 2**31 - 1:
        return Poly.of(size) - start
    return None


def _split(p: Facts, node: ir.Node) -> Shapes:
    dims = p.dims(node.inputs[0])
    if dims is None:
        return [None]
    attribute = node.attributes.get("axis")
    axis = (attribute.as_int() if attribute else 0) % len(dims)
    sizes = p.content(node.inputs[1]) if len(node.inputs) > 1 else None
    if sizes is None:
        return [[*dims[:axis], None, *dims[axis + 1 :]]] * len(node.outputs)
    return [[*dims[:axis], s, *dims[axis + 1 :]] for s in sizes]


def _gemm(p: Facts, node: ir.Node) -> Shapes:
    a, b = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if a is None or b is None:
        return [None]
    flags = [node.attributes.get(n) for n in ("transA", "transB")]
    rows = a[1] if flags[0] is not None and flags[0].as_int() else a[0]
    columns = b[0] if flags[1] is not None and flags[1].as_int() else b[1]
    return [[rows, columns]]


def _batch_and_rest(p: Facts, node: ir.Node) -> Shapes:
    """Conv and pooling keep the batch; the rest is onnx's business."""
    dims, old = p.dims(node.inputs[0]), p.dims(node.outputs[0])
    return [None if dims is None or old is None else [dims[0], *old[1:]]]


def _resize(p: Facts, node: ir.Node) -> Shapes:
    """Axes that are scaled by one keep their size; the rest is onnx's business."""
    dims, old = p.dims(node.inputs[0]), p.dims(node.outputs[0])
    factors = _float_constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if dims is None or factors is None or "axes" in node.attributes:
        return [None]
    result: list[SymDim] = []
    for i, (size, factor) in enumerate(zip(dims, factors)):
        grown = int(np.floor(size * factor)) if isinstance(size, int) else None
        result.append(size if factor == 1 else grown if old is None else grown or old[i])
    return [result if len(result) == len(dims) else None]


def _pad(p: Facts, node: ir.Node) -> Shapes:
    """Axes that are not named keep their size; others grow by what is known of the padding."""
    dims, pads = p.dims(node.inputs[0]), p.content(node.inputs[1])
    named = p.content(node.inputs[3]) if len(node.inputs) > 3 else None
    if dims is None or (len(node.inputs) > 3 and node.inputs[3] is not None and named is None):
        return [None]
    axes = range(len(dims)) if named is None else [int(a) % len(dims) for a in named]
    result = list(dims)
    for i, axis in enumerate(axes):
        before, behind = (None, None) if pads is None else (pads[i], pads[len(axes) + i])
        old = result[axis]
        grown = None if pads is None or old is None else Poly.of(Poly.of(old) + before) + behind
        result[axis] = grown
    return [result]


def _gather_nd(p: Facts, node: ir.Node) -> Shapes:
    data, indices = p.dims(node.inputs[0]), p.dims(node.inputs[1])
    if data is None or not indices or not isinstance(indices[-1], int):
        return [None]
    batch = node.attributes.get_int("batch_dims", 0)
    return [[*indices[:-1], *data[batch + indices[-1] :]]]


def _range(p: Facts, node: ir.Node) -> Shapes:
    """Positions 0, 1, 2, … up to a dimension; a limit that may be negative is left alone."""
    start, limit, step = (p.content(v) for v in node.inputs)
    if start is None or limit is None or step is None or (start.item(), step.item()) != (0, 1):
        return [None]
    end = limit.item()
    counts = not isinstance(end, Poly) or all(c > 0 for c in end.terms.values())
    return [[end if counts else None]]


def _float_constant(value: ir.Value | None) -> Array | None:
    """Scales that are constant, or several constants put together."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    producer = value.producer()
    if producer is None or producer.op_type != "Concat":
        return None
    parts = [_float_constant(v) for v in producer.inputs]
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known and len(known) == len(parts) else None


REDUCE = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"

SHAPES: dict[str, Callable[[Facts, ir.Node], Shapes]] = {
    **dict.fromkeys(KEEPS_SHAPE, _same),
    **dict.fromkeys(BROADCASTING | {"PRelu"}, _broadcast),
    **dict.fromkeys((f"Reduce{kind}" for kind in REDUCE.split()), _reduce),
    **dict.fromkeys(["Conv", "MaxPool", "AveragePool", "ConvTranspose"], _batch_and_rest),
    "Resize": _resize,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Flatten": _flatten,
    "ConstantOfShape": _constant_of_shape,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Range": _range,
    "Slice": _slice,
    "Split": _split,
}
