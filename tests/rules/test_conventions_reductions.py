"""PyTorch's conventions for reductions: ties, zeros, infinities, empty sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .conventions import INF, f32, gradients, torch_gradients

AXIS = np.array([1])


def _check(op: str, x: np.ndarray, function: Any, **attrs: Any) -> np.ndarray:
    want = torch_gradients(function, x)[0]
    for dynamic in (False, True):
        got = gradients(op, x, AXIS, constants=(1,), dynamic=dynamic, **attrs)[0]
        np.testing.assert_allclose(got, want, rtol=1e-6)
        computed = gradients(op, x, AXIS, dynamic=dynamic, **attrs)[0]
        np.testing.assert_array_equal(got, computed)
    return want


@pytest.mark.parametrize("keepdims", [0, 1])
def test_equal_extrema_share_evenly(keepdims: int) -> None:
    x = f32([1, 3, 3, 3], [2, 2, 2, 2], [-INF, -INF, -INF, -INF], [0, 1, INF, INF])
    keep = bool(keepdims)
    _check("ReduceMax", x, lambda t: torch.amax(t, 1, keepdim=keep), keepdims=keepdims)
    _check("ReduceMin", -x, lambda t: torch.amin(t, 1, keepdim=keep), keepdims=keepdims)


def test_product_with_zeros() -> None:
    x = f32([1, 2, 3], [0, 2, 3], [0, 0, 3], [0, 0, 0], [-1, 0, 5])
    _check("ReduceProd", x, lambda t: torch.prod(t, 1, keepdim=True))


def test_norm_of_zero() -> None:
    x = f32([0, 0, 0], [3, 0, 4], [0, -2, 0])
    _check("ReduceL2", x, lambda t: torch.linalg.vector_norm(t, dim=1, keepdim=True))
    _check("ReduceL1", x, lambda t: torch.linalg.vector_norm(t, 1, dim=1, keepdim=True))


def test_log_sum_exp_of_infinities() -> None:
    x = f32([-INF, 0, 1], [500, -500, 499], [1000, 1000, 1000])
    _check("ReduceLogSumExp", x, lambda t: torch.logsumexp(t, 1, keepdim=True))
    # nothing but -inf: zero, where torch gives NaN
    empty = gradients("ReduceLogSumExp", np.full((2, 3), -INF, np.float32), AXIS)[0]
    np.testing.assert_array_equal(empty, np.zeros((2, 3)))


def test_log_of_zero_sum_is_infinite_as_in_torch() -> None:
    x = f32([0, 0], [1, 3])
    _check("ReduceLogSum", x, lambda t: torch.log(torch.sum(t, 1, keepdim=True)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_mean_of_many_half_precision_numbers(dynamic: bool) -> None:
    """70,000 is more than a float16 can hold; one over it is not."""
    x = np.ones(70_000, np.float16)
    seed = np.array([1000], np.float16)
    got = gradients("ReduceMean", x, dynamic=dynamic, seed=seed)[0]
    np.testing.assert_allclose(got.astype(float), 1000 / 70_000, rtol=2e-3)


def test_softmax_with_masked_entries() -> None:
    x, seed = f32([-INF, 0, 1], [5, -INF, -INF]), f32([1, 2, 3], [4, 5, 6])
    got = gradients("Softmax", x, seed=seed)[0]
    want = torch_gradients(lambda t: torch.softmax(t, -1), x, seed=seed)[0]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)
