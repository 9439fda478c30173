"""The instructions that a program is made of.

An instruction is five integers: the operation, the register of its result, and up to three
registers that it reads. Registers are rows of floats; a truth value is 1.0 or 0.0.
"""

from __future__ import annotations

LOAD, STORE = 0, 1
"""From input `a` into a register; from register `a` to the output that stands for the result. What
else a LOAD says, as `b`, is what is known of the input's shape:"""
ANY_SHAPE, PER_ROW, SINGLE, FLAGS, PER_CHANNEL = range(5)
"""Nothing; it is the same all along a row; it is one number; it is as large as the result and has
truth values; it is a vector with a number for each place on the axis before a row. How many of the
last axes make a row is said by the program. Last, as `c`, how many axes the input has; 0 if that
does not matter."""

BINARY = {
    name: number
    for number, name in enumerate(
        ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Greater", "GreaterOrEqual", "And",
         "Or", "Xor"),
        start=2,
    )
}  # fmt: skip
UNARY = {
    name: number
    for number, name in enumerate(
        ("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Erf", "Relu", "Not",
         "Sign", "Floor", "Softplus", "IsTrue", "Square", "Copy", "Sinh", "Cosh", "Asinh", "Acosh",
         "Atanh", "Tan"),
        start=20,
    )
}  # fmt: skip
WHERE = 48
NUMBER = 49
"""One number everywhere: `a` is what its 32 bits are as an integer."""
REDUCTIONS = {"ReduceSum": 50, "ReduceMean": 51, "ReduceMax": 52}
"""Over the axes of a row, which stay with the size 1. `b` is the rank of the operand, or 0."""

WIDTH = 5
"""Integers of an instruction."""
