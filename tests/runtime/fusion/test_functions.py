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


def _all_sizes(low: float, high: float) -> Array:
    """Floats between two positive ones, as many of each size, and their negatives."""
    first, last = (int(np.float32(v).view(np.int32)) for v in (low, high))
    x = np.linspace(first, last, 200_001).astype(np.int32).view(np.float32)
    return np.concatenate([x, -x])


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


CANCELLING = ("Elu", "HardSigmoid", "HardSwish")
"""Small results are differences of larger numbers, as in onnxruntime."""
EVERYWHERE = np.concatenate([np.linspace(-12, 12, 20_001), np.geomspace(1e-30, 1e-2, 999)])
POSITIVE = np.concatenate([np.geomspace(1.2e-38, 3e38, 20_001), np.linspace(0.5, 2, 20_001)])
BELOW_ONE = 1 - 2.0**-24
LARGEST = 3.4028234e38
NEXT_TO_QUARTERS = [16367173 * 2.0**72, 10741887 * 2.0**11, 16367173 * 2.0**73]
"""The three large floats closest to multiples of π/2: of all, by trying them out."""
CASES: dict[str, tuple[Array, Callable[[Array], Array], float]] = {
    "Exp": (np.linspace(-87, 88.7, 40_001), np.exp, 4e-7),
    "Log": (POSITIVE, np.log, 3e-7),
    "Tanh": (EVERYWHERE, np.tanh, 4e-7),
    "Sigmoid": (np.linspace(-80, 80, 40_001), _each(lambda x: 1 / (1 + math.exp(-x))), 6e-7),
    "Erf": (EVERYWHERE, _each(math.erf), 6e-7),
    "Softplus": (np.linspace(-80, 80, 40_001), _each(_softplus), 6e-7),
    "Sinh": (
        np.concatenate([_all_sizes(1e-38, 89.41), np.linspace(-3, 3, 100_001)]), np.sinh, 2.4e-7
    ),
    "Cosh": (
        np.concatenate([_all_sizes(1e-38, 89.41), np.linspace(-3, 3, 100_001)]), np.cosh, 2.4e-7
    ),
    "Asinh": (
        np.concatenate([_all_sizes(1e-38, LARGEST), np.linspace(4000, 4200, 20_001)]),
        np.arcsinh, 2.4e-7,
    ),
    "Acosh": (
        np.concatenate([np.geomspace(1, LARGEST, 40_001), 1 + np.geomspace(2e-7, 1, 40_001)]),
        np.arccosh, 2.4e-7,
    ),
    "Atanh": (
        np.concatenate([_all_sizes(1e-38, BELOW_ONE), _all_sizes(0.5, BELOW_ONE)]),
        np.arctanh, 2.4e-7,
    ),
    "Tan": (
        np.concatenate([
            _all_sizes(1e-38, LARGEST), _all_sizes(0.1, 1e5), _all_sizes(9e5, 1.1e6),
            np.float32(math.pi / 2) * np.arange(1, 20_001), NEXT_TO_QUARTERS,
        ]), np.tan, 3e-7,
    ),
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
}  # fmt: skip


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
    "Sinh": {math.inf: math.inf, -math.inf: -math.inf, 89.42: math.inf, -3e38: -math.inf},
    "Cosh": {math.inf: math.inf, -math.inf: math.inf, 89.42: math.inf, -3e38: math.inf, 0.0: 1.0},
    "Asinh": {math.inf: math.inf, -math.inf: -math.inf},
    "Acosh": {math.inf: math.inf, -math.inf: math.nan, 1.0: 0.0, BELOW_ONE: math.nan,
              0.0: math.nan, -1.0: math.nan, -3.0: math.nan, -1e5: math.nan, -3e38: math.nan},
    "Atanh": {math.inf: math.nan, -math.inf: math.nan, 1.0: math.inf, -1.0: -math.inf,
              1.0000001: math.nan, -3.0: math.nan, 3e38: math.nan},
    "Tan": {math.inf: math.nan, -math.inf: math.nan},
}  # fmt: skip


@pytest.mark.parametrize("operator", EDGES)
def test_infinities_and_nan_are_what_they_are(operator: str) -> None:
    pairs = {**EDGES[operator], math.nan: math.nan}
    x = np.array(list(pairs), np.float32)
    (y,) = run([(operator, "y", ["x"])], {"x": x})
    np.testing.assert_array_equal(y, np.array(list(pairs.values()), np.float32))


@pytest.mark.parametrize("operator", ["Asinh", "Atanh", "Erf", "Sinh", "Tan", "Tanh"])
def test_odd_functions_of_the_smallest_numbers(operator: str) -> None:
    """Zeros keep their sign, and what has no leading one stays what it is."""
    x = np.array([0.0, 1.4e-45, 3e-42, 1e-39, 1e-30], np.float32)
    x = np.concatenate([x, -x])
    (y,) = run([(operator, "y", ["x"])], {"x": x})
    slope = 2 / math.sqrt(math.pi) if operator == "Erf" else 1.0
    np.testing.assert_allclose(y, x * slope, rtol=3e-7, atol=1.5e-45)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_a_tangent_of_any_lane_may_be_of_a_large_number() -> None:
    x = np.full((16, 16), 0.7, np.float32)
    np.fill_diagonal(x, 1.7e30)
    (y,) = run([("Tan", "y", ["x"])], {"x": x})
    np.testing.assert_allclose(y, np.tan(x.astype(np.float64)), rtol=3e-7)


def test_several_tangents_in_one_program() -> None:
    x = np.linspace(-1, 1, 1001, dtype=np.float32)
    nodes = [("Tan", "t", ["x"]), ("Tan", "u", ["t"]), ("ReduceSum", "s", ["u"]),
             ("Tan", "v", ["s"]), ("Add", "y", ["u", "v"])]  # fmt: skip
    (y,) = run(nodes, {"x": x[None]})
    u = np.tan(np.tan(x.astype(np.float64)))
    np.testing.assert_allclose(y[0], u + np.tan(u.sum()), rtol=1e-5, atol=1e-4)


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
