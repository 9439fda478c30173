"""Cases of rules/linear.py."""

from .harness import case, x

CASES = [
    case("Gemm", x(2, 3), x(3, 4)),
    case("Gemm", x(2, 3), x(3, 4), x(4), alpha=0.5, beta=2.0),
    case("Gemm", x(3, 2), x(3, 4), x(2, 1), transA=1),
    case("Gemm", x(2, 3), x(4, 3), x(), transB=1),
    case("Gemm", x(3, 2), x(4, 3), x(1, 4), transA=1, transB=1),
    case("MatMul", x(2, 3), x(3, 4)),
    case("MatMul", x(5, 2, 3), x(3, 4)),
    case("MatMul", x(5, 2, 3), x(5, 3, 4)),
    case("MatMul", x(2, 1, 2, 3), x(5, 3, 4)),
    case("MatMul", x(3), x(3)),
    case("MatMul", x(3), x(3, 4)),
    case("MatMul", x(3), x(5, 3, 4)),
    case("MatMul", x(2, 3), x(3)),
    case("MatMul", x(5, 2, 3), x(3)),
]
