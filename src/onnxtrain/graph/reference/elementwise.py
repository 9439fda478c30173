"""Erf, Gelu and Softsign for `onnx.reference`.

Its own compute in float32 whatever they get, and do not take a single number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    def _run(self, x: Any) -> Any:
        return (_erf(x).astype(x.dtype) if x.size else x,)


class Gelu(OpRun):
    def _run(self, x: Any, approximate: Any = None) -> Any:
        if approximate == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            inner = _erf(x / math.sqrt(2)) if x.size else x
        return (np.asarray(0.5 * x * (1 + inner), x.dtype),)


class Softsign(OpRun):
    def _run(self, x: Any) -> Any:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


OPS = [Erf, Gelu, Softsign]
