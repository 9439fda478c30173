# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Where the values of a loop over columns are, for 16 columns; see `columns.py` and `column_loops`.

What is known of a run is integers: the addresses of its operands and results, and of every value
how many rows it has and where it begins in the memory of a block. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .columns import CUT, ELEMENTWISE, JOIN, MOST_OPERANDS, MOST_VALUES, PRODUCT
from .driver import I64, OPTIONS
from .tensors import NUMBERS

LANES, MOST_ROWS, LEAST_ROWS = 16, 48, 16
"""Columns of a block, and rows of the largest and smallest tile (`tiles.ROWS`)."""
MOST_PLACES = 48
"""Operands and results of an elementwise program."""

(TABLE, STATES, READ, WRITTEN, OUTSIDE, COUNT, REST) = range(NUMBERS, NUMBERS + 7)
"""What the state of a node says behind what all kernels have: the address of `tiles.table`, then
`Columns.numbers`."""
LONGEST = 2**20
"""More integers than the state of a node has."""
LENGTH, RESULTS, OPERANDS = 1, 2, 3
"""Of an instruction, behind the operation: how many integers follow, how many results it has."""

(NODE, CODE, STEPS, BATCH, MEMORY, ZEROS, SPACE, PHASE, BLOCKS, SHARED, AT, RESULT, CHUNKS) = range(
    13
)
"""Addresses of the node's state and place of the code in it; sizes; how many numbers a block needs,
and where in them zeros begin, and the space that instructions may work in; what threads are to do,
how many blocks there are; and where all of them go through a step together, their memory, the
instruction, its first result, and into how many chunks of rows a product is divided."""
INPUTS = 13
OUTPUTS = INPUTS + MOST_OPERANDS
WIDTHS = OUTPUTS + MOST_OPERANDS
PACKED = WIDTHS + MOST_OPERANDS
ROWS = PACKED + MOST_OPERANDS
PLACES = ROWS + MOST_VALUES
RUN = PLACES + MOST_VALUES
"""Addresses of inputs and outputs, columns of inputs, where matrices are laid out (0 for what is no
matrix), rows and places of values."""


@njit(**OPTIONS)
def rounded(rows: Any) -> Any:
    """Rows in memory: a tile has a multiple of 16."""
    return (rows + LEAST_ROWS - 1) // LEAST_ROWS * LEAST_ROWS


@njit(**OPTIONS)
def operand_count(state: Any) -> Any:
    """How many values there are before the first instruction."""
    return state[STATES] + state[READ] + state[OUTSIDE]


@njit(**OPTIONS)
def most_rows(run: Any, state: Any, at: Any) -> Any:
    """Rows of the operands of an elementwise instruction: one of one row is read for all."""
    rows = I64(1)
    for number in range(state[at + OPERANDS + 1]):
        rows = max(rows, run[ROWS + state[at + OPERANDS + 2 + number]])
    return rows


@njit(**OPTIONS)
def find_matrices(run: Any, state: Any) -> Any:
    """Mark what is multiplied from the left; how many numbers that takes, laid out."""
    at, total = run[CODE], I64(0)
    for _ in range(state[COUNT]):
        matrix = state[at + OPERANDS]
        if state[at] == PRODUCT and run[PACKED + matrix] == 0:
            run[PACKED + matrix] = 1 + 4 * total
            total += rounded(run[ROWS + matrix]) * run[WIDTHS + matrix]
        at += 2 + state[at + LENGTH]
    return total


@njit(**OPTIONS)
def plan(run: Any, state: Any) -> Any:
    """Rows and places of all values; False if sizes do not fit to each other."""
    used, widest, at, result = I64(0), I64(LEAST_ROWS), run[CODE], operand_count(state)
    for value in range(result):
        run[PLACES + value] = used
        widest = max(widest, rounded(run[ROWS + value]))
        if run[PACKED + value] == 0:
            used += rounded(run[ROWS + value]) * LANES
    for _ in range(state[COUNT]):
        operation = state[at]
        if operation == CUT:
            fits = _cut(run, state, at, result)
        else:
            if operation == JOIN:
                fits = _join(run, state, at, result)
            elif operation == PRODUCT:
                fits = _product(run, state, at, result)
            else:
                fits = _elementwise(run, state, at, result)
                inputs = state[at + OPERANDS + 1]
                widest = max(widest, inputs * most_rows(run, state, at))
            for number in range(state[at + RESULTS]):
                run[PLACES + result + number] = used
                rows = run[ROWS + result + number]
                if operation == ELEMENTWISE:  # computed for all rows, even if all are alike
                    rows = most_rows(run, state, at)
                widest = max(widest, rounded(rows))
                used += rounded(rows) * LANES
        if not fits:
            return False
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]
    run[ZEROS], run[SPACE] = used, used + widest * LANES
    run[MEMORY] = run[SPACE] + max(widest * LANES, used)
    return True


@njit(**OPTIONS)
def _join(run: Any, state: Any, at: Any, result: Any) -> Any:
    run[ROWS + result] = 0
    for number in range(state[at + OPERANDS]):
        run[ROWS + result] += run[ROWS + state[at + OPERANDS + 1 + number]]
    return True


@njit(**OPTIONS)
def _cut(run: Any, state: Any, at: Any, result: Any) -> Any:
    source, parts = state[at + OPERANDS], state[at + OPERANDS + 1]
    rows = run[ROWS + source] // parts
    for number in range(parts):
        run[ROWS + result + number] = rows
        run[PLACES + result + number] = run[PLACES + source] + number * rows * LANES
    return rows * parts == run[ROWS + source]


@njit(**OPTIONS)
def _product(run: Any, state: Any, at: Any, result: Any) -> Any:
    matrix, value, added = state[at + OPERANDS], state[at + OPERANDS + 1], state[at + OPERANDS + 2]
    rows = run[ROWS + matrix]
    run[ROWS + result] = rows
    is_added = added < 0 or run[ROWS + added] == 1 or run[ROWS + added] == rows
    return is_added and run[WIDTHS + matrix] == run[ROWS + value]


@njit(**OPTIONS)
def _elementwise(run: Any, state: Any, at: Any, result: Any) -> Any:
    inputs, first = state[at + OPERANDS + 1], at + OPERANDS + 2
    rows = most_rows(run, state, at)
    for number in range(inputs):
        own = run[ROWS + state[first + number]]
        if own not in (1, rows):
            return False
    for number in range(state[at + RESULTS]):
        mask, own = state[first + inputs + number], I64(1)
        for operand in range(inputs):
            if mask >> operand & 1:
                own = max(own, run[ROWS + state[first + operand]])
        run[ROWS + result + number] = own
    return inputs + state[at + RESULTS] <= MOST_PLACES
