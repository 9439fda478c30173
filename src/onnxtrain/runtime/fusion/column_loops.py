# mypy: allow-untyped-decorators, disable-error-code="attr-defined, call-arg, no-any-return"
"""Takes 16 columns at a time through a loop over time; see `columns.py` for what a loop may do.

A thread has its columns' values beside each other, rows of 16 numbers each, in memory that fits
into the second cache; only stacks are read and written elsewhere. Matrices are laid out once for
all steps and threads. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, cfunc, njit

from .column_moves import (
    QUEUE,
    TAKEN,
    add_up,
    fill,
    move,
    read,
    write,
    write_sums,
)
from .column_plan import (
    AT,
    AT_ONCE,
    BATCH,
    BLOCKS,
    CHUNKS,
    CODE,
    COUNT,
    CROSSED,
    INPUTS,
    LANES,
    LATE,
    LEAST_ROWS,
    LENGTH,
    LONGEST,
    MEMORY,
    MOST_ROWS,
    NODE,
    OUTPUTS,
    OUTSIDE,
    PACKED,
    PHASE,
    PLACES,
    READ,
    REST,
    RESULT,
    RESULTS,
    ROWS,
    RUN,
    SHARED,
    SPACE,
    STATES,
    STEPS,
    TABLE,
    WIDTHS,
    WRITTEN,
    ZEROS,
    find_matrices,
    operand_count,
    plan,
    rounded_to_line,
    stacked,
)
from .column_steps import (
    HOSTS,
    NOTHING,
    copy_rows,
    expand_first,
    instruction,
    multiply,
    panels_of,
    take_step,
)
from .columns import MOST_OPERANDS, PRODUCT, SUMMED, TURNED
from .driver import I64, OPTIONS, call, floats_at, integers_at, keep
from .tensors import CORES, MAX_RANK, SHAPE, failed, in_parts, make_output, read_input

LAYING_OUT, ALONE, TOGETHER = range(3)
"""What threads do: lay matrices out, take blocks through all steps, share a product."""
OUT_OF_CACHE = 2**19
"""Numbers of all matrices from which on they are read once for all blocks, step by step: 2 MB. An
LSTM of 512 features and 16 sequences took 28 ms with each block alone on two threads, 20 so."""
WORTH_SHARING = 2**22
"""Multiplications of a step's products from which on blocks that are fewer than cores share them:
40 microseconds of one thread, where waking up another one takes 2 to 10."""
SMALL_MATRICES = 2**15
"""Numbers of all matrices that are laid out by one thread as fast as by two."""
LAY_OUT = 1
"""Its place in `tiles.table`."""


LONGEST_BLOCK = 2**40
"""More numbers than the memory of a block has."""


# --- a block of columns ---------------------------------------------------------------------------


@njit(**OPTIONS)
def _repeat(source: Any, target: Any, rows: Any) -> None:
    """One number for each row, in all columns."""
    for row in range(rows):
        value = carray(floats_at(source + 4 * row), (1,))[0]
        new = carray(floats_at(target + 4 * row * LANES), (LANES,))
        for i in range(LANES):
            new[i] = value


@njit(**OPTIONS)
def _clear(run: Any, base: Any, columns: Any) -> None:
    """The zeros of a block, and where columns are missing all of it: they are computed, too."""
    first = run[ZEROS] if columns == LANES else I64(0)
    memory = carray(floats_at(base + 4 * first), (LONGEST_BLOCK,))
    for number in range((run[MEMORY] if columns < LANES else run[SPACE]) - first):
        memory[number] = 0.0


@njit(**OPTIONS)
def _begin(run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any) -> None:
    """States, and what is read from outside."""
    for value in range(operand_count(state)):
        is_stack = state[STATES] <= value < state[STATES] + state[READ]
        if is_stack or run[PACKED + value] != 0:
            continue
        source, target = run[INPUTS + value], base + 4 * run[PLACES + value]
        if run[WIDTHS + value] == 1 and value >= state[STATES]:
            _repeat(source, target, run[ROWS + value])
        else:
            rows = run[ROWS + value]
            move(table, source + 4 * column, run[BATCH], target, I64(LANES), rows, columns)


@njit(**OPTIONS)
def _pass_on(run: Any, state: Any, table: Any, base: Any) -> None:
    """New states in the places of the old; first beside them, where one may be another's next."""
    values, space = REST + state[READ] + state[WRITTEN], base + 4 * run[SPACE]
    for number in range(state[STATES] if run[CROSSED] else 0):
        rows = run[ROWS + number]
        copy_rows(table, base + 4 * run[PLACES + state[values + number]], space, rows)
        space += 4 * rows * LANES
    space = base + 4 * run[SPACE]
    for number in range(state[STATES]):
        rows, source = run[ROWS + number], base + 4 * run[PLACES + state[values + number]]
        copy_rows(table, space if run[CROSSED] else source, base + 4 * run[PLACES + number], rows)
        space += 4 * rows * LANES


@njit(**OPTIONS)
def _table(state: Any) -> Any:
    return carray(integers_at(state[TABLE]), (HOSTS + 1 + MOST_ROWS // LEAST_ROWS,))


@njit(**OPTIONS)
def _end(run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any) -> None:
    """The last states, and sums."""
    write_sums(run, state, table, base, column, columns)
    for number in range(state[STATES]):
        source, target = base + 4 * run[PLACES + number], run[OUTPUTS + number] + 4 * column
        move(table, source, I64(LANES), target, run[BATCH], run[ROWS + number], columns)


@njit(**OPTIONS)
def _block(run: Any, part: Any) -> None:
    """All steps of 16 columns."""
    state = carray(integers_at(run[NODE]), (LONGEST,))
    table, column = _table(state), part * LANES
    columns = min(I64(LANES), run[BATCH] - column)
    base = run[SHARED] + 4 * part * run[MEMORY]
    _clear(run, base, columns)
    queue, hosted = np.zeros(QUEUE, np.int64), np.zeros(QUEUE, np.int64)
    taken = np.zeros(TAKEN, np.int64)
    _begin(run, state, table, base, column, columns)
    for step in range(run[STEPS]):
        read(run, state, table, base, column, columns, step)
        fill(run, state, base, column, columns, step, queue, hosted)
        take_step(run, state, table, base, (queue, hosted, taken), columns)
        write(run, state, table, base, column, columns, step, AT_ONCE, AT_ONCE)
        add_up(run, state, table, base)
        _pass_on(run, state, table, base)
    if run[STEPS] > 0:
        write(run, state, table, base, column, columns, run[STEPS] - 1, LATE, LATE)
    _end(run, state, table, base, column, columns)
    keep(taken)


@njit(**OPTIONS)
def _together(state: Any, context: Any, run: Any) -> None:
    """All blocks, step by step; threads share the products."""
    table, run[PHASE] = _table(state), TOGETHER
    for step in range(-1, run[STEPS] + 1):
        for block in range(run[BLOCKS]):
            base, column = run[SHARED] + 4 * block * run[MEMORY], block * LANES
            columns = min(I64(LANES), run[BATCH] - column)
            if step < 0:
                _clear(run, base, columns)
                _begin(run, state, table, base, column, columns)
            elif step > 0:
                write(run, state, table, base, column, columns, step - 1, AT_ONCE, LATE)
                add_up(run, state, table, base)
                _pass_on(run, state, table, base)
            if step == run[STEPS]:
                _end(run, state, table, base, column, columns)
            elif step >= 0:
                read(run, state, table, base, column, columns, step)
        if 0 <= step < run[STEPS]:
            _step_together(state, context, run, table)


@njit(**OPTIONS)
def _step_together(state: Any, context: Any, run: Any, table: Any) -> None:
    """The instructions of a step, on all blocks."""
    run[AT], run[RESULT] = run[CODE], operand_count(state)
    for _ in range(state[COUNT]):
        at, is_product = run[AT], state[run[AT]] == PRODUCT
        for block in range(run[BLOCKS]):
            base = run[SHARED] + 4 * block * run[MEMORY]
            if is_product:
                expand_first(run, state, table, base, at)
            else:
                instruction(run, state, table, base, at, run[RESULT])
        if is_product:
            run[CHUNKS] = min(panels_of(run, state, at), 2 * state[CORES])
            in_parts(state, context, run, run[CHUNKS])
        run[RESULT] += state[at + RESULTS]
        run[AT] += 2 + state[at + LENGTH]


@njit(**OPTIONS)
def _share(run: Any, part: Any) -> None:
    """Some rows of a product, for all blocks: a panel is read once for all of them."""
    state = carray(integers_at(run[NODE]), (LONGEST,))
    table, at = _table(state), run[AT]
    panels = panels_of(run, state, at)
    begin, end = part * panels // run[CHUNKS], (part + 1) * panels // run[CHUNKS]
    for panel in range(begin, end):
        for block in range(run[BLOCKS]):
            base = run[SHARED] + 4 * block * run[MEMORY]
            multiply(run, state, table, base, at, run[RESULT], panel, panel + 1, NOTHING)


@njit(**OPTIONS)
def _lay_out(run: Any, part: Any) -> None:
    """Some panels of all matrices, of a tile's rows each."""
    state = carray(integers_at(run[NODE]), (LONGEST,))
    function = _table(state)[LAY_OUT]
    for matrix in range(MOST_OPERANDS):
        if run[PACKED + matrix] == 0:
            continue
        rows, steps = run[ROWS + matrix], run[WIDTHS + matrix]
        panels = (rows + MOST_ROWS - 1) // MOST_ROWS
        begin, end = part * panels // run[CHUNKS], (part + 1) * panels // run[CHUNKS]
        for panel in range(begin, end):
            row = panel * MOST_ROWS
            count, offset = min(I64(MOST_ROWS), rows - row), 4 * row * steps
            source, target = run[INPUTS + matrix] + offset, run[PACKED + matrix] + offset
            call(function, (source, steps, count, steps, target))


@cfunc("void(int64, int64)", **OPTIONS)
def column_part(address: int, part: int) -> None:
    """A matrix laid out, 16 columns, or some rows of a product; onnxruntime's threads call it."""
    run = carray(integers_at(address), (RUN,))
    if run[PHASE] == LAYING_OUT:
        _lay_out(run, part)
    elif run[PHASE] == ALONE:
        _block(run, part)
    else:
        _share(run, part)


# --- a node ---------------------------------------------------------------------------------------


@njit(**OPTIONS)
def _read_operands(state: Any, context: Any, run: Any) -> Any:
    """Addresses and sizes of what goes in; False if they do not fit to each other."""
    dims = np.zeros(MAX_RANK, np.int64)
    states, read = state[STATES], state[READ]
    for value in range(operand_count(state)):
        run[INPUTS + value], rank = read_input(state, context, value, dims)
        is_stack = states <= value < states + read
        if rank != (3 if is_stack else 2):
            return False
        if value == 0:
            run[BATCH] = dims[1]
        elif value == states:
            run[STEPS] = dims[0]
        run[ROWS + value], run[WIDTHS + value] = dims[rank - 2], dims[rank - 1]
        if value < states + read and dims[rank - 1] != run[BATCH]:
            return False
        if is_stack and dims[0] != run[STEPS]:
            return False
    return True


@njit(**OPTIONS)
def _fit(state: Any, run: Any) -> Any:
    """Whether columns from outside are one or as many as all, and states keep their rows."""
    first = state[STATES] + state[READ]
    for value in range(first, first + state[OUTSIDE]):
        if run[PACKED + value] == 0 and run[WIDTHS + value] not in (1, run[BATCH]):
            return False
    if not plan(run, state):
        return False
    for number in range(state[STATES]):
        value = state[REST + state[READ] + state[WRITTEN] + number]
        if run[ROWS + value] != run[ROWS + number]:
            return False
    return True


@njit(**OPTIONS)
def _make_outputs(state: Any, context: Any, run: Any, numbers: Any) -> Any:
    """States, stacks, and memory of so many numbers; 0, or onnxruntime's error."""
    sizes, states, written = np.zeros(MAX_RANK, np.int64), state[STATES], state[WRITTEN]
    ways = REST + state[READ]
    for number in range(states + written + 1):
        rank = I64(3)
        if number < states:
            sizes[0], sizes[1], rank = run[ROWS + number], run[BATCH], I64(2)
        elif number < states + written:
            value, way = stacked(state, number - states), state[ways + number - states]
            sizes[0], sizes[1], sizes[2] = run[STEPS], run[ROWS + value], run[BATCH]
            if way & TURNED:
                sizes[0], sizes[1] = run[ROWS + value], run[STEPS]
            elif way == SUMMED:
                sizes[0], sizes[1], rank = run[ROWS + value], run[BATCH], I64(2)
        else:
            sizes[0], rank = numbers, I64(1)
        address, status = make_output(state, context, number, sizes, rank)
        if status != 0:
            return status
        run[OUTPUTS + number] = address
    return I64(0)


@njit(**OPTIONS)
def _run(state: Any, context: Any, address: Any) -> Any:
    run = np.zeros(RUN, np.int64)
    run[NODE] = address
    run[CODE] = REST + state[READ] + 2 * state[WRITTEN] + state[STATES]
    if not _read_operands(state, context, run):
        return failed(state, SHAPE)
    packed = find_matrices(run, state)
    if not _fit(state, run):
        return failed(state, SHAPE)
    run[BLOCKS] = (run[BATCH] + LANES - 1) // LANES
    numbers = packed + run[BLOCKS] * run[MEMORY] + LANES
    status = _make_outputs(state, context, run, numbers)
    if status != 0 or run[BATCH] == 0:
        return status
    memory = rounded_to_line(run[OUTPUTS + state[STATES] + state[WRITTEN]])
    for value in range(MOST_OPERANDS):
        if run[PACKED + value] != 0:
            run[PACKED + value] += memory - 1
    run[SHARED] = memory + 4 * packed
    run[CHUNKS] = 2 * state[CORES] if packed > SMALL_MATRICES else I64(1)
    in_parts(state, context, run, run[CHUNKS])
    run[PHASE] = ALONE
    is_shared = run[BLOCKS] < state[CORES] and packed * LANES * run[BLOCKS] >= WORTH_SHARING
    if is_shared or packed >= OUT_OF_CACHE:
        _together(state, context, run)
    else:
        in_parts(state, context, run, run[BLOCKS])
    return I64(0)


@cfunc("int64(int64, int64)", **OPTIONS)
def run_columns(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    return _run(carray(integers_at(address), (LONGEST,)), context, address)
