"""Local rewrites: a node and what it can be replaced with, one small function each.

A rewrite looks at one node and returns the value that can stand in for its output, or None. The
replacement may be an existing value, or the output of a node that the rewrite inserts before.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ..graph.edit import GATE, replace_value
from ..graph.nodes import (
    constant,
    insert,
    ints,
    is_zeros,
    permutation,
    producer_of,
    rank_of,
    same_shape,
    scalar,
)
from ..graph.tensor import dims_of
from ..operators import BROADCASTING, KEEPS_SHAPE
from .integers import chosen_integers, counted
from .products import (
    only_for_products,
    swaps_last,
    tall_product,
    transpose_for_product,
    transposed_product,
)

Rewrite = Callable[[ir.Node], "ir.Value | None"]


def apply_rewrites(graph: ir.Graph) -> None:
    """Apply all rewrites in one forward sweep; later nodes see what earlier ones became."""
    for node in list(graph):
        for rewrite in REWRITES.get(node.op_type, ()) if not node.domain else ():
            result = node.outputs[0]
            replacement = rewrite(node)
            if replacement is None or replacement is result:
                continue
            replace_value(graph, result, replacement)
            break


def neutral_operand(node: ir.Node) -> ir.Value | None:
    """x·1, x/1, x+0 and x−0 are x."""
    left, right = node.inputs[0], node.inputs[1]
    unit = 0.0 if node.op_type in ("Add", "Sub") else 1.0
    if scalar(right) == unit:
        return left
    if node.op_type in ("Add", "Mul") and scalar(left) == unit:
        return right
    return None


def pointless_expand(node: ir.Node) -> ir.Value | None:
    """A broadcasting operator repeats its small operand itself.

    Looks at the consumers of an Expand: where another operand already has the full shape, the
    consumer takes the small tensor directly.
    """
    small, big = node.inputs[0], node.outputs[0]
    if small is None:
        return None
    if same_shape(small, big):
        return small
    for user, index in list(big.uses()):
        if user.op_type not in BROADCASTING or user.domain:
            continue
        if user.op_type == "Where" and index == 0:
            continue
        others = [v for i, v in enumerate(user.inputs) if i != index]
        if any(same_shape(other, big) and other is not big for other in others):
            user.replace_input_with(index, small)
    return None


def double_transpose(node: ir.Node) -> ir.Value | None:
    """Two transpositions in a row are one, or none (but see `transpose_for_product`)."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    if inner is None or inner.op_type != "Transpose" or inner.domain:
        return None
    first, second = permutation(inner), permutation(node)
    if first is None or second is None:
        return None
    combined = [first[i] for i in second]
    if combined == list(range(len(combined))):
        return inner.inputs[0]
    if swaps_last(second) and not swaps_last(combined) and only_for_products(node):
        return None
    node.replace_input_with(0, inner.inputs[0])
    node.attributes["perm"] = ir.AttrInt64s("perm", combined)
    return None


def trivial_transpose(node: ir.Node) -> ir.Value | None:
    """A transposition that moves nothing."""
    perm = permutation(node)
    return node.inputs[0] if perm is not None and perm == sorted(perm) else None


def reshape_of_reshape(node: ir.Node) -> ir.Value | None:
    """Only the last of several Reshape (or Squeeze, Unsqueeze, Flatten) nodes counts."""
    source = node.inputs[0]
    if (node.name or "").startswith(f"{GATE}/"):
        return None  # it delays what reads it
    if same_shape(source, node.outputs[0]):
        return source
    inner = source.producer() if source is not None else None
    if inner is None or inner.domain:
        return None
    if inner.op_type not in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        return None
    target = ints(node.inputs[1])
    if target is None and not _is_shape_of_something(node.inputs[1]):
        return None
    if target is not None and 0 in target:
        return None  # zeros refer to dimensions of the tensor in between
    node.replace_input_with(0, inner.inputs[0])
    return inner.inputs[0] if same_shape(inner.inputs[0], node.outputs[0]) else None


def undone_axes(node: ir.Node) -> ir.Value | None:
    """A Squeeze takes away the axes that an Unsqueeze has just added, or the other way round."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    opposite = "Unsqueeze" if node.op_type == "Squeeze" else "Squeeze"
    if inner is None or inner.op_type != opposite or inner.domain:
        return None
    wider = inner.outputs[0] if opposite == "Unsqueeze" else inner.inputs[0]
    dims = dims_of(wider) if wider is not None else None
    if dims is None or not _same_axes(inner, node, len(dims)):
        return None
    return inner.inputs[0]


def _same_axes(first: ir.Node, second: ir.Node, rank: int) -> bool:
    """Whether the second operands of two nodes are the same constant axes of a tensor."""
    named = [ints(n.inputs[1]) if len(n.inputs) > 1 else None for n in (first, second)]
    left, right = (None if a is None else sorted(i % rank for i in a) for a in named)
    return left is not None and left == right


def reduced_axes(node: ir.Node) -> ir.Value | None:
    """A reduction drops the axes itself that a Squeeze takes away from its result."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    if inner is None or inner.domain or not inner.op_type.startswith("Reduce"):
        return None
    if len(source.uses()) != 1 or source.is_graph_output():  # type: ignore[union-attr]
        return None
    rank = rank_of(inner.inputs[0])
    if not rank or not inner.attributes.get_int("keepdims", 1):
        return None
    if not _same_axes(inner, node, rank) or not ints(node.inputs[1]):
        return None
    inner.attributes["keepdims"] = ir.AttrInt64("keepdims", 0)
    result = inner.outputs[0]
    result.shape = node.outputs[0].shape
    return result


def _is_shape_of_something(value: ir.Value | None) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "Shape"


def pads_of_all_axes(node: ir.Node) -> ir.Value | None:
    """Name no axes: onnxruntime overlooks them when it moves a Transpose past a Pad.

    It then permutes the amounts as if there were some for every axis (seen up to 1.31.1), which
    fails, or pads another axis.
    """
    x, pads = node.inputs[:2]
    rank = rank_of(x) or rank_of(node.outputs[0])
    axes = ints(node.inputs[3]) if len(node.inputs) > 3 else None
    if rank is None or axes is None or pads is None:
        return None
    count = len(axes)
    index_of = {axis % rank: index for index, axis in enumerate(axes)}
    begins = [index_of.get(axis) for axis in range(rank)]
    order = [*begins, *(None if p is None else p + count for p in begins)]
    known = ints(pads)
    if known is not None:
        full = constant(node, [0 if p is None else known[p] for p in order], "pads")
    else:  # what is missing is a zero, put behind those that are there
        zero = constant(node, [0], "zero")
        chosen = constant(node, [2 * count if p is None else p for p in order], "chosen")
        longer = insert(node, "Concat", [pads, zero], "longer", axis=0)
        full = insert(node, "Gather", [longer, chosen], "pads", axis=0)
        for value, size in ((longer, 2 * count + 1), (full, len(order))):
            value.type, value.shape = zero.type, ir.Shape([size])
    node.replace_input_with(1, full)
    node.resize_inputs(3)
    return None


def whole_slice(node: ir.Node) -> ir.Value | None:
    """A Slice that leaves every axis as long as it is, forwards."""
    steps = ints(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else [1]
    if steps is None or any(step != 1 for step in steps):
        return None
    return node.inputs[0] if same_shape(node.inputs[0], node.outputs[0]) else None


def joined_with_nothing(node: ir.Node) -> ir.Value | None:
    """A Concat needs no operands that are empty along its axis; one alone is the result."""
    axis = node.attributes.get_int("axis", 0)
    filled = [v for v in node.inputs if v is None or not _is_empty(v, axis)]
    if not filled or len(filled) == len(node.inputs):
        return node.inputs[0] if len(node.inputs) == 1 else None
    if len(filled) == 1:
        return filled[0]
    return insert(node, "Concat", filled, "filled", axis=axis)


def _is_empty(value: ir.Value, axis: int) -> bool:
    dims = dims_of(value)
    return dims is not None and -len(dims) <= axis < len(dims) and dims[axis] == 0


def pointless_cast(node: ir.Node) -> ir.Value | None:
    """A Cast to the type that the value has."""
    source = node.inputs[0]
    if source is None or source.dtype is None:
        return None
    return source if source.dtype == ir.DataType(node.attributes["to"].as_int()) else None


def double_negation(node: ir.Node) -> ir.Value | None:
    """−(−x) is x."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    return inner.inputs[0] if inner is not None and inner.op_type == "Neg" else None


def add_of_negation(node: ir.Node) -> ir.Value | None:
    """a + (−b) is a − b."""
    left, right = node.inputs
    for positive, negated in ((left, right), (right, left)):
        inner = negated.producer() if negated is not None else None
        if inner is not None and inner.op_type == "Neg" and len(negated.uses()) == 1:  # type: ignore[union-attr]
            return insert(node, "Sub", [positive, inner.inputs[0]])
    return None


def product_of_inverses(node: ir.Node) -> ir.Value | None:
    """(1/a)·(1/b) is (1/a)/b, where somebody else reads 1/a.

    onnxruntime divides so as well, one product after the other, and takes 1/a for unread when its
    last product is done: the session of a loss with two means is refused (seen up to 1.31.1).
    """
    left, right = node.inputs
    for shared, own in ((left, right), (right, left)):
        if not (_is_inverse(shared) and _is_inverse(own)) or len(shared.uses()) < 2:  # type: ignore[union-attr]
            continue
        if len(own.uses()) == 1 and not own.is_graph_output():  # type: ignore[union-attr]
            return insert(node, "Div", [shared, own.producer().inputs[1]])  # type: ignore[union-attr]
    return None


def _is_inverse(value: ir.Value | None) -> bool:
    """Whether it is one over something; of integers that would be rounded."""
    inner = producer_of(value, "Div")
    if inner is None or scalar(inner.inputs[0]) != 1.0:
        return False
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def add_of_scattered(node: ir.Node) -> ir.Value | None:
    """a + (zeros, but for some rows) is a with these rows added: only they are read and written.

    A table that is looked up and multiplied with, as the words of a language model are, has two
    gradients: a full one, and one of the rows that were looked up.
    """
    for full, scattered in (node.inputs, reversed(node.inputs)):
        inner = producer_of(scattered, "ScatterElements", "ScatterND")
        if inner is None or len(inner.outputs[0].uses()) > 1 or inner.outputs[0].is_graph_output():
            continue
        zeros, places, rows = inner.inputs
        if not is_zeros(zeros) or not same_shape(full, scattered) or full is scattered:
            continue
        reduction = inner.attributes.get_string("reduction", "none")
        if inner.op_type == "ScatterElements" and reduction == "add":
            axis = inner.attributes.get_int("axis", 0)
            return insert(node, "ScatterElements", [full, places, rows], axis=axis, reduction="add")
        if inner.op_type == "ScatterND" and reduction == "none":
            taken = insert(node, "GatherND", [full, places])
            sums = insert(node, "Add", [taken, rows], "rows")
            taken.shape = sums.shape = rows.shape if rows is not None else None
            return insert(node, "ScatterND", [full, places, sums])
    return None


def shape_of_operand(node: ir.Node) -> ir.Value | None:
    """An operator with one shape for operand and result is asked for that of the operand.

    If only sums read the result besides, it never has to be in memory: the squares of a mean
    squared error, whose gradient wants to know how many there are. An operand that nobody else
    reads is left alone, since the result may take its memory.
    """
    source, alive = node.inputs[0], None
    while (maker := _maker_of_its_shape(source)) is not None:
        source = maker.inputs[0]
        assert source is not None
        if source.is_graph_input() or {reader for reader, _ in source.uses()} != {maker}:
            alive = source
    if alive is not None:
        node.replace_input_with(0, alive)
    return None


def _maker_of_its_shape(value: ir.Value | None) -> ir.Node | None:
    """The operator that made a value of the shape of its first operand."""
    node = None if value is None else value.producer()
    if node is None or node.domain or value is not node.outputs[0] or not node.inputs:
        return None
    operand, *others = node.inputs
    is_same = node.op_type in KEEPS_SHAPE
    if node.op_type in BROADCASTING:
        is_same = all(v is operand or scalar(v) is not None for v in others)
    return node if operand is not None and is_same else None


def same_branches(node: ir.Node) -> ir.Value | None:
    """A choice between a value and itself."""
    _, left, right = node.inputs
    return left if left is right and same_shape(left, node.outputs[0]) else None


REWRITES: dict[str, tuple[Rewrite, ...]] = {
    "Add": (neutral_operand, add_of_negation, add_of_scattered),
    "Sub": (neutral_operand,),
    "Mul": (neutral_operand, product_of_inverses),
    "Div": (neutral_operand,),
    "Neg": (double_negation,),
    "Expand": (pointless_expand,),
    "Transpose": (double_transpose, trivial_transpose, transposed_product, transpose_for_product),
    "Gemm": (tall_product,),
    "Pad": (pads_of_all_axes,),
    "Slice": (whole_slice,),
    "Concat": (joined_with_nothing,),
    "Reshape": (reshape_of_reshape,),
    "Squeeze": (undone_axes, reduced_axes),
    "Unsqueeze": (undone_axes,),
    "Cast": (pointless_cast,),
    "ReduceSum": (counted,),
    "Shape": (shape_of_operand,),
    "Size": (shape_of_operand,),
    "Where": (same_branches, chosen_integers),
}
"""Which rewrites look at which operator; they are tried in this order."""
