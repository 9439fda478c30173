"""Programs as machine code, through LLVM; import it only where llvmlite is (numba brings it).

A program becomes one loop over vectors, with its values in registers of the processor. Where rows
are reduced, it becomes one loop after another over a row: the loop behind a reduction reads inputs
again, and what else it needs of the loop before from memory that the caller lends.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any

from llvmlite import binding, ir

from .functions import LANES, VECTOR, Value, Vectors
from .opcodes import BINARY, LOAD, REDUCTIONS, STORE, UNARY, WHERE
from .program import READS, Program

I64, POINTER = ir.IntType(64), ir.IntType(64).as_pointer()
SIGNATURE = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64])
"""Addresses of inputs, outputs and lent rows; numbers of a row with padding, and without."""
FLOATS = ir.FloatType().as_pointer()

_lock = threading.Lock()
_engines: list[Any] = []
"""What owns the machine code, for as long as the process lives."""
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
    return len(_Phases(program).kept)


class _Phases:
    """In which loop each value is computed, and which of them a later loop reads.

    Values are numbered by their instructions: a register is written to several times.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.operands, self.phase = list[list[int]](), list[int]()
        holder = dict[int, int]()
        for number, (operation, target, *registers) in enumerate(program.code):
            count = 1 if operation == STORE else 0 if operation == LOAD else READS[operation]
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
            if self.phase[o] < self.phase[number] and self._is_plain(o)
        }
        self.kept = {value: place for place, value in enumerate(sorted(later))}

    def operation(self, number: int) -> int:
        """What an instruction does."""
        return self.program.code[number][0]

    def is_reduction(self, number: int) -> bool:
        """Whether an instruction reduces rows."""
        return self.operation(number) in REDUCTIONS.values()

    def _ready(self, number: int) -> int:
        """The first loop that can read a value."""
        return self.phase[number] + self.is_reduction(number)

    def _is_plain(self, number: int) -> bool:
        """Neither an input, which is read again, nor the result of a reduction."""
        return self.operation(number) != LOAD and not self.is_reduction(number)


class _Writer:
    """Writes the function of a program."""

    def __init__(self, module: Any, program: Program) -> None:
        self._program, self._phases = program, _Phases(program)
        self._function = ir.Function(module, SIGNATURE, "fused")
        self._pointers, self._size, self._count = self._function.args
        self._builder = ir.IRBuilder(self._function.append_basic_block("entry"))
        self._vectors = Vectors(self._builder, module)
        self._reduced = dict[int, Value]()
        rows = program.inputs + program.outputs + len(self._phases.kept)
        self._rows = [self._row(number) for number in range(rows)]

    def _row(self, number: int) -> Value:
        place = self._builder.gep(self._pointers, [ir.Constant(I64, number)])
        return self._builder.inttoptr(self._builder.load(place), FLOATS)

    def write(self) -> None:
        for phase in range(self._phases.last + 1):
            self._loop(phase)
        self._builder.ret_void()

    def _loop(self, phase: int) -> None:
        """One loop over the row, and what its reductions come to."""
        b, phases = self._builder, self._phases
        numbers = [n for n, p in enumerate(phases.phase) if p == phase]
        reductions = [n for n in numbers if phases.is_reduction(n)]
        before, body = b.block, self._function.append_basic_block()
        after = self._function.append_basic_block()
        b.branch(body)  # a row has one vector at least
        b.position_at_end(body)
        index = b.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), before)
        totals = {n: b.phi(VECTOR) for n in reductions}
        values = dict[int, Value]()
        for n in reductions:
            totals[n].add_incoming(self._vectors.number(self._neutral(n)), before)
        sums = dict[int, Value]()
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
            self._reduced[n] = self._across(n, sums[n])

    def _neutral(self, number: int) -> float:
        return -math.inf if NAMES[self._phases.operation(number)] == "ReduceMax" else 0.0

    def _added(self, number: int, total: Value, values: dict[int, Value], index: Value) -> Value:
        """A reduction with one vector more, without the padding behind the row."""
        b, v = self._builder, self._vectors
        value = self._value(self._phases.operands[number][0], values, index)
        lanes = ir.VectorType(I64, LANES)
        left = b.sub(self._count, index)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        single = b.insert_element(ir.Constant(lanes, ir.Undefined), left, ir.IntType(32)(0))
        left = b.shuffle_vector(single, ir.Constant(lanes, ir.Undefined), everywhere)
        order = ir.Constant(lanes, [ir.Constant(I64, i) for i in range(LANES)])
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
            kind = ir.VectorType(ir.IntType(32), LANES)
            turned = b.shuffle_vector(total, total, ir.Constant(kind, order))
            total = self._joined(number, total, turned)
        if NAMES[self._phases.operation(number)] == "ReduceMean":
            count = b.sitofp(self._count, ir.FloatType())
            single = b.insert_element(
                ir.Constant(VECTOR, ir.Undefined), count, ir.IntType(32)(0)
            )
            zero = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            total = b.fdiv(total, b.shuffle_vector(single, single, zero))
        return total

    def _value(self, number: int, values: dict[int, Value], index: Value) -> Value:
        """A value in the loop that is being written."""
        if number in self._reduced:
            return self._reduced[number]
        if number not in values:
            program, phases = self._program, self._phases
            if phases.operation(number) == LOAD:
                row = program.code[number][2]
            else:
                row = program.inputs + program.outputs + phases.kept[number]
            place = self._builder.gep(self._rows[row], [index])
            pointer = self._builder.bitcast(place, VECTOR.as_pointer())
            values[number] = self._builder.load(pointer, align=4)
        return values[number]

    def _instruction(self, number: int, values: dict[int, Value], index: Value) -> None:
        operation, target = self._program.code[number][:2]
        if operation == LOAD:
            return  # where it is used
        operands = [self._value(o, values, index) for o in self._phases.operands[number]]
        if operation == STORE:
            self._keep(self._program.inputs + target, operands[0], index)
            return
        values[number] = self._operation(operation, operands)
        if number in self._phases.kept:
            row = self._program.inputs + self._program.outputs + self._phases.kept[number]
            self._keep(row, values[number], index)

    def _keep(self, row: int, value: Value, index: Value) -> None:
        place = self._builder.gep(self._rows[row], [index])
        self._builder.store(value, self._builder.bitcast(place, VECTOR.as_pointer()), align=4)

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
        match name:
            case "Neg":
                return b.fneg(x)
            case "Abs":
                return v.intrinsic("fabs", x)
            case "Sqrt" | "Floor":
                return v.intrinsic(name.lower(), x)
            case "Reciprocal":
                return b.fdiv(one, x)
            case "Exp" | "Log" | "Tanh" | "Sigmoid" | "Erf" | "Softplus":
                return getattr(v, name.lower())(x)
            case "Relu":
                return v.choose(v.test("<", x, zero), zero, x)
            case "Not":
                return b.fsub(one, x)
            case "Sign":
                positive = self._flag(v.test(">", x, zero))
                return v.keep_nan(x, v.choose(v.test("<", x, zero), v.number(-1.0), positive))
            case "IsTrue":
                return self._flag(self._is_true(x))
            case "Square":
                return b.fmul(x, x)
        return x
