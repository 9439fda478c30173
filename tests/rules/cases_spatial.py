"""Cases of rules/spatial.py, gridsample.py, roi.py and deform.py."""

import numpy as np

from .harness import case, const, fixed, x

# Positions inside, near the border and far outside, none at a kink.
GRID = x(2, 3, 4, 2, low=-1.7, high=1.6, spread=True)
GRID_3D = x(1, 2, 2, 3, 3, low=-1.4, high=1.45, spread=True)

ROIS = fixed(
    [[0.3, 0.6, 4.2, 3.9], [1.1, 0.2, 2.4, 4.7], [-1.5, 2.2, 6.8, 9.1], [2.0, 2.0, 2.0, 2.0]],
    np.float64,
)
BATCH = fixed([0, 1, 1, 0])


def roi_align(**attributes):
    pixels = x(2, 3, 5, 6, spread=True)
    return case("RoiAlign", pixels, ROIS, BATCH, output_height=2, output_width=3, **attributes)


def deform(image, weight, *, masked=True, offset_group=1, **attributes):
    """Offsets between -0.9 and 0.9, so that some positions leave the image."""
    kernel = list(weight[2:])
    rank = len(kernel)
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * 2)
    pads = attributes.get("pads", [0] * 2 * rank)
    windows = [
        (image[i + 2] + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1)
        // strides[i] + 1
        for i in range(rank)
    ]  # fmt: skip
    cells = offset_group * kernel[0] * kernel[1]
    offset = x(image[0], 2 * cells, *windows, low=-0.9, high=0.9, spread=True)
    mask = x(image[0], cells, *windows, low=0.2, high=1) if masked else None
    return case(
        "DeformConv", x(*image), x(*weight), offset, x(weight[0]), mask,
        kernel_shape=kernel, offset_group=offset_group, _opset=19, **attributes,
    )  # fmt: skip


CASES = [
    case("AffineGrid", x(2, 2, 3), const([2, 3, 4, 5]), _opset=20),
    case("AffineGrid", x(2, 2, 3), fixed([2, 3, 4, 5]), _opset=20, align_corners=1),
    case("AffineGrid", x(1, 3, 4), fixed([1, 2, 3, 4, 2]), _opset=20),
    case("AffineGrid", x(1, 3, 4), fixed([1, 2, 3, 4, 2]), _opset=20, align_corners=1),
    case("DepthToSpace", x(2, 8, 2, 3), blocksize=2),
    case("DepthToSpace", x(2, 8, 2, 3), blocksize=2, mode="CRD"),
    case("DepthToSpace", x(1, 18, 2, 1), blocksize=3, mode="CRD"),
    case("SpaceToDepth", x(2, 3, 4, 6), blocksize=2),
    case("Col2Im", x(2, 12, 12), const([5, 4]), const([2, 2])),
    case("Col2Im", x(2, 12, 6), const([5, 6]), const([2, 3]), strides=[2, 2], pads=[0, 1, 0, 1]),
    case("Col2Im", x(2, 12, 6), const([5, 5]), const([2, 2]), dilations=[2, 3]),
    case("Col2Im", x(2, 9, 4), const([6]), const([3])),
    case("Col2Im", x(2, 12, 12), fixed([5, 4]), fixed([2, 2]), _dynamic=False),
    case("Col2Im", x(2, 12, 6), const([5, 6]), fixed([2, 3]), strides=[2, 2], pads=[0, 1, 0, 1]),
    case("Col2Im", x(2, 12, 6), fixed([5, 5]), fixed([2, 2]), dilations=[2, 3]),
    case("Col2Im", x(2, 9, 4), fixed([6]), fixed([3]), _dynamic=False),
    case("Col2Im", x(1, 8, 12), fixed([3, 4, 3]), fixed([2, 2, 2]), strides=[1, 1, 1]),
    case("Col2Im", x(1, 8, 12), const([3, 4, 3]), const([2, 2, 2])),
    # --- GridSample
    *(
        case(
            "GridSample",
            x(2, 3, 5, 6),
            GRID,
            mode=mode,
            padding_mode=padding,
            align_corners=align,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    *(
        case(
            "GridSample",
            x(1, 2, 3, 4, 5),
            GRID_3D,
            mode=mode,
            padding_mode=padding,
            align_corners=align,
            _opset=20,
        )
        for mode in ("linear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    # --- regions
    roi_align(),
    roi_align(sampling_ratio=2),
    roi_align(sampling_ratio=3, spatial_scale=0.6),
    roi_align(coordinate_transformation_mode="output_half_pixel"),
    roi_align(mode="max", sampling_ratio=2),
    roi_align(mode="max", coordinate_transformation_mode="output_half_pixel"),
    # onnx.reference has no MaxRoiPool
    *(
        case(
            "MaxRoiPool",
            x(2, 3, 5, 6, spread=True, low=-4, high=4),
            fixed([[0, 0, 0, 3, 3], [1, 1.4, 2, 5, 4.6], [1, 0, 1, 9, 9]], np.float32),
            pooled_shape=[2, 3],
            spatial_scale=scale,
            _reference=False,
        )
        for scale in (1.0, 0.5)
    ),
    # --- DeformConv
    deform((2, 4, 5, 6), (3, 4, 2, 2)),
    deform((2, 4, 5, 6), (3, 4, 3, 3), strides=[2, 2], pads=[1] * 4),
    deform((1, 4, 5, 6), (4, 2, 2, 3), group=2, offset_group=2, dilations=[2, 1]),
    deform((1, 4, 5, 6), (2, 4, 3, 2), masked=False, offset_group=4, pads=[1, 0, 0, 1]),
]
