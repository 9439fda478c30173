"""Cases of rules/normalization.py."""

import numpy as np

from .harness import case, fixed, x

VARIANCE = {"low": 0.5, "high": 2.0}
STATS = (fixed(np.zeros(3), np.float64), fixed(np.ones(3), np.float64))

CASES = [
    *(
        case("BatchNormalization", x(*shape), x(3), x(3), x(3), x(3, **VARIANCE), epsilon=0.01)
        for shape in [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)]
    ),
    *(
        case(
            "BatchNormalization", x(*shape, low=0, high=3), x(3), x(3), *STATS,
            training_mode=1, _outputs=(True, False, False),
        )
        for shape in [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 2)]
    ),
    case("LayerNormalization", x(2, 3, 4), x(4)),
    case("LayerNormalization", x(2, 3, 4), x(4), x(4), epsilon=0.1),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), x(3, 4), axis=1),
    case("LayerNormalization", x(2, 3, 4), x(2, 3, 4), x(2, 3, 4), axis=0),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), axis=-2),
    # Mean and InvStdDev are single precision (stash_type)
    case("LayerNormalization", x(2, 3, 4), x(4), x(4), _outputs=3, _reference=False),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), _outputs=3, axis=1, _reference=False),
    case("InstanceNormalization", x(2, 3, 5), x(3), x(3)),
    case("InstanceNormalization", x(2, 3, 4, 5), x(3), x(3), epsilon=0.1),
    # onnx.reference computes in single precision (stash_type); the form of opset 18, which the
    # checker refuses and onnxruntime runs, is in test_conventions_normalization.py
    case("GroupNormalization", x(2, 6, 4), x(6), x(6), num_groups=3, _opset=21, _reference=False),
    case(
        "GroupNormalization", x(2, 6, 4, 3), x(6), x(6), num_groups=2, epsilon=0.1,
        _opset=21, _reference=False,
    ),
    # the function body that onnx.reference uses is single precision
    case("MeanVarianceNormalization", x(2, 3, 4, 5), axes=[0, 2, 3], _reference=False),
    case("MeanVarianceNormalization", x(2, 3, 4), axes=[1, 2], _reference=False),
    case("LpNormalization", x(2, 3, 4)),
    case("LpNormalization", x(2, 3, 4), axis=1, p=2),
    case("LpNormalization", x(2, 3, 4, spread=True), axis=0, p=1),
    case("LRN", x(2, 7, 3, 4), size=3),
    case("LRN", x(2, 7, 3, 4), size=3, alpha=0.3, beta=0.6, bias=0.8),
    case("LRN", x(2, 5, 3, 2, low=1, high=2), size=5, alpha=0.5),
]  # fmt: skip
