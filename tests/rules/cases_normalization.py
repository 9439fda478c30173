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
            training_mode=1, _outputs=outputs,
        )
        for shape, outputs in [
            ((4, 3), 1), ((4, 3, 5), (True, False, False)), ((2, 3, 4, 5), 1), ((2, 3, 2, 2, 2), 1),
        ]
    ),
    case("LayerNormalization", x(2, 3, 4), x(4)),
    case("LayerNormalization", x(2, 3, 4), x(4), x(4), epsilon=0.1),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), x(3, 4), axis=1),
    case("LayerNormalization", x(2, 3, 4), x(2, 3, 4), x(2, 3, 4), axis=0),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), axis=-2),
    case("LayerNormalization", x(2, 3, 4), x(4), x(4), _outputs=3),
    case("LayerNormalization", x(2, 3, 4), x(3, 4), _outputs=3, axis=1),
    case("InstanceNormalization", x(2, 3, 5), x(3), x(3)),
    case("InstanceNormalization", x(2, 3, 4, 5), x(3), x(3), epsilon=0.1),
    case("GroupNormalization", x(2, 6, 4), x(3), x(3), num_groups=3, _opset=18),
    case("GroupNormalization", x(2, 6, 4, 3), x(2), x(2), num_groups=2, epsilon=0.1, _opset=18),
    case("GroupNormalization", x(2, 6, 4), x(6), x(6), num_groups=3, _opset=21),
    case("GroupNormalization", x(2, 6, 4, 3), x(6), x(6), num_groups=2, epsilon=0.1, _opset=21),
    case("MeanVarianceNormalization", x(2, 3, 4, 5)),
    case("MeanVarianceNormalization", x(2, 3, 4), axes=[1, 2]),
    case("LpNormalization", x(2, 3, 4)),
    case("LpNormalization", x(2, 3, 4), axis=1, p=2),
    case("LpNormalization", x(2, 3, 4, spread=True), axis=0, p=1),
    case("LRN", x(2, 7, 3, 4), size=3),
    case("LRN", x(2, 7, 3, 4), size=4, alpha=0.3, beta=0.6, bias=0.8),
    case("LRN", x(2, 5, 3, 2, low=1, high=2), size=5, alpha=0.5),
]  # fmt: skip
