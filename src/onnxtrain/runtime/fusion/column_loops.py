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

from .column_plan import (
    AT,
    BATCH,
    BLOCKS,
    CHUNKS,
    CODE,
    COUNT,
    INPUTS,
    LANES,
    LEAST_ROWS,
    LENGTH,
    LONGEST,
    MEMORY,
    MOST_PLACES,
    MOST_ROWS,
    NODE,
    OPERANDS,
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
    most_rows,
    operand_count,
    plan,
    rounded,
)
from .columns import BACKWARDS, ELEMENTWISE, JOIN, MOST_OPERANDS, PRODUCT, TURNED
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
MOVE, LAY_OUT, TILES = 0, 1, 1
"""Places in `tiles.table`; a tile stands as far behind the last as it has rows, in fours."""


# --- parts of a step ------------------------------------------------------------------------------


@njit(**OPTIONS)
def _move(
    table: Any, source: Any, distance: Any, target: Any, to: Any, rows: Any, columns: Any
) -> None:
    """Rows of up to 16 numbers, from one distance to another."""
    call(table[MOVE], (source, distance, target, to, rows, columns))


@njit(**OPTIONS)
def _copy(table: Any, source: Any, target: Any, rows: Any) -> None:
    """Rows of a block."""
    call(table[MOVE], (source, I64(LANES), target, I64(LANES), rows, I64(LANES)))


@njit(**OPTIONS)
def _repeat(source: Any, target: Any, rows: Any) -> None:
    """One number for each row, in all columns."""
    for row in range(rows):
        value = carray(floats_at(source + 4 * row), (1,))[0]
        new = carray(floats_at(target + 4 * row * LANES), (LANES,))
        for i in range(LANES):
            new[i] = value


@njit(**OPTIONS)
def _expand_first(run: Any, state: Any, table: Any, base: Any, at: Any) -> None:
    """What is added to a product, written out in the space if it is one row for all."""
    rows, added = run[ROWS + state[at + OPERANDS]], state[at + OPERANDS + 2]
    if added >= 0 and run[ROWS + added] != rows:
        place, space = base + 4 * run[PLACES + added], base + 4 * run[SPACE]
        _move(table, place, I64(0), space, I64(LANES), rows, I64(LANES))


@njit(**OPTIONS)
def _multiply(
    run: Any, state: Any, table: Any, base: Any, at: Any, result: Any, begin: Any, end: Any
) -> None:
    """Some panels of a matrix that is laid out times 16 columns."""
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
        call(table[TILES + count // LEAST_ROWS], arguments)


@njit(**OPTIONS)
def _panels(run: Any, state: Any, at: Any) -> Any:
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
            _move(table, places[number], I64(0), expanded, I64(LANES), rows, I64(LANES))
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
        _copy(table, base + 4 * run[PLACES + value], target, run[ROWS + value])
        target += 4 * run[ROWS + value] * LANES


@njit(**OPTIONS)
def _instruction(run: Any, state: Any, table: Any, base: Any, at: Any, result: Any) -> None:
    """One instruction on one block."""
    operation = state[at]
    if operation == JOIN:
        _join(run, state, table, base, at, result)
    elif operation == PRODUCT:
        _expand_first(run, state, table, base, at)
        _multiply(run, state, table, base, at, result, I64(0), _panels(run, state, at))
    elif operation == ELEMENTWISE:
        _compute(run, state, table, base, at, result)


@njit(**OPTIONS)
def _step(run: Any, state: Any, table: Any, base: Any) -> None:
    """The instructions of a step."""
    at, result = run[CODE], operand_count(state)
    for _ in range(state[COUNT]):
        _instruction(run, state, table, base, at, result)
        result += state[at + RESULTS]
        at += 2 + state[at + LENGTH]


# --- a block of columns ---------------------------------------------------------------------------


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
            _move(table, source + 4 * column, run[BATCH], target, I64(LANES), rows, columns)


@njit(**OPTIONS)
def _read(
    run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any, step: Any
) -> None:
    """The slices of a step."""
    steps, batch = run[STEPS], run[BATCH]
    for number in range(state[READ]):
        value = state[STATES] + number
        time = steps - 1 - step if state[REST + number] & BACKWARDS else step
        source = run[INPUTS + value] + 4 * (time * run[ROWS + value] * batch + column)
        target = base + 4 * run[PLACES + value]
        _move(table, source, batch, target, I64(LANES), run[ROWS + value], columns)


@njit(**OPTIONS)
def _write(
    run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any, step: Any
) -> None:
    """What a step adds to stacks."""
    steps, batch = run[STEPS], run[BATCH]
    ways, values = REST + state[READ], REST + state[READ] + state[WRITTEN] + state[STATES]
    for number in range(state[WRITTEN]):
        value, way = state[values + number], state[ways + number]
        rows, source = run[ROWS + value], base + 4 * run[PLACES + value]
        time = steps - 1 - step if way & BACKWARDS else step
        distance, first = batch, time * rows * batch
        if way & TURNED:
            distance, first = steps * batch, time * batch
        target = run[OUTPUTS + state[STATES] + number] + 4 * (first + column)
        _move(table, source, I64(LANES), target, distance, rows, columns)


@njit(**OPTIONS)
def _pass_on(run: Any, state: Any, table: Any, base: Any) -> None:
    """New states in the places of the old; first beside them, since one may be another's next."""
    values, space = REST + state[READ] + state[WRITTEN], base + 4 * run[SPACE]
    for number in range(state[STATES]):
        source = base + 4 * run[PLACES + state[values + number]]
        _copy(table, source, space + 4 * run[PLACES + number], run[ROWS + number])
    for number in range(state[STATES]):
        place = 4 * run[PLACES + number]
        _copy(table, space + place, base + place, run[ROWS + number])


@njit(**OPTIONS)
def _table(state: Any) -> Any:
    return carray(integers_at(state[TABLE]), (TILES + 1 + MOST_ROWS // LEAST_ROWS,))


@njit(**OPTIONS)
def _end(run: Any, state: Any, table: Any, base: Any, column: Any, columns: Any) -> None:
    """The last states."""
    for number in range(state[STATES]):
        source, target = base + 4 * run[PLACES + number], run[OUTPUTS + number] + 4 * column
        _move(table, source, I64(LANES), target, run[BATCH], run[ROWS + number], columns)


@njit(**OPTIONS)
def _block(run: Any, part: Any) -> None:
    """All steps of 16 columns."""
    state = carray(integers_at(run[NODE]), (LONGEST,))
    table, column = _table(state), part * LANES
    columns = min(I64(LANES), run[BATCH] - column)
    memory = np.zeros(run[MEMORY], np.float32)
    base = I64(memory.ctypes.data)
    _begin(run, state, table, base, column, columns)
    for step in range(run[STEPS]):
        _read(run, state, table, base, column, columns, step)
        _step(run, state, table, base)
        _write(run, state, table, base, column, columns, step)
        _pass_on(run, state, table, base)
    _end(run, state, table, base, column, columns)
    keep(memory)


@njit(**OPTIONS)
def _together(state: Any, context: Any, run: Any) -> None:
    """All blocks, step by step; threads share the products."""
    table, memory = _table(state), np.zeros(run[MEMORY] * run[BLOCKS], np.float32)
    run[SHARED], run[PHASE] = I64(memory.ctypes.data), TOGETHER
    for step in range(-1, run[STEPS] + 1):
        for block in range(run[BLOCKS]):
            base, column = run[SHARED] + 4 * block * run[MEMORY], block * LANES
            columns = min(I64(LANES), run[BATCH] - column)
            if step < 0:
                _begin(run, state, table, base, column, columns)
            elif step > 0:
                _write(run, state, table, base, column, columns, step - 1)
                _pass_on(run, state, table, base)
            if step == run[STEPS]:
                _end(run, state, table, base, column, columns)
            elif step >= 0:
                _read(run, state, table, base, column, columns, step)
        if 0 <= step < run[STEPS]:
            _step_together(state, context, run, table)
    keep(memory)


@njit(**OPTIONS)
def _step_together(state: Any, context: Any, run: Any, table: Any) -> None:
    """The instructions of a step, on all blocks."""
    run[AT], run[RESULT] = run[CODE], operand_count(state)
    for _ in range(state[COUNT]):
        at, is_product = run[AT], state[run[AT]] == PRODUCT
        for block in range(run[BLOCKS]):
            base = run[SHARED] + 4 * block * run[MEMORY]
            if is_product:
                _expand_first(run, state, table, base, at)
            else:
                _instruction(run, state, table, base, at, run[RESULT])
        if is_product:
            run[CHUNKS] = min(_panels(run, state, at), 2 * state[CORES])
            in_parts(state, context, run, run[CHUNKS])
        run[RESULT] += state[at + RESULTS]
        run[AT] += 2 + state[at + LENGTH]


@njit(**OPTIONS)
def _share(run: Any, part: Any) -> None:
    """Some rows of a product, for all blocks: a panel is read once for all of them."""
    state = carray(integers_at(run[NODE]), (LONGEST,))
    table, at = _table(state), run[AT]
    panels = _panels(run, state, at)
    begin, end = part * panels // run[CHUNKS], (part + 1) * panels // run[CHUNKS]
    for panel in range(begin, end):
        for block in range(run[BLOCKS]):
            base = run[SHARED] + 4 * block * run[MEMORY]
            _multiply(run, state, table, base, at, run[RESULT], panel, panel + 1)


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
def _make_outputs(state: Any, context: Any, run: Any, packed: Any) -> Any:
    """States, stacks, and memory for matrices; 0, or onnxruntime's error."""
    sizes, states, written = np.zeros(MAX_RANK, np.int64), state[STATES], state[WRITTEN]
    ways = REST + state[READ]
    for number in range(states + written + 1):
        rank = I64(3)
        if number < states:
            sizes[0], sizes[1], rank = run[ROWS + number], run[BATCH], I64(2)
        elif number < states + written:
            value = state[ways + written + number]
            sizes[0], sizes[1], sizes[2] = run[STEPS], run[ROWS + value], run[BATCH]
            if state[ways + number - states] & TURNED:
                sizes[0], sizes[1] = run[ROWS + value], run[STEPS]
        else:
            sizes[0], rank = packed, I64(1)
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
    status = _make_outputs(state, context, run, packed)
    if status != 0 or run[BATCH] == 0:
        return status
    for value in range(MOST_OPERANDS):
        if run[PACKED + value] != 0:
            run[PACKED + value] += run[OUTPUTS + state[STATES] + state[WRITTEN]] - 1
    run[CHUNKS] = 2 * state[CORES] if packed > SMALL_MATRICES else I64(1)
    in_parts(state, context, run, run[CHUNKS])
    run[PHASE], run[BLOCKS] = ALONE, (run[BATCH] + LANES - 1) // LANES
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
