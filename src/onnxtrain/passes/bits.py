"""Random integers that follow from a seed, a counter, a name and a position, in standard operators.

An element is ``m·c + b`` modulo 2³², where the pair (m, b) belongs to its row and c to its column.
Rows are hashed anew for every seed, counter and name (a multiplicative hash of 64 bits), so that
two elements of one row are as good as independent, and so are two rows. It takes two passes over
the elements: all that is longer works on rows, on columns or on a handful of keys.

All sizes may be open. int64 and int32 wrap around in every build of onnxruntime, and a division by
2³² is what a shift would be, without its casts.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from ..graph import Dim, OpBuilder, Tensor

T = TypeVar("T")
INT32, INT64 = ir.DataType.INT32, ir.DataType.INT64
HALF_OF_64 = 1 << 32
ENOUGH_COLUMNS = 64
"""Trailing axes are taken together until a row has this many elements: a row costs a hash."""


def number(text: str) -> int:
    """A well spread number of 64 bits, signed, that stands for a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _factor(text: str) -> int:
    """A number to multiply with: an odd one loses nothing."""
    return number(f"onnxtrain/{text}") | 1


SEED, SEED_MIX = _factor("seed"), _factor("seed/mix")
COUNTER, COUNTER_MIX = _factor("counter"), _factor("counter/mix")
ROW, ROW_MIX = _factor("row"), _factor("row/mix")
COLUMN, COLUMN_MIX, COLUMN_LAST = (_factor(f"column{end}") for end in ("", "/mix", "/last"))


@dataclass(frozen=True)
class Area:
    """The shape to draw for.

    Attributes:
        dims: the sizes, as far as they are known.
        like: a tensor that has these leading sizes when the graph runs; needed if some are open.
    """

    dims: tuple[Dim, ...]
    like: Tensor | None = None

    @property
    def split(self) -> int:
        """Where the columns begin: one axis, or as many of known size as make a row long."""
        at, size = len(self.dims), 1
        while at > 0 and size < ENOUGH_COLUMNS:
            dim = self.dims[at - 1]
            if not isinstance(dim, int):
                return at if at < len(self.dims) else at - 1
            at, size = at - 1, size * dim
        return at


class Bits:
    """Builds the integers of one graph.

    Args:
        op: where nodes go.
        source: INT64 [2]: seed and counter.
        streams: one name for each independent sequence of integers.
    """

    def __init__(self, op: OpBuilder, source: Tensor, streams: Sequence[str]) -> None:
        self.op = op
        self._shared: dict[tuple[object, ...], Any] = {}
        self.first: list[ir.Node] = []
        """Nodes that belong in front of all others."""
        with self._in_front():
            op.scope = "onnxtrain.random"
            self._keys, self._tweaks = self._key_pairs(source, streams)

    @contextlib.contextmanager
    def _in_front(self) -> Iterator[None]:
        nodes, scope = self.op.nodes, self.op.scope
        self.op.nodes = self.first
        try:
            yield
        finally:
            self.op.nodes, self.op.scope = nodes, scope

    def _long(self, value: int) -> Tensor:
        return self.op.const(np.array([value], np.int64))

    def _mix(self, x: Tensor, factor: int) -> Tensor:
        """Let the high half change the low one, then the low one the high half."""
        return self.op.BitwiseXor(x, x / self._long(HALF_OF_64)) * self._long(factor)

    def _high(self, x: Tensor) -> Tensor:
        return self.op.Cast(x / self._long(HALF_OF_64), to=INT32)

    # -- keys ------------------------------------------------------------------------------------

    def _key_pairs(
        self, source: Tensor, streams: Sequence[str]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Per stream a key of 64 bits for its rows and one of 32 bits for its columns."""
        op = self.op
        seed, counter = op.many("Split", source, outputs=2, axis=0, num_outputs=2)
        names = op.const(np.array([number(s) for s in streams], np.int64))
        seeded = self._mix(names + seed * self._long(SEED), SEED_MIX)
        keys = self._mix(seeded + counter * self._long(COUNTER), COUNTER_MIX)
        return self._apart(keys, len(streams)), self._apart(self._high(keys), len(streams))

    def _apart(self, values: Tensor, count: int) -> list[Tensor]:
        if count == 1:
            return [values]
        return list(self.op.many("Split", values, outputs=count, axis=0, num_outputs=count))

    # -- integers --------------------------------------------------------------------------------

    def integers(
        self, stream: int, area: Area, graph: ir.Graph, iterations: Sequence[Tensor] = ()
    ) -> Tensor:
        """INT32 of the area's shape, evenly spread.

        Args:
            stream: number of the stream.
            area: the shape; of one dimension at least.
            graph: where the nodes will be, a body perhaps.
            iterations: INT64 scalars, the numbers of the iterations of the loops around.
        """
        split = area.split
        key = self._keys[stream]
        for depth, iteration in enumerate(iterations):
            key = key + iteration * self._long(_factor(f"iteration/{depth}"))
        hashed = self._mix(self._rows(area, split, graph) + key, ROW_MIX)
        left, right = self._columns(area, split, graph)
        columns = left * (right + self._tweaks[stream])
        result = self._high(hashed) * columns + self.op.Cast(hashed, to=INT32)
        result.value.shape = ir.Shape(area.dims)
        return result

    def _rows(self, area: Area, split: int, graph: ir.Graph) -> Tensor:
        """The numbers of the rows, spread, in the shape of the leading axes."""
        lead, behind = area.dims[:split], len(area.dims) - split
        return self._once(
            ("rows", behind), lead, graph, lambda: self._numbered_rows(area, lead, behind)
        )

    def _columns(self, area: Area, split: int, graph: ir.Graph) -> tuple[Tensor, Tensor]:
        """Two hashes per column, in the shape of the trailing axes."""
        behind = area.dims[split:]
        return self._once(("columns",), behind, graph, lambda: self._numbered_columns(area, behind))

    def _once(
        self,
        kind: tuple[object, ...],
        dims: tuple[Dim, ...],
        graph: ir.Graph,
        make: Callable[[], T],
    ) -> T:
        """What depends on sizes alone is made once: for sizes that are known, in front of all."""
        known = _is_known(dims)
        key = (*kind, dims, None if known else graph)
        if None in dims or key not in self._shared:
            with self._in_front() if known else contextlib.nullcontext():
                self._shared[key] = make()
        result: T = self._shared[key]
        return result

    def _numbered_rows(self, area: Area, lead: tuple[Dim, ...], behind: int) -> Tensor:
        op = self.op
        if not lead:
            return self._long(0)
        if _is_known(lead):
            sizes: Tensor = op.const(np.array(lead, np.int64))
            count = op.const(np.array(math.prod(_known(lead)), np.int64))
        else:
            assert area.like is not None
            sizes = op.Shape(area.like, start=0, end=len(lead))
            sizes.value.shape = ir.Shape([len(lead)])
            count = op.ReduceProd(sizes, keepdims=0)
        spread = op.Range(op.const(0), count, op.const(1)) * self._long(ROW)
        if len(lead) == 1 and behind == 1:
            return op.Unsqueeze(spread, [1])
        ones = op.const(np.ones(behind, np.int64))
        return op.Reshape(spread, op.Concat(sizes, ones, axis=0), allowzero=1)

    def _numbered_columns(self, area: Area, behind: tuple[Dim, ...]) -> tuple[Tensor, Tensor]:
        op = self.op
        if _is_known(behind):
            count = op.const(np.array(math.prod(_known(behind)), np.int64))
        else:
            assert area.like is not None
            count = op.Squeeze(op.Shape(area.like, start=-1))
        spread = op.Range(op.const(0), count, op.const(1)) * self._long(COLUMN)
        mixed = self._mix(spread + self._long(COLUMN_LAST), COLUMN_MIX)
        hashed = self._mix(mixed, COLUMN_LAST)
        both = self._high(hashed), op.Cast(hashed, to=INT32)
        if len(behind) < 2:
            return both
        shape = op.const(np.array(behind, np.int64))
        return op.Reshape(both[0], shape), op.Reshape(both[1], shape)


def _known(dims: Sequence[Dim]) -> list[int]:
    return [d for d in dims if isinstance(d, int)]


def _is_known(dims: Sequence[Dim]) -> bool:
    return len(_known(dims)) == len(dims)
