"""Programs as machine code, through LLVM; import it only where llvmlite is (numba brings it).

A program becomes a loop over rows, and in it one over the vectors of a row, with its values in
registers of the processor. What is left of a row behind its last whole vector is read and written
under a mask. Where rows are reduced, there is one loop after another over the row (`phases`): the
one behind a reduction reads inputs again, and what else it needs of the loop before from memory
that the caller lends. What is one number for each row is computed once for the row.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .functions import LANES, VECTOR, Value, Vectors
from .machine import addresses_of
from .opcodes import BINARY, FLAGS, LOAD, NUMBER, REDUCTIONS, STORE, UNARY, WHERE
from .phases import Phases
from .program import Program
from .tangent import tangent

I32, I64 = ir.IntType(32), ir.IntType(64)
SIGNATURE = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64.as_pointer(), I64, I64])
"""Addresses of inputs, outputs and lent rows; how far on each is for the next row; how many rows;
numbers of a row. A lent row has room for whole vectors."""
MASK = ir.VectorType(ir.IntType(1), LANES)
FLOATS = ir.FloatType().as_pointer()

NAMES = {number: name for table in (BINARY, UNARY, REDUCTIONS) for name, number in table.items()}


@functools.cache
def compiled(program: Program) -> int:
    """The address of a program's function, compiled once on a machine if that can be."""
    (address,) = addresses_of(program.text(), lambda m: _Writer(m, program).write(), ["fused"])
    return address


def spilled(program: Program) -> int:
    """How many rows a program has to be lent."""
    return len(Phases(program).spills)


class _Writer:
    """Writes the function of a program."""

    def __init__(self, module: Any, program: Program) -> None:
        self._program, self._phases = program, Phases(program)
        self._function = ir.Function(module, SIGNATURE, "fused")
        self._places, self._strides, self._rows, self._count = self._function.args
        self._module = module
        self._builder = ir.IRBuilder(self._function.append_basic_block("entry"))
        self._vectors = Vectors(self._builder, module)
        b = self._builder
        self._whole = b.and_(self._count, ir.Constant(I64, -LANES))
        """Where the last whole vector of a row ends."""
        self._rest = self._lanes_below(b.sub(self._count, self._whole))
        """Which lanes of the vector behind it the row has."""
        self._mask: Value | None = None
        """The lanes that are read and written, where those are not all."""
        self._of_row = dict[int, Value]()
        """Values that are one number for each row, in all lanes."""
        self._pointers = list[Value]()

    def write(self) -> None:
        b, program = self._builder, self._program
        before, body = b.block, self._function.append_basic_block("row")
        after = self._function.append_basic_block("end")
        operands = program.inputs + program.outputs + len(self._phases.spills)
        starts = [self._start(number) for number in range(operands)]
        b.branch(body)  # there is one row at least
        b.position_at_end(body)
        row = b.phi(I64)
        row.add_incoming(ir.Constant(I64, 0), before)
        self._pointers = [
            b.inttoptr(b.add(place, b.mul(row, stride)), FLOATS) for place, stride in starts
        ]
        for phase in range(self._phases.last + 1):
            numbers = [n for n, p in enumerate(self._phases.phase) if p == phase]
            for number in numbers:
                if self._phases.is_per_row[number] and not self._phases.is_reduction(number):
                    self._instruction_of_row(number)
            inner = [
                n for n in numbers
                if self._phases.is_reduction(n) or not self._phases.is_per_row[n]
            ]  # fmt: skip
            if any(self._phases.operation(n) != LOAD for n in inner):
                self._loop(inner)
        following = b.add(row, ir.Constant(I64, 1))
        row.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, self._rows), body, after)
        b.position_at_end(after)
        b.ret_void()

    def _start(self, number: int) -> tuple[Value, Value]:
        """Where an operand of the first row begins, and how far on the next row is."""
        b, place = self._builder, ir.Constant(I64, number)
        first, stride = (b.load(b.gep(t, [place])) for t in (self._places, self._strides))
        return first, stride

    def _lanes_below(self, count: Value) -> Value:
        """The first lanes of a vector, as a mask."""
        order = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
        b = self._builder
        return b.icmp_signed("<", order, self._everywhere(b.trunc(count, I32)))

    def _instruction_of_row(self, number: int) -> None:
        """What is one number for each row."""
        operation, target, operand = self._program.code[number][:3]
        if operation == LOAD:
            self._of_row[number] = self._everywhere(self._builder.load(self._pointers[operand]))
        elif operation == NUMBER:
            bits = struct.pack("<I", operand)
            self._of_row[number] = self._vectors.number(struct.unpack("<f", bits)[0])
        else:
            operands = [self._of_row[o] for o in self._phases.operands[number]]
            if operation == STORE:
                first = self._builder.extract_element(operands[0], I32(0))
                self._builder.store(first, self._pointers[self._program.inputs + target])
            else:
                self._of_row[number] = self._operation(operation, operands)

    def _everywhere(self, value: Value) -> Value:
        """One value in all lanes."""
        b, kind = self._builder, ir.VectorType(value.type, LANES)
        single = b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
        return b.shuffle_vector(single, ir.Constant(kind, ir.Undefined), zeros)

    def _loop(self, numbers: list[int]) -> None:
        """One loop over the vectors of a row, its rest, and what its reductions come to."""
        b, append = self._builder, self._function.append_basic_block
        totals = {
            n: self._vectors.number(self._neutral(n))
            for n in numbers
            if self._phases.is_reduction(n)
        }
        before, body, rest, part, after = b.block, *map(append, ("vectors", "rest", "part", "end"))
        zero = ir.Constant(I64, 0)
        b.cbranch(b.icmp_signed(">", self._whole, zero), body, rest)
        b.position_at_end(body)
        index = b.phi(I64)
        index.add_incoming(zero, before)
        running = {n: b.phi(VECTOR) for n in totals}
        sums = self._vector(numbers, running, index)
        following = b.add(index, ir.Constant(I64, LANES))
        index.add_incoming(following, body)
        for n, phi in running.items():
            phi.add_incoming(totals[n], before)
            phi.add_incoming(sums[n], body)
        b.cbranch(b.icmp_signed("<", following, self._whole), body, rest)
        b.position_at_end(rest)
        totals = {n: self._either(totals[n], before, sums[n], body) for n in totals}
        b.cbranch(b.icmp_signed("<", self._whole, self._count), part, after)
        b.position_at_end(part)
        self._mask = self._rest
        sums = self._vector(numbers, totals, self._whole)
        self._mask = None
        b.branch(after)
        b.position_at_end(after)
        totals = {n: self._either(totals[n], rest, sums[n], part) for n in totals}
        self._of_row |= {n: self._across(n, total) for n, total in totals.items()}

    def _either(self, a: Value, from_a: Any, b: Value, from_b: Any) -> Value:
        """A value, by the block that control comes from."""
        phi = self._builder.phi(VECTOR)
        phi.add_incoming(a, from_a)
        phi.add_incoming(b, from_b)
        return phi

    def _vector(
        self, numbers: list[int], totals: dict[int, Value], index: Value
    ) -> dict[int, Value]:
        """Instructions on one vector; what reductions come to with it."""
        values, sums = dict[int, Value](), dict[int, Value]()
        for number in numbers:
            if number in totals:
                sums[number] = self._added(number, totals[number], values, index)
            else:
                self._instruction(number, values, index)
        return sums

    def _neutral(self, number: int) -> float:
        return -math.inf if NAMES[self._phases.operation(number)] == "ReduceMax" else 0.0

    def _added(self, number: int, total: Value, values: dict[int, Value], index: Value) -> Value:
        """A reduction with one vector more, without what is behind the row."""
        value = self._value(self._phases.operands[number][0], values, index)
        if self._mask is not None:
            neutral = self._vectors.number(self._neutral(number))
            value = self._builder.select(self._mask, value, neutral)
        return self._joined(number, total, value)

    def _joined(self, number: int, a: Value, b: Value) -> Value:
        if NAMES[self._phases.operation(number)] == "ReduceMax":
            return self._most(a, b)
        return self._builder.fadd(a, b)

    def _across(self, number: int, total: Value) -> Value:
        """The lanes of a vector as one number, in all lanes."""
        b = self._builder
        for distance in (8, 4, 2, 1):
            order = [(lane + distance) % LANES for lane in range(LANES)]
            turned = b.shuffle_vector(total, total, ir.Constant(ir.VectorType(I32, LANES), order))
            total = self._joined(number, total, turned)
        if NAMES[self._phases.operation(number)] == "ReduceMean":
            total = b.fdiv(total, self._everywhere(b.sitofp(self._count, ir.FloatType())))
        return total

    def _value(self, number: int, values: dict[int, Value], index: Value) -> Value:
        """A value in the loop that is being written."""
        if number in self._of_row:
            return self._of_row[number]
        if number not in values:
            program, phases = self._program, self._phases
            if phases.operation(number) != LOAD:
                lent = program.inputs + program.outputs + phases.spills[number]
                values[number] = self._builder.load(self._vector_at(lent, index), align=4)
            else:
                operand, hint = program.code[number][2:4]
                read = self._flags_at if hint == FLAGS else self._numbers_at
                values[number] = read(operand, index)
        return values[number]

    def _numbers_at(self, operand: int, index: Value) -> Value:
        pointer = self._vector_at(operand, index)
        if self._mask is None:
            return self._builder.load(pointer, align=4)
        return self._masked("load", VECTOR, pointer, 4)

    def _flags_at(self, operand: int, index: Value) -> Value:
        """Bytes that are 0 or 1, as numbers."""
        b, kind = self._builder, ir.VectorType(ir.IntType(8), LANES)
        first = b.bitcast(self._pointers[operand], ir.IntType(8).as_pointer())
        pointer = b.bitcast(b.gep(first, [index]), kind.as_pointer())
        is_whole = self._mask is None
        flags = b.load(pointer, align=1) if is_whole else self._masked("load", kind, pointer, 1)
        return b.uitofp(flags, VECTOR)

    def _vector_at(self, operand: int, index: Value) -> Value:
        place = self._builder.gep(self._pointers[operand], [index])
        return self._builder.bitcast(place, VECTOR.as_pointer())

    def _masked(
        self, verb: str, kind: Any, pointer: Value, align: int, value: Value = None
    ) -> Value:
        """Read or write the lanes of the mask; what is not read is zero."""
        element = "f32" if kind is VECTOR else "i8"
        name = f"llvm.masked.{verb}.v{LANES}{element}.p0v{LANES}{element}"
        where, zeros = [pointer.type, I32, MASK], ir.Constant(kind, None)
        if verb == "load":
            signature = ir.FunctionType(kind, [*where, kind])
            operands = [pointer, I32(align), self._mask, zeros]
        else:
            signature = ir.FunctionType(ir.VoidType(), [kind, *where])
            operands = [value, pointer, I32(align), self._mask]
        function = self._module.globals.get(name) or ir.Function(self._module, signature, name)
        return self._builder.call(function, operands)

    def _instruction(self, number: int, values: dict[int, Value], index: Value) -> None:
        operation, target = self._program.code[number][:2]
        if operation == LOAD:
            return  # where it is used
        operands = [self._value(o, values, index) for o in self._phases.operands[number]]
        outputs = self._program.inputs
        if operation == STORE:
            pointer = self._vector_at(outputs + target, index)
            if self._mask is None:
                self._builder.store(operands[0], pointer, align=4)
            else:
                self._masked("store", VECTOR, pointer, 4, operands[0])
            return
        values[number] = self._operation(operation, operands)
        if number in self._phases.spills:
            lent = outputs + self._program.outputs + self._phases.spills[number]
            self._builder.store(values[number], self._vector_at(lent, index), align=4)

    # --- single operations ------------------------------------------------------------------

    def _operation(self, operation: int, operands: list[Value]) -> Value:
        if operation == WHERE:
            condition, a, b = operands
            return self._vectors.choose(self._is_true(condition), a, b)
        name = NAMES[operation]
        return (self._binary if operation in BINARY.values() else self._unary)(name, operands)

    def _is_true(self, x: Value) -> Value:
        return self._vectors.differ(x, self._vectors.number(0.0))

    def _flag(self, condition: Value) -> Value:
        return self._vectors.choose(condition, self._vectors.number(1.0), self._vectors.number(0.0))

    def _most(self, a: Value, b: Value) -> Value:
        """The larger one, or NaN."""
        v = self._vectors
        return v.keep_nan(a, v.choose(v.test(">", a, b), a, b))

    def _binary(self, name: str, operands: list[Value]) -> Value:
        (a, b), v, builder = operands, self._vectors, self._builder
        arithmetic = {
            "Add": builder.fadd, "Sub": builder.fsub, "Mul": builder.fmul, "Div": builder.fdiv,
            "And": builder.fmul, "Max": self._most,
        }  # fmt: skip
        if name in arithmetic:
            return arithmetic[name](a, b)
        if name == "Min":
            return v.keep_nan(a, v.choose(v.test("<", a, b), a, b))
        if name == "Or":
            return v.choose(v.test(">", a, b), a, b)
        if name == "Xor":
            return self._flag(v.differ(a, b))
        relations = {"Equal": "==", "Greater": ">", "GreaterOrEqual": ">="}
        return self._flag(v.test(relations[name], a, b))

    def _unary(self, name: str, operands: list[Value]) -> Value:
        x, v, b = operands[0], self._vectors, self._builder
        zero, one = v.number(0.0), v.number(1.0)
        forms: dict[str, Callable[[], Value]] = {
            "Neg": lambda: b.fneg(x),
            "Abs": lambda: v.intrinsic("fabs", x),
            "Sqrt": lambda: v.intrinsic("sqrt", x),
            "Floor": lambda: v.intrinsic("floor", x),
            "Reciprocal": lambda: b.fdiv(one, x),
            "Relu": lambda: v.choose(v.test("<", x, zero), zero, x),
            "Not": lambda: b.fsub(one, x),
            "Sign": lambda: self._sign(x),
            "IsTrue": lambda: self._flag(self._is_true(x)),
            "Square": lambda: b.fmul(x, x),
            "Copy": lambda: x,
            "Tan": lambda: tangent(b, self._module, x),
        }
        return forms[name]() if name in forms else getattr(v, name.lower())(x)

    def _sign(self, x: Value) -> Value:
        v, zero = self._vectors, self._vectors.number(0.0)
        positive = self._flag(v.test(">", x, zero))
        return v.keep_nan(x, v.choose(v.test("<", x, zero), v.number(-1.0), positive))
