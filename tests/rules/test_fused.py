"""Cases of the tables once more, on sessions with kernels of our own: every tensor counts as large.

A case of each operator here; `ONNXTRAIN_TEST_ALL_FUSED=1` runs all of them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain.passes import fusion, kernels
from onnxtrain.runtime.fusion import library
from onnxtrain.runtime.session import devices

from . import harness
from .test_rules import CASES

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(
    not library.is_available(), reason="kernels need numba, and Linux on x86-64 or ARM64"
)
FIRST = {(case.domain, case.op): case for case in reversed(CASES)}
CHOSEN = CASES if os.environ.get("ONNXTRAIN_TEST_ALL_FUSED") else list(FIRST.values())


def run_fused(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = devices.session_options(threads=1)
    return list(devices.open_session(model.SerializeToString(), options).run(None, feeds))


@pytest.mark.parametrize("case", CHOSEN, ids=[c.id for c in CHOSEN])
def test_gradient(case: harness.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit in (
        (fusion, "ELEMENTS"),
        (fusion, "ELEMENTS_IN_LOOPS"),
        (kernels, "ELEMENTS"),
    ):
        monkeypatch.setattr(module, limit, 1)
    monkeypatch.setattr(fusion, "LONG_ROW", 2)
    monkeypatch.setattr(harness, "run_ort", run_fused)
    harness.check(case)


def test_sessions_have_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    forms = list[bool]()
    create = devices.session_of

    def session_of(form: devices.Form, *arguments: Any, **settings: Any) -> Any:
        forms.append(bool(form.operators))
        return create(form, *arguments, **settings)

    monkeypatch.setattr(devices, "session_of", session_of)
    test_gradient(FIRST["", "Gelu"], monkeypatch)
    assert any(forms)
