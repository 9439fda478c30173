"""Gradients with kernels of our own wherever there can be one, as the lists compare them."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from conformance.cases import OnnxCase
from conformance.check import check
from conformance.everywhere import are_same, every_tensor_counts_as_large
from onnxtrain.passes import fusion, kernels
from onnxtrain.runtime.fusion import library, program
from onnxtrain.runtime.session import fusion as groups

needs_kernel = pytest.mark.skipif(
    not library.is_available(), reason="kernels need numba, and Linux on x86-64 or ARM64"
)
TEXT = """<ir_version: 8, opset_import: ["": 18]>
    g (float[4, {size}] x, float[{size}] w) => (float[4, {size}] y)
    {{ p = Mul(x, w) t = Tanh(p) e = Exp(t) y = Sub(e, t) }}"""


def case(size: int) -> OnnxCase:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.uniform(-1, 1, (4, size)).astype(np.float32),
        "w": rng.uniform(-1, 1, size).astype(np.float32),
    }
    return OnnxCase(onnx.parser.parse_model(TEXT.format(size=size)), feeds, timing=False)


@needs_kernel
def test_small_tensors_meet_kernels_too() -> None:
    (row,) = check("small", case(6))
    assert row["outcome"] == "right"
    assert row["kernels"] == 0
    assert row["kernels_everywhere"] > 0
    assert row["everywhere"] == "right"


@needs_kernel
def test_a_session_with_kernels_says_so() -> None:
    (row,) = check("large", case(4096))
    assert row["outcome"] == "right"
    assert row["kernels"] > 0


@needs_kernel
def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 the graph is right: that must not count as rounding."""
    monkeypatch.setattr(groups, "_plan", groups._plan.__wrapped__)  # plans of other tests are right
    swapped = {**program.UNARY, "Tanh": program.UNARY["Exp"]}
    monkeypatch.setattr(program, "UNARY", swapped)
    (row,) = check("small", case(6))
    assert row["outcome"] == row["everywhere"] == "wrong"
    assert row["reason"].startswith("wrong: with kernels everywhere, ")
    (row,) = check("large", case(4096))
    assert row["outcome"] == row["gradients"] == "wrong"


def test_limits_are_as_before_afterwards() -> None:
    usual = (fusion.ELEMENTS, fusion.ELEMENTS_IN_LOOPS, fusion.LONG_ROW, kernels.ELEMENTS)
    with every_tensor_counts_as_large():
        assert (fusion.ELEMENTS, kernels.ELEMENTS) == (1, 1)
    after = (fusion.ELEMENTS, fusion.ELEMENTS_IN_LOOPS, fusion.LONG_ROW, kernels.ELEMENTS)
    assert after == usual


@pytest.mark.parametrize(
    ("other", "same"),
    [([1.0, 2.00001], True), ([1.0, 2.1], False), ([1.0, np.nan], False), ([1.0], False)],
)
def test_what_rounding_may_change(other: list[float], same: bool) -> None:
    ours = {"w": np.array([1.0, 2.0], np.float32)}
    assert are_same(ours, {"w": np.array(other, np.float32)}, 2.0) is same
