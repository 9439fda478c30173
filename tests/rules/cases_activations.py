"""Cases of rules/activations.py."""

from .harness import case, x

KINKED = x(3, 4, low=-2, high=1.7, spread=True)
WIDE = x(3, 6, low=-5, high=4.6, spread=True)
SMOOTH = x(3, 4, low=-3, high=3)

CASES = [
    case("Relu", KINKED),
    case("LeakyRelu", KINKED),
    case("LeakyRelu", KINKED, alpha=1.5),
    case("LeakyRelu", KINKED, alpha=-0.5),
    case("PRelu", KINKED, x(3, 4)),
    case("PRelu", KINKED, x(4)),
    case("PRelu", KINKED, x(1)),
    case("PRelu", x(2, 3, 4, 2, spread=True), x(3, 1, 1)),
    case("ThresholdedRelu", KINKED),
    case("ThresholdedRelu", KINKED, alpha=-0.6),
    case("Shrink", KINKED),
    case("Shrink", KINKED, lambd=0.9, bias=0.3),
    case("HardSigmoid", WIDE),
    case("HardSigmoid", WIDE, alpha=1 / 6, beta=0.4),
    case("HardSwish", WIDE),
    case("Hardmax", KINKED),
    case("Hardmax", KINKED, axis=0),
    case("Sigmoid", SMOOTH),
    case("Tanh", SMOOTH),
    case("Softplus", SMOOTH),
    case("Softplus", x(2, 3, low=15, high=30), _label="large"),
    case("Softsign", KINKED),
    case("Elu", KINKED),
    case("Elu", KINKED, alpha=0.3),
    case("Selu", KINKED),
    case("Selu", KINKED, alpha=1.2, gamma=0.8),
    # Celu is defined for float32 only, so there is no float64 oracle.
    case("Celu", KINKED, _reference=False),
    case("Celu", KINKED, alpha=0.4, _reference=False),
    case("Mish", SMOOTH),
    case("Mish", x(3, 8, low=-30, high=30), _label="wide"),
    # onnx.reference rounds erf to single precision
    case("Gelu", SMOOTH, _opset=20, _reference=False),
    case("Gelu", SMOOTH, _opset=21, approximate="tanh"),
]
