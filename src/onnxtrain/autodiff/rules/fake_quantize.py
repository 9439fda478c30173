"""QuantizeLinear and DequantizeLinear with one scale, differentiated as one function.

y = s·(clip(round(x/s) + z) − z). Inside the range a value moves by half a step at most when it is
rounded, outside by more: so |y − x| tells which it was, without rounding a second time. With e =
y − x the gradients are

    ∂L/∂x = dy where |e| ≤ s/2, else 0
    ∂L/∂s = Σ dy·(e where |e| ≤ s/2, else y) / s

which are those of the two operators by themselves (quantization.py) in half the passes over
memory, and x and y are all that is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from ...graph import Tensor
from ...graph.nodes import known
from ..composites import FORMS, Composite
from .quantization import along_axis, collected

if TYPE_CHECKING:
    from ..walk import Walk


def fake_quantize(dequantize: ir.Node) -> Composite | None:
    """The pair that ends with this DequantizeLinear, if it is one."""
    codes = dequantize.inputs[0]
    quantize = None if codes is None else codes.producer()
    if codes is None or quantize is None or not _is_pair(quantize, dequantize):
        return None
    x, scale = quantize.inputs[0], quantize.inputs[1]
    attributes = quantize.attributes
    axis, block = attributes.get_int("axis", 1), attributes.get_int("block_size", 0)
    if x is None or scale is None or codes.dtype is None or not codes.dtype.is_integer():
        return None
    # y is a product that was rounded: an error of up to 2⁻²⁴ of it, which in steps grows with it
    half = 0.5 * (1.0 + 2.0 ** (codes.dtype.bitwidth - 22))

    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        op, dy = walk.op, dys[0]
        assert dy is not None
        floats, s = op.tensor(x), op.tensor(scale)
        y = op.tensor(dequantize.outputs[0])
        error = y - floats
        limit = along_axis(op, s, floats, axis, block) * half
        inside = op.LessOrEqual(op.Abs(error), limit)
        dx = op.Where(inside, dy, 0)
        if scale not in walk.active:
            return [(x, dx)]
        moved = dy * op.Where(inside, error, y)
        return [(x, dx), (scale, collected(op, moved, s, floats, axis, block) / s)]

    return Composite(dequantize, (codes,), gradient, (quantize, dequantize))


def _is_pair(quantize: ir.Node, dequantize: ir.Node) -> bool:
    """Whether a node undoes what the other did, and nobody else reads the integers."""
    if quantize.op_type != "QuantizeLinear" or quantize.domain:
        return False
    if len(quantize.outputs[0].uses()) != 1 or quantize.outputs[0].is_graph_output():
        return False
    names = ("axis", "block_size")
    defaults = {"axis": 1, "block_size": 0}
    same = [quantize.attributes.get_int(n, defaults[n]) for n in names]
    if same != [dequantize.attributes.get_int(n, defaults[n]) for n in names]:
        return False
    first, second = quantize.inputs[1:3], dequantize.inputs[1:3]
    return len(first) == len(second) and all(map(_are_equal, first, second))


def _are_equal(a: ir.Value | None, b: ir.Value | None) -> bool:
    if a is b:
        return True
    left, right = known(a), known(b)
    if left is None or right is None or left.dtype != right.dtype:
        return False
    return left.tobytes() == right.tobytes()


FORMS["DequantizeLinear"] = fake_quantize
