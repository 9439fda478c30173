"""Fourier transforms of some points as products with a constant matrix.

onnxruntime's DFT is fast for powers of two only. Lines of 262,144 complex numbers on one thread of
an EPYC with Zen 5, milliseconds of the operator and of the product:

| points | 5 | 10 | 16 | 30 | 64 | 100 | 128 | 129 | 256 | 300 | 500 | 512 | 1000 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
| DFT | 26 | 21 | 2.1 | 13 | 2.3 | 16 | 2.5 | 26 | 2.8 | 24 | 15 | 3.1 | 16 |
| product | 0.1 | 0.2 | 0.2 | 0.3 | 0.5 | 0.8 | 1.0 | 1.1 | 2.0 | 2.4 | 3.9 | 4.0 | 7.9 |

The product is nearer to the exact transform, too: its error is 1 to 6 in ten million of the largest
number throughout, and the operator's, where the points are no power of two, is 7·10⁻⁶ for 30 points
and 1.4·10⁻⁴ for 500. Gradients are those of the product.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..autodiff.registry import is_rule
from ..autodiff.rules import signal
from ..graph import OpBuilder, Tensor
from ..graph.nodes import ints, is_zeros, known, producer_of
from ..graph.tensor import Dim, dims_of
from .forms import Written, operand

MOST_POINTS = 512
"""Points up to which there is a matrix: four megabytes. From there on it is twice as fast at most,
where the points are no power of two."""
MOST_OF_POWER = 256
"""The same of powers of two: 256 points take 2.0 instead of 2.8 ms, 512 take 4.0 instead of 3.1."""
WIDE = 32
"""Elements behind the axis from which on the matrix is multiplied from the left, so that nothing is
transposed; onnxruntime begins a product for each element before the axis. Not measured closely."""

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Transform:
    """What a DFT computes.

    Attributes:
        dims: those of the signal.
        axis: along which it goes.
        points: of the transform.
        is_inverse, is_half: the attributes; half a spectrum is a result, or the operand of an
            inverse transform whose result is real.
    """

    dims: tuple[Dim, ...]
    axis: int
    points: int
    is_inverse: bool
    is_half: bool

    @property
    def read(self) -> int:
        """Elements of the axis that matter."""
        length = self.dims[self.axis]
        assert isinstance(length, int)
        most = self.points // 2 + 1 if self.is_inverse and self.is_half else self.points
        return min(length, most)

    @property
    def behind(self) -> tuple[Dim, ...]:
        """Axes between that of the transform and that of the parts."""
        return self.dims[self.axis + 1 : -1]


def has_few_points(node: ir.Node, named: Collection[str]) -> bool:
    """Whether a DFT is of a known number of points for which the product is faster."""
    transform = _transform(node) if is_rule(signal.dft, "DFT") else None
    if transform is None or any(n.outputs[0].name in named for n in _real_signal(node)):
        return False
    is_power = transform.points & (transform.points - 1) == 0
    return 1 <= transform.points <= (MOST_OF_POWER if is_power else MOST_POINTS)


def as_product(op: OpBuilder, node: ir.Node) -> Written:
    """The same, as a product with sines and cosines."""
    transform = _transform(node)
    assert transform is not None
    x, axis = operand(op, node), transform.axis
    x = _without_zeros(op, x, _real_signal(node))
    parts = x.dim(-1)
    assert isinstance(parts, int)
    if transform.read != transform.dims[axis]:
        x = op.Slice(x, [0], [transform.read], [axis])
    matrix = _matrix(transform, parts)
    if matrix.shape[1] == matrix.shape[3] == 1 and _is_wide(transform):
        return Written(_from_left(op, x, matrix[:, 0, :, 0], transform))
    return Written(_from_right(op, x, matrix, transform))


def _transform(node: ir.Node) -> Transform | None:
    """What a node computes, if its sizes are known."""
    x, points, where = (*node.inputs, None, None)[:3]
    dims, said = None if x is None else dims_of(x), node.attributes
    if dims is None or len(dims) < 3 or dims[-1] not in (1, 2):
        return None
    default_axis = 1 if node.graph is None or node.graph.opset_imports.get("", 0) < 20 else -2
    axes = [said.get_int("axis", default_axis)] if where is None else ints(where)
    if axes is None or (where is not None and known(where) is None) or len(axes) != 1:
        return None
    axis, is_half = axes[0] % len(dims), bool(said.get_int("onesided", 0))
    length, is_inverse = dims[axis], bool(said.get_int("inverse", 0))
    counts = None if points is None else ints(points)
    if not isinstance(length, int) or length < 1 or axis == len(dims) - 1:
        return None
    if points is not None and (counts is None or len(counts) != 1):
        return None
    if is_inverse and is_half and dims[-1] != 2:
        return None  # half a spectrum is complex
    default = 2 * (length - 1) if is_inverse and is_half else length
    return Transform(dims, axis, default if counts is None else counts[0], is_inverse, is_half)


def _matrix(transform: Transform, parts: int) -> Matrix:
    """Of each point that is read, and part of it, what it adds to each result and its parts."""
    count, read = transform.points, transform.read
    is_real = transform.is_half and transform.is_inverse
    results = count // 2 + 1 if transform.is_half and not is_real else count
    turns = np.outer(np.arange(read), np.arange(results)) % count / count
    angle = 2 * np.pi * turns * (1 if transform.is_inverse else -1)
    cosine = np.where(turns % 0.5 == 0.25, 0, np.cos(angle))
    sine = np.where(turns % 0.5 == 0, 0, np.sin(angle))
    matrix = np.empty((read, 2, results, 2))
    matrix[:, 0, :, 0] = matrix[:, 1, :, 1] = cosine
    matrix[:, 0, :, 1], matrix[:, 1, :, 0] = sine, -sine
    if transform.is_inverse:
        matrix /= count
    if is_real:  # each point but the first, and that in the middle, stands for two
        alone = np.arange(read) * 2 % count == 0
        matrix = np.where(alone, 1, 2)[:, None, None, None] * matrix[..., :1]
    return matrix[:, :parts]


def _is_wide(transform: Transform) -> bool:
    sizes = [d for d in transform.behind if isinstance(d, int)]
    return len(sizes) == len(transform.behind) and math.prod(sizes) >= WIDE


def _from_left(op: OpBuilder, x: Tensor, matrix: Matrix, transform: Transform) -> Tensor:
    """One part becomes one part, with much behind the axis: nothing is transposed."""
    axis, behind = transform.axis, transform.behind
    flat = op.Reshape(x, [*[0] * (axis + 1), math.prod(d for d in behind if isinstance(d, int))])
    y = op.const(np.ascontiguousarray(matrix.T), x.dtype) @ flat
    return op.Reshape(y, [*[0] * axis, matrix.shape[1], *behind, 1])


def _from_right(op: OpBuilder, x: Tensor, matrix: Matrix, transform: Transform) -> Tensor:
    """The axis goes next to that of the parts; both are one then."""
    read, parts, results, parts_after = matrix.shape
    rank, axis = len(transform.dims), transform.axis
    before = [*range(axis), *range(axis + 1, rank - 1), axis, rank - 1]
    after = [*range(axis), rank - 2, *range(axis, rank - 2), rank - 1]
    turned = x if axis == rank - 2 else op.Transpose(x, perm=before)
    rows = op.Reshape(turned, [*[0] * (rank - 2), read * parts])
    y = rows @ op.const(matrix.reshape(read * parts, results * parts_after), x.dtype)
    y = op.Reshape(y, [*[0] * (rank - 2), results, parts_after])
    return y if axis == rank - 2 else op.Transpose(y, perm=after)


def _real_signal(node: ir.Node) -> list[ir.Node]:
    """The nodes that give a real signal an imaginary part of zeros, and then take a part of it.

    So exporters write it; none if the signal is of another kind.
    """
    source, cuts = node.inputs[0], list[ir.Node]()
    while (cut := producer_of(source, "Slice")) is not None:
        cuts.insert(0, cut)
        source = cut.inputs[0]
    joined = producer_of(source, "Concat")
    dims = None if source is None else dims_of(source)
    if joined is None or dims is None or not _gives_zeros(joined, len(dims) - 1):
        return []
    axes = [ints(cut.inputs[3]) if len(cut.inputs) > 3 else None for cut in cuts]
    is_along = any(each is None or {-1, len(dims) - 1} & {*each} for each in axes)
    return [] if is_along else [joined, *cuts]


def _gives_zeros(joined: ir.Node, last: int) -> bool:
    """Whether zeros become the second part of what has one."""
    if len(joined.inputs) != 2 or joined.attributes.get_int("axis", 0) not in (-1, last):
        return False
    real, imaginary = joined.inputs
    dims = None if real is None else dims_of(real)
    while (cut := producer_of(imaginary, "Slice")) is not None:  # before it was joined
        imaginary = cut.inputs[0]
    repeated = producer_of(imaginary, "Expand")
    zero = imaginary if repeated is None else repeated.inputs[0]
    number = known(zero)
    is_zero = number is not None and number.size == 1 and not number.numpy().any()
    return dims is not None and dims[-1] == 1 and (is_zero or is_zeros(zero))


def _without_zeros(op: OpBuilder, x: Tensor, nodes: Sequence[ir.Node]) -> Tensor:
    """The signal with its real part only."""
    if not nodes:
        return x
    joined, *cuts = nodes
    assert joined.inputs[0] is not None
    real = op.tensor(joined.inputs[0])
    for cut in cuts:
        real = op.Slice(real, *(op.tensor(v) for v in cut.inputs[1:] if v is not None))
        real.value.shape = ir.Shape([*(dims_of(cut.outputs[0]) or ())[:-1], 1])
    return real
