"""Cases of rules/randomness.py.

A node with a `seed` draws the same numbers in every new onnxruntime session, which is what makes
central differences possible; `onnx.reference` draws its own, so it is no oracle here.
"""

import numpy as np

from .harness import case, const, fixed, x

DATA = x(6, 7)
HALF, YES = const(0.5, np.float32), const(True, bool)

CASES = [
    case("Dropout", DATA),
    case("Dropout", DATA, const(0.3, np.float32)),
    case("Dropout", DATA, const(0.3, np.float32), const(False, bool)),
    case("Dropout", DATA, const(0.3, np.float32), fixed(False, bool)),
    case("Dropout", DATA, const(0.0, np.float32), YES),
    case("Dropout", DATA, const(0.3, np.float32), YES, seed=7, _reference=False),
    case("Dropout", DATA, None, YES, seed=7, _reference=False),
    case("Dropout", DATA, fixed(0.3, np.float32), YES, seed=7, _reference=False),
    case("Dropout", DATA, fixed(0.3, np.float32), fixed(True, bool), seed=7, _reference=False),
    case("Dropout", DATA, HALF, YES, seed=7, _outputs=2, _reference=False),
    case("Bernoulli", x(3, 4, low=0.2, high=0.8), seed=7.0, _reference=False),
    case("Multinomial", x(3, 4), sample_size=2, seed=7.0, _reference=False),
    case("RandomNormalLike", DATA, seed=7.0, _reference=False),
    case("RandomUniformLike", DATA, seed=7.0, _reference=False),
]
