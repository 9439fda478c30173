"""Marks nodes for which a session may have a kernel of our own.

What is marked stays as it is: standard operators, in files and on devices. A session on a desktop
(`runtime/session/kernels.py`) compares marked nodes with what its kernels compute. A node in the
body of another one is not marked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from ..graph.nodes import ints, known, permutation
from ..graph.tensor import Dim, dims_of
from ..operators import ACROSS, BIASED, INSIDE, KERNEL, MOST_ROWS, OR_KERNEL, TRANSPOSED
from .across import mark_written_softmaxes
from .folds import mark_folds
from .sizes import SYMBOLIC, elements_of
from .transposed import only_reader

ELEMENTS = 8192
"""A tensor from which on a kernel is worth being loaded: as for elementwise groups (`fusion.py`),
not measured kernel by kernel."""
SHORT_COPY = 512
"""Elements of a copy up to which onnxruntime's Pad spends more time on beginning copies."""
MOST_ROWS_ALONE = 6
"""Of matrices whose determinant alone is asked for: 20,000 of six rows take our kernel 2.2 ms and
onnxruntime 3.0 (one thread), 15,000 of seven 3.8 and 2.8; 42,000 of five 2 and 5."""
LONGEST_COMPARED, FEWEST_TAKEN = 255, 10
"""Numbers of a row up to which onnxruntime's TopK sorts as fast as our kernel, or one in so many is
taken at least. Sorting 400,000 numbers on one thread takes ours 2.3 to 5.5 ms in rows of 256 and
more, where onnxruntime takes 17 to 30; a tenth of them 2.0 and 4.1 to 7.5, a hundredth 2.0 and 1.5;
rows of 64 take both 13."""
SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
LONGEST_ACROSS = 12
"""Numbers on the axis of a softmax up to which our kernel is faster, where the axis is not the last
and few numbers are behind it (for many, it is written out before). A million as (58,254, 3, 6) take
it 1.2 ms and onnxruntime 4.4 to 5.2 (one thread), as (20,000, 10, 5) 1.0 and 1.7 to 2.0, as
(10,000, 16, 6) both 1.0, as (2000, 64, 8) 0.7 and 0.5."""
MOST_AXES_TURNED = 8
"""Axes of a tensor that our kernel puts into another order."""
SHORT_ROW = 4
"""Elements behind the axis of a Gather from which on onnxruntime's is as fast as ours: a million
numbers on one thread take 2.4 against 0.5 ms one by one, 1.3 against 0.9 in twos and 0.7 against
0.8 in fours, of 1,024 places."""
REDUCTIONS = frozenset({"add", "none", "max", "min"})
"""What our kernel does with elements that are scattered."""
COPIED_EACH = 4
"""Elements that our kernel copies for each that is scattered, at most: where onnxruntime writes in
place it copies none. Not measured."""
NARROWEST_CUT = 8
"""Elements of a row up to which our kernel is faster where a Slice leaves out its ends: 65,536 rows
take it 0.04 ms and onnxruntime 0.15 if there are three, 0.14 and 0.16 if there are eight."""
LONGEST_AXIS = 2**31 - 1
"""Where a Slice ends that reads an axis to its beginning."""
PRODUCTS = frozenset({"Gemm", "MatMul"})
FOUR_BITS = frozenset({ir.DataType.INT4, ir.DataType.UINT4})
AS_LARGE = frozenset({"GatherElements", "Mul", "Reshape", "ScatterElements"})
"""The result is about as large as the first operand: in gradients nobody has inferred shapes."""


LINE_OF_PAGES = 1024
"""Numbers of single precision in 4 KiB. Rows of the left operand that are a multiple of it apart
share a set of the first cache, and onnxruntime's product, which reads twelve of them at a time,
takes 1.0 to 1.5 times as long as ours (Cascade Lake, one and two threads, 8 rows and more)."""
LARGE_RESULT = 2**20
"""Numbers of a result from which on ours is 1.0 to 1.35 times as fast (in the median 1.12, one and
two threads, sums of 192 to 768); of results of half the size it is 0.9 to 1.1."""
FEWEST_ROWS = 16
"""Of such an operand: of a single row onnxruntime's product is two to four times as fast."""
SUMMED, RESULTS = 128, 2**15
"""A gradient of weights, Aᵀ·B, sums so many rows and has so many numbers at least: onnxruntime
turns A four columns at a time. Ours is 1.0 to 1.8 times as fast from there on, and 0.4 to 0.9 for
sums of 1 to 64 rows."""
NARROWEST = 64
"""Columns and rows of a result, or a tile is mostly empty."""


def mark_for_kernels(model: ir.Model) -> ir.Model:
    """Mark what a kernel can compute and is large enough; marks of another time are taken away."""
    for node in model.graph:
        if node.doc_string in (KERNEL, ACROSS, INSIDE):
            node.doc_string = None
    mark_folds(model)
    for node in model.graph:
        if node.op_type in ("Gemm", "MatMul"):
            _mark_product(node)
        elif not node.domain and not node.doc_string and _has_kernel(node) and _is_large(node):
            node.doc_string = ACROSS if _is_across(node) else KERNEL
    mark_written_softmaxes(model)
    return model


def _mark_product(node: ir.Node) -> None:
    """Mark a product if onnxruntime's is the slower one for its sizes."""
    if node.doc_string == TRANSPOSED + OR_KERNEL:
        node.doc_string = TRANSPOSED
    said, types = node.doc_string or "", (None, ir.DataType.FLOAT)
    if node.domain or any(v is not None and v.dtype not in types for v in node.inputs):
        return
    if not _adds_a_row(node) or not (_sums_many_rows(node) or _has_long_rows_or_result(node)):
        return
    if said in ("", BIASED):
        node.doc_string = KERNEL
    elif said == TRANSPOSED and _only_turns_the_right(node):
        node.doc_string = TRANSPOSED + OR_KERNEL


def _only_turns_the_right(node: ir.Node) -> bool:
    """Whether the right operand is transposed, and that is all a product does besides."""
    left, right = (_maker(value) for value in node.inputs)
    around = (left, only_reader(node))
    is_alone = not any(n is not None and (n.doc_string or "") == TRANSPOSED for n in around)
    return is_alone and right is not None and permutation(right) == [1, 0]


def _adds_a_row(node: ir.Node) -> bool:
    """Whether a product has no bias, or one that is the same for all rows."""
    if node.op_type == "MatMul" or len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    dims = dims_of(node.inputs[2])
    is_row = dims is not None and len(dims) in (1, 2) and set(dims[:-1]) <= {1}
    return is_row and dims is not None and isinstance(dims[-1], int) and dims[-1] > 1


def _sums_many_rows(node: ir.Node) -> bool:
    """Whether a Gemm is Aᵀ·B, large, and surely of many rows."""
    if node.op_type != "Gemm" or not _is_turned(node, "transA") or _is_turned(node, "transB"):
        return False
    a, b = node.inputs[:2]
    sizes = [(_dims(value) or (None,))[-1] for value in (a, b)]
    if not all(isinstance(size, int) and size >= NARROWEST for size in sizes):
        return False
    is_large = math.prod(size for size in sizes if isinstance(size, int)) >= RESULTS
    return is_large and max(_known_rows(a), _known_rows(b)) >= SUMMED


def _has_long_rows_or_result(node: ir.Node) -> bool:
    """Whether a product surely reads some rows 4 KiB apart, or its result is surely large."""
    a, b = node.inputs[:2]
    dims, others = _dims(a), _dims(b)
    if len(others) != 2 or len(dims) < 2 or _is_turned(node, "transA"):
        return False
    is_turned, rows = _is_turned(node, "transB"), _known_rows(a)
    lengths = [d for d in (dims[-1], others[1 if is_turned else 0]) if isinstance(d, int)]
    length, columns = lengths[0] if lengths else 0, others[0 if is_turned else 1]
    if not isinstance(columns, int) or columns < NARROWEST or length < NARROWEST:
        return False
    is_apart = length % LINE_OF_PAGES == 0 and rows >= FEWEST_ROWS
    likely_rows = _known_rows(a, otherwise=SYMBOLIC)
    return is_apart or (rows >= SUMMED and likely_rows * columns >= LARGE_RESULT)


def _dims(value: ir.Value | None) -> tuple[Dim, ...]:
    """Dimensions as far as they are known, through a Transpose of a matrix."""
    dims, maker = dims_of(value) if value is not None else None, _maker(value)
    if dims is None and maker is not None and maker.op_type == "Transpose":
        source = maker.inputs[0]
        dims = dims_of(source) if source is not None else None
        dims = dims[::-1] if dims is not None and len(dims) == 2 else None
    return dims or ()


def _is_turned(node: ir.Node, name: str) -> bool:
    return node.attributes.get_int(name, 0) != 0


def _known_rows(matrix: ir.Value | None, otherwise: int = 1) -> int:
    """How many rows a matrix has at least: what is known of the axes that they are made of.

    An axis of unknown size counts for what is named.
    """
    most, maker = 0, _maker(matrix)
    sources = [matrix]
    if maker is not None and maker.op_type == "Reshape" and not maker.domain:
        sources.append(maker.inputs[0])
    for source in sources:
        dims = dims_of(source) if source is not None else None
        if dims is not None:
            rows = (d if isinstance(d, int) else otherwise for d in dims[:-1])
            most = max(most, math.prod(rows))
    return most


def _has_kernel(node: ir.Node) -> bool:
    fits = KERNELS.get(node.op_type)
    return fits is not None and fits(node)


def _adds_up(node: ir.Node) -> bool:
    """The gradient of Gather, of pools, and of images that are read between their pixels."""
    is_known = node.inputs[1] is not None and node.inputs[1].dtype != ir.DataType.INT32
    is_onto = _is_zeros(node.inputs[0]) or _is_onto_product(node)
    if node.op_type == "ScatterND":
        return is_onto
    return is_known and (is_onto or _is_last_tap(node) or _scatters_many(node))


def _scatters_many(node: ir.Node) -> bool:
    """Whether elements are scattered over a tensor that is not much larger, and is copied."""
    data, indices, reduction = *node.inputs[:2], _reduction(node)
    if data is None or indices is None or data.shape is None or indices.shape is None:
        return False
    if (data.dtype, indices.dtype) != (ir.DataType.FLOAT, ir.DataType.INT64):
        return False
    before = _maker(data)
    if reduction == "add" and _is_of_taps(node) and not _is_written(before):
        return False
    is_many = elements_of(indices.shape) * COPIED_EACH >= elements_of(data.shape)
    is_begun = not _is_zeros(data) or reduction in ("max", "min")
    return reduction in REDUCTIONS and is_many and is_begun


def _is_written(node: ir.Node | None) -> bool:
    """Whether a node writes elements, and adds none."""
    is_scatter = node is not None and node.op_type == "ScatterElements"
    return is_scatter and node is not None and _reduction(node) == "none"


def _reduction(node: ir.Node) -> str:
    return node.attributes.get_string("reduction", "none")


def _takes_short_rows(node: ir.Node) -> bool:
    """Whether a Gather is of computed numbers, and what is behind its axis is short."""
    x, indices = node.inputs
    if x is None or indices is None or x.shape is None or known(x) is not None:
        return False
    axis = node.attributes.get_int("axis", 0) % max(1, len(x.shape))
    is_typed = (x.dtype, indices.dtype) == (ir.DataType.FLOAT, ir.DataType.INT64)
    behind = [d if isinstance(d, int) else SHORT_ROW for d in tuple(x.shape)[axis + 1 :]]
    return is_typed and indices.shape is not None and math.prod(behind) < SHORT_ROW


def _picks_elements(node: ir.Node) -> bool:
    """Whether a GatherElements is of numbers, and not one of a pattern that has another kernel."""
    x, indices = node.inputs
    if x is None or indices is None or x.shape is None or indices.shape is None:
        return False
    if (x.dtype, indices.dtype) != (ir.DataType.FLOAT, ir.DataType.INT64):
        return False
    products = [u for u, _ in node.outputs[0].uses() if u.op_type == "Mul"]
    is_summed = any(_sums_read(u) for p in products for u, _ in p.outputs[0].uses())
    maker = _maker(x)
    return not is_summed and (maker is None or maker.op_type != "LogSoftmax")


def _samples_image(node: ir.Node) -> bool:
    """Whether a GridSample is of the nearest pixels of images, or between those of volumes.

    Between those of images onnxruntime's is as fast: two of 3 × 512² take it 12 ms and ours 16 (one
    thread), two volumes of 3 × 64³ take it 58 and ours 29.
    """
    image, mode = node.inputs[0], node.attributes.get_string("mode", "linear")
    rank = 0 if image is None or image.shape is None else len(image.shape)
    # Of volumes exporters say "bilinear", the word of a time when there were images only
    return (mode, rank) in (("nearest", 4), ("linear", 5), ("bilinear", 5))


def _is_picked_from(node: ir.Node) -> bool:
    """Whether log-probabilities along the last axis are read at labels, and for a gradient.

    A session does without them then.
    """
    result = node.outputs[0]
    shape = result.shape if node.inputs[0] is None else node.inputs[0].shape or result.shape
    if result.dtype not in (ir.DataType.FLOAT, None) or shape is None or result.is_graph_output():
        return False
    is_last = node.attributes.get_int("axis", -1) % len(shape) == len(shape) - 1
    readers = [user for user, _ in result.uses()]
    return is_last and bool(readers) and all(_picks(r) or _has_share(r) for r in readers)


def _is_across(node: ir.Node) -> bool:
    """Whether a softmax is along an axis of a few numbers that is surely not the last."""
    dims = _dims(node.inputs[0])
    types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None}
    if node.op_type not in SOFTMAXES or not dims or ir.DataType.FLOAT not in types:
        return False
    axis = node.attributes.get_int("axis", -1) % len(dims)
    size, behind = dims[axis], math.prod(d for d in dims[axis + 1 :] if isinstance(d, int))
    return isinstance(size, int) and 2 <= size <= LONGEST_ACROSS and behind > 1


def _picks(node: ir.Node) -> bool:
    labels = node.inputs[1] if node.op_type == "GatherElements" else None
    return labels is not None and labels.dtype != ir.DataType.INT32


def _has_share(node: ir.Node) -> bool:
    """Whether probabilities are multiplied with one number for each row, or for all."""
    users = [user for user, _ in node.outputs[0].uses()]
    if node.op_type != "Exp" or [user.op_type for user in users] != ["Mul"]:
        return False
    (share,) = [v for v in users[0].inputs if v is not node.outputs[0]] or [None]
    if share is None or share.shape is None:
        return False
    sizes = tuple(share.shape)
    return elements_of(share.shape) == 1 or (len(sizes) > 1 and sizes[-1] == 1)


def _sorts_long_rows(node: ir.Node) -> bool:
    """Whether a TopK surely takes much of a long row, along the last axis."""
    x, taken = node.inputs[0], known(node.inputs[1])
    dims = dims_of(x) if x is not None and x.dtype == ir.DataType.FLOAT else None
    if (
        not dims
        or taken is None
        or node.attributes.get_int("axis", -1) % len(dims) != len(dims) - 1
    ):
        return False
    length, count = dims[-1], int(taken.numpy().reshape(-1)[0])
    is_long = isinstance(length, int) and length > LONGEST_COMPARED
    return is_long and isinstance(length, int) and length <= count * FEWEST_TAKEN


def _is_of_few_rows(node: ir.Node) -> bool:
    """Whether a Det is surely of matrices of some rows; of all cofactors they may have more."""
    x, maker = node.inputs[0], _maker(node.inputs[0])
    dims = dims_of(x) if x is not None and x.dtype == ir.DataType.FLOAT else None
    rows = dims[-1] if dims else None
    most = MOST_ROWS if maker is not None and maker.op_type == "Where" else MOST_ROWS_ALONE
    return isinstance(rows, int) and 1 <= rows <= most


def _pads_short_rows(node: ir.Node) -> bool:
    """Whether a Pad is of numbers, by constant sizes, and what it copies at once is short."""
    x, pads, named = node.inputs[0], known(node.inputs[1]), (*node.inputs, None, None)[3]
    if x is None or x.dtype != ir.DataType.FLOAT or x.shape is None or pads is None:
        return False
    axes = known(named)
    if named is not None and axes is None:
        return False
    rank, amounts = len(x.shape), [int(n) for n in pads.numpy().ravel()]
    numbers = range(rank) if axes is None else [int(a) % rank for a in axes.numpy()]
    count = len(amounts) // 2
    each = zip(numbers, amounts[:count], amounts[count:])
    last = max((axis for axis, *both in each if any(both)), default=0)
    return elements_of(x.shape[last:]) < SHORT_COPY


def _reads_backwards(node: ir.Node) -> bool:
    """Whether a Slice of numbers reads whole axes from their end."""
    x, operands = node.inputs[0], [known(value) for value in node.inputs[1:]]
    if x is None or x.dtype != ir.DataType.FLOAT or len(operands) != 4 or None in operands:
        return False
    starts, ends, _, steps = ({*map(int, v.numpy().ravel())} for v in operands if v is not None)
    return starts == steps == {-1} and all(end <= -LONGEST_AXIS for end in ends)


def _turns_singly(node: ir.Node) -> bool:
    """Whether a Transpose of numbers moves the last axis, and not just one axis.

    To move one, onnxruntime has loops, and products turn their operands themselves. Slices that are
    put side by side belong to another kernel.
    """
    x, order = node.inputs[0], permutation(node)
    dims = dims_of(x) if x is not None and x.dtype == ir.DataType.FLOAT else None
    before = _maker(x)
    is_inside = before is not None and before.op_type == "Concat"
    if order is None or dims is None or is_inside or len(dims) > MOST_AXES_TURNED:
        return False
    if any(user.op_type in PRODUCTS for user, _ in node.outputs[0].uses()):
        return False
    axes = [axis for axis in order if dims[axis] != 1]
    together = [a for a, before in zip(axes, [-2, *axes]) if a != before + 1]
    count, places = len(together), sorted(together)
    numbers = [places.index(axis) for axis in together]
    moved = {tuple(_moved(count, old, new)) for old in range(count) for new in range(count)}
    return bool(numbers) and numbers[-1] != count - 1 and tuple(numbers) not in moved


def _moved(count: int, old: int, new: int) -> list[int]:
    """The axes in order, but for one that was taken to another place."""
    axes = [axis for axis in range(count) if axis != old]
    return [*axes[:new], old, *axes[new:]]


def _is_of_numbers(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT


def _cuts_short_rows(node: ir.Node) -> bool:
    """Whether a Slice leaves out elements at the ends of short rows, counted from these ends."""
    x, dims = node.inputs[0], _dims(node.inputs[0])
    if x is None or x.dtype != ir.DataType.FLOAT or not dims or not isinstance(dims[-1], int):
        return False
    starts, ends, axes, steps = (ints(v) for v in (*node.inputs[1:], None, None)[:4])
    if not starts or not ends or not axes or not len(starts) == len(ends) == len(axes) == 1:
        return False
    is_last = axes[0] % len(dims) == len(dims) - 1 and steps in (None, [1])
    behind = -ends[0] if ends[0] < 0 else 0
    is_counted = starts[0] >= 0 and (ends[0] < 0 or ends[0] >= LONGEST_AXIS)
    return is_last and is_counted and starts[0] + behind < dims[-1] <= NARROWEST_CUT


def _cuts_windows(node: ir.Node) -> bool:
    """Whether a Conv has one constant filter for each place of its kernel (`window_columns`)."""
    weights = known(node.inputs[1])
    sizes = [int(d) for d in weights.numpy().shape] if weights is not None else []
    return len(sizes) == 5 and sizes[1:3] == [1, 1] and sizes[0] == math.prod(sizes[3:])


def _stacks_slices(node: ir.Node) -> bool:
    """Whether a Reshape is of slices side by side (`few_pixels`)."""
    turned = _maker(node.inputs[0])
    stacked = _maker(turned.inputs[0]) if turned is not None and turned.inputs else None
    is_turned = turned is not None and turned.op_type == "Transpose"
    if stacked is None or not is_turned or stacked.op_type != "Concat":
        return False
    flat = _maker(stacked.inputs[0])
    cut = _maker(flat.inputs[0]) if flat is not None and flat.op_type == "Reshape" else None
    return cut is not None and cut.op_type == "Slice"


def _unpacks(node: ir.Node) -> bool:
    """Whether a node is the last of those that make a matrix of floats of blocks of four bits."""
    shaped = _maker(node.inputs[0]) if node.op_type == "Slice" else node
    if shaped is None or shaped.op_type != "Reshape":
        return False
    floats = _maker(shaped.inputs[0])
    if floats is None or floats.op_type != "DequantizeLinear" or len(floats.inputs) != 3:
        return False
    codes, readers = floats.inputs[0], [user.op_type for user, _ in shaped.outputs[0].uses()]
    is_last = node is not shaped or set(readers) != {"Slice"}
    return is_last and codes is not None and codes.dtype in FOUR_BITS


def _is_zeros(value: ir.Value | None) -> bool:
    maker = _maker(value)
    return maker is not None and maker.op_type == "ConstantOfShape"


def _is_onto_product(node: ir.Node) -> bool:
    """Whether a result of the model is a product to which rows are added."""
    maker = _maker(node.inputs[0])
    return node.outputs[0].is_graph_output() and maker is not None and maker.op_type in PRODUCTS


def _is_of_taps(node: ir.Node) -> bool:
    """Whether a node adds to what such nodes added, from zeros on that were planes (`taps.py`)."""
    first = _maker(node.inputs[0])
    while first is not None and first.op_type == node.op_type:
        first = _maker(first.inputs[0])
    return first is not None and first.op_type == "Reshape" and _is_zeros(first.inputs[0])


def _is_last_tap(node: ir.Node) -> bool:
    """Whether a node is of taps, and none adds to its result."""
    is_last = not any(u.op_type == node.op_type for u, _ in node.outputs[0].uses())
    return is_last and _is_of_taps(node)


def _sums_read(node: ir.Node) -> bool:
    """Whether a node sums a product with what GatherElements has read."""
    factors = _maker(node.inputs[0]) if node.op_type == "ReduceSum" else None
    is_product = factors is not None and factors.op_type == "Mul"
    read = _maker(factors.inputs[0]) if factors is not None and is_product else None
    return read is not None and read.op_type == "GatherElements"


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _is_large(node: ir.Node) -> bool:
    """Whether a float operand or result has enough elements."""
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    return any(v.dtype in (ir.DataType.FLOAT, None) and _elements(v) >= ELEMENTS for v in values)


def _elements(value: ir.Value) -> int:
    """How many there are, as far as the graph says of the value, or of what it is as large as.

    An inferred shape need not tell: what a Reshape makes flat has one axis that nobody knows.
    """
    most = 0
    source: ir.Value | None = value
    while source is not None:
        if source.shape is not None:
            most = max(most, elements_of(source.shape))
        maker = source.producer()
        sizes = known(maker.inputs[0]) if maker is not None and _is_zeros(source) else None
        if sizes is not None:
            most = max(most, math.prod(int(size) for size in sizes.numpy().ravel()))
        is_as_large = maker is not None and maker.op_type in AS_LARGE
        source = maker.inputs[0] if maker is not None and is_as_large else None
    return most


KERNELS: dict[str, Callable[[ir.Node], bool]] = {
    "Col2Im": lambda node: all(known(v) is not None for v in node.inputs[1:3]),
    "Conv": _cuts_windows,
    "CumSum": lambda _: True,
    "DepthToSpace": _is_of_numbers,
    "Det": _is_of_few_rows,
    "Gather": _takes_short_rows,
    "GatherElements": _picks_elements,
    "GridSample": _samples_image,
    "LogSoftmax": lambda node: _is_across(node) or _is_picked_from(node),
    "MaxPool": lambda node: len(node.outputs) > 1,  # without indices onnxruntime's is fast
    "MaxUnpool": lambda node: len(node.inputs) == 2,
    "Pad": _pads_short_rows,  # onnxruntime's is fast for long rows
    "ReduceSum": _sums_read,
    "Reshape": lambda node: _stacks_slices(node) or _unpacks(node),
    "ScatterElements": _adds_up,
    "ScatterND": _adds_up,
    "Slice": lambda node: _reads_backwards(node) or _cuts_short_rows(node) or _unpacks(node),
    "Softmax": _is_across,
    "TopK": _sorts_long_rows,
    "Transpose": _turns_singly,
}
"""Which nodes may have a kernel, by their operator."""
