"""Cases of rules/reductions.py."""

from .harness import Case, Spec, case, const, fixed, x


def every_form(op: str, data: Spec) -> list[Case]:
    """Constant, computed, negative, absent and empty axes, with and without keepdims."""
    return [
        case(op, data, const([1]), keepdims=0),
        case(op, data, const([0, -1])),
        case(op, data, const([-1, 0]), keepdims=0),
        case(op, data, fixed([0, 2]), _label="computed"),
        case(op, data, fixed([-2]), keepdims=0, _label="computed"),
        case(op, data, keepdims=0),
        case(op, data),
        case(op, data, const([]), keepdims=0),
        case(op, data, const([])),
        case(op, data, const([]), noop_with_empty_axes=1),
        case(op, data, const([]), noop_with_empty_axes=1, keepdims=0),
        case(op, data, fixed([1]), noop_with_empty_axes=1, keepdims=0, _label="computed"),
        case(op, data, noop_with_empty_axes=1, keepdims=0),
    ]


DATA = x(2, 3, 4)
DISTINCT = x(2, 3, 4, spread=True)
POSITIVE = x(2, 3, 4, low=0.4, high=1.6)

CASES = [
    *every_form("ReduceSum", DATA),
    *every_form("ReduceMean", DATA),
    *every_form("ReduceSumSquare", DATA),
    *every_form("ReduceL1", DISTINCT),
    *every_form("ReduceL2", DATA),
    *every_form("ReduceLogSum", POSITIVE),
    *every_form("ReduceLogSumExp", DATA),
    *every_form("ReduceMax", DISTINCT),
    *every_form("ReduceMin", DISTINCT),
    *every_form("ReduceProd", POSITIVE),
    case("ReduceMax", DISTINCT, const([1]), _opset=20),
    case("ReduceProd", x(3, 3, array=[[0.0, 2, 3], [0, 0, 3], [1, 2, 3]]), const([1])),
    case("ReduceProd", x(3, 2, array=[[0.0, 2], [0, 0], [1, 2]]), const([1])),
    case("ReduceProd", x(2, 1, 3), const([0, 1]), keepdims=0),
    case("ReduceProd", x(1, 3, 1), const([0, -1]), keepdims=0),
    case("ReduceSum", x()),
    case("ReduceSum", x(), keepdims=0),
    case("ArgMax", DISTINCT, axis=1),
    case("ArgMin", DISTINCT, axis=1, keepdims=0),
    case("CumSum", DATA, const(1)),
    case("CumSum", DATA, const(-1), exclusive=1),
    case("CumSum", DATA, fixed(0), reverse=1),
    case("CumSum", DATA, const(2), exclusive=1, reverse=1),
]
