"""Cases of rules/elementwise.py."""

import numpy as np

from .harness import case, const, fixed, x

POSITIVE = {"low": 0.5, "high": 2.0}
STEPS = x(2, 4, low=-1.9, high=1.3, spread=True)
BITS = fixed([[1, 0], [1, 1]], bool)

CASES = [
    # arithmetic
    case("Add", x(2, 3), x(2, 3)),
    case("Add", x(2, 3), x(3)),
    case("Add", x(2, 1, 3), x(4, 1)),
    case("Sub", x(2, 3), x(1, 3)),
    case("Sub", x(3), x(2, 3)),
    case("Mul", x(2, 3), x(2, 1)),
    case("Mul", x(2, 3), x()),
    case("Mul", x(2, 3), const([2.0, 3.0, 4.0], np.float64)),
    case("Div", x(2, 3), x(3, **POSITIVE)),
    case("Div", x(3), x(2, 1, **POSITIVE)),
    case("Mod", x(2, 4, low=-5, high=5, spread=True), x(2, 4, low=1.3, high=1.9), fmod=1),
    case("Mod", x(2, 4, low=-5, high=5, spread=True), x(1, low=-1.6, high=-1.5), fmod=1),
    case("Sum", x(2, 3)),
    case("Sum", x(2, 3), x(3), x(2, 1)),
    case("Mean", x(2, 3)),
    case("Mean", x(2, 3), x(3), x(2, 1)),
    case("Max", x(2, 3)),
    case("Max", x(2, 3), x(2, 3)),
    case("Max", x(2, 3, spread=True), x(3, low=-0.9, high=0.7, spread=True), x()),
    case("Max", x(2, 4, spread=True), const(0.0, np.float64)),
    case("Min", x(2, 3)),
    case("Min", x(2, 1), x(3), x(2, 3)),
    case("Neg", x(2, 3)),
    case("Identity", x(2, 3)),
    case("Abs", x(2, 4, spread=True)),
    case("Reciprocal", x(2, 3, **POSITIVE)),
    case("Floor", STEPS),
    case("Ceil", STEPS),
    case("Round", STEPS),
    case("Sign", STEPS),
    # powers, exponentials
    case("Sqrt", x(2, 3, **POSITIVE)),
    case("Exp", x(2, 3)),
    case("Log", x(2, 3, **POSITIVE)),
    case("Pow", x(2, 3, **POSITIVE), x(2, 3)),
    case("Pow", x(2, 3, **POSITIVE), x(3)),
    case("Pow", x(3, **POSITIVE), x(2, 1)),
    case("Pow", x(2, 3), fixed([2, 3, 1])),
    case("Pow", x(2, 3), fixed([[2], [0]])),
    case("Pow", x(2, 3), const([2.0, 3.0, 1.0], np.float64)),
    case("Pow", const(2.0, np.float64), x(2, 3)),
    *(
        case("Pow", x(2, 3, **POSITIVE), const(p, np.float64), _label=f"^{p}")
        for p in (0, 1, 2, 3, 4, -1, 0.5, 1.5, -0.5, 2.5, -2)
    ),
    case("Pow", x(2, 3), const(2), _label="int"),
    case("Pow", x(2, 3), const([4]), _label="int"),
    case("Pow", x(2, 3), const([[2]]), _label="^[[2]]"),
    # trigonometry
    case("Sin", x(2, 3)),
    case("Cos", x(2, 3)),
    case("Tan", x(2, 3)),
    case("Asin", x(2, 3, low=-0.8, high=0.8)),
    case("Acos", x(2, 3, low=-0.8, high=0.8)),
    case("Atan", x(2, 3)),
    case("Sinh", x(2, 3)),
    case("Cosh", x(2, 3)),
    case("Asinh", x(2, 3)),
    case("Acosh", x(2, 3, low=1.3, high=2.5)),
    case("Atanh", x(2, 3, low=-0.8, high=0.8)),
    # onnx.reference rounds erf to single precision
    case("Erf", x(2, 3), _reference=False),
    # choosing, converting
    case("Clip", x(2, 4, spread=True)),
    case("Clip", x(2, 4, spread=True), x(low=-0.6, high=-0.5), x(low=0.5, high=0.6)),
    case("Clip", x(2, 4, spread=True), None, x(low=0.2, high=0.25)),
    case("Clip", x(2, 4, spread=True), const(-0.2, np.float64)),
    case("Clip", x(2, 4, spread=True), x(low=0.5, high=0.6), x(low=-0.6, high=-0.5), _label="x"),
    case("Where", fixed([[1, 0, 1], [0, 0, 1]], bool), x(2, 3), x(2, 3)),
    case("Where", fixed([[1], [0]], bool), x(3), x(1, 3)),
    case("Where", fixed([1, 0, 1], bool), x(2, 3), x()),
    case("Cast", x(2, 3), to=11),
    case("Cast", x(2, 3), to=1, _reference=False),
    case("Cast", x(2, 3), to=7),
    case("CastLike", x(2, 3), fixed([1.0], np.float64)),
    case("CastLike", x(2, 3), x(1), _label="(x)"),
    case("CastLike", x(2, 3), fixed([1])),
    # boolean and integer results
    case("Equal", x(2, 3), x(2, 3)),
    case("Greater", x(2, 3), x(3)),
    case("GreaterOrEqual", x(2, 3), x(3)),
    case("Less", x(2, 3), x(3)),
    case("LessOrEqual", x(2, 3), x(3)),
    case("IsNaN", x(2, 3)),
    case("IsInf", x(2, 3)),
    case("And", BITS, BITS),
    case("Or", BITS, BITS),
    case("Xor", BITS, BITS),
    case("Not", BITS),
    case("BitShift", fixed([1, 2], np.uint32), fixed([1, 1], np.uint32), direction="LEFT"),
    case("BitwiseAnd", fixed([1, 2]), fixed([3, 1])),
    case("BitwiseOr", fixed([1, 2]), fixed([3, 1])),
    case("BitwiseXor", fixed([1, 2]), fixed([3, 1])),
    case("BitwiseNot", fixed([1, 2])),
]
