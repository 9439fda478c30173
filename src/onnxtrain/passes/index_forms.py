"""`x[i, j]` as exporters write it, in forms that take whole rows.

They transpose a tensor so that the indexed axes come first, and read element by element what tuples
of indices name, GatherND. Where each index goes along an axis of its own, as those of a resized
image or of `numpy.ix_` do, it is one Gather after the other. Where constant indices take little of
a tensor, what they take is read where it lies: a million numbers on one thread take 2.5 ms to be
transposed, and their gradient as long to be transposed back.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..autodiff.registry import is_rule
from ..autodiff.rules import indexing
from ..graph import OpBuilder, Tensor
from ..graph.nodes import ints, known, permutation, producer_of
from ..graph.tensor import Dim, dims_of

LITTLE_TAKEN = 4
"""What part of a tensor is little: reading single numbers takes a few times as long as reading all
in a row. Not measured closely."""

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Along:
    """The indices of one axis.

    Attributes:
        indices: a constant or a value.
        axis: of the tensor.
        place: the axis of the tuples along which they go; None for a single one.
    """

    indices: ir.Value | Indices
    axis: int
    place: int | None


@dataclass(frozen=True)
class Indexed:
    """A tensor, which of its axes are indexed, all others behind them, and axes of the tuples."""

    x: ir.Value
    dims: tuple[Dim, ...]
    order: list[int]
    tuples: tuple[Dim, ...]
    is_turned: bool


def has_better_form(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a GatherND is of indices that go along axes of their own, or takes little."""
    return is_rule(indexing.gather_nd, "GatherND") and (
        _apart(node, named) is not None or _few(node, named) is not None
    )


def gathered(op: OpBuilder, node: ir.Node) -> Tensor:
    """The same, by Gather."""
    apart = _apart(node, ())
    if apart is not None:
        return _one_by_one(op, *apart)
    few = _few(node, ())
    assert few is not None
    x, places = few
    flat = op.Reshape(op.tensor(x), [-1])
    return op.Gather(flat, op.const(places), axis=0)


# --- indices that go along axes of their own ------------------------------------------------------


def _apart(node: ir.Node, named: Collection[str]) -> tuple[Indexed, list[Along]] | None:
    indexed = _indexed(node, named)
    columns = None if indexed is None else _columns(node.inputs[1], len(indexed.tuples))
    if indexed is None or columns is None or len(columns) > len(indexed.order):
        return None
    along, taken = list[Along](), set[int]()
    for axis, (indices, dims) in zip(indexed.order, columns):
        places = [place for place, dim in enumerate(dims) if dim != 1]
        if len(places) > 1 or taken.intersection(places):
            return None
        if any(dims[place] is None or dims[place] != indexed.tuples[place] for place in places):
            return None
        taken.update(places)
        along.append(Along(indices, axis, places[0] if places else None))
    if any(dim != 1 and place not in taken for place, dim in enumerate(indexed.tuples)):
        return None
    is_better = indexed.is_turned if len(along) == 1 else _takes_most(node, indexed)
    return (indexed, along) if is_better else None


def _takes_most(node: ir.Node, indexed: Indexed) -> bool:
    """Whether the result is surely not much smaller than the tensor.

    The first Gather takes all that lies along the other axes.
    """
    before, after = _elements(indexed.dims), _elements(dims_of(node.outputs[0]))
    return before is not None and after is not None and after * LITTLE_TAKEN >= before


def _one_by_one(op: OpBuilder, indexed: Indexed, along: list[Along]) -> Tensor:
    """First those that take little, so that the others have less to read."""
    y, axes = op.tensor(indexed.x), list(range(len(indexed.dims)))
    for one in sorted(along, key=lambda one: _share(indexed, one)):
        shape = [] if one.place is None else [-1]
        if isinstance(one.indices, ir.Value):
            indices = op.Reshape(op.tensor(one.indices), op.const(np.array(shape, np.int64)))
        else:
            indices = op.const(one.indices.reshape(shape))
        y = op.Gather(y, indices, axis=axes.index(one.axis))
        if one.place is None:
            axes.remove(one.axis)
    of_place = {one.place: one.axis for one in along if one.place is not None}
    order = [of_place[place] for place in sorted(of_place)] + indexed.order[len(along) :]
    if order != axes:
        y = op.Transpose(y, perm=[axes.index(axis) for axis in order])
    single = [place for place in range(len(indexed.tuples)) if place not in of_place]
    return op.Unsqueeze(y, single) if single else y


def _share(indexed: Indexed, one: Along) -> float:
    """How many times as long an axis is when its indices have been taken; 1 if nobody knows."""
    length = indexed.dims[one.axis]
    count = 1 if one.place is None else indexed.tuples[one.place]
    return count / length if isinstance(count, int) and isinstance(length, int) and length else 1.0


def _columns(
    value: ir.Value | None, rank: int
) -> list[tuple[ir.Value | Indices, tuple[Dim, ...]]] | None:
    """The indices of each axis before they were repeated, with their sizes along axes of tuples."""
    constant = known(value)
    if constant is not None:
        return [_unrepeated(column) for column in np.moveaxis(constant.numpy(), -1, 0)]
    joined = producer_of(value, "Concat")
    if joined is not None and joined.attributes.get_int("axis", 0) not in (-1, rank):
        return None
    columns = list[tuple[ir.Value | Indices, tuple[Dim, ...]]]()
    for each in [value] if joined is None else joined.inputs:
        column = _column(each, rank)
        if column is None:
            return None
        columns.append(column)
    return columns


def _column(value: ir.Value | None, rank: int) -> tuple[ir.Value | Indices, tuple[Dim, ...]] | None:
    constant = known(value)
    if constant is not None:
        indices = constant.numpy()
        return _unrepeated(indices[..., 0]) if indices.shape[-1] == 1 else None
    last = producer_of(value, "Unsqueeze")
    axes = ints(last.inputs[1]) if last is not None and len(last.inputs) > 1 else None
    if last is None or axes not in ([-1], [rank]):
        return None
    source = last.inputs[0]
    repeated = producer_of(source, "Expand")
    source = repeated.inputs[0] if repeated is not None else source
    constant = known(source)
    if constant is not None:
        indices = constant.numpy()
        return _unrepeated(indices.reshape((1,) * (rank - indices.ndim) + indices.shape))
    dims = dims_of(source) if source is not None else None
    if source is None or dims is None or len(dims) > rank:
        return None
    return source, (*[1] * (rank - len(dims)), *dims)


def _unrepeated(indices: Indices) -> tuple[Indices, tuple[Dim, ...]]:
    """Constant indices along those axes only along which they differ."""
    for axis in range(indices.ndim):
        first = indices.take([0], axis) if indices.size else indices
        if (first == indices).all() and indices.size:
            indices = first
    return indices, indices.shape


# --- constant indices that take little ------------------------------------------------------------


def _few(node: ir.Node, named: Collection[str]) -> tuple[ir.Value, Indices] | None:
    """A tensor, and where in its memory the elements of the result lie."""
    indexed, constant = _indexed(node, named), known(node.inputs[1])
    count = None if indexed is None else _elements(indexed.dims)
    if indexed is None or constant is None or not count or not indexed.is_turned:
        return None
    tuples = constant.numpy()
    sizes = [int(dim) for dim in indexed.dims if isinstance(dim, int)]
    turned = [sizes[axis] for axis in indexed.order]
    depth = tuples.shape[-1]
    lengths = np.array(turned[:depth], np.int64)
    if (tuples < -lengths).any() or (tuples >= lengths).any():
        return None  # onnxruntime says so
    if tuples.size // max(1, depth) * math.prod(turned[depth:]) * LITTLE_TAKEN > count:
        return None
    strides = [math.prod(sizes[axis + 1 :]) for axis in indexed.order]
    first = (tuples % lengths) @ np.array(strides[:depth], np.int64)
    grid = np.zeros(turned[depth:], np.int64)
    for axis, stride in enumerate(strides[depth:]):
        step = np.arange(turned[depth + axis]) * stride
        grid += step.reshape([-1, *[1] * (grid.ndim - axis - 1)])
    return indexed.x, first.reshape(first.shape + (1,) * grid.ndim) + grid


def _indexed(node: ir.Node, named: Collection[str]) -> Indexed | None:
    """What a GatherND reads, before it was transposed."""
    data, value = node.inputs
    tuples = dims_of(value) if value is not None else None
    if data is None or not tuples or not isinstance(tuples[-1], int) or tuples[-1] < 1:
        return None
    if node.attributes.get_int("batch_dims", 0):
        return None
    turned = producer_of(data, "Transpose") if data.name not in named else None
    order = permutation(turned) if turned is not None else None
    x = turned.inputs[0] if turned is not None and order is not None else data
    dims = dims_of(x) if x is not None else None
    if x is None or dims is None or tuples[-1] > len(dims):
        return None
    return Indexed(x, dims, order or list(range(len(dims))), tuples[:-1], order is not None)


def _elements(dims: tuple[Dim, ...] | None) -> int | None:
    sizes = [dim for dim in dims or () if isinstance(dim, int)]
    return math.prod(sizes) if dims is not None and len(sizes) == len(dims) else None
