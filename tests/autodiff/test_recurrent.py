"""Recurrent layers: the reference against onnxruntime's kernels, gradients against torch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import pytest

import onnxtrain
from tests.rules.cases_recurrent import CASES
from tests.rules.harness import Case, arrays_of, feeds_of, forward_model, run_ort, run_reference

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_the_oracle_agrees_with_onnxruntime(case: Case) -> None:
    if case.attrs.get("layout"):
        pytest.skip("onnxruntime has no batch-first layout")
    arrays = arrays_of(case)
    model = forward_model(case, arrays, np.float32, None, False)
    feeds = feeds_of(case, arrays, np.float32)
    for ours, theirs in zip(run_reference(model, feeds), run_ort(model, feeds)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
