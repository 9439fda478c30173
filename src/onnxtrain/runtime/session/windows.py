"""What cuts windows out of small images, and what adds them up: nodes of our own for them.

`passes/kernels.py` has marked the last node of each. All that a kernel is told is read from the
nodes: constants, attributes, and which value goes into which node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..fusion.operators import CUT_WINDOWS, FOLD_WINDOWS
from .own_nodes import Node, if_sound
from .patterns import Nodes, Opened

BY_CHANNEL, BY_IMAGE = 0, 1
"""Layouts: windows of all images side by side for each channel and place, or rows and images."""
IMAGES_LAST, CHANNELS_LAST = [1, 0, 2, 3], [0, 2, 3, 1]
"""Orders of the axes of an image."""


def folded(nodes: Nodes, node: Opened) -> Node | None:
    """A Col2Im of images, with the Transpose before it that puts the images first."""
    sizes, kernel = (nodes.constant(name) for name in node.inputs[1:])
    if sizes is None or kernel is None or not len(sizes.elements) == len(kernel.elements) == 2:
        return None
    numbers = [*_geometry(node, list(kernel.elements)), *sizes.elements]
    source, layout = node.inputs[0], BY_IMAGE
    turned = nodes.maker(source)
    if turned is not None and _turns(turned, [1, 0, 2]):
        cells = nodes.maker(turned.inputs[0])
        shape = nodes.constant(cells.inputs[1]) if cells is not None else None
        if cells is not None and cells.operator == "Reshape" and shape is not None:
            is_split = shape.elements[:2] == (0, -1) and not cells.attributes.get("allowzero", 0)
            if is_split and len(shape.elements) == 3:
                source, layout = cells.inputs[0], BY_CHANNEL
    if layout == BY_CHANNEL and not _count_fits(numbers, shape.elements[2] if shape else 0):
        return None
    return if_sound(Node(FOLD_WINDOWS, (source,), node.outputs, (layout, *numbers)))


def _count_fits(numbers: Sequence[int], count: int) -> bool:
    """Whether images have as many windows as the cells of each are said to be."""
    total = 1
    for axis, size in enumerate(numbers[12:]):
        kernel, stride, dilation, before, behind, _ = numbers[6 * axis : 6 * axis + 6]
        total *= (size + before + behind - (kernel - 1) * dilation - 1) // stride + 1
    return total == count


def cut_by_conv(nodes: Nodes, node: Opened) -> Node | None:
    """A Conv that takes channels for images, and has a filter for each place of the kernel."""
    if len(node.inputs) > 2 and node.inputs[2]:
        return None
    weights = nodes.floats(node.inputs[1])
    if weights is None or weights.ndim != 5 or weights.shape[1:3] != (1, 1):
        return None
    count, kernel = len(weights), list(weights.shape[3:])
    if not np.array_equal(weights.reshape(count, -1), np.eye(count, dtype=np.float32)):
        return None
    said = node.attributes
    if said.get("group", 1) != 1 or said.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    strides, dilations = said.get("strides", [1] * 3), said.get("dilations", [1] * 3)
    pads = said.get("pads", [0] * 6)
    if strides[0] != 1 or dilations[0] != 1 or pads[0] or pads[3]:
        return None
    lifted = nodes.maker(node.inputs[0])
    axes = nodes.constant(lifted.inputs[1]) if lifted and lifted.operator == "Unsqueeze" else None
    if lifted is None or axes is None or axes.elements != (1,):
        return None
    turned = nodes.maker(lifted.inputs[0])
    if turned is None or not _turns(turned, IMAGES_LAST):
        return None
    numbers = _axes(kernel, strides[1:], dilations[1:], [*pads[1:3], *pads[4:]])
    operands = (turned.inputs[0],)
    return if_sound(Node(CUT_WINDOWS, operands, node.outputs, (BY_CHANNEL, *numbers, 0, 0)))


def cut_by_slices(nodes: Nodes, node: Opened) -> Node | None:
    """Rows of windows: a Slice for each place of the kernel, all of one image, channels last."""
    shape, turned = nodes.constant(node.inputs[1]), nodes.maker(node.inputs[0])
    if shape is None or len(shape.elements) != 2 or shape.elements[0] != -1 or turned is None:
        return None
    stacked = nodes.maker(turned.inputs[0]) if _turns(turned, [1, 0]) else None
    if stacked is None or stacked.operator != "Concat" or stacked.attributes.get("axis"):
        return None
    cuts = [_flat_slice(nodes, name) for name in stacked.inputs]
    known = [cut for cut in cuts if cut is not None]
    if len(known) != len(cuts) or len({(cut[0], cut[3]) for cut in known}) != 1:
        return None
    image, _, _, strides = known[0]
    windows = {_windows(*cut[1:]) for cut in known}
    places = _places([cut[1] for cut in known])
    source = _padded(nodes, image)
    if places is None or source is None or len(windows) != 1:
        return None
    (kernel, dilations), (name, pads), (counts,) = places, source, windows
    numbers = _axes(kernel, strides, dilations, pads, counts)
    rest = (shape.elements[1], 0)
    return if_sound(Node(CUT_WINDOWS, (name,), node.outputs, (BY_IMAGE, *numbers, *rest)))


Cut = tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What is sliced, and where slices begin and end along the axes of the image, and their steps."""


def _flat_slice(nodes: Nodes, name: str) -> Cut | None:
    """A Slice along the two middle axes, as one row."""
    flat = nodes.maker(name)
    shape = nodes.constant(flat.inputs[1]) if flat and flat.operator == "Reshape" else None
    cut = nodes.maker(flat.inputs[0]) if flat is not None and shape is not None else None
    if shape is None or shape.elements != (1, -1) or cut is None or cut.operator != "Slice":
        return None
    if len(cut.inputs) < 5:
        return None
    begins, ends, axes, steps = (nodes.constant(name) for name in cut.inputs[1:5])
    if begins is None or ends is None or steps is None or axes is None or axes.elements != (1, 2):
        return None
    each = list(zip(begins.elements, ends.elements, steps.elements, strict=True))
    if not all(0 <= begin < end and step >= 1 for begin, end, step in each):
        return None
    return cut.inputs[0], begins.elements, ends.elements, steps.elements


def _windows(begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    """How many elements slices have along each axis."""
    return tuple((e - b - 1) // step + 1 for b, e, step in zip(begins, ends, steps))


def _places(begins: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]] | None:
    """Kernel and dilations, if slices begin at the places of a kernel, row by row."""
    width = sum(1 for y, _ in begins if y == begins[0][0])
    height = len(begins) // width
    along = begins[1][1] if width > 1 else 1
    down = begins[width][0] if height > 1 else 1
    expected = [(y * down, x * along) for y in range(height) for x in range(width)]
    return ([height, width], [down, along]) if list(begins) == expected else None


def _padded(nodes: Nodes, name: str) -> tuple[str, list[int]] | None:
    """The image behind a Transpose that puts channels last, and zeros around it."""
    node, pads = nodes.maker(name), (0,) * 8
    if node is not None and node.operator == "Pad":
        amounts = nodes.constant(node.inputs[1])
        is_filled = node.attributes.get("mode", "constant") == "constant"
        fill, axes = (*node.inputs[2:], "", "")[:2]
        is_zero = not fill or nodes.number(fill) == 0
        if amounts is None or not is_filled or not is_zero or axes or len(amounts.elements) != 8:
            return None
        pads, node = amounts.elements, nodes.maker(node.inputs[0])
    if node is None or not _turns(node, CHANNELS_LAST) or pads[0] or pads[3] or pads[4] or pads[7]:
        return None
    return node.inputs[0], [pads[1], pads[2], pads[5], pads[6]]


def _turns(node: Opened, order: Sequence[int]) -> bool:
    return node.operator == "Transpose" and list(node.attributes.get("perm", [])) == list(order)


def _geometry(node: Opened, kernel: Sequence[int]) -> list[int]:
    said = node.attributes
    strides, dilations = said.get("strides", [1, 1]), said.get("dilations", [1, 1])
    return _axes(kernel, strides, dilations, said.get("pads", [0] * 4))


def _axes(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    windows: Sequence[int] = (0, 0),
) -> list[int]:
    """Numbers of both axes; no windows are as many as fit."""
    each = zip(kernel, strides, dilations, pads[:2], pads[2:], windows, strict=True)
    return [number for axis in each for number in axis]
