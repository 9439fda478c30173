"""Cases of rules/softmax.py."""

from .harness import case, x

CASES = [
    *(
        case(op, x(*shape, low=-3, high=3), axis=axis)
        for op in ("Softmax", "LogSoftmax")
        for shape, axis in [((3, 4), -1), ((2, 3, 4), 1), ((2, 3, 4), 0), ((5,), 0)]
    ),
    case("Softmax", x(2, 3, 4)),
    case("LogSoftmax", x(2, 3, 4)),
    # Before opset 13 all axes from `axis` on are one, which onnx.reference does not know.
    case("Softmax", x(2, 3, 4), _opset=11, _reference=False),
    case("Softmax", x(2, 3, 4), _opset=11, axis=2, _reference=False),
    case("Softmax", x(2, 3, 4), _opset=11, axis=0, _reference=False),
    case("LogSoftmax", x(2, 3, 4), _opset=11, axis=1, _reference=False),
]
