"""Functions of the fused kernel, against double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from .support import Array, needs_kernel, run

pytestmark = needs_kernel


def _each(f: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.array([f(float(v)) for v in x])


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


CANCELLING = ("Elu", "HardSigmoid", "HardSwish")
"""Small results are differences of larger numbers, as in onnxruntime."""
EVERYWHERE = np.concatenate([np.linspace(-12, 12, 20_001), np.geomspace(1e-30, 1e-2, 999)])
POSITIVE = np.concatenate([np.geomspace(1.2e-38, 3e38, 20_001), np.linspace(0.5, 2, 20_001)])
CASES: dict[str, tuple[Array, Callable[[Array], Array], float]] = {
    "Exp": (np.linspace(-87, 88.7, 40_001), np.exp, 4e-7),
    "Log": (POSITIVE, np.log, 3e-7),
    "Tanh": (EVERYWHERE, np.tanh, 4e-7),
    "Sigmoid": (np.linspace(-80, 80, 40_001), _each(lambda x: 1 / (1 + math.exp(-x))), 6e-7),
    "Erf": (EVERYWHERE, _each(math.erf), 6e-7),
    "Softplus": (np.linspace(-80, 80, 40_001), _each(_softplus), 6e-7),
    "Sqrt": (POSITIVE, np.sqrt, 1e-7),
    "Reciprocal": (np.linspace(0.1, 9, 1001), np.reciprocal, 1e-7),
    "HardSwish": (EVERYWHERE, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 6e-6),
    "HardSigmoid": (EVERYWHERE, lambda x: np.clip(x * 0.2 + 0.5, 0, 1), 6e-6),
    "Elu": (np.linspace(-9, 9, 1001), lambda x: np.where(x > 0, x, np.exp(x) - 1), 6e-6),
    "LeakyRelu": (EVERYWHERE, lambda x: np.where(x > 0, x, 0.01 * x), 2e-7),
    "ThresholdedRelu": (EVERYWHERE, lambda x: np.where(x > 1, x, 0), 0.0),
    "Softsign": (EVERYWHERE, lambda x: x / (1 + abs(x)), 3e-7),
    "Floor": (EVERYWHERE, np.floor, 0.0),
    "Sign": (EVERYWHERE, np.sign, 0.0),
    "Abs": (EVERYWHERE, np.abs, 0.0),
    "Neg": (EVERYWHERE, np.negative, 0.0),
    "Relu": (EVERYWHERE, lambda x: np.maximum(x, 0), 0.0),
}


@pytest.mark.parametrize("operator", CASES)
def test_a_function_is_right_to_its_last_digits(operator: str) -> None:
    numbers, expected, tolerance = CASES[operator]
    x = numbers.astype(np.float32)
    (y,) = run([(operator, "y", ["x"])], {"x": x})
    wanted = expected(x.astype(np.float64))
    least = 0.1 if operator in CANCELLING else 1e-37
    error = abs(y - wanted) / np.maximum(abs(wanted), least)
    assert error.max() <= tolerance


EDGES: dict[str, dict[float, float]] = {
    "Exp": {math.inf: math.inf, -math.inf: 0.0, 100.0: math.inf, -200.0: 0.0, 0.0: 1.0},
    "Log": {math.inf: math.inf, 0.0: -math.inf, -1.0: math.nan, 1.0: 0.0},
    "Tanh": {math.inf: 1.0, -math.inf: -1.0, 0.0: 0.0},
    "Sigmoid": {math.inf: 1.0, -math.inf: 0.0, 0.0: 0.5},
    "Erf": {math.inf: 1.0, -math.inf: -1.0, 0.0: 0.0},
    "Softplus": {math.inf: math.inf, -math.inf: 0.0},
    "Relu": {math.inf: math.inf, -math.inf: 0.0},
    "Sqrt": {math.inf: math.inf, -1.0: math.nan},
}


@pytest.mark.parametrize("operator", EDGES)
def test_infinities_and_nan_are_what_they_are(operator: str) -> None:
    pairs = {**EDGES[operator], math.nan: math.nan}
    x = np.array(list(pairs), np.float32)
    (y,) = run([(operator, "y", ["x"])], {"x": x})
    np.testing.assert_array_equal(y, np.array(list(pairs.values()), np.float32))


def test_numbers_without_a_leading_one_are_not_lost() -> None:
    x = np.array([1e-39, 3e-42, 1.4e-45], np.float32)
    (y,) = run([("Log", "y", ["x"])], {"x": x})
    np.testing.assert_allclose(y, np.log(x.astype(np.float64)), rtol=1e-6)
    (z,) = run([("Exp", "y", ["x"])], {"x": np.array([-90.0, -93.0], np.float32)})
    np.testing.assert_allclose(z, np.exp([-90.0, -93.0]), rtol=1e-4)


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_nan_wins(operator: str) -> None:
    numbers: Any = np.array([1.0, math.nan, 2.0], np.float32)
    (y,) = run([(operator, "y", ["a", "b"])], {"a": numbers, "b": numbers[::-1].copy()})
    chosen = {"Max": 2.0, "Min": 1.0}[operator]
    np.testing.assert_array_equal(y, np.array([chosen, math.nan, chosen], np.float32))
