"""A frozen convolution whose kernel covers most of its (small) map is a matrix product.

At the end of a deep network maps have one or four pixels. There a 3×3 kernel mostly multiplies
padding, and a kernel that goes from pixel to pixel reads all weights for each of them. One matrix
that takes all pixels to all pixels at once does neither: 512 channels on 2×2, a batch of 16, took
3.3 ms as a Conv in onnxruntime's blocked layout, and take 1.4 ms as a Gemm.

For one image the Conv is faster. Where the batch size is open, the graph has both, and an If on it.

Only constants are rewritten: to lay out weights that change would cost more than it saves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..autodiff.bodies import body_outputs, inside
from ..graph import Dim, OpBuilder, Tensor
from ..graph.edit import remove_nodes, take_over
from ..graph.nodes import constant, known
from ..graph.tensor import dims_of
from .cleanup import remove_unread_initializers

Array = npt.NDArray[np.floating]

MOST_GROWTH = 2
"""How many times the convolution's weights the matrix may have."""
FEWEST_ROWS = 2
"""For one image reading the larger matrix takes longer than the work that it saves."""
TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})


def small_maps_as_products(model: ir.Model) -> ir.Model:
    """Rewrite the graph's own Conv nodes where it pays; a frozen normalization goes into them."""
    rewriting = _Rewriting(OpBuilder.on(model))
    for node in list(model.graph):
        if node.op_type == "Conv" and not node.domain:
            rewriting.run(model.graph, node)
    rewriting.op.attach(model.graph)
    remove_unread_initializers(model.graph)
    return model


@dataclass(frozen=True)
class _Forms:
    """The constants of a convolution with what is folded into it, in both forms."""

    matrix: ir.Value
    bias_of_pixels: ir.Value
    weights: ir.Value
    bias: ir.Value | None


@dataclass
class _Rewriting:
    """What several convolutions of a model share.

    Attributes:
        op: builder of what goes into the graph.
        forms: matrices, by the constants that they are made of.
        conditions: whether there is more than one row, by the symbol of their number.
    """

    op: OpBuilder
    forms: dict[tuple[Hashable, ...], _Forms] = field(default_factory=dict)
    conditions: dict[Dim, Tensor] = field(default_factory=dict)

    def run(self, graph: ir.Graph, conv: ir.Node) -> None:
        """Rewrite a convolution, if that pays."""
        window, op = _window(conv), self.op
        if window is None:
            return
        normalization = _frozen_normalization(conv)
        last = normalization or conv
        constants = [*conv.inputs[1:], *(normalization.inputs[1:] if normalization else ())]
        key = (window, *map(id, constants))
        if key not in self.forms:
            self.forms[key] = _forms(conv, normalization, window)
        op.scope = last.name or last.op_type
        x = conv.inputs[0]
        assert x is not None
        rows = op.tensor(x).dim(0)
        if isinstance(rows, int):
            result = _product(op, x, self.forms[key], window)
        else:
            result = self._either(conv, x, self.forms[key], window, rows)
        op.place(graph, before=last)
        old = last.outputs[0]
        result.value.type, result.value.shape = old.type, old.shape
        take_over(old, result.value)
        remove_nodes(graph, [last] if last is conv else [conv, last])

    def _either(
        self, conv: ir.Node, x: ir.Value, forms: _Forms, window: _Window, rows: Dim
    ) -> Tensor:
        """The product for several rows, the convolution for one."""
        op, many, one = self.op, inside(self.op), inside(self.op)
        many.scope = one.scope = op.scope
        product = _product(many, x, forms, window)
        attributes = {name: attribute.value for name, attribute in conv.attributes.items()}
        bias = None if forms.bias is None else one.tensor(forms.bias)
        plain = one.Conv(one.tensor(x), one.tensor(forms.weights), bias, **attributes)
        graphs = {}
        for name, inner, result in (("then", many, product), ("else", one, plain)):
            result.value.shape = conv.outputs[0].shape
            outputs = body_outputs(inner, [result])
            graphs[f"{name}_branch"] = ir.Graph(
                [], outputs, nodes=inner.nodes, name=op.names.fresh(f"{op.scope}/{name}")
            )
        return op.If(self._condition(x, rows), **graphs)

    def _condition(self, x: ir.Value, rows: Dim) -> Tensor:
        if rows is None or rows not in self.conditions:
            op = self.op
            count = op.Shape(op.tensor(x), start=0, end=1)
            enough = op.Squeeze(op.GreaterOrEqual(count, FEWEST_ROWS), [0])
            self.conditions[rows] = enough
        return self.conditions[rows]


def _product(op: OpBuilder, x: ir.Value, forms: _Forms, window: _Window) -> Tensor:
    """All pixels as one row, times the matrix, as pixels again."""
    matrix = dims_of(forms.matrix)
    assert matrix is not None
    wide, narrow = (int(size) for size in matrix if isinstance(size, int))
    rows = op.tensor(x).dim(0)
    flat = op.Reshape(op.tensor(x), op.const([-1, wide]))
    product = op.Gemm(flat, op.tensor(forms.matrix), op.tensor(forms.bias_of_pixels))
    flat.value.shape, product.value.shape = ir.Shape([rows, wide]), ir.Shape([rows, narrow])
    channels = narrow // math.prod(window.outputs)
    return op.Reshape(product, op.const([-1, channels, *window.outputs]))


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
        table = np.zeros((1, 1), np.int64)
        for axis, kernel in enumerate(self.kernel):
            starts = np.arange(self.outputs[axis]) * self.strides[axis] - self.begins[axis]
            distance = np.arange(self.sizes[axis])[:, None] - starts
            tap, rest = np.divmod(distance, self.dilations[axis])
            tap[(rest != 0) | (tap < 0) | (tap >= kernel)] = -1
            before, here = table[:, None, :, None], tap[None, :, None, :]
            both = np.where((before < 0) | (here < 0), -1, before * kernel + here)
            table = both.reshape(table.shape[0] * len(tap), -1)
        return table


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
    bias = _value(conv.inputs[2]) if len(conv.inputs) > 2 else None
    return np.zeros(len(weights), weights.dtype) if bias is None else bias


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


def _forms(conv: ir.Node, normalization: ir.Node | None, window: _Window) -> _Forms:
    """All channels and pixels to all channels and pixels, and the bias of each; the Conv itself."""
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
    own = conv.inputs[1]
    assert own is not None
    folded = own, conv.inputs[2] if len(conv.inputs) > 2 else None
    if normalization is not None:
        folded = (
            constant(conv, weights.astype(dtype), "weights"),
            constant(conv, bias.astype(dtype), "bias"),
        )
    return _Forms(
        constant(conv, matrix, "matrix"),
        constant(conv, np.repeat(bias, taps.shape[1]).astype(dtype), "bias_of_pixels"),
        *folded,
    )
