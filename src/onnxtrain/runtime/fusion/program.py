"""A group of elementwise nodes as instructions for a kernel.

The text of a program is what a fused node has as its attribute, so it is read like anything that
comes from outside: a register that does not exist, or one that nothing has been written to, is an
error before anything runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ...errors import OnnxTrainError
from .opcodes import (
    ANY_SHAPE,
    BINARY,
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

MOST_OPERANDS, MOST_REGISTERS, MOST_INSTRUCTIONS, MOST_AXES = 24, 48, 400, 8
"""What `driver` has room for, and where registers leave the caches."""


class ProgramError(OnnxTrainError, ValueError):
    """A program that cannot be carried out."""


Instruction = tuple[int, int, int, int, int]
READS = {
    **dict.fromkeys(BINARY.values(), 2),
    **dict.fromkeys(UNARY.values(), 1),
    **dict.fromkeys(REDUCTIONS.values(), 1),
    WHERE: 3,
}
"""How many registers an operation reads."""


class Program(NamedTuple):
    """Instructions, how many inputs, outputs and registers they use, and what a row is.

    `row_axes` is how many of the last axes make a row: those that are reduced, or those of an image
    where something is the same all over a channel.
    """

    inputs: int
    outputs: int
    registers: int
    row_axes: int
    code: tuple[Instruction, ...]

    def text(self) -> str:
        """As an attribute of a node."""
        numbers = [self.inputs, self.outputs, self.registers, self.row_axes]
        for instruction in self.code:
            numbers += instruction
        return " ".join(map(str, numbers))

    @classmethod
    def parse(cls, text: str) -> Program:
        """From an attribute; a `ProgramError` if it could read or write what is not there."""
        try:
            inputs, outputs, registers, row_axes, *rest = (int(w) for w in text.split())
        except ValueError as error:
            raise ProgramError("a fused program is not made of numbers") from error
        if len(rest) % WIDTH:
            raise ProgramError("a fused program ends in the middle of an instruction")
        code = tuple(
            (rest[i], rest[i + 1], rest[i + 2], rest[i + 3], rest[i + 4])
            for i in range(0, len(rest), WIDTH)
        )
        program = cls(inputs, outputs, registers, row_axes, code)
        program.check()
        return program

    def check(self) -> None:
        """Raise a `ProgramError` unless every instruction reads what has been written."""
        sizes = (
            (self.inputs, MOST_OPERANDS), (self.outputs, MOST_OPERANDS),
            (self.registers, MOST_REGISTERS), (len(self.code), MOST_INSTRUCTIONS),
            (self.row_axes, MOST_AXES),
        )  # fmt: skip
        if not all(1 <= size <= most for size, most in sizes):
            raise ProgramError("a fused program has too many operands, registers or instructions")
        written, stored = set[int](), set[int]()
        for operation, target, *operands in self.code:
            if operation == STORE:
                is_right = operands[0] in written and 0 <= target < self.outputs
                is_right = is_right and operands[1] in (0, 1)
                stored.add(target)
            elif operation in (LOAD, NUMBER):
                is_right = 0 <= operands[0] < (self.inputs if operation == LOAD else 2**32)
                is_right = is_right and 0 <= operands[1] <= PER_CHANNEL
                is_right = is_right and 0 <= operands[2] <= MOST_AXES
            elif operation in REDUCTIONS.values():
                is_right = operands[0] in written and 0 <= operands[1] <= MOST_AXES
            else:
                count = READS.get(operation, -1)
                is_right = count > 0 and written.issuperset(operands[:count])
                is_right = is_right and all(0 <= n < self.registers for n in operands)
            if operation != STORE:
                is_right = is_right and 0 <= target < self.registers
                written.add(target)
            if not is_right:
                raise ProgramError("a fused program has an instruction that cannot be carried out")
        if stored != set(range(self.outputs)):
            raise ProgramError("a fused program does not write all of its outputs")
        stores = [(c, k) for c, k in zip(self.code, self.kinds()) if c[0] == STORE]
        if any(
            without_axes and not is_per_row for (_, _, _, without_axes, _), is_per_row in stores
        ):
            raise ProgramError("a fused program drops axes of what has one number for each element")

    def state(self, spilled: int, kernel: int, addresses: Sequence[int]) -> list[int]:
        """As `driver` reads it."""
        flat = [number for instruction in self.code for number in instruction]
        counts = (self.inputs, self.outputs, len(self.code), self.registers, spilled)
        return [
            *counts,
            self.row_axes,
            kernel,
            *addresses,
            *flat,
            *self.hints(),
            *self.is_per_row(),
        ]

    def hints(self) -> list[int]:
        """What is known of the shape of each input."""
        hints = [ANY_SHAPE] * self.inputs
        for operation, _, number, hint, _ in self.code:
            if operation == LOAD:
                hints[number] = hint
        return hints

    def kinds(self) -> list[bool]:
        """Of each instruction, whether its result is one number for each row."""
        kinds, holder = list[bool](), dict[int, bool]()
        for operation, target, *operands in self.code:
            if operation == LOAD:
                kind = operands[1] in (PER_ROW, SINGLE, PER_CHANNEL)
            elif operation == NUMBER or operation in REDUCTIONS.values():
                kind = True
            else:
                count = 1 if operation == STORE else READS[operation]
                kind = all(holder[register] for register in operands[:count])
            kinds.append(kind)
            if operation != STORE:
                holder[target] = kind
        return kinds

    def is_per_row(self) -> list[int]:
        """Of each output, whether it has one number for each row; 2 if without the row's axes."""
        stores = [(c, k) for c, k in zip(self.code, self.kinds()) if c[0] == STORE]
        return [(1 + c[3]) * k for c, k in sorted(stores, key=lambda store: store[0][1])]


class Step(NamedTuple):
    """One operation on named values; a node of a graph is one or several.

    An operand may be a number, too. `rank` is how many axes a reduction takes its operand to have,
    which the kernel compares; 0 if it does not matter.
    """

    operation: int
    result: str
    operands: tuple[str | float, ...]
    rank: int = 0


def assemble(
    steps: Sequence[Step],
    inputs: Sequence[str],
    outputs: Sequence[str],
    hints: Mapping[str, int] | None = None,
    row_axes: int = 1,
    ranks: Mapping[str, int] | None = None,
    dropping: Collection[str] = (),
) -> Program:
    """Steps in an order in which they can be done, as a program with as few registers as possible.

    An input is loaded before its first use, an output is written as soon as it is there. `hints`
    say what is known of the shapes of inputs, `ranks` how many axes those have that have to.
    Outputs that are `dropping` axes have none of a row.
    """
    hints, ranks = hints or {}, ranks or {}
    last = {name: index for index, step in enumerate(steps) for name in step.operands}
    numbers = {name: number for number, name in enumerate(inputs)}
    free, used = list[int](), 0
    places, code = dict[str | float, int](), list[Instruction]()

    def take() -> int:
        nonlocal used
        if free:
            return free.pop()
        used += 1
        return used - 1

    for index, step in enumerate(steps):
        for name in step.operands:
            if name in places:
                continue
            places[name] = take()
            if isinstance(name, str):
                hint = hints.get(name, ANY_SHAPE)
                code.append((LOAD, places[name], numbers[name], hint, ranks.get(name, 0)))
            else:
                code.append((NUMBER, places[name], _bits(name), 0, 0))
        operands = [places[name] for name in step.operands]
        target = take()
        code.append(_encoded(step, target, operands))
        places[step.result] = target
        for number, name in enumerate(outputs):
            if name == step.result:
                code.append((STORE, number, target, int(name in dropping), 0))
        for operand in dict.fromkeys((*step.operands, step.result)):  # in one order always
            if last.get(operand, index) <= index:
                free.append(places.pop(operand))
    program = Program(len(inputs), len(outputs), used, row_axes, tuple(code))
    program.check()
    return program


def _encoded(step: Step, target: int, operands: Sequence[int]) -> Instruction:
    """A step on registers."""
    if step.operation in REDUCTIONS.values():
        return step.operation, target, operands[0], step.rank, 0
    first, second, third = (*operands, *[operands[0]] * 2)[:3]
    return step.operation, target, first, second, third


def _bits(number: float) -> int:
    """What the bits of a float are as an integer."""
    return int(struct.unpack("<I", struct.pack("<f", number))[0])


# --- nodes ----------------------------------------------------------------------------------------

Lowering = Callable[[str, Sequence[str], Mapping[str, float]], list[Step]]


def lower(
    operator: str, result: str, operands: Sequence[str], attributes: Mapping[str, float]
) -> list[Step]:
    """A node as steps; a `ProgramError` for one that has none."""
    if operator in BINARY and len(operands) >= 2:
        return _chain(BINARY[operator], result, operands)
    if operator in UNARY and len(operands) == 1:
        return [Step(UNARY[operator], result, tuple(operands))]
    if operator in REDUCTIONS:
        rank = int(attributes.get("rank", 0))
        return [Step(REDUCTIONS[operator], result, tuple(operands[:1]), rank)]
    if operator in LOWERINGS:
        return LOWERINGS[operator](result, operands, attributes)
    raise ProgramError(f"there is no fused form of {operator}")


def _chain(operation: int, result: str, operands: Sequence[str]) -> list[Step]:
    """Of several operands, from the left."""
    steps, name = list[Step](), operands[0]
    for number, operand in enumerate(operands[1:], start=1):
        target = result if number == len(operands) - 1 else f"{result}/{number}"
        steps.append(Step(operation, target, (name, operand)))
        name = target
    return steps


def _sum(result: str, operands: Sequence[str], _: Mapping[str, float]) -> list[Step]:
    if len(operands) == 1:
        return [Step(UNARY["Copy"], result, tuple(operands))]
    return _chain(BINARY["Add"], result, operands)


def _swapped(name: str) -> Lowering:
    return lambda result, operands, _: [Step(BINARY[name], result, (operands[1], operands[0]))]


def _where(result: str, operands: Sequence[str], _: Mapping[str, float]) -> list[Step]:
    return [Step(WHERE, result, tuple(operands))]


def _cast(result: str, operands: Sequence[str], attributes: Mapping[str, float]) -> list[Step]:
    name = "IsTrue" if attributes.get("to") == BOOL else "Copy"
    return [Step(UNARY[name], result, tuple(operands))]


def _clip(result: str, operands: Sequence[str], _: Mapping[str, float]) -> list[Step]:
    low, high = (*operands[1:], "", "")[:2]
    if not low and not high:
        return [Step(UNARY["Copy"], result, (operands[0],))]
    steps, name = list[Step](), operands[0]
    if low:
        target = f"{result}/low" if high else result
        steps.append(Step(BINARY["Max"], target, (name, low)))
        name = target
    if high:
        steps.append(Step(BINARY["Min"], result, (name, high)))
    return steps


def _normalized(
    result: str, operands: Sequence[str], attributes: Mapping[str, float]
) -> list[Step]:
    """BatchNormalization in inference mode, in the order in which onnxruntime computes it."""
    if len(operands) != 5 or attributes.get("training_mode") or not attributes.get("spatial", 1):
        raise ProgramError("there is no fused form of statistics of a batch")
    x, scale, bias, mean, variance = operands
    names = ("sum", "deviation", "reciprocal", "slope", "moved", "shift", "scaled")
    total, deviation, reciprocal, slope, moved, shift, scaled = (f"{result}/{n}" for n in names)
    return [
        Step(BINARY["Add"], total, (variance, attributes.get("epsilon", 1e-5))),
        Step(UNARY["Sqrt"], deviation, (total,)),
        Step(UNARY["Reciprocal"], reciprocal, (deviation,)),
        Step(BINARY["Mul"], slope, (reciprocal, scale)),
        Step(BINARY["Mul"], moved, (mean, slope)),
        Step(BINARY["Sub"], shift, (bias, moved)),
        Step(BINARY["Mul"], scaled, (x, slope)),
        Step(BINARY["Add"], result, (scaled, shift)),
    ]


def _softmax(result: str, operands: Sequence[str], attributes: Mapping[str, float]) -> list[Step]:
    """Of a row; `rank` is that of the operand, as for a reduction."""
    (x,), rank = operands, int(attributes.get("rank", 0))
    largest, below, e, total, inverse = (
        f"{result}/{name}" for name in ("largest", "below", "e", "total", "inverse")
    )
    return [
        Step(REDUCTIONS["ReduceMax"], largest, (x,), rank),
        Step(BINARY["Sub"], below, (x, largest)),
        Step(UNARY["Exp"], e, (below,)),
        Step(REDUCTIONS["ReduceSum"], total, (e,), rank),
        Step(UNARY["Reciprocal"], inverse, (total,)),
        Step(BINARY["Mul"], result, (e, inverse)),
    ]


def _pow(result: str, operands: Sequence[str], attributes: Mapping[str, float]) -> list[Step]:
    base, exponent = operands[0], attributes.get("exponent")
    if exponent == 2:
        return [Step(UNARY["Square"], result, (base,))]
    if exponent == 3:
        square = f"{result}/square"
        return [
            Step(UNARY["Square"], square, (base,)), Step(BINARY["Mul"], result, (square, base))
        ]  # fmt: skip
    if exponent == 0.5:
        return [Step(UNARY["Sqrt"], result, (base,))]
    raise ProgramError("there is no fused form of this power")


def _formula(*steps: tuple[str, str, tuple[str | float, ...]], **defaults: float) -> Lowering:
    """Steps of an operator with one operand, "x"; attributes stand for their values.

    The last step has the result. A name that is no attribute is the result of a step before.
    """

    def lowering(
        result: str, operands: Sequence[str], attributes: Mapping[str, float]
    ) -> list[Step]:
        values: dict[str, str | float] = {**defaults, "x": operands[0]}
        values |= {name: attributes[name] for name in defaults if name in attributes}
        written = list[Step]()
        for number, (operation, name, read) in enumerate(steps, start=1):
            target = result if number == len(steps) else f"{result}/{name}"
            known = tuple(values[r] if isinstance(r, str) else r for r in read)
            written.append(Step(OPERATIONS[operation], target, known))
            values[name] = target
        return written

    return lowering


OPERATIONS = {**BINARY, **UNARY, "Where": WHERE}
HARD_SIGMOID = (
    ("Mul", "scaled", ("x", "alpha")), ("Add", "shifted", ("scaled", "beta")),
    ("Max", "above", ("shifted", 0.0)), ("Min", "inside", ("above", 1.0)),
)  # fmt: skip
EXPONENTIAL = (("Exp", "e", ("x",)), ("Sub", "less", ("e", 1.0)))
BOOL = 9
"""ONNX's number of the type of truth values."""
LOWERINGS: dict[str, Lowering] = {
    "Sum": _sum,
    "Less": _swapped("Greater"),
    "LessOrEqual": _swapped("GreaterOrEqual"),
    "Where": _where,
    "Cast": _cast,
    "BatchNormalization": _normalized,
    "Clip": _clip,
    "Pow": _pow,
    "Softmax": _softmax,
    "HardSigmoid": _formula(*HARD_SIGMOID, alpha=0.2, beta=0.5),
    "HardSwish": _formula(*HARD_SIGMOID, ("Mul", "y", ("x", "inside")), alpha=1 / 6, beta=0.5),
    "ThresholdedRelu": _formula(
        ("Greater", "passes", ("x", "alpha")), ("Where", "y", ("passes", "x", 0.0)), alpha=1.0
    ),
    "LeakyRelu": _formula(
        ("Mul", "small", ("x", "alpha")),
        ("Greater", "is_negative", (0.0, "x")),
        ("Where", "y", ("is_negative", "small", "x")),
        alpha=0.01,
    ),
    "Elu": _formula(
        *EXPONENTIAL,
        ("Mul", "below", ("less", "alpha")),
        ("Greater", "is_negative", (0.0, "x")),
        ("Where", "y", ("is_negative", "below", "x")),
        alpha=1.0,
    ),
    "Softsign": _formula(
        ("Abs", "size", ("x",)), ("Add", "divisor", ("size", 1.0)), ("Div", "y", ("x", "divisor"))
    ),
    "Identity": lambda result, operands, _: [Step(UNARY["Copy"], result, tuple(operands))],
}
