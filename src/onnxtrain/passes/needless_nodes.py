"""Values that need no node, or one that is there already.

What exporters write around an operator often does nothing: a Slice of everything, a Where that
chooses what its other operand is, too. The node is left out, and whoever read it reads another
value.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ..graph.nodes import ints, known, producer_of, scalar
from ..graph.tensor import dims_of
from .rewrites import neutral_operand

ROUNDS_TO_ONE = 17.0
"""From this number on, sigmoid is 1 and softplus the identity in single precision."""


BEYOND = 2**62
"""From here on an end is behind the last element of any axis; exporters write 2⁶³ − 1."""


WRITTEN = "onnxtrain.softplus"
"""Where the last node of a softplus that was written out remembers what it is of."""


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


REWRITES: dict[str, tuple[Callable[[ir.Node], ir.Value | None], ...]] = {
    "CastLike": (same_type,),
    "SequenceAt": (of_known_sequence,),
    "Mul": (neutral_operand, gelu_that_fuses),
    "Div": (neutral_operand,),
    "Slice": (whole_slice,),
    "Where": (saturated_softplus,),
}
