"""Marked nodes that onnxruntime computes slowly become nodes of our own operators.

`passes/kernels.py` has marked them. What is replaced is read from the nodes themselves: what does
not match stays as it is. The file stays as it is, too, of standard operators.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence

from ...errors import ModelFileError
from ...operators import ACROSS, KERNEL, OR_KERNEL, TRANSPOSED
from ..files.outline import Outline
from ..fusion.library import is_available
from ..fusion.operators import (
    ADD_ELEMENTS,
    ADD_ROWS,
    ADD_TAPS,
    BETWEEN,
    COFACTORS,
    COLUMN_ROW_DEPTH,
    CUM_SUM,
    DEPTH_COLUMN_ROW,
    DETERMINANTS,
    FILLED,
    FLIP,
    FOUR_TAPS,
    GATHER,
    GATHER_ELEMENTS,
    GEMM,
    MAX_POOL,
    MAX_UNPOOL,
    MODES,
    NEAREST,
    PAD,
    PERMUTATION,
    PUT_ELEMENTS,
    READ_DOTS,
    REDUCED,
    SCATTER_ELEMENTS,
    SOFTMAX_ACROSS,
    TOP,
    TURN,
    mentioned,
)
from .cross_entropy import Readers, without_log_probabilities
from .edits import LONGEST, NOTHING, Rewritten, changed, connections_of, idle_after, marked
from .folds import folded_padding
from .nibbles import unpacked
from .own_nodes import Node, if_sound
from .patterns import Nodes, Number, Opened, Pattern, Result, Value, Zeros, matches
from .softmax import written_softmax
from .taken_rows import added_taken_rows, scattered_rows
from .windows import cut_by_conv, cut_by_slices, folded

DOUBLE, FLOAT, INT64 = 11, 1, 7
TO_END = 2**63 - 1
FAR = 2**31 - 1
"""Beyond the end of any axis."""


def with_own_kernels(outline: Outline) -> bytes | None:
    """The model with nodes of ours in the places of marked ones; None if there is nothing to do."""
    changes = own_kernels(outline)
    try:
        domains = [operator.domain.encode() for operator in mentioned(changes)]
        return changed(outline, changes, *domains) if changes else None
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None


def own_kernels(outline: Outline, before: Rewritten = NOTHING) -> dict[int, list[bytes]]:
    """What stands in the places of marked nodes, and of those that nobody reads then.

    Args:
        outline: of the model.
        before: what others have changed already; its connections are used up.
    """
    if len(outline.model) > LONGEST or not outline.mentions(KERNEL.encode()) or not is_available():
        return {}
    try:
        connections = before.connections or connections_of(outline)
        nodes = Nodes(outline, connections[1], gone=before.changes)
        replacements = dict[int, Node]()
        readers: Readers | None = None
        for marked_node in (*marked(outline, KERNEL), *marked(outline, TRANSPOSED + OR_KERNEL)):
            node = nodes.maker(marked_node.outputs[0].decode())
            is_across = marked_node.mark == ACROSS.encode()
            if node is not None and node.operator == "LogSoftmax" and not is_across:
                readers = readers or Readers(outline, nodes, connections[0])
                replacements |= without_log_probabilities(nodes, readers, node)
                continue
            recognise = RECOGNISED.get(node.operator) if node is not None else None
            ours = recognise(nodes, node) if recognise is not None and node is not None else None
            if ours is not None:
                replacements.setdefault(marked_node.place, ours)
        if not replacements:
            return {}
        # One that is picked from may be a part of what others stand for; it reads what it did
        others = {p: n for p, n in replacements.items() if n.operator is not GATHER_ELEMENTS}
        still_read = {name.encode() for node in others.values() for name in node.inputs}
        idle = idle_after(
            outline, list(others), still_read.union(before.read), connections
        ).difference(before.changes)
        replacements = {p: n for p, n in replacements.items() if p in others or p not in idle}
        return _together(nodes, replacements) | {place: [] for place in idle}
    except (ModelFileError, ValueError, LookupError):  # onnxruntime says what is wrong with it
        return {}


# --- rows added up by number ----------------------------------------------------------------------


def _sorted_sums() -> tuple[Pattern, Pattern]:
    """What `autodiff/rules/_index.py` writes: places and sums of rows, by way of sorting them."""
    rows, ordered, last = Value("rows"), Value("ordered"), Value("last")
    axis, first = {"axis": 0}, Number((0,))
    order = Result(
        "TopK", (rows, Result("Shape", (rows,))), {"largest": 0, "axis": 0}, output=1
    )  # fmt: skip
    sorted_rows = order._replace(output=0, name="ordered")
    taken = Result("Gather", (Value("source"), order), name="taken")
    sums = Result("CumSum", (Result("Cast", (taken,), {"to": DOUBLE}), Number((0,), 0)))
    behind = Result("Slice", (ordered, Number((1,)), Number((TO_END,))))
    following = Result("Concat", (behind, Number((TO_END,))), axis)
    is_last = Result("Less", (ordered, following), name="last")
    ends = Result("Compress", (sums, last), axis, name="ends")
    before = Result("Slice", (Value("ends"), first, Number((-1,)), first))
    shifted = Result("Pad", (before, Number((1, 0)), None, first))
    total = Result("Sub", (ends, shifted), name="total")
    of_last = Result("Slice", (total, Number((-1,)), Number((TO_END,)), first))
    is_nan = Result("IsNaN", (Result("ReduceSum", (of_last,), {"keepdims": 0}),))
    counted = Result("Cast", (last,), {"to": INT64})
    place = Result("CumSum", (counted, Number((0,), 0)), {"exclusive": 1})
    spread = Result(
        "Expand", (Result("Unsqueeze", (place, Number((1,)))), Result("Shape", (Value("taken"),)))
    )
    one_by_one = Result(
        "ScatterElements",
        (Zeros(Value("part")), spread, Value("taken")),
        {"axis": 0, "reduction": "add"},
    )
    at_once = Result("Cast", (Value("total"),), {"to": FLOAT})
    target = Result("Unsqueeze", (Result("Compress", (sorted_rows, is_last), axis), Number((1,))))
    added = Result("If", (is_nan, one_by_one, at_once))
    return target, added


PLACES, SUMS = _sorted_sums()
SORTED_SUMS = Result("ScatterND", (Zeros(Value("shape")), PLACES, SUMS))
TABLE = Value("table")
SORTED_SUMS_TO = Result(
    "ScatterND", (TABLE, PLACES, Result("Add", (Result("GatherND", (TABLE, PLACES)), SUMS)))
)
"""What `passes/rewrites.py` writes where a table has another gradient, too."""
REPEATED = Result(
    "Expand",
    (Result("Unsqueeze", (Value("rows"), Number((1,)))), Result("Shape", (Value("source"),))),
)
ADDING = {"axis": 0, "reduction": "add"}
ONE_BY_ONE = Result("ScatterElements", (Zeros(Value("shape")), REPEATED, Value("source")), ADDING)
ONE_BY_ONE_TO = Result("ScatterElements", (TABLE, REPEATED, Value("source")), ADDING)
"""The same of narrow rows."""
SINGLE = Result(
    "ScatterElements",
    (Zeros(Value("shape")), Value("rows"), Value("source")),
    {"axis": 0, "reduction": "add"},
)
"""Single numbers added up, if there is one axis: the gradient of a pool whose windows overlap."""


def _added_rows(nodes: Nodes, node: Opened) -> Node | None:
    """Rows of the first operand's shape, added up by number."""
    if node.attributes.get("axis", 0):
        return _added_taps(nodes, node) or _added_elements(nodes, node)
    whole = scattered_rows(nodes, node)
    if whole is not None:
        return added_taken_rows(nodes, Node(ADD_ROWS, whole, node.outputs))
    for pattern in (SORTED_SUMS, ONE_BY_ONE, SINGLE):
        bound = dict[str, str]()
        if matches(nodes, node.outputs[0], pattern, bound):
            if pattern is SORTED_SUMS and not is_shape_of(nodes, bound):
                return None
            if pattern is SINGLE and not _is_flat(nodes, bound):
                return _added_elements(nodes, node)
            operands = (bound["shape"], _unwrapped(nodes, bound), bound["source"])
            return added_taken_rows(nodes, Node(ADD_ROWS, operands, node.outputs))
    return _added_elements(nodes, node)


def _added_elements(nodes: Nodes, node: Opened) -> Node | None:
    """Elements added up by their places along an axis, from zero on, or put there."""
    axis, reduction = node.attributes.get("axis", 0), node.attributes.get("reduction", "none")
    pattern = SINGLE._replace(attributes={"axis": axis, "reduction": reduction})
    bound = dict[str, str]()
    if node.operator != "ScatterElements":
        return None
    if not matches(nodes, node.outputs[0], pattern, bound):
        return _scattered(nodes, node)
    operator = {"add": ADD_ELEMENTS, "none": PUT_ELEMENTS}.get(reduction)
    if operator is None:
        return None
    places = _one_list(nodes, bound["rows"], axis) if reduction == "add" else None
    operands = (bound["shape"], places or bound["rows"], bound["source"])
    return if_sound(Node(operator, operands, node.outputs, (axis, int(places is not None))))


def _scattered(nodes: Nodes, node: Opened) -> Node | None:
    """Elements added or written to a tensor, or compared; rows are added to a product in place."""
    reduction, product = node.attributes.get("reduction", "none"), nodes.maker(node.inputs[0])
    is_product = product is not None and product.operator in ("Gemm", "MatMul")
    if is_product or reduction not in REDUCED:
        return None
    numbers = (node.attributes.get("axis", 0), REDUCED[reduction])
    return if_sound(Node(SCATTER_ELEMENTS, node.inputs, node.outputs, numbers))


def _one_list(nodes: Nodes, name: str, axis: int) -> str | None:
    """The list of places along an axis that is repeated for everything else."""
    places = Result("Reshape", (Value("list"), Number((-1, *[1] * (-1 - axis)))), name="lines")
    bound = dict[str, str]()
    is_list = matches(nodes, name, Result("Expand", (places, Value("shape"))), bound)
    return bound["list"] if axis < 0 and is_list else None


def _taken(_: Nodes, node: Opened) -> Node | None:
    """A Gather."""
    axis = node.attributes.get("axis", 0)
    return if_sound(Node(GATHER, node.inputs, node.outputs, (axis,)))


def _picked(_: Nodes, node: Opened) -> Node | None:
    """A GatherElements."""
    axis = node.attributes.get("axis", 0)
    return if_sound(Node(GATHER_ELEMENTS, node.inputs, node.outputs, (axis,)))


def is_shape_of(nodes: Nodes, bound: dict[str, str]) -> bool:
    """Whether the sums one by one have the shape of those at once."""
    return matches(nodes, bound["part"], Result("Shape", (Value("total"),)), bound)


def _is_flat(nodes: Nodes, bound: dict[str, str]) -> bool:
    """Whether single numbers have one axis, as far as the nodes before say."""
    flat = Result("Reshape", (Value("any"), Number((-1,))))
    return any(matches(nodes, bound[name], flat, {}) for name in ("rows", "source"))


def _unwrapped(nodes: Nodes, bound: dict[str, str]) -> str:
    """The numbers of rows before a Mod made negative ones positive: the kernel does that itself."""
    shape, node = nodes.constant(bound["shape"]), nodes.maker(bound["rows"])
    if shape is None or node is None or node.operator != "Mod" or any(node.attributes.values()):
        return bound["rows"]
    length = nodes.constant(node.inputs[1])
    return node.inputs[0] if length == Number(shape.elements[:1], 0) else bound["rows"]


# --- matrix products ------------------------------------------------------------------------------


def _product(nodes: Nodes, node: Opened) -> Node | None:
    """A product as it is, with what is added to it, one row or nothing.

    The right operand of a MatMul may be transposed before.
    """
    said = dict(node.attributes)
    flags = int(said.pop("transA", 0)), int(said.pop("transB", 0))
    factors = [said.pop(name, 1.0) for name in ("alpha", "beta")]
    if said or factors != [1.0, 1.0] or not has_tiles():
        return None
    inputs = node.inputs[:2] if node.inputs[2:] == ("",) else node.inputs
    right = nodes.maker(inputs[1]) if node.operator == "MatMul" else None
    if right is not None and (right.operator, right.attributes) == ("Transpose", {"perm": [1, 0]}):
        inputs, flags = (inputs[0], right.inputs[0]), (0, 1)
    return product_of(inputs, node.outputs[0], *flags)


def product_of(inputs: Sequence[str], output: str, is_a_turned: int, is_b_turned: int) -> Node:
    """A node of our product: two operands, perhaps what is added."""
    numbers = (is_a_turned, is_b_turned, len(inputs) - 2)
    return Node(GEMM, tuple(inputs), (output, f"{output}::laid out"), numbers)


@functools.cache
def has_tiles() -> bool:
    """Whether the processor has what the tiles of products need."""
    if not is_available():
        return False
    from ..fusion import gemm_tiles

    return gemm_tiles.is_available()


# --- pools ----------------------------------------------------------------------------------------


def _pooled(_: Nodes, node: Opened) -> Node | None:
    """A MaxPool with its places, in the order of the image's memory."""
    said, kernel = node.attributes, node.attributes.get("kernel_shape")
    is_plain = said.get("auto_pad", "NOTSET") in ("", "NOTSET", "VALID")
    if not kernel or said.get("storage_order", 0) or not is_plain or not all(node.outputs):
        return None
    axes, is_padded = len(kernel), said.get("auto_pad") != "VALID"
    strides, dilations = said.get("strides", [1] * axes), said.get("dilations", [1] * axes)
    pads = said.get("pads", [0] * 2 * axes) if is_padded else [0] * 2 * axes
    rows = zip(kernel, strides, dilations, pads[:axes], pads[axes:], strict=True)
    numbers = (axes, said.get("ceil_mode", 0), *(number for row in rows for number in row))
    return if_sound(Node(MAX_POOL, node.inputs, node.outputs, numbers))


def _unpooled(_: Nodes, node: Opened) -> Node | None:
    """A MaxUnpool that says how large its result is."""
    said, kernel = node.attributes, node.attributes.get("kernel_shape")
    if not kernel or len(node.inputs) != 2:
        return None
    axes = len(kernel)
    strides, pads = said.get("strides", [1] * axes), said.get("pads", [0] * 2 * axes)
    rows = zip(kernel, strides, pads[:axes], pads[axes:], strict=True)
    numbers = (axes, *(n for k, s, before, behind in rows for n in (k - before - behind, s)))
    return if_sound(Node(MAX_UNPOOL, node.inputs, node.outputs, numbers))


# --- padding --------------------------------------------------------------------------------------


def _padded(nodes: Nodes, node: Opened) -> Node | None:
    """A Pad by constant sizes along constant axes, with a constant number."""
    pads, mode = nodes.constant(node.inputs[1]), MODES.get(node.attributes.get("mode", "constant"))
    fill, named = (*node.inputs[2:], "", "")[:2]
    number = nodes.number(fill) if fill else 0.0
    if pads is None or mode is None or number is None:
        return None
    count = len(pads.elements) // 2
    axes = nodes.constant(named) if named else Number(tuple(range(count)))
    if axes is None or len(axes.elements) != count:
        return None
    (bits,) = struct.unpack("<i", struct.pack("<f", number))
    each = zip(axes.elements, pads.elements[:count], pads.elements[count:], strict=True)
    numbers = (mode, bits, count, *(n for triple in each for n in triple))
    return if_sound(Node(PAD, node.inputs[:1], node.outputs, numbers))


def _cut(nodes: Nodes, node: Opened) -> Node | None:
    """A Slice that leaves out ends of one axis: a Pad by less than nothing.

    Both are counted from the ends, so no size has to be known.
    """
    values = [nodes.constant(name) if name else None for name in node.inputs[1:]]
    if len(values) not in (3, 4) or any(v is None or len(v.elements) != 1 for v in values):
        return None
    begin, end, axis, *steps = (value.elements[0] for value in values if value is not None)
    if begin < 0 or 0 <= end < FAR or steps not in ([], [1]):
        return None
    numbers = (FILLED, 0, 1, axis, -begin, min(end, 0))
    return if_sound(Node(PAD, node.inputs[:1], node.outputs, numbers))


# --- axes that are read backwards ----------------------------------------------------------------


def _turned(nodes: Nodes, node: Opened) -> Node | None:
    """A Slice of whole axes, each from its end to its beginning."""
    values = [nodes.constant(name) if name else None for name in node.inputs[1:]]
    if len(values) != 4 or any(value is None for value in values):
        return None
    starts, ends, axes, steps = (value.elements for value in values if value is not None)
    is_whole = {*steps} == {-1} and {*starts} == {-1} and all(end <= -FAR for end in ends)
    if not is_whole or not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return if_sound(Node(FLIP, node.inputs[:1], node.outputs, (len(axes), *axes)))


def _in_order(_: Nodes, node: Opened) -> Node | None:
    """A Transpose that says the order of axes."""
    order = node.attributes.get("perm")
    if not order:
        return None
    return if_sound(Node(TURN, node.inputs, node.outputs, (PERMUTATION, len(order), *order)))


def _in_blocks(_: Nodes, node: Opened) -> Node | None:
    """A DepthToSpace."""
    modes = {"DCR": DEPTH_COLUMN_ROW, "CRD": COLUMN_ROW_DEPTH}
    kind = modes.get(node.attributes.get("mode", "DCR"))
    if kind is None:
        return None
    block = node.attributes.get("blocksize", 0)
    return if_sound(Node(TURN, node.inputs, node.outputs, (kind, block)))


# --- cumulative sums ------------------------------------------------------------------------------


def _cumulative(nodes: Nodes, node: Opened) -> Node | None:
    """A CumSum along an axis that is a constant."""
    axis, said = nodes.constant(node.inputs[1]), node.attributes
    if axis is None or len(axis.elements) != 1:
        return None
    numbers = (axis.elements[0], said.get("exclusive", 0), said.get("reverse", 0))
    return if_sound(Node(CUM_SUM, node.inputs[:1], node.outputs, numbers))


# --- sorted rows, and softmax across rows ---------------------------------------------------------


def _sorted(_: Nodes, node: Opened) -> Node | None:
    """A TopK of a row; what nobody reads of it has a name, too."""
    values, places = node.outputs
    outputs = (values or f"{places}::values", places or f"{values}::places")
    numbers = (node.attributes.get("axis", -1), node.attributes.get("largest", 1))
    return if_sound(Node(TOP, node.inputs, outputs, numbers))


def _softmax_across(_: Nodes, node: Opened) -> Node | None:
    """A softmax along any axis, or its logarithm."""
    numbers = (node.attributes.get("axis", -1), int(node.operator == "LogSoftmax"))
    return if_sound(Node(SOFTMAX_ACROSS, node.inputs, node.outputs, numbers))


# --- determinants ---------------------------------------------------------------------------------

ROW_NUMBERS = Value("numbers")
IS_SAME = Result("Equal", (Result("Unsqueeze", (ROW_NUMBERS, Number((1,)))), ROW_NUMBERS))
REPLACED = Result(
    "Where",
    (
        Result("Unsqueeze", (IS_SAME, Number((1, 3)))),
        Result("Unsqueeze", (Result("Cast", (IS_SAME,), {"to": FLOAT}), Number((0, 2)))),
        Result("Unsqueeze", (Value("x"), Number((-4, -3)))),
    ),
)
"""What `autodiff/rules/linear.py` writes: each row of a matrix replaced by each row of the unit
matrix. Their determinants are the cofactors."""


def _determinants(nodes: Nodes, node: Opened) -> Node | None:
    """Those of small matrices, or all cofactors."""
    bound = dict[str, str]()
    if matches(nodes, node.inputs[0], REPLACED, bound):
        numbers = nodes.constant(bound["numbers"])
        size = len(numbers.elements) if numbers is not None else 0
        if numbers != Number(tuple(range(size))):
            return None
        return if_sound(Node(COFACTORS, (bound["x"],), node.outputs, (size,)))
    return Node(DETERMINANTS, node.inputs, node.outputs)


# --- images that are read between their pixels ----------------------------------------------------

EVERY_CHANNEL = Result(
    "Expand", (Result("Unsqueeze", (Value("places"), Number((1,)))), Value("any shape"))
)
WEIGHTED = Result("Mul", (Value("source"), Result("Unsqueeze", (Value("weights"), Number((1,))))))
TAP = Result(
    "ScatterElements", (Value("before"), EVERY_CHANNEL, WEIGHTED), {"axis": 2, "reduction": "add"}
)
NO_TAP = Result("Reshape", (Zeros(Value("shape")), Number((0, 0, -1))))
READ = Result("GatherElements", (Value("image"), EVERY_CHANNEL), {"axis": 2})
DOT = Result(
    "ReduceSum", (Result("Mul", (READ, Value("gradient"))), Number((1,))), {"keepdims": 0}
)  # fmt: skip


def _added_taps(nodes: Nodes, node: Opened) -> Node | None:
    """Taps that are added one after the other, all of one gradient, from zero on."""
    places, weights, bound = list[str](), list[str](), {"before": node.outputs[0]}
    sources = set[str]()
    while matches(nodes, bound["before"], TAP, tap := dict[str, str]()):
        places.insert(0, tap["places"])
        weights.insert(0, tap["weights"])
        sources.add(tap["source"])
        bound["before"] = tap["before"]
    operator = ADD_TAPS.get(len(places))
    if operator is None or len(sources) != 1 or not matches(nodes, bound["before"], NO_TAP, bound):
        return None
    operands = (bound["shape"], *sources, *places, *weights)
    return Node(operator, operands, node.outputs, (len(places),))


def _read_dot(nodes: Nodes, node: Opened) -> Node | None:
    """Pixels that were read, times a gradient, summed over channels."""
    bound = dict[str, str]()
    if not matches(nodes, node.outputs[0], DOT, bound):
        return None
    operands = (bound["image"], bound["gradient"], bound["places"])
    return Node(READ_DOTS[1], operands, node.outputs, (1,))


def _together(nodes: Nodes, replacements: dict[int, Node]) -> dict[int, list[bytes]]:
    """What stands in which places: taps of one image and gradient are read together."""
    changes = {place: [node.encode()] for place, node in replacements.items()}
    groups = dict[tuple[str, ...], list[int]]()
    for place, node in replacements.items():
        if node.operator is READ_DOTS[1]:
            groups.setdefault(node.inputs[:2], []).append(place)
    for (image, gradient), places in groups.items():
        for begin in range(0, len(places) // FOUR_TAPS * FOUR_TAPS, FOUR_TAPS):
            members = places[begin : begin + FOUR_TAPS]
            taps = [replacements[place].inputs[2] for place in members]
            makers = (nodes.maker(name) for name in taps)
            if any(maker is not None and maker.place > members[0] for maker in makers):
                continue  # one is not there yet where the first is read
            outputs = tuple(replacements[place].outputs[0] for place in members)
            node = Node(READ_DOTS[FOUR_TAPS], (image, gradient, *taps), outputs, (FOUR_TAPS,))
            changes |= {place: [] for place in members}
            changes[members[0]] = [node.encode()]
    return changes


def _sampled(_: Nodes, node: Opened) -> Node | None:
    """A GridSample of the nearest pixels, or between them."""
    said, borders = node.attributes, {"zeros": 0, "border": 1}
    padding = borders.get(said.get("padding_mode", "zeros"))
    operator = SAMPLES.get(said.get("mode", "linear"))
    if operator is None or padding is None:
        return None
    numbers = (said.get("align_corners", 0), padding)
    return if_sound(Node(operator, node.inputs, node.outputs, numbers))


SAMPLES = {"nearest": NEAREST, "linear": BETWEEN, "bilinear": BETWEEN}
"""By the mode of a GridSample; a model before opset 20 has images only, and the last word."""


RECOGNISED: dict[str, Callable[[Nodes, Opened], Node | None]] = {
    "Add": folded_padding,
    "Col2Im": folded,
    "Conv": cut_by_conv,
    "CumSum": _cumulative,
    "DepthToSpace": _in_blocks,
    "Det": _determinants,
    "Div": written_softmax,
    "Gather": _taken,
    "GatherElements": _picked,
    "Gemm": _product,
    "GridSample": _sampled,
    "LogSoftmax": _softmax_across,
    "MatMul": _product,
    "MaxPool": _pooled,
    "MaxUnpool": _unpooled,
    "Mul": written_softmax,
    "Pad": _padded,
    "ReduceSum": _read_dot,
    "Reshape": lambda nodes, node: unpacked(nodes, node) or cut_by_slices(nodes, node),
    "ScatterElements": _added_rows,
    "ScatterND": _added_rows,
    "Softmax": _softmax_across,
    "TopK": _sorted,
    "Transpose": _in_order,
    "Slice": lambda nodes, node: unpacked(nodes, node) or _turned(nodes, node) or _cut(nodes, node),
    "Sub": written_softmax,
}
