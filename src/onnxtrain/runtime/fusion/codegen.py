"""Programs as machine code, through LLVM; import it only where llvmlite is (numba brings it).

A program becomes a loop over rows, and in it one over the vectors of a row, with its values in
registers of the processor. Where rows are reduced, there is one loop after another over the row:
the one behind a reduction reads inputs again, and what else it needs of the loop before from memory
that the caller lends. What is one number for each row is computed once for the row.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir

from .functions import LANES, VECTOR, Value, Vectors
from .opcodes import BINARY, FLAGS, LOAD, NUMBER, REDUCTIONS, STORE, UNARY, WHERE
from .program import READS, Program

I32, I64 = ir.IntType(32), ir.IntType(64)
SIGNATURE = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64.as_pointer(), I64, I64, I64])
"""Addresses of inputs, outputs and lent rows; how far on each is for the next row; how many rows;
numbers of a row with padding, and without."""
FLOATS = ir.FloatType().as_pointer()

_lock = threading.Lock()
_engines: list[Any] = []
"""What owns the machine code, for as long as the process lives."""
COUNTS = {STORE: 1, **READS}
"""How many registers an instruction reads."""
NAMES = {number: name for table in (BINARY, UNARY, REDUCTIONS) for name, number in table.items()}


@functools.cache
def compiled(program: Program) -> int:
    """The address of a program's function, compiled once in a process."""
    module, machine = ir.Module("fused"), _machine()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    _Writer(module, program).write()
    with _lock:
        parsed = binding.parse_assembly(str(module))
        engine = binding.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        _engines.append((engine, machine))
        address: int = engine.get_function_address("fused")
    return address


def _machine() -> Any:
    """This processor, as LLVM knows it."""
    _start()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    name = binding.get_host_cpu_name()
    return target.create_target_machine(cpu=name, features=features, opt=2, jit=True)


@functools.cache
def _start() -> None:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()


def spilled(program: Program) -> int:
    """How many rows a program has to be lent."""
    return len(_Phases(program).spills)


class _Phases:
    """In which loop each value is computed, and which of them a later loop reads.

    Values are numbered by their instructions: a register is written to several times.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.is_per_row = program, program.kinds()
        self.operands, self.phase = list[list[int]](), list[int]()
        holder = dict[int, int]()
        for number, (operation, target, *registers) in enumerate(program.code):
            count = COUNTS.get(operation, 0)
            operands = [holder[r] for r in registers[:count]]
            phase = max((self._ready(o) for o in operands), default=0)
            self.operands.append(operands)
            self.phase.append(phase)
            if operation != STORE:
                holder[target] = number
        self.last = max(self.phase)
        later = {
            o
            for number, operands in enumerate(self.operands)
            for o in operands
            if self.phase[o] < self.phase[number] and self._is_spilled(o)
        }
        self.spills = {value: place for place, value in enumerate(sorted(later))}

    def operation(self, number: int) -> int:
        """What an instruction does."""
        return self.program.code[number][0]

    def is_reduction(self, number: int) -> bool:
        """Whether an instruction reduces rows."""
        return self.operation(number) in REDUCTIONS.values()

    def _ready(self, number: int) -> int:
        """The first loop that can read a value."""
        return self.phase[number] + self.is_reduction(number)

    def _is_spilled(self, number: int) -> bool:
        """Whether a later loop finds a value in memory only; inputs it reads again."""
        return self.operation(number) != LOAD and not self.is_per_row[number]


class _Writer:
    """Writes the function of a program."""

    def __init__(self, module: Any, program: Program) -> None:
        self._program, self._phases = program, _Phases(program)
        self._function = ir.Function(module, SIGNATURE, "fused")
        self._places, self._strides, self._rows, self._size, self._count = self._function.args
        self._builder = ir.IRBuilder(self._function.append_basic_block("entry"))
        self._vectors = Vectors(self._builder, module)
        self._of_row = dict[int, Value]()
        """Values that are one number for each row, in all lanes."""
        self._pointers = list[Value]()

    def write(self) -> None:
        b, program = self._builder, self._program
        before, body = b.block, self._function.append_basic_block("row")
        after = self._function.append_basic_block("end")
        b.branch(body)  # there is one row at least
        b.position_at_end(body)
        row = b.phi(I64)
        row.add_incoming(ir.Constant(I64, 0), before)
        operands = program.inputs + program.outputs + len(self._phases.spills)
        self._pointers = [self._pointer(number, row) for number in range(operands)]
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

    def _pointer(self, number: int, row: Value) -> Value:
        """Where an operand of a row begins."""
        b = self._builder
        place, stride = (
            b.load(b.gep(table, [ir.Constant(I64, number)]))
            for table in (self._places, self._strides)
        )
        return b.inttoptr(b.add(place, b.mul(row, stride)), FLOATS)

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
        """One loop over the row, and what its reductions come to."""
        b, phases = self._builder, self._phases
        reductions = [n for n in numbers if phases.is_reduction(n)]
        before, body = b.block, self._function.append_basic_block("vectors")
        after = self._function.append_basic_block("behind")
        b.branch(body)  # a row has one vector at least
        b.position_at_end(body)
        index = b.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), before)
        totals = {n: b.phi(VECTOR) for n in reductions}
        for n in reductions:
            totals[n].add_incoming(self._vectors.number(self._neutral(n)), before)
        values, sums = dict[int, Value](), dict[int, Value]()
        for number in numbers:
            if number in totals:
                sums[number] = self._added(number, totals[number], values, index)
            else:
                self._instruction(number, values, index)
        following = b.add(index, ir.Constant(I64, LANES))
        index.add_incoming(following, b.block)
        for n in reductions:
            totals[n].add_incoming(sums[n], b.block)
        b.cbranch(b.icmp_signed("<", following, self._size), body, after)
        b.position_at_end(after)
        for n in reductions:
            self._of_row[n] = self._across(n, sums[n])

    def _neutral(self, number: int) -> float:
        return -math.inf if NAMES[self._phases.operation(number)] == "ReduceMax" else 0.0

    def _added(self, number: int, total: Value, values: dict[int, Value], index: Value) -> Value:
        """A reduction with one vector more, without the padding behind the row."""
        b, v = self._builder, self._vectors
        value = self._value(self._phases.operands[number][0], values, index)
        left = self._everywhere(b.trunc(b.sub(self._count, index), I32))
        order = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
        value = b.select(b.icmp_signed("<", order, left), value, v.number(self._neutral(number)))
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
            if phases.operation(number) == LOAD:
                operand, hint = program.code[number][2:4]
                if hint == FLAGS:
                    values[number] = self._flags_at(operand, index)
                    return values[number]
            else:
                operand = program.inputs + program.outputs + phases.spills[number]
            pointer = self._vector_at(operand, index)
            values[number] = self._builder.load(pointer, align=4)
        return values[number]

    def _flags_at(self, operand: int, index: Value) -> Value:
        """Bytes that are 0 or 1, as numbers."""
        b, kind = self._builder, ir.VectorType(ir.IntType(8), LANES)
        first = b.bitcast(self._pointers[operand], ir.IntType(8).as_pointer())
        pointer = b.bitcast(b.gep(first, [index]), kind.as_pointer())
        return b.uitofp(b.load(pointer, align=1), VECTOR)

    def _vector_at(self, operand: int, index: Value) -> Value:
        place = self._builder.gep(self._pointers[operand], [index])
        return self._builder.bitcast(place, VECTOR.as_pointer())

    def _instruction(self, number: int, values: dict[int, Value], index: Value) -> None:
        operation, target = self._program.code[number][:2]
        if operation == LOAD:
            return  # where it is used
        operands = [self._value(o, values, index) for o in self._phases.operands[number]]
        outputs = self._program.inputs
        if operation == STORE:
            self._builder.store(operands[0], self._vector_at(outputs + target, index), align=4)
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
        if name in ("Exp", "Log", "Tanh", "Sigmoid", "Erf", "Softplus"):
            return getattr(v, name.lower())(x)
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
        }
        return forms[name]()

    def _sign(self, x: Value) -> Value:
        v, zero = self._vectors, self._vectors.number(0.0)
        positive = self._flag(v.test(">", x, zero))
        return v.keep_nan(x, v.choose(v.test("<", x, zero), v.number(-1.0), positive))
