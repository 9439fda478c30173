"""Moments in fewer bits: blocks of 256 numbers with a scale each.

A block's scale s is its largest magnitude. What is stored of x is how it relates to s, bent so that
small numbers keep their digits:

    int8       first moment   c = ±127·(|x|/s)^¼,   x = ±s·(c/127)⁴
               second moment  c = 255·(x/s)^⅛,      x = s·(c/255)⁸
    float16    first moment   x/s;   second moment √(x/s)

so a hundredth of the largest first moment of a block has still 40 codes, and its square 80.

Adam's second moment changes by a thousandth in a step, which is less than two codes differ by:
rounded to the nearest it would stand still. So an int8 code is ⌊c + u⌋ with u from 0 to 1 that runs
through the range evenly from step to step (a multiple of the golden ratio, and another beginning
for each place in a block): on average over steps the stored number is the right one, and because u
follows from the step, a resumed run repeats it. A second moment that is not 0 is never stored as 0,
which would make the step infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .optimizer import Optimizer, OptimizerError
from .transforms import FIRST, SECOND, scale_by_adam

BLOCK = 256
"""Numbers that share a scale, as in bitsandbytes."""
GOLDEN = 0.6180339887498949
PLACES = ((np.arange(BLOCK) * 0.7548776662466927) % 1.0).astype(np.float32)
"""Where u begins for each place of a block: another irrational number, so that neighbours
differ."""
TYPES = {
    "int8": {FIRST: ir.DataType.INT8, SECOND: ir.DataType.UINT8},
    "float16": {FIRST: ir.DataType.FLOAT16, SECOND: ir.DataType.FLOAT16},
}
CODES = {ir.DataType.INT8: "I8", ir.DataType.UINT8: "U8", ir.DataType.FLOAT16: "F16"}
"""Types under the names that checkpoints have for them."""
SCALE = ".scale"
"""How the names of a state's scales end."""
TINY = 1e-37
"""What a scale is at least when it is divided by."""


def check_packed(optimizer: Optimizer) -> None:
    """Raise unless the moments of an optimizer can be stored as asked for."""
    kind = optimizer.moments
    if kind == "float32":
        return
    if kind == "bfloat16":
        raise OptimizerError(
            "moments='bfloat16' would stand still: Adam's second moment changes by a thousandth in "
            "a step, and bfloat16 tells numbers apart that differ by four. Use 'float16' or 'int8'."
        )
    if kind not in TYPES:
        raise OptimizerError(f"moments is 'float32', 'float16' or 'int8', not {kind!r}.")
    if set(optimizer.states) != {FIRST, SECOND} or not any(
        isinstance(t, scale_by_adam) for t in optimizer.transforms
    ):
        raise OptimizerError(
            f"moments={kind!r} is for Adam and AdamW; {optimizer.name} keeps {optimizer.states}."
        )
    if any(group.transforms is not None for group in optimizer.groups):
        raise OptimizerError(
            f"moments={kind!r} takes no parameter groups with a chain of their own."
        )


def stored_states(optimizer: Optimizer) -> list[str]:
    """Names of what is stored: of packed moments the codes and their scales."""
    if optimizer.moments == "float32":
        return list(optimizer.states)
    return [name for state in optimizer.states for name in (state, state + SCALE)]


def stored_shape(optimizer: Optimizer, state: str, shape: Sequence[int]) -> list[int]:
    """Shape of what is stored for a parameter of a given shape."""
    if state.endswith(SCALE) and optimizer.moments != "float32":
        return [max(-(-int(np.prod(shape, dtype=np.int64)) // BLOCK), 1)]
    return optimizer.state_shape(state, shape)


def stored_types(optimizer: Optimizer) -> dict[str, ir.DataType]:
    """Element types of the states that are no float32."""
    return dict(TYPES.get(optimizer.moments, {}))


def described(optimizer: Optimizer) -> dict[str, Any]:
    """What the runtime has to know of packed moments; nothing without them."""
    if optimizer.moments == "float32":
        return {}
    types = {name: CODES[dtype] for name, dtype in stored_types(optimizer).items()}
    return {"moments": optimizer.moments, "state_types": types}


class Packing:
    """Unpacks and packs the moments of one parameter, of any shape.

    Args:
        op: the builder.
        gradient: of the parameter; it has its shape.
        step: number of the update.
    """

    def __init__(self, op: OpBuilder, gradient: Tensor, step: Tensor) -> None:
        self.op, self.step = op, step
        self._shape = op.Shape(gradient)
        self._size = op.Reshape(op.Size(gradient), [1])
        missing = op.Mod(op.Neg(self._size), op.const([BLOCK]))
        self._padding = op.Concat(op.const([0]), missing, axis=0)

    def unpack(self, state: str, codes: Tensor, scales: Tensor) -> Tensor:
        """The numbers that are stored."""
        op = self.op
        kind = codes.dtype
        parts = self._blocks(op.Cast(codes, to=ir.DataType.FLOAT))
        if kind == ir.DataType.INT8:
            share = parts * (1.0 / 127.0)
            square = share * share
            numbers = square * square * op.Sign(parts)
        elif kind == ir.DataType.UINT8:
            share = parts * (1.0 / 255.0)
            square = share * share
            fourth = square * square
            numbers = fourth * fourth
        else:
            numbers = parts * parts if state == SECOND else parts
        return self._whole(numbers * op.Unsqueeze(scales, [1]))

    def pack(self, state: str, numbers: Tensor, dtype: ir.DataType) -> tuple[Tensor, Tensor]:
        """Codes and scales of numbers."""
        op = self.op
        parts = self._blocks(numbers)
        sizes = op.Abs(parts)
        largest = op.ReduceMax(sizes, [1], keepdims=1)
        share = op.Sqrt(sizes / op.Max(largest, TINY))
        if dtype == ir.DataType.INT8:
            steps = op.Floor(op.Sqrt(share) * 127.0 + self._dither())
            codes = op.Min(steps, 127.0) * op.Sign(parts)
        elif dtype == ir.DataType.UINT8:
            steps = op.Floor(op.Sqrt(op.Sqrt(share)) * 255.0 + self._dither())
            codes = op.Min(op.Max(steps, op.Sign(sizes)), 255.0)
        else:
            codes = share if state == SECOND else parts / op.Max(largest, TINY)
        return op.Cast(self._whole(codes), to=dtype), op.Reshape(largest, [-1])

    def _dither(self) -> Tensor:
        """u of this step, for each place of a block."""
        op = self.op
        moved = op.Cast(self.step, to=ir.DataType.DOUBLE) * GOLDEN
        part = op.Cast(moved - op.Floor(moved), to=ir.DataType.FLOAT)
        u = op.const(PLACES) + part
        return u - op.Floor(u)

    def _blocks(self, x: Tensor) -> Tensor:
        op = self.op
        flat = op.Pad(op.Reshape(x, [-1]), self._padding)
        return op.Reshape(flat, [-1, BLOCK])

    def _whole(self, x: Tensor) -> Tensor:
        op = self.op
        flat = op.Slice(op.Reshape(x, [-1]), [0], self._size, [0])
        return op.Reshape(flat, self._shape)


def unpacked(packing: Packing, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The moments as floats, from what is stored of them."""
    names = [name for name in stored if not name.endswith(SCALE)]
    return {n: packing.unpack(n, stored[n], stored[n + SCALE]) for n in names}


def packed(
    packing: Packing, moments: Mapping[str, Tensor], types: Mapping[str, ir.DataType]
) -> dict[str, Tensor]:
    """What is stored of moments."""
    stored: dict[str, Tensor] = {}
    for name, numbers in moments.items():
        stored[name], stored[name + SCALE] = packing.pack(name, numbers, types[name])
    return stored
