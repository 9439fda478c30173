"""Opset 7 to 17 → 18: one small adapter per operator whose form or meaning changed.

The onnx converter does most of this too, but not all of it (it knows nothing of ranks and writes
every old Softmax as Flatten + Softmax + Reshape; before onnx 1.20 it left subgraphs as they were),
and it needs the model as one protobuf. These adapters work in place, in subgraphs as well, and
leave every other name alone. Operators that are not listed have the same meaning in 18.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import ModelError
from ..graph import OpBuilder, Tensor
from ..graph.infer import convert_version
from .old_scan import old_scan
from .rewrite import Lowering, all_nodes, describe, rewrite, standard

OLDEST = 7
"""The first version with today's broadcasting; older models go through the onnx converter."""


def raise_opset(model: ir.Model, to: int) -> ir.Model:
    """Bring a model below opset `to` (18) up to it. Values should be typed already."""
    if model.opset_imports[""] < OLDEST:
        model = convert_version(model, OLDEST)
    version = model.opset_imports[""]
    table = {}
    for (op_type, until), lowering in reversed(ADAPTERS.items()):
        if version < until:
            table["", op_type] = lowering
    waiting = rewrite(model, table, to)
    assert not waiting, "adapters fall back to forms that need no rank"
    _refuse_removed(model, version, to)
    model.opset_imports[""] = to
    return model


def _refuse_removed(model: ir.Model, version: int, to: int) -> None:
    for node in all_nodes(model):
        if standard(node.domain):
            continue
        known = onnx.defs.has(node.op_type, version) or onnx.defs.has(node.op_type, to)
        if known and not onnx.defs.has(node.op_type, to):
            raise ModelError(
                f"{describe(node)} exists in opset {version} but no longer in {to}, and there is "
                "no replacement for it. Export the model with a newer opset."
            )


# --- attributes that became inputs ---------------------------------------------------------------


def _reduction(op_type: str) -> Lowering:
    def lower(op: OpBuilder, x: Tensor, *, axes: Sequence[int] = (), keepdims: int = 1) -> Tensor:
        return op.emit(op_type, [x, list(axes) or None], 1, keepdims=keepdims)[0]

    return lower


def _squeeze(op: OpBuilder, x: Tensor, *, axes: Sequence[int] = ()) -> Tensor:
    return op.Squeeze(x, list(axes) or None)


def _unsqueeze(op: OpBuilder, x: Tensor, *, axes: Sequence[int]) -> Tensor:
    return op.Unsqueeze(x, list(axes))


def _clip(op: OpBuilder, x: Tensor, **limits: float) -> Tensor:
    low, high = (op.like(limits[k], x) if k in limits else None for k in ("min", "max"))
    return x if low is None and high is None else op.Clip(x, low, high)


def _pad(
    op: OpBuilder, x: Tensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Tensor:
    fill = op.like(value, x) if mode == "constant" else None
    return op.Pad(x, list(pads), fill, mode=mode)


def _slice(
    op: OpBuilder,
    x: Tensor,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
) -> Tensor:
    along = list(range(len(starts))) if axes is None else list(axes)
    return op.Slice(x, list(starts), list(ends), along)


def _top_k(op: OpBuilder, x: Tensor, *, k: int, axis: int = -1) -> Any:
    return op.many("TopK", x, [k], axis=axis, outputs=2)


def _split(
    op: OpBuilder,
    x: Tensor,
    sizes: Tensor | None,
    *,
    outputs: tuple[bool, ...],
    axis: int = 0,
    split: Sequence[int] | None = None,
) -> Any:
    count = len(outputs)
    if split is not None:
        return op.many("Split", x, list(split), axis=axis, outputs=count)
    if sizes is not None:
        return op.many("Split", x, sizes, axis=axis, outputs=count)
    return op.many("Split", x, axis=axis, num_outputs=count, outputs=count)


def _dropout(mask_is_bool: bool) -> Lowering:
    def lower(op: OpBuilder, x: Tensor, *, outputs: tuple[bool, ...], ratio: float = 0.5) -> Any:
        # The old operator was an identity outside training, and so is this without training_mode.
        rate = op.const(ratio, ir.DataType.FLOAT)
        if len(outputs) < 2:
            return op.Dropout(x, rate)
        y, mask = op.many("Dropout", x, rate, outputs=2)
        return y, mask if mask_is_bool else op.Cast(mask, to=x.dtype)

    return lower


# --- a changed meaning ---------------------------------------------------------------------------


def _flattened(op_type: str) -> Lowering:
    """Softmax & co. once worked on all axes from `axis` on, taken as one."""

    def lower(op: OpBuilder, x: Tensor, *, axis: int = 1) -> Tensor:
        shape = x.shape
        if shape is not None:
            rest = shape[axis % len(shape) + 1 :] if shape else ()
            if all(d == 1 for d in rest):
                return op.emit(op_type, [x], 1, axis=axis)[0]
        flat = op.Flatten(x, axis=axis)
        return op.reshape_like(op.emit(op_type, [flat], 1, axis=-1)[0], x)

    return lower


def _batch_normalization(
    op: OpBuilder,
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    outputs: tuple[bool, ...],
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Any:
    training = any(outputs[1:])
    if not spatial:
        if training:
            raise ModelError("BatchNormalization with spatial=0 cannot be used in training mode.")
        return (x - mean) / op.Sqrt(var + epsilon) * scale + bias
    attributes = {"epsilon": epsilon, "momentum": momentum}
    if not training:
        return op.BatchNormalization(x, scale, bias, mean, var, **attributes)
    # Outputs 3 and 4 (the saved batch statistics) were for the backward pass and are gone.
    return op.many(
        "BatchNormalization", x, scale, bias, mean, var, outputs=3, training_mode=1, **attributes
    )


def _upsample_scales(
    op: OpBuilder, x: Tensor, *, scales: Sequence[float], mode: str = "nearest"
) -> Tensor:
    return _upsample(op, x, op.const(np.array(scales, np.float32)), mode=mode)


def _upsample(op: OpBuilder, x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return op.Resize(
        x, None, scales, mode="linear" if mode == "bilinear" else mode,
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _resize(
    op: OpBuilder, x: Tensor, roi: Tensor | None, scales: Tensor | None, sizes: Tensor | None,
    *, coordinate_transformation_mode: str = "half_pixel", nearest_mode: str = "round_prefer_floor",
    mode: str = "nearest", **attributes: Any,
) -> Tensor:  # fmt: skip
    if sizes is not None:  # `scales` was required then, and left empty
        scales = None
    if coordinate_transformation_mode != "tf_crop_and_resize":
        roi = None
    if coordinate_transformation_mode == "tf_half_pixel_for_nn":
        # floor((i + ½)/s) is what half_pixel gives when halves are rounded up.
        if mode != "nearest" or nearest_mode != "floor":
            raise ModelError(
                "Resize with coordinate_transformation_mode 'tf_half_pixel_for_nn' can only be "
                f"kept with mode 'nearest' and nearest_mode 'floor', not {nearest_mode!r}."
            )
        coordinate_transformation_mode, nearest_mode = "half_pixel", "round_prefer_ceil"
    return op.Resize(
        x, roi, scales, sizes, mode=mode, nearest_mode=nearest_mode,
        coordinate_transformation_mode=coordinate_transformation_mode, **attributes,
    )  # fmt: skip


def _roi_align(
    op: OpBuilder, x: Tensor, rois: Tensor, batch_indices: Tensor, **attributes: Any
) -> Tensor:
    # The default became half_pixel; what older versions did is the other mode.
    return op.RoiAlign(
        x, rois, batch_indices, coordinate_transformation_mode="output_half_pixel", **attributes
    )


def _scatter(
    op: OpBuilder, x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0
) -> Tensor:
    return op.ScatterElements(x, indices, updates, axis=axis)


# --- experimental operators that left the standard in opset 10 -----------------------------------


def _image_scaler(
    op: OpBuilder, x: Tensor, *, bias: Sequence[float] = (), scale: float = 1.0
) -> Tensor:
    scaled = x * scale
    if not bias:
        return scaled
    return scaled + op.const(np.array(bias, np.float32).reshape(-1, 1, 1), x.dtype)


def _affine(op: OpBuilder, x: Tensor, *, alpha: float = 1.0, beta: float = 0.0) -> Tensor:
    return x * alpha + beta


def _scaled_tanh(op: OpBuilder, x: Tensor, *, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    return op.Tanh(x * beta) * alpha


def _parametric_softplus(
    op: OpBuilder, x: Tensor, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    return op.Softplus(x * beta) * alpha


def _each(names: Sequence[str], until: int, make: Callable[[str], Lowering]) -> dict[Any, Lowering]:
    return {(name, until): make(name) for name in names}


ADAPTERS: dict[tuple[str, int], Lowering] = {
    **_each(("Softmax", "LogSoftmax", "Hardmax"), 13, _flattened),
    **_each(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
         "ReduceMin", "ReduceProd", "ReduceSumSquare"), 18, _reduction,
    ),
    ("ReduceSum", 13): _reduction("ReduceSum"),
    ("Squeeze", 13): _squeeze,
    ("Unsqueeze", 13): _unsqueeze,
    ("Clip", 11): _clip,
    ("Pad", 11): _pad,
    ("Slice", 10): _slice,
    ("TopK", 10): _top_k,
    ("Split", 18): _split,
    ("Dropout", 10): _dropout(mask_is_bool=False),
    ("Dropout", 12): _dropout(mask_is_bool=True),
    ("BatchNormalization", 14): _batch_normalization,
    ("Upsample", 9): _upsample_scales,
    ("Upsample", 18): _upsample,
    ("Resize", 11): _upsample,
    ("Resize", 13): _resize,
    ("RoiAlign", 16): _roi_align,
    ("Scatter", 18): _scatter,
    ("Scan", 9): old_scan,
    ("ImageScaler", 18): _image_scaler,
    ("Affine", 18): _affine,
    ("ScaledTanh", 18): _scaled_tanh,
    ("ParametricSoftplus", 18): _parametric_softplus,
}  # fmt: skip
"""(operator, first version that no longer needs the adapter); of several the lowest applies."""
