"""A frozen convolution whose kernel covers most of its (small) map is a matrix product.

At the end of a deep network maps have one or four pixels. There a 3×3 kernel mostly multiplies
padding, and a kernel that goes from pixel to pixel reads all weights for each of them. One matrix
that takes all pixels to all pixels at once does neither: 512 channels on 2×2, a batch of 16, took
3.3 ms as a Conv in onnxruntime's blocked layout, and take 1.4 ms as a Gemm.

Only constants are rewritten: to lay out weights that change would cost more than it saves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graph.edit import remove_nodes, take_over
from ..graph.nodes import constant, insert, known
from ..graph.tensor import dims_of
from .cleanup import remove_unread_initializers

Array = npt.NDArray[np.floating]

MOST_GROWTH = 2
"""How many times the convolution's weights the matrix may have."""
FEWEST_ROWS = 2
"""For one image reading the larger matrix takes longer than the work that it saves."""
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


_Matrices = dict[tuple[Hashable, ...], tuple[ir.Value, ir.Value]]


def small_maps_as_products(model: ir.Model) -> ir.Model:
    """Rewrite the graph's own Conv nodes where it pays; a frozen normalization goes into them."""
    matrices: _Matrices = {}
    for node in list(model.graph):
        if node.op_type == "Conv" and not node.domain:
            _rewrite(model.graph, node, matrices)
    remove_unread_initializers(model.graph)
    return model


def _rewrite(graph: ir.Graph, conv: ir.Node, made: _Matrices) -> None:
    window = _window(conv)
    if window is None:
        return
    normalization = _frozen_normalization(conv)
    last = normalization or conv
    constants = [*conv.inputs[1:], *(normalization.inputs[1:] if normalization else ())]
    key = (window, *map(id, constants))
    if key not in made:
        made[key] = _matrix(conv, normalization, window)
    matrix, bias = made[key]
    old = last.outputs[0]
    assert matrix.const_value is not None
    assert old.shape is not None
    wide, narrow = (int(size) for size in matrix.const_value.shape.numpy())
    flat = insert(last, "Reshape", [conv.inputs[0], constant(last, [-1, wide], "flat")])
    product = insert(last, "Gemm", [flat, matrix, bias])
    flat.shape, product.shape = (ir.Shape([old.shape[0], size]) for size in (wide, narrow))
    target = constant(last, [-1, narrow // math.prod(window.outputs), *window.outputs], "map")
    result = insert(last, "Reshape", [product, target], "result")
    take_over(old, result)
    remove_nodes(graph, [last] if last is conv else [conv, last])


@dataclass(frozen=True)
class _Window:
    """Where a kernel lies: one entry per spatial axis."""

    sizes: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]

    def taps(self) -> npt.NDArray[np.int64]:
        """Which element of the kernel lies between an input and an output pixel; −1 is none."""
        found = np.zeros((1, 1), np.int64)
        for axis, kernel in enumerate(self.kernel):
            starts = np.arange(self.outputs[axis]) * self.strides[axis] - self.begins[axis]
            distance = np.arange(self.sizes[axis])[:, None] - starts
            tap, rest = np.divmod(distance, self.dilations[axis])
            tap[(rest != 0) | (tap < 0) | (tap >= kernel)] = -1
            before, here = found[:, None, :, None], tap[None, :, None, :]
            both = np.where((before < 0) | (here < 0), -1, before * kernel + here)
            found = both.reshape(found.shape[0] * len(tap), -1)
        return found


def _window(conv: ir.Node) -> _Window | None:
    """The geometry, if it is known and the product pays."""
    x, y = dims_of(conv.inputs[0]) if conv.inputs[0] is not None else None, dims_of(conv.outputs[0])
    weights = _value(conv.inputs[1])
    if x is None or y is None or weights is None or conv.attributes.get_int("group", 1) != 1:
        return None
    if any(v is not None and _value(v) is None for v in conv.inputs[2:]):
        return None
    sizes, outputs, kernel = tuple(x[2:]), tuple(y[2:]), weights.shape[2:]
    if not all(isinstance(d, int) for d in (*sizes, *outputs)):
        return None
    rank = len(kernel)
    auto_pad = conv.attributes.get_string("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID"):
        return None
    pads = conv.attributes.get_ints("pads") if auto_pad == "NOTSET" else None
    window = _Window(
        sizes,  # type: ignore[arg-type]
        outputs,  # type: ignore[arg-type]
        kernel,
        tuple(conv.attributes.get_ints("strides") or [1] * rank),
        tuple(conv.attributes.get_ints("dilations") or [1] * rank),
        tuple(pads or [0] * rank)[:rank],
    )
    pairs = math.prod(window.sizes) * math.prod(window.outputs)
    few_rows = isinstance(x[0], int) and x[0] < FEWEST_ROWS
    pays = 0 < pairs <= MOST_GROWTH * math.prod(kernel) and math.prod(kernel) > 1
    return window if pays and not few_rows else None


def _value(value: ir.Value | None) -> Array | None:
    """The numbers of a constant, None for what is none (a parameter, say)."""
    tensor = known(value)
    return tensor.numpy() if tensor is not None and tensor.dtype in TYPES else None


def _bias_of(conv: ir.Node) -> Array:
    """The bias of a Conv with constant weights, zeros if it has none."""
    weights = _value(conv.inputs[1])
    assert weights is not None
    given = _value(conv.inputs[2]) if len(conv.inputs) > 2 else None
    return np.zeros(len(weights), weights.dtype) if given is None else given


def _frozen_normalization(conv: ir.Node) -> ir.Node | None:
    """The BatchNormalization with constant statistics that alone reads the convolution."""
    result = conv.outputs[0]
    users = [user for user, _ in result.uses()]
    if len(users) != 1 or result.is_graph_output():
        return None
    user = users[0]
    if user.op_type != "BatchNormalization" or user.domain or user.graph is not conv.graph:
        return None
    if user.attributes.get_int("training_mode", 0) or len(user.outputs) > 1:
        return None
    return user if all(_value(v) is not None for v in user.inputs[1:]) else None


def _matrix(
    conv: ir.Node, normalization: ir.Node | None, window: _Window
) -> tuple[ir.Value, ir.Value]:
    """All channels and pixels to all channels and pixels, and the bias of each."""
    weights = _value(conv.inputs[1])
    assert weights is not None
    bias, dtype = _bias_of(conv), weights.dtype
    if normalization is not None:
        scale, shift, mean, variance = (
            np.asarray(_value(v), np.float64) for v in normalization.inputs[1:5]
        )
        factor = scale / np.sqrt(variance + normalization.attributes.get_float("epsilon", 1e-5))
        weights = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        bias = (bias - mean) * factor + shift
    outs, ins = weights.shape[:2]
    taps = window.taps()
    columns = weights.reshape(outs, ins, -1)
    none = np.zeros((outs, ins, 1), columns.dtype)
    dense = np.concatenate([columns, none], axis=2)[:, :, taps].transpose(1, 2, 0, 3)
    matrix = dense.reshape(ins * taps.shape[0], outs * taps.shape[1]).astype(dtype)
    return (
        constant(conv, matrix, "matrix"),
        constant(conv, np.repeat(bias, taps.shape[1]).astype(dtype), "bias"),
    )
