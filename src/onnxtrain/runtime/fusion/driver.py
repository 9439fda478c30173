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
from numba import cfunc, njit, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from .opcodes import (
    ANY_SHAPE,
    FLAGS,
    LOAD,
    NUMBER,
    PER_CHANNEL,
    PER_ROW,
    REDUCTIONS,
    SINGLE,
    STORE,
    UNARY,
    WHERE,
    WIDTH,
)

F32, I64 = np.float32, np.int64
LANES = 16
"""What a compiled program does at once: lent rows have room for a multiple of it."""
TILE = 1024
"""Elements of a tile: inputs that are broadcast are written out for it, into the first cache."""
CHUNK = 16_384
"""Elements that one call of a thread takes: 5 to 20 microseconds, where waking one up takes 2."""
MAX_RANK, MAX_OPERANDS = 8, 24

# --- a node's state: integers that `library` writes and `compute` reads -------------------------

INPUTS, OUTPUTS, INSTRUCTIONS, REGISTERS, SPILLED, ROW_AXES, KERNEL = range(7)
"""Counts of the program, rows that its function is lent, how many axes make a row, and the
function's address."""
(GET_INPUT, GET_OUTPUT, GET_DATA, GET_INFO, GET_TYPE, GET_RANK, GET_DIMS, RELEASE_INFO,
 PARALLEL_FOR, CREATE_STATUS, MESSAGE, RUN_CHUNK) = range(7, 19)  # fmt: skip
CODE = 19
"""Where the instructions begin."""
DROPPED = 2
"""What a program says of an output with one number for each row, without the axes of a row."""
FLOAT, BOOL = 1, 9
"""onnxruntime's numbers of element types."""
BAD_ARGUMENT = 2
"""Its code of an error."""

# --- what is handed to `run_chunk`: integers, too ------------------------------------------------

STATE, TOTAL, STEP, ROW, IS_DIRECT, AXES, OUTER, SIZES = 0, 1, 2, 3, 4, 5, 6, 8
"""The state, elements, elements of a call, those of a row (or 0), whether rows are read and written
where they are, coalesced axes, and how many of them are outside of a row."""
SOURCES = SIZES + MAX_RANK
KIND, FORM, STRIDES = 1, 2, 3
SOURCE = STRIDES + MAX_RANK
"""An input: address, element type, how it is broadcast, strides of the coalesced axes."""
SINKS = SOURCES + MAX_OPERANDS * SOURCE
JOB = SINKS + MAX_OPERANDS * 2
"""An output: address, and whether it has one number for each row."""
WHOLE, CONSTANT, MIXED = range(3)
"""Forms of an input: as large as the result, one number, something else."""
SHORT = 64
"""Elements of a row below which rows are not begun one by one where an operand is written out."""
LEAST_ROW = 16
"""Elements of a row from which on a loop over rows pays where nothing is reduced, and nothing is
the same all along a row."""

OPTIONS: dict[str, Any] = {"error_model": "numpy", "cache": True}
"""Numbers in calls are written as I64(…): numba compiles a function again for a literal."""
FIRST_UNARY, FIRST_REDUCTION = min(UNARY.values()), min(REDUCTIONS.values())


# --- addresses ------------------------------------------------------------------------------------


def pointer_to(kind: Any, element: Any) -> Any:
    """A function that takes an address for a pointer to elements of a type."""
    pointer_type: Any = types.CPointer(kind)  # type: ignore[no-untyped-call]

    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], element.as_pointer())

        return pointer_type(types.int64), generate

    return pointer


floats_at = pointer_to(types.float32, ir.FloatType())
integers_at = pointer_to(types.int64, ir.IntType(64))
bytes_at = pointer_to(types.uint8, ir.IntType(8))


def _call(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Call the C function at an address: integers and pointers in, one of them out."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word, count = ir.IntType(64), len(arguments)
        function = builder.inttoptr(values[0], ir.FunctionType(word, [word] * count).as_pointer())
        return builder.call(function, [builder.extract_value(values[1], i) for i in range(count)])

    return types.int64(types.int64, arguments), generate


call: Any = intrinsic(_call)


def _fetch_and_add(typing_context: Any, address: Any) -> Any:
    """The integer at an address, which is one more then, whoever else does the same."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        word = ir.IntType(64)
        place = builder.inttoptr(values[0], word.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(word, 1), "monotonic")

    return types.int64(types.int64), generate


fetch_and_add: Any = intrinsic(_fetch_and_add)


# --- a program on some elements -------------------------------------------------------------------


@njit(**OPTIONS)
def keep(array: Any) -> None:
    """The memory of an array is in use until here, by its address.

    numba frees an array behind the last line that names it; what reads an address it does not see.
    """


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
def _step_before(job: Any, at: Any, last: Any) -> Any:
    """From one row of an input to the next: 0 if there is one for all, 1 if it is one element.

    -1 if there are no rows, or the axes before are not alike.
    """
    if last == 0:
        return I64(-1)
    step = job[at + STRIDES + last - 1]
    stride = step
    for axis in range(last - 1, -1, -1):
        if job[at + STRIDES + axis] != stride:
            return I64(-1)
        stride *= job[SIZES + axis]
    return step


@njit(**OPTIONS)
def _load_row(source: Any, kind: Any, begin: Any, o: Any, n: Any, length: Any) -> None:
    """One short row, again and again: what is written is copied, twice as much each time."""
    within = begin % length
    done = min(length - within, n)
    _copy(source, kind, within, o, I64(0), done)
    count = min(within, n - done)
    _copy(source, kind, I64(0), o, done, count)
    done += count
    while done < n:
        count = min(done // length * length, n - done)
        for i in range(count):
            o[done + i] = o[i]
        done += count


@njit(**OPTIONS)
def _load_column(source: Any, kind: Any, begin: Any, o: Any, n: Any, length: Any) -> None:
    """One element for each short row."""
    place, within = divmod(begin, length)
    done = min(length - within, n)
    _fill(source, kind, place, o, I64(0), done)
    rows = (n - done) // length
    if kind == BOOL:
        flags = carray(bytes_at(source + place + 1), (rows,))
        for row in range(rows):
            value = F32(flags[row])
            for i in range(length):
                o[done + row * length + i] = value
    else:
        numbers = carray(floats_at(source + 4 * (place + 1)), (rows,))
        for row in range(rows):
            value = numbers[row]
            for i in range(length):
                o[done + row * length + i] = value
    done += rows * length
    if done < n:
        _fill(source, kind, place + 1 + rows, o, done, n - done)


@njit(**OPTIONS)
def _load(job: Any, number: Any, begin: Any, n: Any, o: Any) -> None:
    """The part of an input that stands at some elements of the result."""
    at = SOURCES + number * SOURCE
    source, kind, form = job[at], job[at + KIND], job[at + FORM]
    if form == WHOLE:
        _copy(source, kind, begin, o, I64(0), n)
    elif form == CONSTANT:
        _fill(source, kind, I64(0), o, I64(0), n)
    else:
        last = job[AXES] - 1
        length, stride = job[SIZES + last], job[at + STRIDES + last]
        while last and job[at + STRIDES + last - 1] == stride * length:
            last -= 1  # they stand side by side, or are all the same
            length *= job[SIZES + last]
        done, step = 0, _step_before(job, at, last)
        if length < SHORT and step == 0 and stride:
            _load_row(source, kind, begin, o, n, length)
            return
        if length < SHORT and step == 1 and not stride:
            _load_column(source, kind, begin, o, n, length)
            return
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
def _hint(state: Any, number: Any) -> Any:
    """What a program knows of the shape of an input."""
    at = CODE + WIDTH * state[INSTRUCTIONS] + number
    return carray(integers_at(state.ctypes.data + 8 * at), (1,))[0]


@njit(**OPTIONS)
def _is_per_row(state: Any, number: Any) -> Any:
    """Whether an output has one number for each row."""
    return _hint(state, state[INPUTS] + number) != 0


@njit(**OPTIONS)
def _is_without_axes(state: Any, number: Any) -> Any:
    """Whether it is without the axes of a row besides."""
    return _hint(state, state[INPUTS] + number) == DROPPED


@njit(**OPTIONS)
def _run(job: Any, index: Any) -> None:
    """A chunk of the result: rows where they are, or tiles that are copied."""
    state = carray(integers_at(job[STATE]), (CODE,))
    begin = index * job[STEP]
    end = min(job[TOTAL], begin + job[STEP])
    row = job[ROW]
    if not job[IS_DIRECT]:
        _run_tiles(state, job, begin, end)
        return
    count = state[INPUTS] + state[OUTPUTS] + state[SPILLED]
    places, strides = np.empty(count, np.int64), np.zeros(count, np.int64)
    width = _padded(row if row else end - begin)
    lent = np.empty((state[SPILLED], width), F32)
    for number in range(state[SPILLED]):
        places[count - 1 - number] = lent[number].ctypes.data
    if row == 0:
        _run_rows(state, job, places, strides, begin, I64(1), end - begin)
        keep(lent)
        return
    first, last = begin // row, end // row
    length = job[SIZES + job[OUTER] - 1] if job[OUTER] else I64(1)
    while first < last:  # rows of one length apart, for every operand
        rows = min(last - first, length - first % length)
        _run_rows(state, job, places, strides, first * row, rows, row)
        first += rows
    keep(lent)


@njit(**OPTIONS)
def _padded(size: Any) -> Any:
    """Elements of whole vectors."""
    return (size + LANES - 1) // LANES * LANES


@njit(**OPTIONS)
def _element(job: Any, number: Any, place: Any) -> Any:
    """Where an input has what belongs to an element of the result."""
    at = SOURCES + number * SOURCE
    offset = I64(0)
    for axis in range(job[AXES] - 1, -1, -1):
        size = job[SIZES + axis]
        offset += (place % size) * job[at + STRIDES + axis]
        place //= size
    return job[at] + _bytes(job, number) * offset


@njit(**OPTIONS)
def _bytes(job: Any, number: Any) -> Any:
    """The size of an element of an input."""
    return I64(1) if job[SOURCES + number * SOURCE + KIND] == BOOL else I64(4)


@njit(**OPTIONS)
def _run_rows(
    state: Any, job: Any, places: Any, strides: Any, begin: Any, rows: Any, size: Any
) -> None:
    """Rows that are equally far apart in each operand, where they are."""
    inputs, outputs, outer = state[INPUTS], state[OUTPUTS], job[OUTER]
    for number in range(inputs):
        at = SOURCES + number * SOURCE
        places[number] = _element(job, number, begin)
        strides[number] = _bytes(job, number) * job[at + STRIDES + outer - 1] if outer else I64(0)
    for number in range(outputs):
        step = I64(4) if _is_per_row(state, number) else 4 * size
        places[inputs + number] = job[SINKS + 2 * number] + step * (begin // size)
        strides[inputs + number] = step
    if job[ROW] == 0:
        for number in range(outputs):  # one row that begins anywhere
            places[inputs + number] = job[SINKS + 2 * number] + 4 * begin
    call(state[KERNEL], (places.ctypes.data, strides.ctypes.data, rows, size))


@njit(**OPTIONS)
def _run_tiles(state: Any, job: Any, begin: Any, end: Any) -> None:
    """Tiles of some rows, or of elements without rows; what is repeated is written out first."""
    inputs, outputs, spilled, row = state[INPUTS], state[OUTPUTS], state[SPILLED], job[ROW]
    count = inputs + outputs + spilled
    tile = row * max(I64(1), TILE // row) if row else I64(TILE)
    width = row if row else tile
    written, lent = np.empty((inputs, tile), F32), np.empty((spilled, _padded(width)), F32)
    places, strides = np.empty(count, np.int64), np.zeros(count, np.int64)
    for number in range(spilled):
        places[inputs + outputs + number] = lent[number].ctypes.data
    for first in range(begin, end, tile):
        n = min(tile, end - first)
        rows = n // row if row else I64(1)
        for number in range(inputs):
            place, stride = _part(state, job, number, first, n, written[number])
            places[number], strides[number] = place, stride
        for number in range(outputs):
            step = I64(4) if _is_per_row(state, number) else 4 * width
            offset = step * (first // width) if row else 4 * first
            places[inputs + number] = job[SINKS + 2 * number] + offset
            strides[inputs + number] = step
        size = row if row else n
        call(state[KERNEL], (places.ctypes.data, strides.ctypes.data, rows, size))
    keep(lent)
    keep(written)
    keep(places)
    keep(strides)


@njit(**OPTIONS)
def _part(state: Any, job: Any, number: Any, first: Any, n: Any, written: Any) -> Any:
    """Where a tile of an input is, and how far apart rows are there; it may have to be written."""
    at, hint, row = SOURCES + number * SOURCE, _hint(state, number), job[ROW]
    if hint == SINGLE:
        return job[at], I64(0)
    if hint in (PER_ROW, PER_CHANNEL):
        for index in range(n // row):
            place = _element(job, number, first + index * row)
            written[index] = carray(floats_at(place), (1,))[0]
        return written.ctypes.data, I64(4)
    if hint == FLAGS or (job[at + FORM] == WHOLE and job[at + KIND] == FLOAT):
        return _element(job, number, first), _bytes(job, number) * row
    _load(job, number, first, n, written)
    return written.ctypes.data, 4 * row


@cfunc("void(int64, int64)", **OPTIONS)
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
        behind = I64(0)
        if _hint(state, i) == PER_CHANNEL:
            if rank != 1:
                return False
            behind = state[ROW_AXES]
        for axis in range(rank):
            shapes[i, MAX_RANK - behind - rank + axis] = dims[axis]
    keep(cell)
    keep(dims)
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
def _coalesce(count: Any, result: Any, masks: Any, row_axes: Any, job: Any, group: Any) -> None:
    """Axes that all inputs treat alike become one; `group` says which axis became which.

    Rows, if there are any, are apart from the axes before.
    """
    axes, before, first_of_row = 0, -1, MAX_RANK - row_axes
    job[OUTER] = 0
    for axis in range(MAX_RANK):
        group[axis] = -1
        if result[axis] == 1:
            continue
        joins = before >= 0 and not before < first_of_row <= axis
        for i in range(count):
            joins = joins and ((masks[i] >> axis) & 1) == ((masks[i] >> max(before, 0)) & 1)
        if joins:
            job[SIZES + axes - 1] *= result[axis]
        else:
            job[SIZES + axes] = result[axis]
            axes += 1
        group[axis] = axes - 1
        before = axis
        if axis < first_of_row:
            job[OUTER] = axes
    job[AXES] = axes


@njit(**OPTIONS)
def _lay_out(count: Any, shapes: Any, result: Any, masks: Any, row_axes: Any, job: Any) -> None:
    """How each input is broadcast, and its strides along the coalesced axes."""
    group = np.empty(MAX_RANK, np.int64)
    _coalesce(count, result, masks, row_axes, job, group)
    for i in range(count):
        at = SOURCES + i * SOURCE
        stride, after = 1, -1
        for axis in range(MAX_RANK - 1, -1, -1):
            if group[axis] < 0:
                continue
            if (masks[i] >> axis) & 1:
                job[at + STRIDES + group[axis]] = 0
            elif group[axis] != after:
                job[at + STRIDES + group[axis]] = stride
            stride *= shapes[i, axis]
            after = group[axis]
        is_constant = masks[i] == _axes_of(result)
        job[at + FORM] = WHOLE if masks[i] == 0 else CONSTANT if is_constant else MIXED


@njit(**OPTIONS)
def _row_axes(count: Any) -> Any:
    """The last axes, as a set."""
    return ((I64(1) << count) - I64(1)) << (MAX_RANK - count)


@njit(**OPTIONS)
def _axes_of(result: Any) -> Any:
    """The axes of a shape that have another size than 1."""
    axes = I64(0)
    for axis in range(MAX_RANK):
        if result[axis] != 1:
            axes |= I64(1) << axis
    return axes


@njit(**OPTIONS)
def _shapes_of_outputs(state: Any, job: Any, masks: Any, ranks: Any, result: Any) -> Any:
    """Follow shapes through the program; none of the outputs may have another than it should.

    Returns:
        Of each output the axes along which it has the size 1 and its rank; no rows if one is odd.
    """
    count = state[INSTRUCTIONS]
    code = carray(integers_at(state.ctypes.data + 8 * CODE), (WIDTH * count,))
    everywhere = _axes_of(result)
    last = everywhere & _row_axes(state[ROW_AXES])
    held = np.zeros((state[REGISTERS], 2), np.int64)
    sinks = np.zeros((state[OUTPUTS], 2), np.int64)
    nothing = np.zeros((0, 2), np.int64)
    for k in range(0, WIDTH * count, WIDTH):
        op, target, a, b, c = code[k], code[k + 1], code[k + 2], code[k + 3], code[k + 4]
        if op == LOAD:
            if not _fits(b, masks[a], job[SOURCES + a * SOURCE + KIND], last, everywhere):
                return nothing
            if c and ranks[a] != c:
                return nothing
            held[target, 0], held[target, 1] = masks[a], ranks[a]
        elif op == NUMBER:
            held[target, 0], held[target, 1] = everywhere, 0
        elif op == STORE:
            if held[a, 0] != (last if _is_per_row(state, target) else 0):
                return nothing
            sinks[target, 0], sinks[target, 1] = held[a, 0], held[a, 1]
        elif op >= FIRST_REDUCTION:
            if held[a, 0] & last or held[a, 1] == 0 or (b and held[a, 1] != b):
                return nothing
            held[target, 0], held[target, 1] = held[a, 0] | last, held[a, 1]
        else:
            held[target, 0], held[target, 1] = _joined(op, held[a], held[b], held[c])
    return sinks


@njit(**OPTIONS)
def _fits(hint: Any, mask: Any, kind: Any, last: Any, everywhere: Any) -> Any:
    """Whether an input is what a program takes it for."""
    if hint == FLAGS:
        return mask == 0 and kind == BOOL
    if hint == ANY_SHAPE:
        return True
    repeated = everywhere if hint == SINGLE else last
    return kind == FLOAT and mask & repeated == repeated


@njit(**OPTIONS)
def _joined(op: Any, a: Any, b: Any, c: Any) -> Any:
    """Repeated axes and rank of a result of one, two or three operands."""
    mask, rank = a[0], a[1]
    if op < FIRST_UNARY or op == WHERE:
        mask, rank = mask & b[0], max(rank, b[1])
    if op == WHERE:
        mask, rank = mask & c[0], max(rank, c[1])
    return mask, rank


@njit(**OPTIONS)
def _has_rows(state: Any) -> Any:
    """Whether a program reduces rows, or reads one number for each."""
    count = state[INSTRUCTIONS]
    code = carray(integers_at(state.ctypes.data + 8 * CODE), (WIDTH * count,))
    for k in range(0, code.size, WIDTH):
        is_per_row = code[k] == LOAD and code[k + 3] in (PER_ROW, PER_CHANNEL)
        if code[k] >= FIRST_REDUCTION or is_per_row:
            return True
    return False


@njit(**OPTIONS)
def _choose_row(state: Any, job: Any, result: Any, has_rows: Any) -> None:
    """How long a row is, and whether all operands can be read and written where they are.

    Where a program has no rows, the last of the coalesced axes makes some, if there are several.
    """
    row = I64(0)
    if has_rows:
        row = I64(1)
        for axis in range(MAX_RANK - state[ROW_AXES], MAX_RANK):
            row *= result[axis]
    else:
        job[OUTER] = max(job[AXES] - 1, I64(0))
        row = job[SIZES + job[OUTER]] if job[OUTER] else I64(0)
    is_direct = job[AXES] - job[OUTER] <= 1 and (has_rows or row == 0 or row >= LEAST_ROW)
    for number in range(state[INPUTS]):
        at = SOURCES + number * SOURCE
        if _hint(state, number) == ANY_SHAPE:
            follows = job[AXES] == job[OUTER] or job[at + STRIDES + job[AXES] - 1] == 1
            is_direct = is_direct and follows and job[at + KIND] == FLOAT
    if not is_direct and not has_rows:
        row = I64(0)
    job[ROW], job[IS_DIRECT] = row, is_direct


@njit(**OPTIONS)
def _fill_empty(state: Any, result: Any, sinks: Any, job: Any) -> None:
    """Sums over rows without elements are zero."""
    count = 1
    for axis in range(MAX_RANK - state[ROW_AXES]):
        count *= result[axis]
    for number in range(state[OUTPUTS]):
        if sinks[number, 0] and count:
            carray(floats_at(job[SINKS + 2 * number]), (count,))[:] = 0.0


@njit(**OPTIONS)
def _compute(state: Any, context: Any) -> Any:
    """0, or the address of onnxruntime's description of an error."""
    count = state[INPUTS]
    job = np.zeros(JOB, np.int64)
    shapes = np.empty((MAX_OPERANDS, MAX_RANK), np.int64)
    ranks, masks = np.zeros(MAX_OPERANDS, np.int64), np.zeros(MAX_OPERANDS, np.int64)
    result = np.empty(MAX_RANK, np.int64)
    if not _describe(state, context, job, shapes, ranks):
        return _misfit(state)
    if not _broadcast(count, shapes, result, masks):
        return _misfit(state)
    sinks = _shapes_of_outputs(state, job, masks, ranks, result)
    if not len(sinks):
        return _misfit(state)
    has_rows = _has_rows(state)
    _lay_out(count, shapes, result, masks, state[ROW_AXES] if has_rows else I64(0), job)
    total = 1
    for axis in range(MAX_RANK):
        total *= result[axis]
    cell, dims = np.zeros(1, np.int64), np.empty(MAX_RANK, np.int64)
    for number in range(state[OUTPUTS]):
        mask, rank = sinks[number, 0], sinks[number, 1]
        for axis in range(rank):
            place = MAX_RANK - rank + axis
            dims[axis] = 1 if (mask >> place) & 1 else result[place]
        if _is_without_axes(state, number):
            rank = max(rank - state[ROW_AXES], I64(0))
        arguments = (context, I64(number), dims.ctypes.data, rank, cell.ctypes.data)
        status: Any = call(state[GET_OUTPUT], arguments)
        if status != 0:
            return status  # memory that was bound, or lent by an operand, has another size
        call(state[GET_DATA], (cell[0], cell.ctypes.data))
        job[SINKS + 2 * number], job[SINKS + 2 * number + 1] = cell[0], 1 if mask else 0
    keep(cell)
    keep(dims)
    if total == 0:
        _fill_empty(state, result, sinks, job)
        return I64(0)
    _choose_row(state, job, result, has_rows)
    row = job[ROW]
    step = row * max(1, CHUNK // row) if row else CHUNK
    job[STATE], job[TOTAL], job[STEP] = state.ctypes.data, total, step
    chunks = (total + step - 1) // step
    if chunks == 1:
        call(state[RUN_CHUNK], (job.ctypes.data, I64(0)))
    else:
        arguments = (context, state[RUN_CHUNK], chunks, I64(0), job.ctypes.data)
        call(state[PARALLEL_FOR], arguments)
    keep(job)
    return I64(0)


@njit(**OPTIONS)
def _misfit(state: Any) -> Any:
    """The inputs do not fit the program."""
    return call(state[CREATE_STATUS], (I64(BAD_ARGUMENT), state[MESSAGE]))


@cfunc("int64(int64, int64)", **OPTIONS)
def compute(address: int, context: int) -> Any:
    """A node; 0, or the address of onnxruntime's description of an error."""
    state = carray(integers_at(address), (CODE,))
    return _compute(state, context)
