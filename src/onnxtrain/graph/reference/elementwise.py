"""Erf for `onnx.reference`, whose own gives float32 whatever it gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    def _run(self, x: Any) -> Any:
        return (_erf(x).astype(x.dtype) if x.size else x,)


OPS = [Erf]
