"""Cases of rules/elementwise.py."""

from .harness import case, x

CASES = [
    case("Add", x(2, 3), x(2, 3)),
    case("Add", x(2, 3), x(3)),
    case("Add", x(2, 1, 3), x(4, 1)),
    case("Sub", x(2, 3), x(1, 3)),
    case("Mul", x(2, 3), x(2, 1)),
    case("Mul", x(2, 3), x()),
    case("Div", x(2, 3), x(3, low=0.5, high=2)),
    case("Sum", x(2, 3)),
    case("Sum", x(2, 3), x(3), x(2, 1)),
    case("Neg", x(2, 3)),
    case("Identity", x(2, 3)),
    case("Exp", x(2, 3)),
    case("Tanh", x(2, 3)),
    case("Sigmoid", x(2, 3)),
    case("Relu", x(2, 3, spread=True)),
    case("Floor", x(2, 4, low=-1.9, high=1.3, spread=True)),
    case("Ceil", x(2, 4, low=-1.9, high=1.3, spread=True)),
    case("Round", x(2, 4, low=-1.9, high=1.3, spread=True)),
    case("Sign", x(2, 4, low=-1.9, high=1.3, spread=True)),
]
