"""The operators that onnxruntime is told of, and what their attributes may say.

What a kernel is told of its node is one attribute, integers as text; it is read like anything that
comes from outside. A kernel is imported, and with that compiled, when the first node of its
operator is made. This module imports nothing of numba.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...operators import MOST_ROWS
from .columns import Columns
from .opcodes import BINARY, PER_ROW, REDUCTIONS, UNARY
from .program import Program, ProgramError, Step, assemble

ANY, FLOAT, INT64, UINT4, INT4 = 0, 1, 7, 21, 22
"""onnxruntime's numbers of element types; ANY is checked by the kernel."""
SIGN_BIT = 8
"""Of a number of four bits."""
LARGEST = 2**31 - 1
"""Of what an attribute says; sizes of windows are far below."""
LARGEST_KERNEL = 1024
"""Along an axis; for larger ones, places of the kernel are not the loop to be outside."""
MOST_AXES = 3
"""Axes that a pool can have beside images and channels."""

LARGEST_MAP = 2**12
"""Pixels of an image along an axis, whose windows are cut out."""
MOST_CELLS = 2**14
"""Places of all windows of an image that are added up by a table: those of the maps that are small,
and few enough to stay in the caches."""

FILLED, REFLECT, EDGE, WRAP = range(4)
MODES = {"constant": FILLED, "reflect": REFLECT, "edge": EDGE, "wrap": WRAP}
"""Of padding."""
MOST_PADDED = 8
"""Axes of a tensor that is padded."""
LARGEST_PADDING = 2**24
"""Along an axis: the kernel has a table of so many places."""
MOST_FOLDED = 2**22
"""Places of the axes that are padded, in a gradient: the kernel has a table of what is around."""

REDUCED = {"add": 0, "none": 1, "max": 2, "min": 3}
"""Of elements that are scattered."""

MOST_AXES_TURNED = 8
"""Axes of a tensor that are read backwards, or in another order."""

PERMUTATION, DEPTH_COLUMN_ROW, COLUMN_ROW_DEPTH = range(3)
"""What is done with axes: a Transpose, and both modes of DepthToSpace."""

MISFITS = (
    (
        b"The inputs of a kernel of onnxtrain do not have the shapes that its node was made for. "
        b"ONNXTRAIN_NO_FUSION=1 runs the standard operators."
    ),
    (
        b"An index is out of range: it names a place outside of a tensor. Check the indices that "
        b"the model is fed; ONNXTRAIN_NO_FUSION=1 runs the standard operators."
    ),
)
"""What an error says, by its number; see `tensors.py`."""


class Operator(NamedTuple):
    """One of our operators.

    Attributes:
        name: in our domain.
        inputs, outputs: element types; the last one is repeated where they are variadic.
        parse: makes integers of the attribute; a `ProgramError` if they are not sound.
        module, functions: which module has the kernel, and the names in it: what computes a node,
            then what its threads call.
        is_variadic: whether there may be any number of inputs and outputs.
        tables: modules whose function `table` gives the address of further code.
        in_place: whether the result may be written to where the first input is, if nobody reads
            that any more; it has its shape.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parse: Callable[[str], list[int]]
    module: str = ""
    functions: tuple[str, ...] = ()
    is_variadic: bool = False
    tables: tuple[str, ...] = ()
    in_place: bool = False

    @property
    def domain(self) -> str:
        """Each operator has its own: onnxruntime reads a whole domain for every session."""
        return f"onnxtrain.{self.name}"

    def load(self) -> list[int]:
        """Addresses of the compiled functions, then of the tables."""
        module: Any = importlib.import_module(f"{__package__}.{self.module}")
        tables: list[Any] = [
            importlib.import_module(f"{__package__}.{name}") for name in self.tables
        ]
        addresses = [int(getattr(module, name).address) for name in self.functions]
        return [*addresses, *(int(table.table()) for table in tables)]


def _integers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split()]
    except ValueError as error:
        raise ProgramError("the attribute of a kernel is not made of numbers") from error
    if any(not -LARGEST <= number <= LARGEST for number in numbers):
        raise ProgramError("the attribute of a kernel has a number that is too large")
    return numbers


def nothing(text: str) -> list[int]:
    """A kernel without attributes."""
    if _integers(text):
        raise ProgramError("the attribute of a kernel has numbers that it does not read")
    return []


def windows(text: str) -> list[int]:
    """Axes and ceil_mode; then kernel, stride, dilation, and padding before and behind of each.

    Every window has an element inside of the image then: with padding and a dilation one could lie
    around it.
    """
    numbers = _integers(text)
    axes = numbers[0] if numbers else 0
    if not 1 <= axes <= MOST_AXES or len(numbers) != 2 + 5 * axes or numbers[1] not in (0, 1):
        raise ProgramError("the windows of a pool are not described")
    for at in range(2, len(numbers), 5):
        kernel, stride, dilation, before, behind = numbers[at : at + 5]
        is_possible = 1 <= kernel <= LARGEST_KERNEL and min(stride, dilation) >= 1
        is_padded_less = 0 <= before < kernel and 0 <= behind < kernel
        if not is_possible or not is_padded_less or (before and dilation > 1):
            raise ProgramError("the windows of a pool cannot be laid out")
    return numbers


def sizes(text: str) -> list[int]:
    """Axes; then of each what is added to the places of windows, and the stride between them."""
    numbers = _integers(text)
    if not numbers or not 1 <= numbers[0] <= MOST_AXES or len(numbers) != 1 + 2 * numbers[0]:
        raise ProgramError("the result of a pool's gradient is not described")
    if min(numbers) < 1:
        raise ProgramError("the result of a pool's gradient has no size")
    return numbers


def running(text: str) -> list[int]:
    """The axis of a cumulative sum, whether it is exclusive, and whether reversed."""
    numbers = _integers(text)
    if len(numbers) != 3 or not -8 <= numbers[0] < 8 or not {*numbers[1:]} <= {0, 1}:
        raise ProgramError("the axis of a cumulative sum is not described")
    return numbers


def axis(text: str) -> list[int]:
    """An axis, which may be counted from the end."""
    numbers = _integers(text)
    if len(numbers) != 1 or not -8 <= numbers[0] < 8:
        raise ProgramError("the axis of a kernel is not described")
    return numbers


def sorting(text: str) -> list[int]:
    """An axis, and whether the largest numbers come first."""
    numbers = _integers(text)
    if len(numbers) != 2 or numbers[1] not in (0, 1):
        raise ProgramError("the order of a row is not described")
    return [*axis(str(numbers[0])), numbers[1]]


def rows_of_matrix(text: str) -> list[int]:
    """How many rows the matrices have whose cofactors are computed."""
    numbers = _integers(text)
    if len(numbers) != 1 or not 1 <= numbers[0] <= MOST_ROWS:
        raise ProgramError("the rows of small matrices are not described")
    return numbers


def scattering(text: str) -> list[int]:
    """An axis, and what becomes of elements at their places: a number of `REDUCED`."""
    numbers = _integers(text)
    if len(numbers) != 2 or numbers[1] not in REDUCED.values():
        raise ProgramError("what becomes of scattered elements is not described")
    return [*axis(str(numbers[0])), numbers[1]]


def places(text: str) -> list[int]:
    """An axis, and whether there is one list of places for all that is not along it."""
    numbers = _integers(text)
    if len(numbers) != 2 or numbers[1] not in (0, 1):
        raise ProgramError("the places of elements are not described")
    return [*axis(str(numbers[0])), numbers[1]]


def axes(text: str) -> list[int]:
    """How many axes, and which, each of which may be counted from the end."""
    count, *numbers = _integers(text) or [0]
    most = MOST_AXES_TURNED
    is_possible = all(-most <= n < most for n in numbers) and len({*numbers}) == count
    if not 1 <= count == len(numbers) <= most or not is_possible:
        raise ProgramError("the axes of a kernel are not described")
    return [count, *numbers, *[0] * (most - count)]


def turning(text: str) -> list[int]:
    """What is done with axes, then how many there are and their order, or the length of a block."""
    numbers = _integers(text)
    kind, count, *order = numbers if len(numbers) > 1 else (-1, 0)
    if kind == PERMUTATION:
        is_sound = 1 <= count <= MOST_AXES_TURNED and sorted(order) == list(range(count))
    else:
        is_known = kind in (DEPTH_COLUMN_ROW, COLUMN_ROW_DEPTH)
        is_sound = is_known and not order and 1 <= count <= LARGEST_KERNEL
    if not is_sound:
        raise ProgramError("the order of a tensor's axes is not described")
    return [*numbers, *[0] * (2 + MOST_AXES_TURNED - len(numbers))]


def row_stats(text: str) -> list[int]:
    """An axis, and a program that is compiled."""
    return [*axis(text), _compiled(ROW_STATS_PROGRAM)]


def softmax_across(text: str) -> list[int]:
    """An axis, whether the logarithm is computed, and two programs that are compiled."""
    numbers = _integers(text)
    if len(numbers) != 2 or numbers[1] not in (0, 1):
        raise ProgramError("the axis of a softmax is not described")
    each = (assemble((Step(UNARY[name], "y", ("x",)),), ["x"], ["y"]) for name in ("Exp", "Log"))
    return [*axis(str(numbers[0])), numbers[1], *map(_compiled, each)]


def cross_entropy_gradient(text: str) -> list[int]:
    """An axis, the sign of what is added at labels, and a program that is compiled."""
    numbers = _integers(text)
    if len(numbers) != 2 or numbers[1] not in (0, 1):
        raise ProgramError("the gradient of a cross entropy is not described")
    return [*axis(str(numbers[0])), 1 - 2 * numbers[1], _compiled(CROSS_ENTROPY_PROGRAM)]


def _flag(value: int) -> Callable[[str], list[int]]:
    """Whether a kernel has its last input: what its name says already."""

    def only(text: str) -> list[int]:
        if _integers(text) != [value]:
            raise ProgramError("a kernel is told of another number of inputs than it has")
        return [value]

    return only


def _compiled(program: Program) -> int:
    codegen: Any = importlib.import_module(f"{__package__}.codegen")
    return int(codegen.compiled(program))


def padding(text: str) -> list[int]:
    """Mode, bits of what is filled in, how many axes; then of each its number, before and behind.

    What is added may be negative, which cuts off, where it is filled.
    """
    numbers = _integers(text)
    if len(numbers) < 3 or numbers[0] not in MODES.values() or not 1 <= numbers[2] <= MOST_PADDED:
        raise ProgramError("the padding of a tensor is not described")
    axes, pads = numbers[3::3], [*numbers[4::3], *numbers[5::3]]
    least = -LARGEST_PADDING if numbers[0] == FILLED else 0
    is_possible = all(least <= n <= LARGEST_PADDING for n in pads)
    if len(numbers) != 3 + 3 * numbers[2] or not is_possible or len({*axes}) != len(axes):
        raise ProgramError("the padding of a tensor is none that the kernel has")
    return [*numbers, *[0] * (3 + 3 * MOST_PADDED - len(numbers))]


def folded_padding(text: str) -> list[int]:
    """The gradient of a Pad: mode, how many axes follow each other.

    Then of each its number, what was put before and behind, and the size without that.
    """
    numbers = _integers(text)
    if len(numbers) < 2 or numbers[0] not in (REFLECT, EDGE, WRAP):
        raise ProgramError("the gradient of a padding is not described")
    each, cells = [numbers[at : at + 4] for at in range(2, len(numbers), 4)], 1
    if not 1 <= numbers[1] == len(each) <= MOST_PADDED or len(numbers) != 2 + 4 * numbers[1]:
        raise ProgramError("the axes of a padding's gradient are not described")
    for number, (axis, before, behind, size) in enumerate(each):
        cells *= before + behind + size
        is_next = 0 <= axis == each[0][0] + number < MOST_PADDED
        if not is_next or min(before, behind) < 0 or size < 1 or cells > MOST_FOLDED:
            raise ProgramError("the padding whose gradient is asked for is none of the kernel's")
    return [*numbers, *[0] * (2 + 4 * MOST_PADDED - len(numbers))]


def cutting(text: str) -> list[int]:
    """How windows lie in images; then two numbers more.

    Layout; of two axes kernel, stride, dilation, padding before and behind, and windows, 0 if those
    are as many as fit.
    """
    numbers = _integers(text)
    if len(numbers) != 15 or numbers[0] not in (0, 1) or min(numbers) < 0:
        raise ProgramError("the windows of images are not described")
    for axis in (numbers[1:7], numbers[7:13]):
        kernel, *steps = axis[:3]
        if not 1 <= kernel <= LARGEST_KERNEL or min(steps) < 1 or max(axis) > LARGEST_MAP:
            raise ProgramError("the windows of images cannot be laid out")
    return numbers


def kernels_of_channels(text: str) -> list[int]:
    """Of two axes kernel, dilation, and padding before and behind."""
    numbers = _integers(text)
    if len(numbers) != 8 or min(numbers) < 0 or max(numbers) > LARGEST_MAP:
        raise ProgramError("the kernels of channels are not described")
    for kernel, dilation in (numbers[:2], numbers[4:6]):
        if not 1 <= kernel <= LARGEST_KERNEL or dilation < 1:
            raise ProgramError("the kernels of channels cannot be laid out")
    return numbers


def folding(text: str) -> list[int]:
    """The same, with the sizes of an image last; there may be no more cells than a table has."""
    numbers, cells = cutting(text), 1
    for size, axis in zip(numbers[13:], (numbers[1:7], numbers[7:13])):
        kernel, stride, dilation, before, behind, _ = axis
        windows = (size + before + behind - (kernel - 1) * dilation - 1) // stride + 1
        if not 1 <= size <= LARGEST_MAP or windows < 1:
            raise ProgramError("there are no windows to be added up")
        cells *= kernel * windows
    if cells > MOST_CELLS:
        raise ProgramError("the windows to be added up are too many")
    return numbers


def nibbles(text: str) -> list[int]:
    """Numbers in the blocks of a row, how many of them are kept, and the bit that is a sign."""
    numbers = _integers(text)
    if len(numbers) != 3 or not 1 <= numbers[1] <= numbers[0] or numbers[2] not in (0, SIGN_BIT):
        raise ProgramError("the rows of a weight of four bits are not described")
    return numbers


def sampling(text: str) -> list[int]:
    """Whether corners are aligned, and whether the border goes on outside of the image."""
    numbers = _integers(text)
    if len(numbers) != 2 or not {*numbers} <= {0, 1}:
        raise ProgramError("how an image is sampled is not described")
    return numbers


def turned(text: str) -> list[int]:
    """Whether the operands of a product are transposed, and whether something is added to it."""
    numbers = _integers(text)
    if len(numbers) != 3 or not {*numbers} <= {0, 1}:
        raise ProgramError("the operands of a product are not described")
    return numbers


def columns(text: str) -> list[int]:
    """A loop over columns, with its elementwise programs compiled."""
    loop = Columns.parse(text)
    codegen: Any = importlib.import_module(f"{__package__}.codegen")
    return loop.numbers(codegen.compiled)


ELEMENTWISE = Operator("Elementwise", (ANY,), (FLOAT,), nothing, is_variadic=True)
ADD_ROWS = Operator(
    "AddRows", (INT64, INT64, FLOAT), (FLOAT,), nothing, "rows", ("add_rows", "add_part")
)
"""Shape of the result, number of a row for each row of the third: those are added up."""
ADD_ROWS_TO = Operator(
    "AddRowsTo", (FLOAT, INT64, FLOAT), (FLOAT,), nothing, "rows", ("add_rows_to", "add_part")
)
"""What they are added to in the place of the shape. It is written to; the result is empty."""
TAKEN_ROWS = tuple(
    Operator(
        name, (INT64, INT64, FLOAT, INT64, *[FLOAT] * weights), (FLOAT,), _flag(weights),
        "taken_rows", ("add_taken_rows", "add_taken_part"),
    )
    for weights, name in enumerate(("AddTakenRows", "AddWeightedRows"))
)  # fmt: skip
"""Shape, numbers of rows, and a table and which of its rows are added; the second has weights."""
ADD_ELEMENTS = Operator(
    "AddElements", (INT64, INT64, FLOAT), (FLOAT,), places, "elements",
    ("add_elements", "add_blocks"),
)  # fmt: skip
"""Shape of the result, places along an axis, what is added there; or one list of places."""
PUT_ELEMENTS = ADD_ELEMENTS._replace(name="PutElements", functions=("put_elements", "add_blocks"))
"""The same, of what is written there."""
SCATTER_ELEMENTS = Operator(
    "ScatterElements", (FLOAT, INT64, FLOAT), (FLOAT,), scattering, "elements",
    ("scatter_elements", "add_blocks"),
)  # fmt: skip
"""A tensor, places along an axis, what is added or written there, or compared with it."""
GATHER = Operator(
    "Gather", (FLOAT, INT64), (FLOAT,), axis, "taking", ("gather", "take_lines")
)  # fmt: skip
GATHER_ELEMENTS = Operator(
    "GatherElements", (FLOAT, INT64), (FLOAT,), axis, "picking",
    ("gather_elements", "pick_blocks"),
)  # fmt: skip
"""A tensor, and places along an axis that are read."""
ROW_STATS_PROGRAM = assemble(
    (
        Step(REDUCTIONS["ReduceMax"], "largest", ("x",)),
        Step(BINARY["Sub"], "below", ("x", "largest")),
        Step(UNARY["Exp"], "e", ("below",)),
        Step(REDUCTIONS["ReduceSum"], "sum", ("e",)),
        Step(UNARY["Log"], "log", ("sum",)),
    ),
    ["x"], ["largest", "log"],
)  # fmt: skip
ROW_STATS = Operator(
    "RowStats", (FLOAT,), (FLOAT,), row_stats, "cross_entropy", ("row_stats", "stats_part")
)
"""Of each row of scores the largest one, and the logarithm of Σ exp(score − largest)."""
PICK_LOG_SOFTMAX = Operator(
    "PickLogSoftmax", (FLOAT, FLOAT, INT64), (FLOAT,), axis, "cross_entropy", ("pick", "pick_part")
)
"""Scores, what `ROW_STATS` makes of them, labels: the log-probabilities there."""
CROSS_ENTROPY_PROGRAM = assemble(
    (
        Step(BINARY["Sub"], "below", ("x", "largest")),
        Step(BINARY["Sub"], "log", ("below", "log sum")),
        Step(UNARY["Exp"], "e", ("log",)),
        Step(BINARY["Mul"], "y", ("e", "share")),
    ),
    ["x", "largest", "log sum", "share"], ["y"],
    dict.fromkeys(("largest", "log sum", "share"), PER_ROW),
)  # fmt: skip
CROSS_ENTROPY_GRADIENT = Operator(
    "CrossEntropyGradient", (FLOAT, FLOAT, INT64, FLOAT, FLOAT), (FLOAT,), cross_entropy_gradient,
    "cross_entropy", ("gradient", "gradient_part"), in_place=True,
)  # fmt: skip
"""The same, a factor for all rows or each, what is added at labels: the softmax times the factor,
and what is added."""
PAD = Operator("Pad", (FLOAT,), (FLOAT,), padding, "padding", ("pad", "pad_rows"))
PAD_GRADIENT = Operator(
    "PadGradient", (FLOAT,), (FLOAT,), folded_padding, "folding", ("fold", "fold_blocks")
)
"""Of a Pad that reflects, repeats or wraps around."""
FLIP = Operator("Flip", (FLOAT,), (FLOAT,), axes, "flips", ("turn", "turn_part"))
"""Some axes are read backwards."""
TURN = Operator("Turn", (FLOAT,), (FLOAT,), turning, "turning", ("turn_tensor", "turn_matrices"))
"""Axes in another order, and channels of images that become blocks."""
MAX_POOL = Operator(
    "MaxPool", (FLOAT,), (FLOAT, INT64), windows, "pools", ("max_pool", "pool_planes")
)
MAX_UNPOOL = Operator(
    "MaxUnpool", (FLOAT, INT64), (FLOAT,), sizes, "unpool", ("max_unpool", "unpool_planes")
)
CUM_SUM = Operator("CumSum", (FLOAT,), (FLOAT,), running, "running", ("cum_sum", "sum_part"))

SOFTMAX_ACROSS = Operator(
    "SoftmaxAcross", (FLOAT,), (FLOAT,), softmax_across, "across", ("across", "across_part")
)
SOFTMAX_GRADIENT_ACROSS = Operator(
    "SoftmaxGradientAcross", (FLOAT, FLOAT), (FLOAT,), softmax_across, "across",
    ("gradient_across", "across_part"),
)  # fmt: skip
"""The gradient of a softmax and the softmax itself, or of and with its logarithm."""
TOP = Operator("LongTopK", (FLOAT, INT64), (FLOAT, INT64), sorting, "sorting", ("top", "sort_part"))
DETERMINANTS = Operator(
    "Determinants", (FLOAT,), (FLOAT,), nothing, "minors", ("determinants", "determinant_part")
)
"""Of small matrices."""
COFACTORS = Operator(
    "Cofactors", (FLOAT,), (FLOAT,), rows_of_matrix, "minors", ("cofactors", "cofactor_part")
)
"""The gradient of a determinant: for each number the determinant without its row and column."""


def _taps(count: int) -> Callable[[str], list[int]]:
    def number(text: str) -> list[int]:
        if _integers(text) != [count]:
            raise ProgramError("a kernel is asked for another number of taps than it has")
        return [count]

    return number


FOUR_TAPS = 4
"""Taps of a position between four pixels."""
TAPS = (1, FOUR_TAPS, 8, 16)
"""Of a position in an image, and between the pixels of an image, of a volume, and of a cubic."""
ADD_TAPS = {
    count: Operator(
        f"Add{count}Taps", (INT64, FLOAT, *[INT64] * count, *[FLOAT] * count), (FLOAT,),
        _taps(count), "taps", ("add_taps", "add_planes"),
    )
    for count in TAPS
}  # fmt: skip
"""Shape, gradient, places and weights of so many taps: the gradient of an image."""
READ_DOTS = {
    count: Operator(
        f"Read{count}Dots", (FLOAT, FLOAT, *[INT64] * count), (FLOAT,) * count, _taps(count),
        "dots", ("dots", "dot_block"),
    )
    for count in (1, FOUR_TAPS)
}  # fmt: skip
"""Pixels of an image, times a gradient, summed over channels; places of so many taps."""
CUT_WINDOWS = Operator(
    "CutWindows", (FLOAT,), (FLOAT,), cutting, "windows", ("cut_windows", "cut_part")
)
FOLD_WINDOWS = Operator(
    "FoldWindows", (FLOAT,), (FLOAT,), folding, "windows", ("fold_windows", "fold_part")
)
DEPTHWISE_WEIGHTS = Operator(
    "DepthwiseWeights", (FLOAT, FLOAT), (FLOAT,), kernels_of_channels, "depthwise",
    ("depthwise_weights", "sum_part"),
)  # fmt: skip
"""The weights' gradient of a convolution with a kernel for each channel, of image and signal."""
NEAREST = Operator(
    "NearestPixels", (FLOAT, FLOAT), (FLOAT,), sampling, "nearest", ("grid_sample", "read_planes")
)
"""GridSample of images."""
BETWEEN = Operator(
    "BetweenPixels", (FLOAT, FLOAT), (FLOAT,), sampling, "between", ("sample", "sample_part")
)
"""GridSample between the pixels of images and volumes."""
COLUMN_LOOP = Operator(
    "ColumnLoop", (FLOAT,), (FLOAT,), columns, "column_loops", ("run_columns", "column_part"),
    is_variadic=True, tables=("tiles",),
)  # fmt: skip
"""States, stacks and what else the loop reads: states, stacks, and memory that nobody reads."""
GEMM = Operator(
    "Product", (FLOAT,), (FLOAT,), turned, "gemm", ("gemm", "gemm_part"), is_variadic=True,
    tables=("gemm_tiles",),
)  # fmt: skip
"""Two matrices: their product, and memory that nobody reads."""
NIBBLES = {
    kind: Operator(
        f"Nibbles{kind}", (kind, FLOAT, kind), (FLOAT,), nibbles, "nibbles",
        ("nibbles", "unpack_rows"),
    )
    for kind in (UINT4, INT4)
}  # fmt: skip
"""Blocks of numbers of four bits, their scales and zero points: a matrix of floats."""
OPERATORS = (
    ELEMENTWISE, GEMM, COLUMN_LOOP, ADD_ROWS, ADD_ROWS_TO, *TAKEN_ROWS, ADD_ELEMENTS, PUT_ELEMENTS,
    GATHER, GATHER_ELEMENTS, PAD, PAD_GRADIENT, FLIP, TURN, MAX_POOL, MAX_UNPOOL, SCATTER_ELEMENTS,
    CUM_SUM, NEAREST, BETWEEN, CUT_WINDOWS, FOLD_WINDOWS, DEPTHWISE_WEIGHTS, ROW_STATS,
    PICK_LOG_SOFTMAX, CROSS_ENTROPY_GRADIENT,
    DETERMINANTS, COFACTORS, TOP, SOFTMAX_ACROSS, SOFTMAX_GRADIENT_ACROSS, *ADD_TAPS.values(),
    *READ_DOTS.values(), *NIBBLES.values(),
)  # fmt: skip


def mentioned(changes: Mapping[int, Sequence[bytes]]) -> list[Operator]:
    """Those of our operators that occur in nodes which are to stand in the places of others."""
    written = b"".join([node for nodes in changes.values() for node in nodes])
    return [operator for operator in OPERATORS if operator.domain.encode() in written]
