"""Cases of rules/resize.py."""

import numpy as np

from .harness import case, const, fixed, x

MODES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


# Scales give whole sizes and exact coordinates: for others onnx.reference and onnxruntime
# disagree on the result itself.


def resize(shape, given, roi=None, **attributes):
    """`given`: scales (floats) or sizes (integers)."""
    one = const(given, np.float32, keep=True) if any(isinstance(g, float) for g in given) else None
    other = const(given) if one is None else None
    region = None if roi is None else const(roi, np.float32, keep=True)
    return case("Resize", x(*shape), region, one, other, **attributes, _label=str(given))


CASES = [
    # whole-number enlargement, as U-Nets have it
    resize((2, 3, 4, 5), [1.0, 1.0, 2.0, 2.0]),
    resize(
        (2, 3, 4, 5),
        [1.0, 1.0, 2.0, 3.0],
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    resize((2, 3, 4, 5), [2, 3, 8, 15]),
    resize((2, 3, 4), [1.0, 1.0, 3.0], coordinate_transformation_mode="pytorch_half_pixel"),
    resize((1, 2, 2, 3, 2), [1.0, 1.0, 2.0, 1.0, 2.0]),
    resize((2, 3, 4, 5), [1.0, 1.0, 1.0, 1.0]),
    resize((2, 3, 4, 5), [1.0, 2.0, 2.0, 1.0]),
    resize((3, 4), [2.0, 2.0]),
    # nearest: every rounding and coordinate transformation, up and down
    *(
        resize(
            (1, 2, 4, 4),
            [1.0, 1.0, 1.75, 0.75],
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=mode,
        )
        for mode in MODES
        for rounding in NEAREST
    ),
    *(
        resize((1, 2, 5, 4), [1, 2, 7, 3], mode="nearest", coordinate_transformation_mode=mode)
        for mode in MODES
    ),
    # linear and cubic
    *(
        resize((1, 2, 5, 4), given, mode=kind, coordinate_transformation_mode=mode)
        for kind in ("linear", "cubic")
        for mode in MODES
        for given in ([1.0, 1.0, 2.0, 0.75], [1, 2, 3, 9])
    ),
    resize((2, 3, 6), [2, 3, 9], mode="linear"),
    # small maps, whose axes are one; and one that is too large for that
    resize(
        (2, 3, 4, 4), [2, 3, 3, 3], mode="linear", coordinate_transformation_mode="align_corners"
    ),
    resize((2, 1, 3, 2, 4), [2, 1, 2, 3, 3], coordinate_transformation_mode="asymmetric"),
    resize((1, 1, 8, 9), [1, 1, 7, 11], mode="linear"),
    resize((1, 2, 3, 4, 5), [1.0, 1.0, 2.0, 2.0, 1.5], mode="linear"),
    resize((1, 2, 5, 4), [1, 2, 9, 3], mode="cubic", cubic_coeff_a=-0.5),
    resize((1, 2, 5, 4), [1, 2, 9, 3], mode="cubic", exclude_outside=1),
    resize((1, 2, 5, 4), [1.0, 1.0, 1.6, 0.75], mode="cubic", exclude_outside=1),
    # antialiasing
    resize((1, 2, 9, 8), [1, 2, 4, 3], mode="linear", antialias=1),
    resize((1, 2, 9, 8), [1.0, 1.0, 0.6, 0.45], mode="cubic", antialias=1),
    resize((1, 2, 9, 4), [1, 2, 4, 7], mode="linear", antialias=1),
    # omitted as models up to opset 12 did it, with empty tensors
    case(
        "Resize",
        x(2, 3, 4, 5),
        const([], np.float32, keep=True),
        const([], np.float32, keep=True),
        const([2, 3, 8, 10]),
        _reference=False,  # onnx.reference takes the empty scales for scales
    ),
    # sizes that are fed
    *(
        case(
            "Resize",
            x(1, 2, 5, 4),
            None,
            None,
            fixed([1, 2, 9, 3]),
            mode=mode,
            _label="fed",
            _dynamic=False,  # inference wants to know how many sizes there are
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    # axes and aspect ratio
    resize((1, 2, 5, 4), [2.0, 1.5], mode="linear", axes=[3, 2]),
    resize((1, 2, 5, 4), [7, 3], mode="linear", axes=[2, 3]),
    resize((1, 2, 5, 4), [7], mode="cubic", axes=[3]),
    # onnx.reference does not know negative axes
    case("Resize", x(1, 2, 5, 4), None, None, const([7, 3]), axes=[-2, -1], _reference=False),
    *(
        resize((1, 2, 5, 4), given, mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy)
        for mode in ("nearest", "linear", "cubic")
        for policy in ("not_larger", "not_smaller")
        for given in ([7, 7], [3, 6])
    ),
    # crops
    *(
        resize(
            (1, 2, 5, 6),
            [1, 2, 4, 3],
            roi=[0, 0, 0.2, 0.1, 1, 1, 0.9, 1.4],
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=2.0,
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    resize(
        (1, 2, 5, 6),
        [1.0, 1.0, 1.6, 2.0],
        roi=[0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
]
