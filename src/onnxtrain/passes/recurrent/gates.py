"""In which order a model has the gates of a recurrent layer.

ONNX wants the gates of an LSTM in the order i, o, f, g. Frameworks have other orders, so exporters
cut weights into blocks of rows and join them again. The gradient would have to undo that; a loop
that takes the blocks in the order of the original needs neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from ...graph import OpBuilder, Tensor
from ...graph.nodes import ints
from ...graph.tensor import dims_of
from .layer import Layer

ONNX = {"LSTM": "iofg", "GRU": "urn", "RNN": "h"}
"""Gates in the order of the operator; u and r are update and reset, n and g the candidates."""

Rows: TypeAlias = tuple[ir.Value, int, int]
"""Some rows of a value: the first, and the one after the last."""


@dataclass(frozen=True)
class Gates:
    """Weights of one direction.

    Attributes:
        w: of the input, [gates · hidden size, input size].
        r: of the state, [gates · hidden size, hidden size].
        biases: none, or that of the input and that of the state.
        order: of the blocks of rows.
    """

    w: Tensor
    r: Tensor
    biases: Sequence[Tensor]
    order: str

    def bias(self, op: OpBuilder) -> Tensor | None:
        """The sum of both biases."""
        return op.Add(*self.biases) if self.biases else None


def find_gates(op: OpBuilder, layer: Layer, d: int) -> Gates:
    """The weights of direction `d`, as the model has them where that can be seen."""
    part, usual = layer.weights(d), ONNX[layer.node.op_type]
    operands = [part.w, part.r] + [b for b in (part.wb, part.rb) if b is not None]
    originals = [_original(operand.value, layer.size, usual) for operand in operands]
    orders = {None if f is None else f[1] for f in originals}
    order = orders.pop() if len(orders) == 1 else None
    if order is not None and order[-1:] != "n" and "n" in usual:
        order = None  # candidate and gates of a GRU are two blocks
    if order is not None:
        operands = [op.tensor(f[0]) for f in originals if f is not None]
    w, r, *biases = operands
    return Gates(w, r, biases, order or usual)


def _original(value: ir.Value, size: int, usual: str) -> tuple[ir.Value, str] | None:
    """What a weight was made of by moving blocks of rows, and the order of the gates there."""
    ranges = _row_ranges(value)
    if ranges is None:
        return None
    sources = {source for source, _, _ in ranges}
    blocks = [b for _, start, end in ranges for b in range(start, end, size)]
    if len(sources) != 1 or sorted(blocks) != [k * size for k in range(len(usual))]:
        return None
    source = sources.pop()
    dims = dims_of(source)
    if dims is None or dims[0] != len(usual) * size:
        return None
    return source, "".join(usual[blocks.index(k * size)] for k in range(len(usual)))


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
