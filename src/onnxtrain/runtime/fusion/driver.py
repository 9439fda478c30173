"""Calls a compiled program for the tiles of a result; compiled by numba itself.

onnxruntime calls `compute` for a node, with what `library` has written down for it. `compute` asks
onnxruntime for the inputs, finds out how they are broadcast, and has `run_chunk` called for parts
of the result, by onnxruntime's own threads. The parts do not depend on how many threads there are,
and neither do the numbers. Import it only where numba is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic

from .opcodes import LOAD, REDUCTIONS, STORE, UNARY, WHERE, WIDTH

F32, I64 = np.float32, np.int64
LANES = 16
"""What a compiled program does at once: rows are padded to a multiple of it."""
TILE = 1024
"""Elements of a tile: inputs that are broadcast are written out for it, into the first cache."""
CHUNK = 16_384
"""Elements that one call of a thread takes: 5 to 20 microseconds, where waking one up takes 2."""
MAX_RANK, MAX_OPERANDS = 8, 24

# --- a node's state: integers that `library` writes and `compute` reads -------------------------

INPUTS, OUTPUTS, INSTRUCTIONS, REGISTERS, SPILLED, KERNEL = range(6)
"""Counts of the program, rows that its function is lent, and the function's address."""
(GET_INPUT, GET_OUTPUT, GET_DATA, GET_INFO, GET_TYPE, GET_RANK, GET_DIMS, RELEASE_INFO,
 PARALLEL_FOR, CREATE_STATUS, MESSAGE, RUN_CHUNK) = range(6, 18)  # fmt: skip
CODE = 18
"""Where the instructions begin."""
FLOAT, BOOL = 1, 9
"""onnxruntime's numbers of element types."""
BAD_ARGUMENT = 2
"""Its code of an error."""

# --- what is handed to `run_chunk`: integers, too ------------------------------------------------

STATE, TOTAL, STEP, ROW, AXES, SIZES = 0, 1, 2, 3, 4, 8
"""The state, elements, elements of a call, those of a row if rows are reduced, coalesced axes."""
SOURCES = SIZES + MAX_RANK
KIND, FORM, STRIDES = 1, 2, 3
SOURCE = STRIDES + MAX_RANK
"""An input: address, element type, how it is broadcast, strides of the coalesced axes."""
SINKS = SOURCES + MAX_OPERANDS * SOURCE
JOB = SINKS + MAX_OPERANDS * 2
"""An output: address, and whether it has one number a row."""
WHOLE, NUMBER, MIXED = range(3)
"""Forms of an input: as large as the result, one number, or something between."""

OPTIONS: dict[str, Any] = {"error_model": "numpy", "cache": True}
FIRST_UNARY, FIRST_REDUCTION = min(UNARY.values()), min(REDUCTIONS.values())


# --- addresses ------------------------------------------------------------------------------------


def _pointer(kind: Any, element: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], element.as_pointer())

        return types.CPointer(kind)(types.int64), generate

    return pointer


floats_at = _pointer(types.float32, ir.FloatType())
integers_at = _pointer(types.int64, ir.IntType(64))
bytes_at = _pointer(types.uint8, ir.IntType(8))


@intrinsic  # type: ignore[untyped-decorator]
def call(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at an address: integers and pointers in, one of them out."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word, count = ir.IntType(64), len(arguments)
        function = builder.inttoptr(values[0], ir.FunctionType(word, [word] * count).as_pointer())
        return builder.call(function, [builder.extract_value(values[1], i) for i in range(count)])

    return types.int64(types.int64, arguments), generate


# --- a program on some elements --------------------------------------------------------------------


@njit(**OPTIONS)
def _copy(source: Any, kind: Any, begin: Any, o: Any, at: Any, n: Any) -> None:
    """Elements that stand side by side."""
    if kind == BOOL:
        flags = carray(bytes_at(source + begin), (n,))
        for i in range(n):
            o[at + i] = F32(flags[i])
    else:
        numbers = carray(floats_at(source + 4 * begin), (n,))
        for i in range(n):
            o[at + i] = numbers[i]


@njit(**OPTIONS)
def _fill(source: Any, kind: Any, place: Any, o: Any, at: Any, n: Any) -> None:
    """One element, repeated."""
    if kind == BOOL:
        value = F32(carray(bytes_at(source + place), (1,))[0])
    else:
        value = carray(floats_at(source + 4 * place), (1,))[0]
    for i in range(n):
        o[at + i] = value


@njit(**OPTIONS)
def _load(job: Any, number: Any, begin: Any, n: Any, o: Any) -> None:
    """The part of an input that stands at some elements of the result."""
    at = SOURCES + number * SOURCE
    source, kind, form = job[at], job[at + KIND], job[at + FORM]
    if form == WHOLE:
        _copy(source, kind, begin, o, 0, n)
    elif form == NUMBER:
        _fill(source, kind, 0, o, 0, n)
    else:
        last = job[AXES] - 1
        length, stride = job[SIZES + last], job[at + STRIDES + last]
        done = 0
        while done < n:
            rest, within = divmod(begin + done, length)
            count = min(length - within, n - done)
            place = 0
            for axis in range(last - 1, -1, -1):
                size = job[SIZES + axis]
                place += (rest % size) * job[at + STRIDES + axis]
                rest //= size
            if stride:
                _copy(source, kind, place + within, o, done, count)
            else:
                _fill(source, kind, place, o, done, count)
            done += count


@njit(**OPTIONS)
def _run(job: Any, index: Any) -> None:
    """A chunk of the result, tile by tile; a row is a tile where rows are reduced.

    The compiled function gets addresses that are good for whole vectors: a tensor's own where its
    elements stand side by side and fill the last vector, else those of a lent row.
    """
    state = carray(integers_at(job[STATE]), (CODE,))
    inputs, outputs, spilled = state[INPUTS], state[OUTPUTS], state[SPILLED]
    row, step = job[ROW], job[STEP]
    tile = row if row else TILE
    width = (tile + LANES - 1) // LANES * LANES
    rows = np.empty((inputs + outputs + spilled, width), F32)
    places = np.empty(inputs + outputs + spilled, np.int64)
    for number in range(spilled):
        places[inputs + outputs + number] = rows[inputs + outputs + number].ctypes.data
    end = min(job[TOTAL], (index + 1) * step)
    for begin in range(index * step, end, tile):
        n = min(tile, end - begin)
        fills = n % LANES == 0
        for number in range(inputs):
            at = SOURCES + number * SOURCE
            if fills and job[at + FORM] == WHOLE and job[at + KIND] == FLOAT:
                places[number] = job[at] + 4 * begin
            else:
                _load(job, number, begin, n, rows[number])
                places[number] = rows[number].ctypes.data
        for number in range(outputs):
            if fills and not job[SINKS + 2 * number + 1]:
                places[inputs + number] = job[SINKS + 2 * number] + 4 * begin
            else:
                places[inputs + number] = rows[inputs + number].ctypes.data
        padded = (n + LANES - 1) // LANES * LANES
        call(state[KERNEL], (places.ctypes.data, padded, n))
        for number in range(outputs):
            if job[SINKS + 2 * number + 1]:
                result = carray(floats_at(job[SINKS + 2 * number] + 4 * (begin // row)), (1,))
                result[0] = rows[inputs + number, 0]
            elif not fills:
                result = carray(floats_at(job[SINKS + 2 * number] + 4 * begin), (n,))
                for i in range(n):
                    result[i] = rows[inputs + number, i]


@cfunc("void(int64, int64)", **OPTIONS)  # type: ignore[untyped-decorator]
def run_chunk(job: int, index: int) -> None:
    """One part of a result; onnxruntime's threads call it."""
    _run(carray(integers_at(job), (JOB,)), index)


# --- a node ---------------------------------------------------------------------------------------


@njit(**OPTIONS)
def _describe(state: Any, context: Any, job: Any, shapes: Any, ranks: Any) -> Any:
    """Ask onnxruntime for the inputs; False if one has another type or too many axes."""
    cell = np.zeros(1, np.int64)
    cell_address = cell.ctypes.data
    shapes[:] = 1
    dims = np.empty(MAX_RANK, np.int64)
    for i in range(state[INPUTS]):
        at = SOURCES + i * SOURCE
        call(state[GET_INPUT], (context, I64(i), cell_address))
        value = cell[0]
        call(state[GET_DATA], (value, cell_address))
        job[at] = cell[0]
        call(state[GET_INFO], (value, cell_address))
        info = cell[0]
        cell[0] = 0
        call(state[GET_TYPE], (info, cell_address))
        job[at + KIND] = cell[0] & 0xFFFFFFFF
        call(state[GET_RANK], (info, cell_address))
        rank = cell[0]
        if rank <= MAX_RANK:
            call(state[GET_DIMS], (info, dims.ctypes.data, rank))
        call(state[RELEASE_INFO], (info,))
        if rank > MAX_RANK or (job[at + KIND] != FLOAT and job[at + KIND] != BOOL):
            return False
        ranks[i] = rank
        for axis in range(rank):
            shapes[i, MAX_RANK - rank + axis] = dims[axis]
    return True


@njit(**OPTIONS)
def _broadcast(count: Any, shapes: Any, result: Any, masks: Any) -> Any:
    """The shape of the result, and along which axes each input is repeated; False if none fits."""
    result[:] = 1
    for i in range(count):
        for axis in range(MAX_RANK):
            size = shapes[i, axis]
            if size != 1:
                if result[axis] != 1 and result[axis] != size:
                    return False
                result[axis] = size
    for i in range(count):
        masks[i] = 0
        for axis in range(MAX_RANK):
            if shapes[i, axis] != result[axis]:
                masks[i] |= I64(1) << axis
    return True


@njit(**OPTIONS)
def _lay_out(count: Any, shapes: Any, result: Any, masks: Any, job: Any) -> None:
    """Axes that all inputs treat alike become one; strides of the inputs along them."""
    axes = 0
    group = np.empty(MAX_RANK, np.int64)
    for axis in range(MAX_RANK):
        if result[axis] == 1:
            group[axis] = -1
            continue
        joins = axes > 0
        before = axis - 1
        while before >= 0 and group[before] < 0:
            before -= 1
        for i in range(count):
            same = before >= 0 and ((masks[i] >> axis) & 1) == ((masks[i] >> before) & 1)
            joins = joins and same
        if joins:
            job[SIZES + axes - 1] *= result[axis]
        else:
            job[SIZES + axes] = result[axis]
            axes += 1
        group[axis] = axes - 1
    job[AXES] = axes
    for i in range(count):
        at = SOURCES + i * SOURCE
        stride, is_whole, is_number = 1, True, True
        for axis in range(MAX_RANK - 1, -1, -1):
            if group[axis] < 0:
                continue
            if (masks[i] >> axis) & 1:
                job[at + STRIDES + group[axis]] = 0
                is_whole = False
            else:
                if axis == MAX_RANK - 1 or group[_next(group, axis)] != group[axis]:
                    job[at + STRIDES + group[axis]] = stride
                stride *= shapes[i, axis]
                is_number = False
        job[at + FORM] = WHOLE if is_whole else (NUMBER if is_number else MIXED)


@njit(**OPTIONS)
def _next(group: Any, axis: Any) -> Any:
    """The next axis that counts, or itself if there is none: then groups are compared in vain."""
    after = axis + 1
    while after < MAX_RANK and group[after] < 0:
        after += 1
    return after if after < MAX_RANK else MAX_RANK - 1


LAST = 1 << (MAX_RANK - 1)


@njit(**OPTIONS)
def _shapes_of_outputs(state: Any, masks: Any, ranks: Any, result: Any, sinks: Any) -> Any:
    """Follow shapes through the program: rank and mask of each output; False if one is odd."""
    count = state[INSTRUCTIONS]
    code = carray(integers_at(state.ctypes.data + 8 * CODE), (WIDTH * count,))
    registers = np.zeros((state[REGISTERS], 2), np.int64)
    for k in range(0, WIDTH * count, WIDTH):
        op, target, a, b, c = code[k], code[k + 1], code[k + 2], code[k + 3], code[k + 4]
        if op == LOAD:
            registers[target, 0], registers[target, 1] = masks[a], ranks[a]
        elif op == STORE:
            mask = registers[a, 0]
            if mask != 0 and (mask != LAST or not state_has_rows(code)):
                return False
            sinks[target, 0], sinks[target, 1] = mask, registers[a, 1]
        elif op >= FIRST_REDUCTION:
            mask = registers[a, 0]
            if (mask & LAST) or registers[a, 1] == 0:
                return False
            registers[target, 0] = mask | (LAST if result[MAX_RANK - 1] != 1 else 0)
            registers[target, 1] = registers[a, 1]
        else:
            mask, rank = registers[a, 0], registers[a, 1]
            if op < FIRST_UNARY or op == WHERE:
                mask, rank = mask & registers[b, 0], max(rank, registers[b, 1])
            if op == WHERE:
                mask, rank = mask & registers[c, 0], max(rank, registers[c, 1])
            registers[target, 0], registers[target, 1] = mask, rank
    return True


@njit(**OPTIONS)
def state_has_rows(code: Any) -> Any:
    """Whether a program reduces rows."""
    for k in range(0, code.size, WIDTH):
        if code[k] >= FIRST_REDUCTION:
            return True
    return False


@njit(**OPTIONS)
def _fill_empty(state: Any, result: Any, sinks: Any, job: Any) -> Any:
    """Sums over rows without elements are zero."""
    count = 1
    for axis in range(MAX_RANK - 1):
        count *= result[axis]
    for number in range(state[OUTPUTS]):
        if sinks[number, 0] and count:
            carray(floats_at(job[SINKS + 2 * number]), (count,))[:] = 0.0
    return True


@njit(**OPTIONS)
def _compute(state: Any, context: Any) -> Any:
    """False if the inputs do not fit the program."""
    count = state[INPUTS]
    job = np.zeros(JOB, np.int64)
    shapes = np.empty((MAX_OPERANDS, MAX_RANK), np.int64)
    ranks, masks = np.zeros(MAX_OPERANDS, np.int64), np.zeros(MAX_OPERANDS, np.int64)
    result = np.empty(MAX_RANK, np.int64)
    sinks = np.zeros((MAX_OPERANDS, 2), np.int64)
    if not _describe(state, context, job, shapes, ranks):
        return False
    if not _broadcast(count, shapes, result, masks):
        return False
    if not _shapes_of_outputs(state, masks, ranks, result, sinks):
        return False
    _lay_out(count, shapes, result, masks, job)
    total = 1
    for axis in range(MAX_RANK):
        total *= result[axis]
    cell, dims = np.zeros(1, np.int64), np.empty(MAX_RANK, np.int64)
    for number in range(state[OUTPUTS]):
        mask, rank = sinks[number, 0], sinks[number, 1]
        for axis in range(rank):
            place = MAX_RANK - rank + axis
            dims[axis] = 1 if (mask >> place) & 1 else result[place]
        arguments = (context, I64(number), dims.ctypes.data, rank, cell.ctypes.data)
        call(state[GET_OUTPUT], arguments)
        call(state[GET_DATA], (cell[0], cell.ctypes.data))
        job[SINKS + 2 * number], job[SINKS + 2 * number + 1] = cell[0], 1 if mask else 0
    if total == 0:
        return _fill_empty(state, result, sinks, job)
    code = carray(integers_at(state.ctypes.data + 8 * CODE), (WIDTH * state[INSTRUCTIONS],))
    row = result[MAX_RANK - 1] if state_has_rows(code) else 0
    step = row * max(1, CHUNK // row) if row else CHUNK
    job[STATE], job[TOTAL], job[STEP], job[ROW] = state.ctypes.data, total, step, row
    chunks = (total + step - 1) // step
    if chunks == 1:
        _run(job, 0)
    else:
        arguments = (context, state[RUN_CHUNK], chunks, I64(0), job.ctypes.data)
        call(state[PARALLEL_FOR], arguments)
    return True


@cfunc("int64(int64, int64)", **OPTIONS)  # type: ignore[untyped-decorator]
def compute(address: int, context: int) -> int:
    """A node; 0, or the address of onnxruntime's description of an error."""
    state = carray(integers_at(address), (CODE,))
    if _compute(state, context):
        return 0
    return call(state[CREATE_STATUS], (I64(BAD_ARGUMENT), state[MESSAGE]))  # type: ignore[no-any-return]
