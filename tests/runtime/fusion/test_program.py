"""The text of a program comes from a file: what is not a program is refused before it runs."""

from __future__ import annotations

import pytest

from onnxtrain.operators import FUSABLE
from onnxtrain.runtime.fusion.opcodes import BINARY, LOAD, NUMBER, REDUCTIONS, STORE, UNARY, WHERE
from onnxtrain.runtime.fusion.program import LOWERINGS, Program, ProgramError

from .support import needs_kernel, program_of, session_of

GOOD = "1 1 2 1 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0"
"""The negative of one input."""

BAD = {
    "no numbers": "one two three",
    "nothing": "",
    "an instruction that ends too early": "1 1 2 1 0 0 0",
    "no instruction": "1 1 2 1",
    "an input that is not there": "1 1 2 1 0 0 5 0 0 20 1 0 0 0 1 0 1 0 0",
    "a negative input": "1 1 2 1 0 0 -1 0 0 20 1 0 0 0 1 0 1 0 0",
    "a hint that means nothing": "1 1 2 1 0 0 0 7 0 20 1 0 0 0 1 0 1 0 0",
    "a register that is not there": "1 1 2 1 0 0 0 0 0 20 9 0 0 0 1 0 9 0 0",
    "a register that was not written": "1 1 2 1 0 0 0 0 0 20 1 1 0 0 1 0 1 0 0",
    "an unread register that is not there": "1 1 2 1 0 0 0 0 0 20 1 0 99 0 1 0 1 0 0",
    "an operation that is not there": "1 1 2 1 0 0 0 0 0 77 1 0 0 0 1 0 1 0 0",
    "an operation between those that are there": "1 1 2 1 0 0 0 0 0 43 1 0 0 0 1 0 1 0 0",
    "a tangent of what was not written": "1 1 2 1 0 0 0 0 0 42 1 1 0 0 1 0 1 0 0",
    "a sinh into a register that is not there": "1 1 2 1 0 0 0 0 0 37 2 0 0 0 1 0 0 0 0",
    "a choice of what was not written": "1 1 2 1 0 0 0 0 0 48 1 0 0 1 1 0 1 0 0",
    "an output that is not there": "1 1 2 1 0 0 0 0 0 20 1 0 0 0 1 3 1 0 0",
    "an output that is not written": "1 2 2 1 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0",
    "axes dropped of every element": "1 1 2 1 0 0 0 0 0 20 1 0 0 0 1 0 1 1 0",
    "axes dropped twice": "1 1 2 1 0 0 0 0 0 49 1 0 0 0 1 0 1 2 0",
    "too many registers": "1 1 999999999 1 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0",
    "too many axes": "1 1 2 9 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0",
    "no axis": "1 1 2 0 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0",
    "too many inputs": "999 1 2 1 0 0 0 0 0 20 1 0 0 0 1 0 1 0 0",
    "too many instructions": GOOD + " 20 1 0 0 0" * 1000,
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_program_is_refused(case: str) -> None:
    assert Program.parse(GOOD).text() == GOOD
    with pytest.raises(ProgramError):
        Program.parse(BAD[case])


@needs_kernel
@pytest.mark.parametrize("case", BAD)
def test_a_session_with_a_bad_program_is_refused(case: str) -> None:
    session_of(GOOD, ["x"], ["y"])
    with pytest.raises(Exception, match="fused"):
        session_of(BAD[case], ["x"], ["y"])


def test_passes_and_programs_know_the_same_operators() -> None:
    own = {"IsTrue", "Square", "Copy"}
    assert {*BINARY, *UNARY, *REDUCTIONS, *LOWERINGS} - own == FUSABLE


def test_no_two_operations_have_one_number() -> None:
    """The kernel also tells them apart by their order: a reduction is behind all others."""
    tables = (BINARY, UNARY, REDUCTIONS)
    single = [LOAD, STORE, WHERE, NUMBER]
    numbers = [*single, *(number for table in tables for number in table.values())]
    assert len(set(numbers)) == len(numbers)
    assert max({*numbers} - {*REDUCTIONS.values()}) < min(REDUCTIONS.values())
    assert max(BINARY.values()) < min(UNARY.values())


def test_registers_are_used_again() -> None:
    chain = [("Neg", f"v{i + 1}", [f"v{i}"]) for i in range(30)]
    program, inputs = program_of(chain, ["v30"])
    assert inputs == ["v0"]
    assert program.registers == 2


def test_names_do_not_make_another_program() -> None:
    """Each different program takes milliseconds to compile."""

    def sigmoids_gradient(name: str) -> Program:
        dy, x, less, slope, y = (f"{name}{part}" for part in range(5))
        steps = [("Mul", less, [dy, x]), ("Sub", slope, [dy, less]), ("Mul", y, [x, slope])]
        return program_of(steps, [y])[0]

    assert len({sigmoids_gradient(f"layer{i}/").text() for i in range(50)}) == 1


def test_an_operator_without_a_form_is_refused() -> None:
    with pytest.raises(ProgramError, match="Conv"):
        program_of([("Conv", "y", ["x", "w"])], ["y"])
    with pytest.raises(ProgramError, match="power"):
        program_of([("Pow", "y", ["x"], {"exponent": 1.7})], ["y"])
