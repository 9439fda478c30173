"""Sums of very many numbers are taken in two steps: sums of rows, and their sum.

onnxruntime adds all numbers of a tensor up one after the other, in as many lanes as a vector of the
processor has. The further a sum has grown, the more of the next number is rounded away: squares of
normally distributed numbers, a million of them, come out 2·10⁻⁵ too small, four million 1.6·10⁻⁴,
25 million 3·10⁻³ and 124 million 2.7·10⁻² (onnxruntime 1.31.1, AVX-512, where a lane adds every
sixteenth). PyTorch is off by 10⁻⁷. Losses of images and norms of gradients are such sums. In rows,
they are right to 10⁻⁶.

A sum or a mean takes no longer so. Sums of squares and of sizes do (four million on one thread 1.9
instead of 0.26 ms, but on all threads, where the other has one), so they wait for more numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ..graph.edit import become
from ..graph.nodes import constant, insert, ints
from ..graph.tensor import Dim, dims_of

SECOND = {
    "ReduceL1": "ReduceSum",
    "ReduceMean": "ReduceMean",
    "ReduceSum": "ReduceSum",
    "ReduceSumSquare": "ReduceSum",
}
"""What is done with the results of rows."""
MANY_NUMBERS = {"ReduceMean": 1 << 17, "ReduceSum": 1 << 17}
TOO_MANY_NUMBERS = 1 << 20
"""Numbers from which on a sum is off by more than some 3·10⁻⁶, and 2·10⁻⁵. The second is for the
slower ones, and for sums along some axes only, which a kernel of ours may have within a group."""
ROWS, MOST = 256, 1 << 16
"""How many numbers of a row are worth a step of its own, and up to which one is short itself."""
AXES_ARE_OPERANDS = 18
"""Opset from which on those of all reductions are; ReduceSum's are from 13 on."""


class _Split(NamedTuple):
    """How a tensor is summed: its `shape` if it gets another one, and the axes of both steps."""

    shape: list[int] | None
    inner: list[int]
    outer: list[int]


def long_sums_by_rows(model: ir.Model) -> ir.Model:
    """Take long sums in two steps; the model is changed."""
    opset = model.graph.opset_imports[""]
    for graph in [*model.graph.subgraphs(), model.graph]:
        for node in [n for n in graph if n.op_type in SECOND and not n.domain]:
            split = _split(node)
            if split is not None:
                _write(node, split, opset)
    return model


def _split(node: ir.Node) -> _Split | None:
    """None if a sum is short, or cannot be cut into rows."""
    x = node.inputs[0]
    dims = None if x is None else dims_of(x)
    if x is None or not dims or 0 in dims or x.dtype != ir.DataType.FLOAT:
        return None
    axes = _axes(node, len(dims))
    if not axes or axes != list(range(axes[0], len(dims))):
        return None
    first = axes[0]
    summed = dims[first:]
    count, is_open = math.prod(d for d in summed if isinstance(d, int)), not _all_known(summed)
    if is_open:  # it costs a call, a microsecond
        is_long = not first and node.op_type in MANY_NUMBERS
    else:
        is_long = count >= (
            TOO_MANY_NUMBERS if first else MANY_NUMBERS.get(node.op_type, TOO_MANY_NUMBERS)
        )
    if not is_long:
        return None
    start = _start_of_rows(summed)
    if start:
        return _Split(None, axes[start:], axes[:start])
    keeps = node.attributes.get_int("keepdims", 1) != 0
    width = 0 if is_open or (keeps and len(summed) > 1) else row_length(count)
    if not width or not _all_known(dims):
        return None
    before = [d for d in dims[:first] if isinstance(d, int)]
    return _Split([*before, count // width, width], [first + 1], [first])


def _axes(node: ir.Node, rank: int) -> list[int]:
    """Those that are summed, in order; none where they are not known."""
    if "axes" in node.attributes:
        axes: Sequence[int] | None = node.attributes.get_ints("axes")
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = ints(node.inputs[1])
    else:
        axes = range(rank)
    if not axes or node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        return []
    return sorted({axis % rank for axis in axes})


def _all_known(dims: Sequence[Dim]) -> bool:
    return all(isinstance(d, int) for d in dims)


def _start_of_rows(dims: Sequence[Dim]) -> int:
    """From which axis on a row is long enough, and known; 0 if there is none behind the first."""
    width = 1
    for axis in range(len(dims) - 1, 0, -1):
        size = dims[axis]
        if not isinstance(size, int) or width * size > MOST:
            return 0
        width *= size
        if width >= ROWS:
            return axis
    return 0


def row_length(count: int) -> int:
    """How long the rows are that so many numbers are cut into; 0 if they cannot be.

    The divisor nearest to 4,096.
    """
    usual = ROWS * 16
    divisors = [
        d for small in range(1, math.isqrt(count) + 1) if count % small == 0
        for d in (small, count // small) if ROWS <= d <= MOST
    ]  # fmt: skip
    return min(divisors, key=lambda d: abs(math.log(d / usual)), default=0)


def _write(node: ir.Node, split: _Split, opset: int) -> None:
    """Put the sum of rows in front of a node, which sums up what comes out."""
    x, keeps = node.inputs[0], node.attributes.get_int("keepdims", 1)
    assert x is not None
    dims, keeps_rows = list(dims_of(x) or ()), keeps if split.shape is None else 0
    if split.shape is not None:
        x = insert(node, "Reshape", [x, constant(node, split.shape, "rows")], "rows")
        x.shape, dims = ir.Shape(split.shape), list(split.shape)
    operands, attributes = _with_axes(node, node.op_type, split.inner, opset)
    sums = insert(node, node.op_type, [x, *operands], "of_rows", keepdims=keeps_rows, **attributes)
    for axis in sorted(split.inner, reverse=True):
        dims[axis : axis + 1] = [1] if keeps_rows else []
    sums.shape = ir.Shape(dims)
    second = SECOND[node.op_type]
    operands, attributes = _with_axes(node, second, split.outer, opset)
    become(node, second, sums, *operands)
    node.attributes.add(ir.AttrInt64("keepdims", keeps))
    for name, value in attributes.items():
        node.attributes.add(ir.AttrInt64s(name, value))


def _with_axes(
    node: ir.Node, op_type: str, axes: list[int], opset: int
) -> tuple[list[ir.Value], dict[str, list[int]]]:
    """Axes as operand, or as attribute where an opset wants that."""
    if opset < AXES_ARE_OPERANDS and op_type != "ReduceSum":
        return [], {"axes": axes}
    return [constant(node, axes, f"axes_{axes[0]}")], {}
