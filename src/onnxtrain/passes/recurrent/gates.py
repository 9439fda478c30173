"""In which order a model has the gates of an LSTM.

ONNX wants the gates in the order i, o, f, g. Frameworks have other orders, so exporters cut weights
into blocks of rows and join them again. The gradient would have to undo that; a loop that takes the
blocks in the order of the original needs neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.nodes import ints
from ...graph.tensor import dims_of
from .layer import Layer

ONNX = "iofg"

Rows: TypeAlias = tuple[ir.Value, int, int]
"""Some rows of a value: the first, and the one after the last."""


@dataclass(frozen=True)
class Gates:
    """Weights of one direction.

    Attributes:
        w: of the input, [4 · hidden size, input size].
        r: of the state, [4 · hidden size, hidden size].
        bias: the sum of both biases.
        order: of the blocks of rows.
    """

    w: Tensor
    r: Tensor
    bias: Tensor | None
    order: str = ONNX


def find_gates(op: OpBuilder, layer: Layer, d: int) -> Gates:
    """The weights of direction `d`, as the model has them where that can be seen."""
    part = layer.weights(d)
    operands = [part.w, part.r] + [b for b in (part.wb, part.rb) if b is not None]
    originals = [_original(operand.value, layer.size) for operand in operands]
    orders = {None if f is None else f[1] for f in originals}
    order = orders.pop() if len(orders) == 1 else None
    if order is not None:
        operands = [op.tensor(f[0]) for f in originals if f is not None]
    w, r, *biases = operands
    return Gates(w, r, op.Add(*biases) if biases else None, order or ONNX)


def _original(value: ir.Value, size: int) -> tuple[ir.Value, str] | None:
    """What a weight was made of by moving blocks of rows, and the order of the gates there."""
    ranges = _row_ranges(value)
    if ranges is None:
        return None
    sources = {source for source, _, _ in ranges}
    blocks = [b for _, start, end in ranges for b in range(start, end, size)]
    if len(sources) != 1 or sorted(blocks) != [0, size, 2 * size, 3 * size]:
        return None
    source = sources.pop()
    dims = dims_of(source)
    if dims is None or dims[0] != 4 * size:
        return None
    return source, "".join(ONNX[blocks.index(k * size)] for k in range(4))


def _row_ranges(value: ir.Value) -> list[Rows] | None:
    """The ranges of rows that a value joins."""
    node = value.producer()
    if node is not None and node.op_type == "Concat" and node.attributes.get_int("axis", 1) == 0:
        parts = [None if v is None else _row_ranges(v) for v in node.inputs]
        return None if None in parts else [p for part in parts for p in part or ()]
    if node is not None and node.op_type == "Split" and node.attributes.get_int("axis", 0) == 0:
        return _rows_of_split(node, value)
    dims = dims_of(value)
    if dims is None or not isinstance(dims[0], int):
        return None
    return [(value, 0, dims[0])]


def _rows_of_split(node: ir.Node, value: ir.Value) -> list[Rows] | None:
    source, index = node.inputs[0], list(node.outputs).index(value)
    inner = _row_ranges(source) if source is not None else None
    if inner is None:
        return None
    rows, count = sum(end - start for _, start, end in inner), len(node.outputs)
    sizes = ints(node.inputs[1]) if len(node.inputs) > 1 else [rows // count] * count
    if sizes is None or sum(sizes) != rows:
        return None
    return _cut(inner, sum(sizes[:index]), sum(sizes[: index + 1]))


def _cut(ranges: list[Rows], first: int, last: int) -> list[Rows]:
    """The rows from `first` to before `last` of joined ranges."""
    rows, done = [], 0
    for source, start, end in ranges:
        low, high = max(first - done, 0), min(last - done, end - start)
        if low < high:
            rows.append((source, start + low, start + high))
        done += end - start
    return rows
