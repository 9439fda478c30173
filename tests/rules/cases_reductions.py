"""Cases of rules/reductions.py."""

from .harness import case, const, x

CASES = [
    case("ReduceSum", x(2, 3, 4), const([1]), keepdims=0),
    case("ReduceSum", x(2, 3, 4), const([0, -1])),
    case("ReduceSum", x(2, 3, 4), keepdims=0),
    case("ReduceMean", x(2, 3, 4), const([1]), keepdims=0),
    case("ReduceMean", x(2, 3, 4)),
]
