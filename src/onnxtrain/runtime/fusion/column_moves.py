# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Stacks of a loop over columns, read and written while products are computed.

A step of a recurrent layer of 128 features writes 70 KB to stacks that are larger than the caches,
and that of its gradient reads 50 KB of them. All at once, a core waits for memory: of 10.9 ms that
the benchmark's LSTM took on one thread (Zen 5) 2 were spent so. So it is done beside the largest
product of a step, a row with each number that is summed: what the product does not change is
written, and what the next step reads is fetched. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from .column_plan import (
    BATCH,
    EARLY,
    INPUTS,
    LANES,
    LATE,
    NEVER,
    OUTPUTS,
    PLACES,
    READ,
    REST,
    ROWS,
    STATES,
    STEPS,
    SUMS,
    WHEN,
    WRITTEN,
    stacked,
)
from .columns import BACKWARDS, MOST_OPERANDS, TURNED
from .driver import I64, OPTIONS, call

MOVE, FETCH, ADD, TILES = 0, 2, 3, 3
"""Places in `tiles.table`; a tile stands as far behind `TILES` as it has rows, in sixteens."""

NEXT, END, LEFT, FIRST = range(4)
"""Of a queue: the entry that is done next, where entries end, rows that are left, and entries."""
SOURCE, DISTANCE, TARGET, TO, COUNT, ENTRY = range(6)
"""Of an entry: the operands of a move, with 0 as the target of what is only fetched."""
QUEUE = FIRST + ENTRY * 2 * MOST_OPERANDS
"""Integers of a queue: all stacks that are written, and all that are read."""
TAKEN = 2 * QUEUE
"""Integers of what goes with the two halves of a tile."""


@njit(**OPTIONS)
def move(
    table: Any, source: Any, distance: Any, target: Any, to: Any, rows: Any, columns: Any
) -> None:
    """Rows of up to 16 numbers, from one distance to another."""
    call(table[MOVE], (source, distance, target, to, rows, columns))


@njit(**OPTIONS)
def source_of(run: Any, state: Any, number: Any, column: Any, step: Any) -> Any:
    """Where a step's slice of a stack begins."""
    rows, batch, steps = run[ROWS + state[STATES] + number], run[BATCH], run[STEPS]
    time = steps - 1 - step if state[REST + number] & BACKWARDS else step
    return run[INPUTS + state[STATES] + number] + 4 * (time * rows * batch + column)


@njit(**OPTIONS)
def read(run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any, step: Any) -> None:
    """The slices of a step."""
    for number in range(state[READ]):
        value = state[STATES] + number
        source, target = source_of(run, state, number, column, step), base + 4 * run[PLACES + value]
        move(table, source, run[BATCH], target, I64(LANES), run[ROWS + value], columns)


@njit(**OPTIONS)
def write(
    run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any, step: Any, first: Any,
    last: Any,
) -> None:  # fmt: skip
    """What a step adds to stacks that are written at these times."""
    for number in range(state[WRITTEN]):
        if first <= run[WHEN + number] <= last:
            source, target, distance, rows = _written(run, state, base, column, step, number)
            move(table, source, I64(LANES), target, distance, rows, columns)


@njit(**OPTIONS)
def add_up(run: Any, state: Any, table: Any, base: Any) -> None:
    """What a step adds to sums."""
    for number in range(state[WRITTEN]):
        if run[WHEN + number] == NEVER:
            value = stacked(state, number)
            source, target = base + 4 * run[PLACES + value], base + 4 * run[SUMS + number]
            call(table[ADD], (source, target, run[ROWS + value]))


@njit(**OPTIONS)
def write_sums(run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any) -> None:
    """The sums over all steps."""
    for number in range(state[WRITTEN]):
        if run[WHEN + number] == NEVER:
            rows, source = run[ROWS + stacked(state, number)], base + 4 * run[SUMS + number]
            target = run[OUTPUTS + state[STATES] + number] + 4 * column
            move(table, source, I64(LANES), target, run[BATCH], rows, columns)


@njit(**OPTIONS)
def _written(run: Any, state: Any, base: Any, column: Any, step: Any, number: Any) -> Any:
    """Where a step's part of a stack comes from, where it goes, its rows' distance and count."""
    steps, batch = run[STEPS], run[BATCH]
    value, way = stacked(state, number), state[REST + state[READ] + number]
    rows = run[ROWS + value]
    time = steps - 1 - step if way & BACKWARDS else step
    distance, first = batch, time * rows * batch
    if way & TURNED:
        distance, first = steps * batch, time * batch
    target = run[OUTPUTS + state[STATES] + number] + 4 * (first + column)
    return base + 4 * run[PLACES + value], target, distance, rows


# --- beside a product -----------------------------------------------------------------------------


@njit(**OPTIONS)
def fill(
    run: Any, state: Any, base: Any, column: Any, columns: Any, step: Any, queue: Any, hosted: Any
) -> None:
    """Queue what is done while the largest product of a step is computed.

    Whole rows of 16 numbers that are written, and what is fetched, go to `hosted`: tiles do that
    row by row. The rest is done between tiles.
    """
    for each in (queue, hosted):
        each[NEXT], each[END], each[LEFT] = FIRST, FIRST, 0
    for number in range(state[WRITTEN]):
        when = run[WHEN + number]
        if when == EARLY or (when == LATE and step > 0):
            time = step if when == EARLY else step - 1
            source, target, to, rows = _written(run, state, base, column, time, number)
            _add(hosted if columns == LANES else queue, source, I64(LANES), target, to, rows)
    for number in range(state[READ] if step + 1 < run[STEPS] else 0):
        source = source_of(run, state, number, column, step + 1)
        _add(hosted, source, run[BATCH], I64(0), I64(0), run[ROWS + state[STATES] + number])


@njit(**OPTIONS)
def _add(queue: Any, source: Any, distance: Any, target: Any, to: Any, rows: Any) -> None:
    at = queue[END]
    queue[at + SOURCE], queue[at + DISTANCE], queue[at + TARGET] = source, distance, target
    queue[at + TO], queue[at + COUNT] = to, rows
    queue[END], queue[LEFT] = at + ENTRY, queue[LEFT] + rows


@njit(**OPTIONS)
def take(queue: Any, taken: Any, number: Any, rows: Any) -> Any:
    """So many rows of the queue as entries of `taken` from that number on; where these end."""
    while rows > 0 and queue[NEXT] < queue[END]:
        at, to = queue[NEXT], number * ENTRY
        for field in range(ENTRY):
            taken[to + field] = queue[at + field]
        taken[to + COUNT] = min(rows, queue[at + COUNT])
        rows -= taken[to + COUNT]
        _advance(queue, taken[to + COUNT])
        number += 1
    return number


@njit(**OPTIONS)
def _advance(queue: Any, count: Any) -> None:
    """Rows of the next entry are done."""
    at = queue[NEXT]
    queue[at + SOURCE] += 4 * count * queue[at + DISTANCE]
    if queue[at + TARGET] != 0:
        queue[at + TARGET] += 4 * count * queue[at + TO]
    queue[at + COUNT] -= count
    queue[LEFT] -= count
    if queue[at + COUNT] == 0:
        queue[NEXT] = at + ENTRY


@njit(**OPTIONS)
def work_off(table: Any, queue: Any, columns: Any, rows: Any) -> None:
    """So many rows of the queue."""
    while rows > 0 and queue[NEXT] < queue[END]:
        at = queue[NEXT]
        count = min(rows, queue[at + COUNT])
        source, target = queue[at + SOURCE], queue[at + TARGET]
        if target == 0:
            call(table[FETCH], (source, queue[at + DISTANCE], count, columns))
        else:
            move(table, source, queue[at + DISTANCE], target, queue[at + TO], count, columns)
        rows -= count
        _advance(queue, count)
