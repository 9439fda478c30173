# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Where the values of a loop over columns are, for 16 columns; see `columns.py` and `column_loops`.

What is known of a run is integers: the addresses of its operands and results, and of every value
how many rows it has and where it begins in the memory of a block. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .columns import CUT, ELEMENTWISE, JOIN, MOST_OPERANDS, MOST_VALUES, PRODUCT, SUMMED
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

(NODE, CODE, STEPS, BATCH, MEMORY, ZEROS, SPACE, PHASE, BLOCKS, SHARED, AT, RESULT, CHUNKS,
 HOST, CROSSED) = range(15)  # fmt: skip
"""Addresses of the node's state and place of the code in it; sizes; how many numbers a block needs,
and where in them zeros begin, sums behind them, and the space that instructions may work in; what
threads are to do, how many blocks there are, and the address of their memory; where all of them go
through a step together, the instruction, its first result, and into how many chunks of rows a
product is divided. Last the place of the largest product of a step, or 0, and whether a state is
the next one of another."""
INPUTS = 15
OUTPUTS = INPUTS + MOST_OPERANDS
WIDTHS = OUTPUTS + MOST_OPERANDS
PACKED = WIDTHS + MOST_OPERANDS
ROWS = PACKED + MOST_OPERANDS
PLACES = ROWS + MOST_VALUES
BORN = PLACES + MOST_VALUES
WHEN = BORN + MOST_VALUES
SUMS = WHEN + MOST_OPERANDS
RUN = SUMS + MOST_OPERANDS
"""Addresses of inputs and outputs, columns of inputs, where matrices are laid out (0 for what is no
matrix), rows and places of values, whether a value is there before the largest product of a step
(-1), is given by it (0) or comes behind it (1), when a stack is written, and the places of sums
over all steps."""

AT_ONCE, EARLY, LATE, NEVER = range(4)
"""When a stack is written: at the end of a step; while the largest product of the step is computed,
or that of the step behind it, row by row, and nothing waits for memory then; or never, since
the sum over all steps is what is asked for."""


@njit(**OPTIONS)
def rounded(rows: Any) -> Any:
    """Rows in memory: a tile has a multiple of 16."""
    return (rows + LEAST_ROWS - 1) // LEAST_ROWS * LEAST_ROWS


@njit(**OPTIONS)
def rounded_to_line(address: Any) -> Any:
    """Where the next line of the caches begins: a row of a block is one, not parts of two."""
    return (address + 63) // 64 * 64


@njit(**OPTIONS)
def operand_count(state: Any) -> Any:
    """How many values there are before the first instruction."""
    return state[STATES] + state[READ] + state[OUTSIDE]


@njit(**OPTIONS)
def stacked(state: Any, number: Any) -> Any:
    """The value that a step adds to a stack, or to a sum."""
    return state[REST + state[READ] + state[WRITTEN] + state[STATES] + number]


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
        fits, rows = _measure(run, state, at, result)
        if not fits:
            return False
        for number in range(state[at + RESULTS] if state[at] != CUT else 0):
            run[PLACES + result + number] = used
            # what is elementwise is computed for all rows, even if all are alike
            own = rows if state[at] == ELEMENTWISE else run[ROWS + result + number]
            widest = max(widest, rounded(own))
            used += rounded(own) * LANES
        if state[at] == ELEMENTWISE:
            widest = max(widest, state[at + OPERANDS + 1] * rows)
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]
    _divide(run, state, used, widest)
    _find_host(run, state)
    _place_in_joins(run, state)
    _decide_when(run, state)
    _compare_states(run, state)
    return True


@njit(**OPTIONS)
def _measure(run: Any, state: Any, at: Any, result: Any) -> Any:
    """Rows of what an instruction gives: whether its operands fit, and how many they have."""
    operation, rows = state[at], I64(0)
    if operation == CUT:
        fits = _cut(run, state, at, result)
    elif operation == JOIN:
        fits = _join(run, state, at, result)
    elif operation == PRODUCT:
        fits = _product(run, state, at, result)
    else:
        fits, rows = _elementwise(run, state, at, result), most_rows(run, state, at)
    return fits, rows


@njit(**OPTIONS)
def _divide(run: Any, state: Any, used: Any, widest: Any) -> None:
    """The memory of a block: values, zeros, sums, and the space to work in."""
    run[ZEROS] = used
    used += widest * LANES
    for number in range(state[WRITTEN]):
        if state[REST + state[READ] + number] == SUMMED:
            run[SUMS + number] = used
            used += rounded(run[ROWS + stacked(state, number)]) * LANES
    run[SPACE], states = used, I64(0)
    for value in range(state[STATES]):
        states += run[ROWS + value]
    run[MEMORY] = used + max(widest, states) * LANES


@njit(**OPTIONS)
def _compare_states(run: Any, state: Any) -> None:
    """Whether what is in the place of a state is the next one of another."""
    for old in range(state[STATES]):
        begin = run[PLACES + old]
        for number in range(state[STATES]):
            value = state[REST + state[READ] + state[WRITTEN] + number]
            first = run[PLACES + value]
            is_behind = first + run[ROWS + value] * LANES <= begin
            if not is_behind and first < begin + run[ROWS + old] * LANES:
                run[CROSSED] = 1


@njit(**OPTIONS)
def _find_host(run: Any, state: Any) -> None:
    """The largest product, and which instruction computes what."""
    at, result, largest, host = run[CODE], operand_count(state), I64(0), I64(-1)
    for value in range(result):
        run[BORN + value] = -1
    for number in range(state[COUNT]):
        operation, first = state[at], state[at + OPERANDS]
        for part in range(state[at + RESULTS]):
            run[BORN + result + part] = run[BORN + first] if operation == CUT else number
        size = run[ROWS + first] * run[WIDTHS + first] if operation == PRODUCT else I64(0)
        if size > largest:
            run[HOST], largest, host = at, size, number
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]
    for value in range(result):  # from here on: before the largest product, by it, or behind it
        born = run[BORN + value]
        run[BORN + value] = I64(born > host) - I64(born < host)


@njit(**OPTIONS)
def _place_in_joins(run: Any, state: Any) -> None:
    """Have values computed or read where they are joined, so that nothing is copied.

    It has to stay there for as long as what is joined is needed: that is as long as the latter if
    both are there before the largest product, or neither is.
    """
    taken, at, result = np.zeros(MOST_VALUES, np.int64), run[CODE], operand_count(state)
    for value in range(state[STATES] + state[READ], result):
        taken[value] = 1
    for _ in range(state[COUNT]):
        operation, first = state[at], at + OPERANDS
        if operation == CUT:  # parts are where the whole is
            taken[state[first]] = 1
        for number in range(state[at + RESULTS]):
            value = result + number
            is_whole = operation == ELEMENTWISE and run[ROWS + value] == most_rows(run, state, at)
            taken[value] = I64(not is_whole)
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]
    at, result = run[CODE], operand_count(state)
    for _ in range(state[COUNT]):
        place = run[PLACES + result]
        for number in range(state[at + OPERANDS] if state[at] == JOIN else 0):
            value = state[at + OPERANDS + 1 + number]
            if not taken[value] and run[BORN + value] == run[BORN + result]:
                run[PLACES + value], taken[value] = place, 1
            place += run[ROWS + value] * LANES
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]


@njit(**OPTIONS)
def _decide_when(run: Any, state: Any) -> None:
    """When stacks are written: what is there before the largest product, while it is computed."""
    for number in range(state[WRITTEN]):
        born, when = run[BORN + stacked(state, number)], I64(AT_ONCE)
        if state[REST + state[READ] + number] == SUMMED:
            when = I64(NEVER)
        elif run[HOST] != 0 and born != 0:
            when = I64(EARLY) if born < 0 else I64(LATE)
        run[WHEN + number] = when


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
