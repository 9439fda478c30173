"""Cases of rules/stops.py: what can have a float on both sides, and gets none."""

from .harness import case, const, x

CASES = [
    case("EyeLike", x(3, 4)),
    case("EyeLike", x(3, 3), k=1),
    case(
        "MelWeightMatrix",
        const(8),
        const(16),
        const(8192),
        x(array=500.0),
        x(array=4000.0),
        _reference=False,
    ),
]
