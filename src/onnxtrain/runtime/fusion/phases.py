"""Which loop over a row computes what: behind a reduction, another loop begins."""

from __future__ import annotations

from .opcodes import LOAD, REDUCTIONS, STORE
from .program import READS, Program

COUNTS = {STORE: 1, **READS}
"""How many registers an instruction reads."""


class Phases:
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
