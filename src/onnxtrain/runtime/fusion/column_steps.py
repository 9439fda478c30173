# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""The instructions of a step of a loop over columns, on 16 of them; see `columns.py`.

While the largest product is computed, stacks are written and fetched (`column_moves`). Import it
only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .column_moves import LEFT, TILES, move, take, work_off
from .column_plan import (
    CODE,
    COUNT,
    HOST,
    LANES,
    LEAST_ROWS,
    LENGTH,
    MOST_PLACES,
    MOST_ROWS,
    OPERANDS,
    PACKED,
    PLACES,
    RESULTS,
    ROWS,
    SPACE,
    WIDTHS,
    ZEROS,
    most_rows,
    operand_count,
    rounded,
)
from .columns import ELEMENTWISE, JOIN, PRODUCT
from .driver import I64, OPTIONS, call, keep

HOSTS = TILES + MOST_ROWS // LEAST_ROWS
"""Places in `tiles.table` of tiles that do other work beside."""
NOTHING = (I64(0), I64(0), I64(0))
"""No such work."""


@njit(**OPTIONS)
def copy_rows(table: Any, source: Any, target: Any, rows: Any) -> None:
    """Rows of a block."""
    move(table, source, I64(LANES), target, I64(LANES), rows, I64(LANES))


@njit(**OPTIONS)
def expand_first(run: Any, state: Any, table: Any, base: Any, at: Any) -> None:
    """What is added to a product, written out in the space if it is one row for all."""
    rows, added = run[ROWS + state[at + OPERANDS]], state[at + OPERANDS + 2]
    if added >= 0 and run[ROWS + added] != rows:
        place, space = base + 4 * run[PLACES + added], base + 4 * run[SPACE]
        move(table, place, I64(0), space, I64(LANES), rows, I64(LANES))


@njit(**OPTIONS)
def multiply(
    run: Any, state: Any, table: Any, base: Any, at: Any, result: Any, begin: Any, end: Any,
    entries: Any,
) -> None:  # fmt: skip
    """Some panels of a matrix that is laid out times 16 columns, and entries beside them."""
    matrix, value, added = state[at + OPERANDS], state[at + OPERANDS + 1], state[at + OPERANDS + 2]
    rows, steps, first = run[ROWS + matrix], run[WIDTHS + matrix], base + 4 * run[ZEROS]
    if added >= 0:
        is_whole = run[ROWS + added] == rows
        first = base + 4 * (run[PLACES + added] if is_whole else run[SPACE])
    columns, target = base + 4 * run[PLACES + value], base + 4 * run[PLACES + result]
    for panel in range(begin, end):
        row = panel * MOST_ROWS
        count, offset = rounded(min(I64(MOST_ROWS), rows - row)), 4 * row * LANES
        place = run[PACKED + matrix] + 4 * row * steps
        arguments = (place, columns, first + offset, steps, target + offset)
        if entries[2] == 0:
            call(table[TILES + count // LEAST_ROWS], arguments)
        else:
            call(table[HOSTS + count // LEAST_ROWS], (*arguments, *entries))


@njit(**OPTIONS)
def panels_of(run: Any, state: Any, at: Any) -> Any:
    """How many a product's matrix has."""
    return (run[ROWS + state[at + OPERANDS]] + MOST_ROWS - 1) // MOST_ROWS


@njit(**OPTIONS)
def _compute(run: Any, state: Any, table: Any, base: Any, at: Any, result: Any) -> None:
    """An elementwise program."""
    inputs, rows = state[at + OPERANDS + 1], most_rows(run, state, at)
    places, strides = np.empty(MOST_PLACES, np.int64), np.zeros(MOST_PLACES, np.int64)
    for number in range(inputs):
        value = state[at + OPERANDS + 2 + number]
        places[number] = base + 4 * run[PLACES + value]
        if run[ROWS + value] != rows:  # one row, for all
            expanded = base + 4 * (run[SPACE] + number * rows * LANES)
            move(table, places[number], I64(0), expanded, I64(LANES), rows, I64(LANES))
            places[number] = expanded
    for number in range(state[at + RESULTS]):
        places[inputs + number] = base + 4 * run[PLACES + result + number]
    addresses = I64(places.ctypes.data), I64(strides.ctypes.data)
    call(state[at + OPERANDS], (addresses[0], addresses[1], I64(1), rows * LANES))
    keep(places)
    keep(strides)


@njit(**OPTIONS)
def _join(run: Any, state: Any, table: Any, base: Any, at: Any, result: Any) -> None:
    """Values one below the other."""
    target = base + 4 * run[PLACES + result]
    for number in range(state[at + OPERANDS]):
        value = state[at + OPERANDS + 1 + number]
        source = base + 4 * run[PLACES + value]
        if source != target:  # it may have been computed there
            copy_rows(table, source, target, run[ROWS + value])
        target += 4 * run[ROWS + value] * LANES


@njit(**OPTIONS)
def instruction(run: Any, state: Any, table: Any, base: Any, at: Any, result: Any) -> None:
    """One instruction on one block."""
    operation = state[at]
    if operation == JOIN:
        _join(run, state, table, base, at, result)
    elif operation == PRODUCT:
        expand_first(run, state, table, base, at)
        multiply(run, state, table, base, at, result, I64(0), panels_of(run, state, at), NOTHING)
    elif operation == ELEMENTWISE:
        _compute(run, state, table, base, at, result)


@njit(**OPTIONS)
def _host(
    run: Any, state: Any, table: Any, base: Any, result: Any, work: Any, columns: Any
) -> None:
    """The largest product, and what is queued, some of it with each panel."""
    queue, hosted, taken = work
    panels, steps = panels_of(run, state, run[HOST]), run[WIDTHS + state[run[HOST] + OPERANDS]]
    expand_first(run, state, table, base, run[HOST])
    for panel in range(panels):
        rest = panels - panel
        half = take(hosted, taken, I64(0), min(steps, _part(hosted[LEFT], 2 * rest)))
        end = take(hosted, taken, half, min(steps, _part(hosted[LEFT], 2 * rest - 1)))
        entries = I64(taken.ctypes.data), half, end
        multiply(run, state, table, base, run[HOST], result, panel, panel + 1, entries)
        work_off(table, queue, columns, _part(queue[LEFT], rest))
    work_off(table, hosted, columns, hosted[LEFT])


@njit(**OPTIONS)
def _part(whole: Any, parts: Any) -> Any:
    """One of so many, rounded up."""
    return (whole + parts - 1) // parts


@njit(**OPTIONS)
def take_step(run: Any, state: Any, table: Any, base: Any, work: Any, columns: Any) -> None:
    """The instructions of a step."""
    at, result = run[CODE], operand_count(state)
    for _ in range(state[COUNT]):
        if at == run[HOST]:
            _host(run, state, table, base, result, work, columns)
        else:
            instruction(run, state, table, base, at, result)
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]
