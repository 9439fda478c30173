"""Cases of rules/losses.py."""

import itertools
import zlib

import numpy as np

from .harness import Case, case, const, fixed, x

IGNORED = 2
SHAPES = {"flat": ((5, 4), (5,)), "1-d": ((2, 4, 3), (2, 3)), "2-d": ((2, 4, 3, 2), (2, 3, 2))}


def every_form(op: str) -> list[Case]:
    """Every reduction with and without class weights and an ignored class."""
    cases = []
    for (name, (shape, labels)), reduction, weighted, ignore in itertools.product(
        SHAPES.items(), ("none", "sum", "mean"), (False, True), (False, True)
    ):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        target = rng.integers(0, 4, labels)
        target.flat[0] = IGNORED
        weights = [x(4, array=[0.5, 2.0, 1.0, 0.25])] if weighted else []
        attributes = {"ignore_index": IGNORED} if ignore else {}
        cases.append(
            case(op, x(*shape, low=-2), fixed(target), *weights, reduction=reduction, **attributes)
        )
    return cases


# Not -1, which onnx.reference takes for "none".
LABELS = fixed([0, 3, -2, 1], np.int32)

CASES = [
    *every_form("SoftmaxCrossEntropyLoss"),
    *every_form("NegativeLogLikelihoodLoss"),
    case("SoftmaxCrossEntropyLoss", x(4, 5), LABELS, ignore_index=-2, _label="int32"),
    case("SoftmaxCrossEntropyLoss", x(4, 5), fixed([0, 3, 2, 1]), _outputs=2),
    case("SoftmaxCrossEntropyLoss", x(4, 5), LABELS, ignore_index=-2, _outputs=2, reduction="none"),
    case(
        "SoftmaxCrossEntropyLoss", x(2, 4, 3), fixed([[0, 1, 2], [3, 2, 1]]),
        const([1.0, 2, 3, 0.5], np.float64), _outputs=2,
    ),
    case("SoftmaxCrossEntropyLoss", x(4, 5), fixed([0, 3, 2, 1]), _opset=21),
    case("NegativeLogLikelihoodLoss", x(4, 5), LABELS, ignore_index=-2, _label="int32"),
]  # fmt: skip
