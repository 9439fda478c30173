"""A loop over time whose columns have nothing to do with each other, as instructions for a kernel.

In a step of a recurrent layer in columns, [features, batch], a sequence never reads another one: a
matrix is multiplied from the left, columns are cut and joined by rows, and the rest is elementwise.
So a kernel can take 16 sequences through all steps before it looks at the next 16.

Values are numbered: states, slices of stacks, operands from outside of the loop, then results in
the order of the instructions. The text of a program is what a node has as its attribute, and it is
read like anything that comes from outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .opcodes import LOAD, NUMBER, REDUCTIONS, STORE
from .program import READS, Program, ProgramError

JOIN, CUT, PRODUCT, ELEMENTWISE = range(4)
"""Instructions: values one below the other; a value in parts of equal size; a matrix times a value,
plus a value or nothing (-1); a program of `program.py`."""
MOST_OPERANDS, MOST_VALUES, MOST_INSTRUCTIONS, MOST_PROGRAM = 40, 160, 64, 2048
"""What `column_loops` has room for, and how many integers an elementwise program may have."""
NONE = -1
BACKWARDS, TURNED, SUMMED = 1, 2, 4
"""Ways of a stack: from its end; with its rows as the first axis, the steps as the second; and what
is no stack, but the sum over all steps."""


class Join(NamedTuple):
    """Values one below the other."""

    operands: tuple[int, ...]


class Cut(NamedTuple):
    """A value as so many parts of equal size."""

    operand: int
    parts: int


class Times(NamedTuple):
    """A matrix from outside times a value, plus another value, or `NONE`."""

    matrix: int
    operand: int
    added: int


class Each(NamedTuple):
    """An elementwise program: one result for each of its outputs."""

    program: Program
    operands: tuple[int, ...]


Instruction = Join | Cut | Times | Each


class Columns(NamedTuple):
    """A loop.

    Attributes:
        states, outside: how many of both there are.
        ways_in: of each stack that is read, `BACKWARDS` or nothing.
        ways_out: of each that is written, `BACKWARDS`, `TURNED`, both (their sum) or nothing; or
            `SUMMED`.
        code: the instructions of a step.
        next_states, stacked: values of a step that are the next states, and that are stacked.
    """

    states: int
    outside: int
    ways_in: tuple[int, ...]
    ways_out: tuple[int, ...]
    code: tuple[Instruction, ...]
    next_states: tuple[int, ...]
    stacked: tuple[int, ...]

    @property
    def operand_count(self) -> int:
        """How many values there are before the first instruction."""
        return self.states + len(self.ways_in) + self.outside

    @property
    def values(self) -> int:
        """How many there are behind the last instruction."""
        return self.operand_count + sum(_results(instruction) for instruction in self.code)

    def matrices(self) -> set[int]:
        """What is multiplied from the left, which nothing else may read."""
        return {instruction.matrix for instruction in self.code if isinstance(instruction, Times)}

    def with_product(self, value: int) -> Columns:
        """With one operand from outside more, a matrix, and its product with a value of a step."""
        first = self.operand_count

        def moved(value: int) -> int:
            return value + (value >= first)

        def all_moved(values: Iterable[int]) -> tuple[int, ...]:
            return tuple(moved(v) for v in values)

        code = list[Instruction]()
        for instruction in self.code:
            match instruction:
                case Join(operands):
                    code.append(Join(all_moved(operands)))
                case Cut(operand, parts):
                    code.append(Cut(moved(operand), parts))
                case Times(matrix, operand, added):
                    code.append(Times(matrix, moved(operand), moved(added)))
                case Each(program, operands):
                    code.append(Each(program, all_moved(operands)))
        code.append(Times(first, moved(value), NONE))
        return self._replace(
            outside=self.outside + 1, code=tuple(code), next_states=all_moved(self.next_states),
            stacked=all_moved(self.stacked),
        )  # fmt: skip

    def text(self) -> str:
        """As an attribute of a node."""
        stacks = len(self.ways_in), len(self.ways_out)
        numbers = [self.states, *stacks, self.outside, *self.ways_in, *self.ways_out]
        numbers += [*self.next_states, *self.stacked, len(self.code)]
        for instruction in self.code:
            numbers += _written(instruction)
        return " ".join(map(str, numbers))

    @classmethod
    def parse(cls, text: str) -> Columns:
        """From an attribute; a `ProgramError` if it could read what is not there."""
        try:
            numbers = iter([int(word) for word in text.split()])
        except ValueError as error:
            raise ProgramError("a loop over columns is not made of numbers") from error
        loop = cls._read(numbers)
        if next(numbers, None) is not None:
            raise ProgramError("a loop over columns goes on behind its end")
        loop.check()
        return loop

    @classmethod
    def _read(cls, numbers: Iterator[int]) -> Columns:
        states, read, written, outside = _take(numbers, 4)
        if not all(0 <= n <= MOST_OPERANDS for n in (states, read, written, outside)):
            raise ProgramError("a loop over columns has too many operands")
        lists = [_take(numbers, count) for count in (read, written, states, written)]
        (count,) = _take(numbers, 1)
        if not 0 <= count <= MOST_INSTRUCTIONS:
            raise ProgramError("a loop over columns has too many instructions")
        code = tuple(_instruction(numbers) for _ in range(count))
        return cls(states, outside, lists[0], lists[1], code, lists[2], lists[3])

    def check(self) -> None:
        """Raise a `ProgramError` unless every instruction reads what there is."""
        operands = self.operand_count + len(self.stacked)
        if not self.states or not self.ways_in or operands > MOST_OPERANDS:
            raise ProgramError("a loop over columns has no states, no stacks, or too many of them")
        ways = {0, BACKWARDS}
        more = {TURNED, TURNED + BACKWARDS, SUMMED}
        if not {*self.ways_in} <= ways or not {*self.ways_out} <= ways | more:
            raise ProgramError("a loop over columns has a way that is none")
        varying = set(range(self.states + len(self.ways_in)))
        outside, known = set(range(len(varying), self.operand_count)), self.operand_count
        outside -= self.matrices()
        for instruction in self.code:
            match instruction:
                case Join(parts):
                    is_right, results = bool(parts) and varying.issuperset(parts), 1
                case Cut(operand, results):
                    is_right = operand in varying and results >= 1
                case Times(matrix, operand, added):
                    is_right = self.states + len(self.ways_in) <= matrix < self.operand_count
                    is_right = is_right and operand in varying
                    is_right, results = is_right and added in varying | outside | {NONE}, 1
                case Each(program, operands_of_program):
                    is_right = {*operands_of_program} <= varying | outside
                    is_right = is_right and len(operands_of_program) == program.inputs
                    is_right = is_right and _is_elementwise(program)
                    results = program.outputs
            if not is_right or known + results >= MOST_VALUES:
                raise ProgramError("a loop over columns has an instruction that cannot be done")
            varying.update(range(known, known + results))
            known += results
        if not varying.issuperset((*self.next_states, *self.stacked)):
            raise ProgramError("a loop over columns returns what it has not computed")

    def numbers(self, compiled: Callable[[Program], int]) -> list[int]:
        """As `column_loops` reads it; `compiled` gives the addresses of programs."""
        stacks = len(self.ways_in), len(self.ways_out)
        code = [number for i in self.code for number in _described(i, compiled)]
        return [
            self.states, *stacks, self.outside, len(self.code), *self.ways_in,
            *self.ways_out, *self.next_states, *self.stacked, *code,
        ]  # fmt: skip


def _is_elementwise(program: Program) -> bool:
    """Whether a program reduces nothing, and knows of no rows."""
    reduces = any(operation in REDUCTIONS.values() for operation, *_ in program.code)
    return not reduces and not any(program.hints())


def _results(instruction: Instruction) -> int:
    match instruction:
        case Cut(_, parts):
            return parts
        case Each(program, _):
            return program.outputs
    return 1


def _take(numbers: Iterator[int], count: int, most: int = MOST_VALUES) -> tuple[int, ...]:
    """So many numbers; a `ProgramError` if there are fewer."""
    if not 0 <= count <= most:
        raise ProgramError("a loop over columns has a list that is too long")
    taken = tuple(itertools.islice(numbers, count))
    if len(taken) < count:
        raise ProgramError("a loop over columns ends too early")
    return taken


def _written(instruction: Instruction) -> list[int]:
    """An instruction as it stands in the text."""
    match instruction:
        case Join(operands):
            return [JOIN, len(operands), *operands]
        case Cut(operand, parts):
            return [CUT, operand, parts]
        case Times(matrix, operand, added):
            return [PRODUCT, matrix, operand, added]
        case Each(program, operands):
            words = program.text().split()
            return [ELEMENTWISE, len(words), *map(int, words), len(operands), *operands]


def _instruction(numbers: Iterator[int]) -> Instruction:
    (operation,) = _take(numbers, 1)
    match operation:
        case 0:
            return Join(_take(numbers, *_take(numbers, 1)))
        case 1:
            return Cut(*_take(numbers, 2))
        case 2:
            return Times(*_take(numbers, 3))
        case 3:
            words = _take(numbers, _take(numbers, 1)[0], MOST_PROGRAM)
            program = Program.parse(" ".join(map(str, words)))
            return Each(program, _take(numbers, *_take(numbers, 1)))
    raise ProgramError("a loop over columns has an instruction that is none")


def _described(instruction: Instruction, compiled: Callable[[Program], int]) -> list[int]:
    """An instruction as the kernel reads it: the operation, how many integers follow, results.

    Of an elementwise one it also says on which operands each result depends, as bits: it has as
    many rows as they have.
    """
    if isinstance(instruction, Each):
        program, operands = instruction
        rest = [compiled(program), len(operands), *operands, *_read_by(program)]
    else:
        rest = _written(instruction)[1:]
    return [_written(instruction)[0], 1 + len(rest), _results(instruction), *rest]


def _read_by(program: Program) -> Sequence[int]:
    """Of each output, the inputs that it depends on, as bits."""
    holder, outputs = dict[int, int](), [0] * program.outputs
    for operation, target, *registers in program.code:
        if operation == STORE:
            outputs[target] = holder[registers[0]]
        elif operation == LOAD:
            holder[target] = 1 << registers[0]
        elif operation == NUMBER:
            holder[target] = 0
        else:
            bits = 0
            for register in registers[: READS[operation]]:
                bits |= holder[register]
            holder[target] = bits
    return outputs
