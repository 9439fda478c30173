"""Cases of rules/signal.py."""

from .harness import case, const, fixed, x

CASES = [
    case("DFT", x(2, 6, 1)),
    case("DFT", x(2, 6, 2)),
    case("DFT", x(2, 5, 3, 2), axis=2),
    case("DFT", x(2, 6, 1), onesided=1),
    case("DFT", x(2, 5, 1), onesided=1),
    case("DFT", x(2, 6, 2), inverse=1),
    case("DFT", x(2, 6, 1), const(4)),
    case("DFT", x(2, 6, 2), const(8), inverse=1),
    case("DFT", x(2, 6, 1), const(7), onesided=1),
    case("DFT", x(2, 6, 1), fixed(7), onesided=1),
    case("DFT", x(2, 6, 2), fixed(4)),
    case("DFT", x(2, 6, 1), _opset=20),
    case("DFT", x(2, 6, 3, 2), None, const(1), inverse=1, _opset=20),
    case("DFT", x(2, 6, 1), const(9), const(-2), onesided=1, _opset=20),
    case("DFT", x(2, 4, 2), None, const(1), inverse=1, onesided=1, _opset=20),
    case("DFT", x(2, 4, 2), const(7), const(1), inverse=1, onesided=1, _opset=20),
    case("DFT", x(2, 4, 3, 2), const(5), fixed(-3), inverse=1, onesided=1, _opset=20),
    # the axis is an input
    case("DFT", x(2, 6, 3, 2), None, fixed(1), _opset=20),
    case("DFT", x(5, 2, 3, 2), None, fixed(0), inverse=1, _opset=20),
    case("DFT", x(2, 3, 6, 1), const(9), fixed(-2), onesided=1, _opset=20),
    case("DFT", x(2, 6, 1), fixed(4), fixed(1), _opset=20),
    case("DFT", x(2, 4, 3, 2), None, fixed(-3), inverse=1, onesided=1, _opset=20),
    # onesided is the default, but onnx infers the shape of 0 when it is left out
    case("STFT", x(2, 10, 1), const(2), x(4), const(4), onesided=1),
    case("STFT", x(2, 10, 1), const(3), x(4), const(4), onesided=0),
    case("STFT", x(1, 9, 2), const(2), x(4), const(4), onesided=0),
    case("STFT", x(2, 10, 1), const(2), None, const(5), onesided=1),
    case("STFT", x(2, 10, 1), const(2), x(4), onesided=1),
    case("STFT", x(2, 10, 1), fixed(2), x(4), onesided=1),
    case("STFT", x(2, 10), const(2), x(4), const(4), onesided=1, _reference=False),
]
