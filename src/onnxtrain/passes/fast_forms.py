"""Operators whose kernels are slow in onnxruntime, written with operators that have fast ones.

Times are for a million numbers on one thread of the machine of docs/performance.md, onnxruntime
1.31.1. Its Softplus takes 12 to 36 ms, since it computes exponential and logarithm one by one;
the formula here takes 2.8. Mish is made of Softplus. Elu, Selu and Celu take 1.9 to 2.3 ms, and the
formulas 0.9 to 1.3; PRelu 5.0, and the formula 0.8. A cubic Resize takes 350 ms, and the products
with its interpolation matrices two. A Where takes up to 1.3 ms, as long as five products.

Each form is as exact as the kernel it replaces, also for infinities. It is declared as one function
(`autodiff.composites`), so that its gradient is the rule's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..autodiff.composites import Composite, Gradient, as_operator, declare, tanh_gelu
from ..autodiff.registry import is_rule
from ..autodiff.rules import activations, elementwise, linear, normalization, softmax
from ..autodiff.rules.resize import as_products
from ..autodiff.rules.resize import resize as resize_rule
from ..autodiff.walk import Walk, attributes_of
from ..graph import OpBuilder, Tensor
from ..graph.edit import remove_nodes, replace_value, take_over
from ..graph.infer_nodes import infer_nodes
from ..graph.nodes import ints, known, producer_of, scalar
from ..graph.tensor import dims_of
from .batch_as_depth import BatchAsDepth, has_small_maps
from .conv_transpose import Mirrored, as_product, is_few_elements, is_mirrored
from .few_pixels import FewPixels, gives_few_pixels
from .group_norm import group_norm_parts
from .huber import huber_parts
from .index_forms import gathered, has_better_form
from .rewrites import neutral_operand
from .shrink import shrink_parts
from .window_columns import WindowColumns, has_many_weights

ROUNDS_TO_ONE = 17.0
"""From this number on, sigmoid is 1 and softplus the identity in single precision."""


MOST_EXACT = 2**24
"""The largest integer up to which single precision has all of them."""
VOLUMES = 5
"""Axes of volumes: images, channels, and three more."""
LAST = np.iinfo(np.int64).max

GELU_SINCE = 20
"""The opset that has Gelu as an operator."""


def use_fast_forms(
    model: ir.Model, wrt: Sequence[str], of: Sequence[str], no_gradient: Collection[str]
) -> ir.Model:
    """Write the nodes of the main graph that have a faster form in that form."""
    named = {*wrt, *of}
    op = OpBuilder.on(model)
    for node in list(model.graph):
        if node.domain or node.name in no_gradient or node.op_type in no_gradient:
            continue
        if node.outputs[0].name not in wrt and not _in_between(node, named):
            _rewrite(model.graph, node)
        form = FORMS.get(node.op_type)
        if form is not None and node.outputs[0].dtype == form.dtype:
            _use(op, node, form, named)
    op.register_constants(model.graph, mark=True)
    return model


def _rewrite(graph: ir.Graph, node: ir.Node) -> None:
    for rewrite in REWRITES.get(node.op_type, ()):
        replacement = rewrite(node)
        if replacement is not None:
            replace_value(graph, node.outputs[0], replacement)
            return


def _in_between(node: ir.Node, named: Collection[str]) -> bool:
    """Whether somebody asks for a value that the node reads, and a rewriting might leave out."""
    values = [v for v in node.inputs if v is not None and v.producer() is not None]
    return any(v.name in named or v.is_graph_output() for v in values)


def _use(op: OpBuilder, node: ir.Node, form: Form, named: Collection[str]) -> None:
    graph = node.graph
    if graph is None or not form.applies(node, named):
        return
    op.scope = node.name or node.op_type
    written = form.write(op, node)
    new = op.place(graph, before=node)
    op.scope = ""
    infer_nodes(new, op.opset)
    old, result = node.outputs[0], written.result.value
    result.type, result.shape = old.type or result.type, old.shape or result.shape
    take_over(old, result)
    remove_nodes(graph, [node])
    if written.composite is not None:
        declare(written.composite(new))


# --- values that need no node ------------------------------------------------------------------


def same_type(node: ir.Node) -> ir.Value | None:
    """What has the type of another value already is not brought to it."""
    x, like = node.inputs
    if x is None or like is None or x.dtype is None:
        return None
    return x if x.dtype == like.dtype else None


def of_known_sequence(node: ir.Node) -> ir.Value | None:
    """An element of a sequence that was just put together is what was put there.

    `hstack` and its like are exported so. In the gradient, tensors were taken out of sequences,
    added to zeros and put back: three of a million numbers, both ways, 5.9 ms.
    """
    sequence, position = producer_of(node.inputs[0], "SequenceConstruct"), known(node.inputs[1])
    if sequence is None or position is None:
        return None
    index, count = int(position.numpy().reshape(())), len(sequence.inputs)
    return sequence.inputs[index] if -count <= index < count else None


def saturated_softplus(node: ir.Node) -> ir.Value | None:
    """x where β·x is large and softplus(β·x)/β elsewhere is the latter, in single precision."""
    condition, x, small = node.inputs
    greater = condition.producer() if condition is not None else None
    if node.outputs[0].dtype != ir.DataType.FLOAT or greater is None or greater.domain:
        return None
    limit = scalar(greater.inputs[1]) if greater.op_type == "Greater" else None
    if limit is None or limit < ROUNDS_TO_ONE or small is None:
        return None
    softplus, divisor = small.producer(), 1.0
    if softplus is not None and softplus.op_type == "Div":
        divisor = scalar(softplus.inputs[1]) or 0.0
        softplus = softplus.inputs[0].producer() if softplus.inputs[0] is not None else None
    if softplus is None or not _is_softplus(softplus, greater.inputs[0]):
        return None
    return small if _is_multiple(greater.inputs[0], x, divisor) else None


def _is_softplus(node: ir.Node, of: ir.Value | None) -> bool:
    if node.op_type == "Softplus" and not node.domain:
        return node.inputs[0] is of
    return node.meta.get(WRITTEN) is of and of is not None


def _is_multiple(value: ir.Value | None, x: ir.Value | None, factor: float) -> bool:
    """Whether `value` is ``x·factor``."""
    if value is x:
        return factor == 1
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Mul" or node.domain:
        return False
    return node.inputs[0] is x and scalar(node.inputs[1]) == factor


def gelu_that_fuses(node: ir.Node) -> ir.Value | None:
    """x·(½·(1 + erf)) becomes ½·(x·(1 + erf)) in place, a spelling that onnxruntime fuses."""
    for x, half in (node.inputs, node.inputs[::-1]):
        halving = half.producer() if half is not None and len(half.uses()) == 1 else None
        if x is None or halving is None or halving.op_type != "Mul" or halving.domain:
            continue
        for place, number in ((0, halving.inputs[1]), (1, halving.inputs[0])):
            sum_ = halving.inputs[place]
            adding = sum_.producer() if sum_ is not None and len(sum_.uses()) == 1 else None
            if scalar(number) != 0.5 or adding is None or adding.op_type != "Add":
                continue
            if any(_is_erf_of(v, x) for v in adding.inputs):
                # The node that halved multiplies by x, and this one halves
                halving.replace_input_with(0, x)
                halving.replace_input_with(1, sum_)
                node.replace_input_with(0, half)
                node.replace_input_with(1, number)
                return None
    return None


def _is_erf_of(value: ir.Value | None, x: ir.Value) -> bool:
    """Whether a value is erf of x times a number."""
    erf = value.producer() if value is not None else None
    if erf is None or erf.op_type != "Erf" or erf.inputs[0] is None:
        return False
    scaled = erf.inputs[0].producer()
    return scaled is not None and scaled.op_type in ("Div", "Mul") and x in scaled.inputs


def whole_slice(node: ir.Node) -> ir.Value | None:
    """A Slice from the first element to beyond the last one, which onnxruntime copies."""
    starts, ends, axes, steps = [ints(v) for v in (*node.inputs[1:], None, None)[:4]]
    bounds = [v for v in node.inputs[1:] if v is not None]
    if starts is None or ends is None or any(known(v) is None for v in bounds):
        return None
    dims = dims_of(node.inputs[0]) if node.inputs[0] is not None else None
    for number, end in enumerate(ends):
        dim = dims[axes[number] if axes is not None else number] if dims is not None else None
        if end < (dim if isinstance(dim, int) else BEYOND):
            return None
    is_whole = not any(starts) and set(steps or [1]) == {1}
    return node.inputs[0] if is_whole else None


BEYOND = 2**62
"""From here on an end is behind the last element of any axis; exporters write 2⁶³ − 1."""


REWRITES: dict[str, tuple[Callable[[ir.Node], ir.Value | None], ...]] = {
    "CastLike": (same_type,),
    "SequenceAt": (of_known_sequence,),
    "Mul": (neutral_operand, gelu_that_fuses),
    "Div": (neutral_operand,),
    "Slice": (whole_slice,),
    "Where": (saturated_softplus,),
}

# --- operators with another form ---------------------------------------------------------------

WRITTEN = "onnxtrain.softplus"
"""Where the last node of a softplus that was written out remembers what it is of."""


@dataclass(frozen=True)
class Written:
    """The nodes that stand for an operator: their result, and how they are declared as one."""

    result: Tensor
    composite: Callable[[Sequence[ir.Node]], Composite] | None = None


@dataclass(frozen=True)
class Form:
    """How to write an operator: where it applies, and the nodes.

    What applies is told the names of the values that somebody asks for.
    """

    applies: Callable[[ir.Node, Collection[str]], bool]
    write: Callable[[OpBuilder, ir.Node], Written]
    dtype: ir.DataType = ir.DataType.FLOAT


LOG_SERIES = (2.0000000079, 0.6666631468, 0.4002491029, 0.2796060271, 0.2817833511)
"""log(1 + e) = s·Σ cₖ·s²ᵏ with s = e/(2 + e), for e up to 1: to 4·10⁻⁹ of the result."""


def softplus(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + log(1 + exp(-|x|))."""
    x = _input(op, node)
    y = op.Relu(x) + _log_of_one_and(op, op.Exp(-op.Abs(x)))
    last = y.value.producer()
    assert last is not None
    last.meta[WRITTEN] = x.value
    return Written(y, lambda nodes: as_operator("Softplus", nodes, x.value))


def _log_of_one_and(op: OpBuilder, e: Tensor) -> Tensor:
    """log(1 + e), relatively exact also where e is small, for e between 0 and 1.

    2·artanh(s) as a series that was fitted. onnxruntime's Log alone takes longer than these eleven
    passes, and the sum 1 + e has lost what is small in e.
    """
    s = e / (e + 2.0)
    square = s * s
    *rest, second, last = LOG_SERIES
    series = op.HardSigmoid(square, alpha=last, beta=second)  # a·x + b in one pass: is below 1
    for number in reversed(rest):
        series = series * square + number
    return series * s


def mish(op: OpBuilder, node: ir.Node) -> Written:
    """x·tanh(softplus(x)), with the quotient that its gradient needs, too."""
    x = _input(op, node)
    y = x * activations.tanh_of_softplus(op, x)
    return Written(y, lambda nodes: as_operator("Mish", nodes, x.value))


def elu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + exp(min(x, 0)) - 1; the exponential is the slope."""
    x = _input(op, node)
    slope = op.Exp(op.Min(x, 0.0))
    y = op.Relu(x) + (slope - 1.0)

    def composite(nodes: Sequence[ir.Node]) -> Composite:
        return _composite(nodes, lambda op, dy: [(x.value, dy * op.tensor(slope.value))])

    return Written(y, composite)


def selu(op: OpBuilder, node: ir.Node) -> Written:
    """γ·max(x, 0) + γα·(exp(min(x, 0)) - 1)."""
    x = _input(op, node)
    alpha = node.attributes.get_float("alpha", activations.SELU_ALPHA)
    gamma = node.attributes.get_float("gamma", activations.SELU_GAMMA)
    e = op.Exp(op.Min(x, 0.0))
    y = op.Relu(x) * gamma + (e - 1.0) * (gamma * alpha)

    def slope(op: OpBuilder) -> Tensor:  # γα·e, and γ where e is 1 because x is positive
        above = op.HardSigmoid(op.tensor(x.value), alpha=3e38, beta=0.0)
        return op.tensor(e.value) * (gamma * alpha) - above * (gamma * (alpha - 1))

    return Written(y, lambda new: _composite(new, lambda op, dy: [(x.value, dy * slope(op))]))


def celu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + α·(exp(min(x, 0)/α) - 1); the exponential is the slope."""
    x, alpha = _input(op, node), node.attributes.get_float("alpha", 1.0)
    slope = op.Exp(op.Min(x, 0.0) * (1 / alpha))
    y = op.Relu(x) + (slope - 1.0) * alpha
    return Written(y, lambda new: _composite(new, lambda op, dy: [(x.value, dy * slope)]))


def prelu(op: OpBuilder, node: ir.Node) -> Written:
    """max(x, 0) + slope·min(x, 0)."""
    x, slope = (op.tensor(v) for v in node.inputs if v is not None)
    negative = op.Min(x, 0.0)
    y = op.Relu(x) + negative * slope

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        # slope + (1 - slope)·step(x), in two passes over memory
        above = op.HardSigmoid(op.tensor(x.value), alpha=3e38, beta=0.0)
        to, of = op.tensor(slope.value), op.tensor(x.value)
        dx = dy * (above * (1.0 - to) + to)
        return [(x.value, dx), (slope.value, op.sum_to(dy * negative, to, of.shape, of))]

    return Written(y, lambda new: _composite(new, gradient))


def log_sigmoid(op: OpBuilder, node: ir.Node) -> Written:
    """min(x, 0) - log(1 + exp(-|x|)), which does not underflow as log(sigmoid(x)) does."""
    x = op.tensor(_argument_of_sigmoid(node))
    y = op.Min(x, 0.0) - _log_of_one_and(op, op.Exp(-op.Abs(x)))

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        return [(x.value, dy * op.Sigmoid(-op.tensor(x.value)))]

    return Written(y, lambda new: _composite(new, gradient))


def _argument_of_sigmoid(node: ir.Node) -> ir.Value:
    sigmoid = node.inputs[0].producer() if node.inputs[0] is not None else None
    assert sigmoid is not None
    assert sigmoid.inputs[0] is not None
    return sigmoid.inputs[0]


def tanh_gelu_product(op: OpBuilder, node: ir.Node) -> Written:
    """Gelu by tanh, which exporters write with eight operators, Pow among them."""
    x = op.tensor(_tanh_gelu_argument(node))
    if op.opset >= GELU_SINCE:
        return Written(op.Gelu(x, approximate="tanh"))
    y = x * activations.tanh_gelu_share(op, x)
    return Written(y, lambda new: as_operator("Gelu", new, x.value, approximate="tanh"))


def _tanh_gelu_argument(node: ir.Node) -> ir.Value:
    _, x = _tanh_gelu(node) or ((), None)
    assert x is not None
    return x


def _tanh_gelu(product: ir.Node) -> tuple[tuple[ir.Node, ...], ir.Value] | None:
    """The nodes of a Gelu by tanh whose last one this is, and what it is of."""
    behind = [v.producer() for v in product.inputs if v is not None]
    for _ in range(2):  # (1 + tanh u), or half or x times that
        sums = [n for n in behind if n is not None and n.op_type in {"Add", "Mul"}]
        behind = [v.producer() for n in sums for v in n.inputs if v is not None]
        for tanh in behind:
            gelu = tanh_gelu(tanh) if tanh is not None and tanh.op_type == "Tanh" else None
            if gelu is not None and gelu[0][-1] is product:
                return gelu
    return None


def huber(op: OpBuilder, node: ir.Node) -> Written:
    """f·d² up to |d| = β, and tangents from there on: (d - c/2)·c·2f, where c is d cut off at ±β.

    In place of a comparison, a Pow and three Where: 1.6 ms for a million numbers instead of 6.1.
    The slope is 2f·c.
    """
    parts = huber_parts(node)
    assert parts is not None
    d = op.tensor(parts.d)
    c = op.Clip(d, op.like(-parts.limit, d), op.like(parts.limit, d))
    c.value.shape = parts.d.shape
    y = _times((d - c * 0.5) * c, parts.curvature)

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        return [(parts.d, dy * _times(op.tensor(c.value), parts.curvature))]

    return Written(y, lambda nodes: _composite(nodes, gradient))


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _is_huber(node: ir.Node, named: Collection[str]) -> bool:
    parts = huber_parts(node) if is_rule(elementwise.where, "Where") else None
    return parts is not None and not any(v.name in named for v in parts.inner)


def group_norm(op: OpBuilder, node: ir.Node) -> Written:
    """The statistics once, for both halves: x - μ times scale·r, a number per image and channel."""
    parts = group_norm_parts(node)
    assert parts is not None
    x, scale, bias = (op.tensor(v) for v in (parts.x, parts.scale, parts.bias))
    groups, by_group = parts.groups, op.Reshape(x, [0, parts.groups, -1])
    centred, rstd = normalization.centre(op, by_group, [2], parts.epsilon)
    maps = [0, x.dim(1), *[1] * (x.rank - 2)]
    slope = op.Reshape(op.Reshape(scale, [groups, -1]) * rstd, maps)
    y = op.reshape_like(centred, x) * slope + bias

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        x, scale, bias = (op.tensor(v) for v in (parts.x, parts.scale, parts.bias))
        vectors = [op.Reshape(v, [-1]) for v in (scale, bias)]
        for vector in vectors:
            vector.value.shape = ir.Shape([x.dim(1)])
        by, shift = vectors
        c, r = (op.tensor(v.value) for v in (centred, rstd))
        dx, *rest = normalization.group_gradient(op, dy, x, by, shift, c, r, groups)
        d_scale, d_bias = (op.reshape_like(d, v) for d, v in zip(rest, (scale, bias)))
        return [(parts.x, dx), (parts.scale, d_scale), (parts.bias, d_bias)]

    return Written(y, lambda new: _composite(new, gradient))


def _is_group_norm(node: ir.Node, named: Collection[str]) -> bool:
    parts = group_norm_parts(node)
    rules = (
        (normalization.instance_normalization, "InstanceNormalization"),
        (elementwise.mul, "Mul"),
    )
    return (
        parts is not None
        and all(is_rule(rule, op_type) for rule, op_type in rules)
        and not any(v.name in named for v in parts.inner)
    )


def softmax_across(op: OpBuilder, node: ir.Node) -> Written:
    """Along an axis that is not the last, the kernels of Softmax and LogSoftmax transpose."""
    x, axis = _input(op, node), node.attributes.get_int("axis", -1)
    is_log, op_type = node.op_type == "LogSoftmax", node.op_type
    form = softmax.log_softmax_across if is_log else softmax.softmax_across
    y = form(op, x, axis)
    return Written(y, lambda nodes: as_operator(op_type, nodes, x.value, axis=axis))


def _is_across(rule: Callable[..., object]) -> Callable[[ir.Node, Collection[str]], bool]:
    def applies(node: ir.Node, _: Collection[str]) -> bool:
        dims = None if node.inputs[0] is None else dims_of(node.inputs[0])
        axis = node.attributes.get_int("axis", -1)
        return is_rule(rule, node.op_type) and softmax.is_across(dims, axis)

    return applies


def shrink(op: OpBuilder, node: ir.Node) -> Written:
    """The soft one is what x is beyond its bounds, the hard one x times a mask; both keep NaN."""
    parts = shrink_parts(node)
    assert parts is not None
    x, limit = op.tensor(parts.x), parts.limit
    if parts.is_soft:
        y = x - op.Clip(x, op.like(-limit, x), op.like(limit, x))
    else:
        y = x * op.HardSigmoid(op.Abs(x) - limit, alpha=3e38, beta=0.0)

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        to = op.tensor(y.value)  # 0 between the bounds and nowhere else

        def product() -> Tensor:
            return dy * op.HardSigmoid(op.Abs(to), alpha=3e38, beta=0.0)

        def choice() -> Tensor:
            return op.Where(op.Equal(to, 0), 0, dy)

        return [(parts.x, elementwise.by_factor(op, dy, product, choice))]

    return Written(y, lambda new: _composite(new, gradient))


def choice(op: OpBuilder, node: ir.Node) -> Written:
    """What exporters write with a Where."""
    return shrink(op, node) if shrink_parts(node) is not None else huber(op, node)


def _is_known_choice(node: ir.Node, named: Collection[str]) -> bool:
    parts = shrink_parts(node) if is_rule(elementwise.where, "Where") else None
    if parts is None:
        return _is_huber(node, named)
    return not any(v.name in named for v in parts.inner)


def resize(op: OpBuilder, node: ir.Node) -> Written:
    """A product with an interpolation matrix per axis, or the nearest elements of volumes."""
    x, roi, scales, sizes = [
        None if v is None else op.tensor(v) for v in (*node.inputs, None, None, None)[:4]
    ]
    assert x is not None
    y = op.tensor(node.outputs[0])
    if not _is_cubic(node, ()):
        return nearest_of_volumes(op, node, x, scales, sizes)
    return Written(as_products(op, x, y, roi, scales, sizes, attributes_of(node, None)))


def nearest_of_volumes(
    op: OpBuilder, node: ir.Node, x: Tensor, scales: Tensor | None, sizes: Tensor | None
) -> Written:
    """Images and channels as one axis: onnxruntime has loops for up to four.

    With five, 16,380 volumes of 4³ to 3³ take 3.8 ms instead of 0.3, on one thread.
    """
    before, after = (dims_of(value) or () for value in (x.value, node.outputs[0]))
    attributes, spatial = attributes_of(node, None), [1, 2, 3]
    options = {k: v for k, v in attributes.items() if k != "axes"}
    volumes = op.Reshape(x, [-1, *before[2:]])
    if sizes is not None:
        behind = op.const(np.array(after[2:], np.int64))
        y = op.Resize(volumes, None, None, behind, axes=spatial, **options)
    else:
        assert scales is not None
        y = op.Resize(volumes, None, op.Slice(scales, [-3], [LAST]), None, axes=spatial, **options)
    result = op.Reshape(y, [-1, *after[1:]])

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        inputs = (op.tensor(result.value), op.tensor(x.value), None, scales, sizes)
        return [(x.value, resize_rule(op, dy, *inputs, **attributes))]

    return Written(result, lambda nodes: _composite(nodes, gradient))


def conv(op: OpBuilder, node: ir.Node) -> Written:
    """A product over the windows of all images, laid out here or by onnxruntime."""
    form = next(form for applies, form in CONVOLUTIONS if applies(node, ()))(op, node)
    return Written(form.result, lambda nodes: _composite(nodes, form.gradient))


def conv_transpose(op: OpBuilder, node: ir.Node) -> Written:
    """A product of all elements with all, or a Conv with the kernel turned around."""
    if is_few_elements(node, ()):
        return Written(as_product(op, node))
    form = Mirrored(op, node)
    return Written(form.result, lambda nodes: _composite(nodes, form.gradient))


def times_vector(op: OpBuilder, node: ir.Node) -> Written:
    """A product with a vector as one with a matrix of one column, or of one row where both are.

    onnxruntime takes a product for each row of the left operand otherwise: a million numbers take
    1.4 ms instead of 0.07, and those of two vectors 1.6 instead of 0.1.
    """
    a, b = (op.tensor(value) for value in node.inputs if value is not None)
    if a.rank == 1:
        single = op.Gemm(op.Unsqueeze(a, [0]), op.Unsqueeze(b, [0]), transB=1)
        y = op.Squeeze(single, [0, 1])
    else:
        y = op.Squeeze(op.MatMul(a, op.Unsqueeze(b, [1])), [-1])

    def gradient(op: OpBuilder, dy: Tensor) -> Iterable[tuple[ir.Value, Tensor]]:
        da, db = linear.of_vectors(op, dy, op.tensor(a.value), op.tensor(b.value))
        return [(a.value, da), (b.value, db)]

    return Written(y, lambda nodes: _composite(nodes, gradient))


def _is_with_vector(node: ir.Node, named: Collection[str]) -> bool:
    right = node.inputs[1].shape if node.inputs[1] is not None else None
    left = node.inputs[0].shape if node.inputs[0] is not None else None
    is_known = left is not None and right is not None and len(right) == 1
    return is_known and is_rule(linear.matmul, "MatMul")


def _is_small_conv(node: ir.Node, named: Collection[str]) -> bool:
    return any(applies(node, named) for applies, _ in CONVOLUTIONS)


CONVOLUTIONS: tuple[
    tuple[
        Callable[[ir.Node, Collection[str]], bool],
        Callable[[OpBuilder, ir.Node], WindowColumns | FewPixels | BatchAsDepth],
    ],
    ...,
] = (
    (has_many_weights, WindowColumns),
    (gives_few_pixels, FewPixels),
    (has_small_maps, BatchAsDepth),
)
"""Forms of a trained convolution; the first that applies is taken."""


def _composite(
    nodes: Sequence[ir.Node],
    formula: Callable[[OpBuilder, Tensor], Iterable[tuple[ir.Value, Tensor | None]]],
) -> Composite:
    def gradient(
        walk: Walk, dys: Sequence[Tensor | None]
    ) -> Iterable[tuple[ir.Value, Tensor | None]]:
        assert dys[0] is not None
        return formula(walk.op, dys[0])

    of: Gradient = gradient
    inner = tuple(o for n in nodes[:-1] for o in n.outputs)
    return Composite(nodes[-1], inner, of, tuple(nodes))


def _input(op: OpBuilder, node: ir.Node) -> Tensor:
    assert node.inputs[0] is not None
    return op.tensor(node.inputs[0])


def _has_rule(
    rule: Callable[..., object], op_type: str
) -> Callable[[ir.Node, Collection[str]], bool]:
    """Not where a user has registered another gradient."""
    return lambda *_: is_rule(rule, op_type)


def _is_log_sigmoid(node: ir.Node, named: Collection[str]) -> bool:
    value = node.inputs[0]
    sigmoid = value.producer() if value is not None else None
    if value is None or sigmoid is None or sigmoid.op_type != "Sigmoid" or sigmoid.domain:
        return False
    plain = is_rule(elementwise.log, "Log") and is_rule(activations.sigmoid, "Sigmoid")
    return plain and value.name not in named


def _is_tanh_gelu(node: ir.Node, named: Collection[str]) -> bool:
    gelu = _tanh_gelu(node) if is_rule(activations.gelu, "Gelu") else None
    return gelu is not None and not any(
        o.name in named or o.is_graph_output() for n in gelu[0][:-1] for o in n.outputs
    )


def _is_plain_elu(node: ir.Node, named: Collection[str]) -> bool:
    return is_rule(activations.elu, "Elu") and node.attributes.get_float("alpha", 1.0) == 1


def _is_cubic(node: ir.Node, named: Collection[str]) -> bool:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    cubic = node.attributes.get_string("mode", "nearest") == "cubic"
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    return cubic and mode != "tf_crop_and_resize" and rank is not None


def power(op: OpBuilder, node: ir.Node) -> Written:
    """A power whose exponent is an integer, with a float that is equal.

    onnxruntime computes it in double precision if the exponent is an integer: 65,536 numbers to the
    sixth take 0.70 ms instead of 0.39.
    """
    x, exponent = _input(op, node), scalar(node.inputs[1])
    assert exponent is not None
    return Written(op.Pow(x, op.like(exponent, x)))


def _has_integer(node: ir.Node, _: Collection[str]) -> bool:
    exponent, number = node.inputs[1], scalar(node.inputs[1])
    is_integer = exponent is not None and exponent.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return is_integer and number is not None and abs(number) <= MOST_EXACT


def _is_fast_transpose(node: ir.Node, named: Collection[str]) -> bool:
    return is_few_elements(node, named) or is_mirrored(node, named)


def _is_resized(node: ir.Node, named: Collection[str]) -> bool:
    return _is_cubic(node, named) or _is_of_volumes(node)


def _is_of_volumes(node: ir.Node) -> bool:
    """Whether the nearest elements of volumes are taken, whose sizes are known."""
    x, y, said = node.inputs[0], node.outputs[0], node.attributes
    before, after = (None if v is None else dims_of(v) for v in (x, y))
    if before is None or after is None or not len(before) == len(after) == VOLUMES:
        return False
    axes = [a % VOLUMES for a in said.get_ints("axes", range(VOLUMES))]
    is_plain = (
        said.get_string("mode", "nearest") == "nearest"
        and said.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
        and said.get_string("coordinate_transformation_mode", "") != "tf_crop_and_resize"
        and axes in ([2, 3, 4], [*range(VOLUMES)])
        and is_rule(resize_rule, "Resize")
    )
    sizes = [d for d in (*before[1:], *after[1:]) if isinstance(d, int) and d > 0]
    return is_plain and before[:2] == after[:2] and len(sizes) == 2 * (VOLUMES - 1)


def _is_start_of_planes(node: ir.Node, named: Collection[str]) -> bool:
    """Whether the place of the first element of each plane is asked of a pool that copies."""
    places = node.inputs[0]
    pool = None if places is None else places.producer()
    if pool is None or pool.op_type != "MaxPool" or pool.domain or places is pool.outputs[0]:
        return False
    kernel, said = pool.attributes.get_ints("kernel_shape", ()), pool.attributes
    image = None if pool.inputs[0] is None else dims_of(pool.inputs[0])
    ones = [1] * len(kernel)
    is_copy = (
        list(kernel) == list(said.get_ints("strides", ones)) == ones
        and not any(said.get_ints("pads", ()))
        and not said.get_int("storage_order", 0)
    )
    if not is_copy or image is None or not all(isinstance(d, int) and d > 0 for d in image[1:]):
        return False
    begin, end, axes, steps = (ints(v) for v in (*node.inputs[1:], None)[:4])
    spatial = list(range(2, len(image)))
    is_first = begin == [0] * len(spatial) and end == ones and steps in (None, ones)
    return is_first and axes is not None and [a % len(image) for a in axes] == spatial


def start_of_planes(op: OpBuilder, node: ir.Node) -> Written:
    """Places are counted through: exporters ask a pool for them, to count anew in each plane.

    A million numbers take that pool 7.8 ms.
    """
    places = node.inputs[0]
    pool = None if places is None else places.producer()
    assert pool is not None
    x = _input(op, pool)
    channels, *sizes = (d for d in (dims_of(x.value) or ())[1:] if isinstance(d, int))
    starts = op.Range(0, op.Size(x), math.prod(sizes))
    return Written(op.Reshape(starts, [-1, channels, *[1] * len(sizes)]))


FORMS = {
    "Add": Form(_is_group_norm, group_norm),
    "Conv": Form(_is_small_conv, conv),
    "ConvTranspose": Form(_is_fast_transpose, conv_transpose),
    "Celu": Form(_has_rule(activations.celu, "Celu"), celu),
    "GatherND": Form(has_better_form, lambda op, node: Written(gathered(op, node))),
    "Log": Form(_is_log_sigmoid, log_sigmoid),
    "MatMul": Form(_is_with_vector, times_vector),
    "Mul": Form(_is_tanh_gelu, tanh_gelu_product),
    "Pow": Form(_has_integer, power),
    "PRelu": Form(_has_rule(activations.prelu, "PRelu"), prelu),
    "Softplus": Form(_has_rule(activations.softplus, "Softplus"), softplus),
    "Mish": Form(_has_rule(activations.mish, "Mish"), mish),
    "Elu": Form(_is_plain_elu, elu),
    "Resize": Form(_is_resized, resize),
    "Selu": Form(_has_rule(activations.selu, "Selu"), selu),
    "Slice": Form(_is_start_of_planes, start_of_planes, ir.DataType.INT64),
    "Softmax": Form(_is_across(softmax.softmax), softmax_across),
    "LogSoftmax": Form(_is_across(softmax.log_softmax), softmax_across),
    "Where": Form(_is_known_choice, choice),
}
