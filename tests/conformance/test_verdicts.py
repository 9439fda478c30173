"""The judge: wrong is called wrong, a kink a kink, and torch's faults torch's."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.verdicts import (
    Differences,
    Verdict,
    compare,
    distance,
    judge,
    judge_alone,
    judge_by_differences,
    judge_together,
    or_rounding,
    worst,
)

AT = np.array([0.3, -1.2, 0.8])


def smooth(x):
    return float(np.sum(np.sin(x) * [1.0, 2.0, 3.0]))


def smooth_gradient(x):
    return np.cos(x) * [1.0, 2.0, 3.0]


def kinked(x):
    """|x₀| at zero, smooth elsewhere."""
    return float(np.abs(x[0]) + x[1] ** 2 + x[2])


def verdict(ours, torch32, torch64, function=smooth, at=AT):
    return judge(
        np.asarray(ours),
        np.asarray(torch32),
        lambda: np.asarray(torch64),
        function,
        at,
        largest=3.0,
    )


def test_equal_gradients_are_right_and_need_no_differences() -> None:
    def never(_):
        raise AssertionError

    right = smooth_gradient(AT)
    assert verdict(right * (1 + 1e-5), right, right, never).word == "right"


def test_float64_decides_first() -> None:
    right = smooth_gradient(AT)
    assert verdict(right, right * 1.01, right).word == "right"


@pytest.mark.parametrize("change", [[0, 0, 0.01], [0.01, 0, 0], [-2, 0.5, 1], [np.nan, 0, 0]])
def test_a_wrong_gradient_is_wrong(change) -> None:
    right = smooth_gradient(AT)
    assert verdict(right + change, right, right).word in {"wrong", "undecided"}
    assert judge_alone(right + change, smooth, AT, largest=3.0).word in {"wrong", "undecided"}


def test_torch_can_be_wrong() -> None:
    right = smooth_gradient(AT)
    assert verdict(right, right * 1.5, right * 1.5).word == "torch wrong"


@pytest.mark.parametrize("slope", [-1.0, -0.3, 0.0, 0.5, 1.0])
def test_any_slope_between_the_sides_is_a_kink(slope) -> None:
    at = np.array([0.0, 0.4, 1.0])
    theirs = np.array([1.0 if slope <= 0 else -1.0, 0.8, 1.0])
    ours = np.array([slope, 0.8, 1.0])
    assert verdict(ours, theirs, theirs, kinked, at).word == "kink"
    assert verdict(np.add(ours, [2.5, 0, 0]), theirs, theirs, kinked, at).word == "wrong"
    assert verdict(np.add(ours, [0, 0.1, 0]), theirs, theirs, kinked, at).word == "wrong"


def test_a_kink_within_rounding_of_the_place_is_one() -> None:
    at = np.array([3e-7, 0.4, 1.0])
    theirs, ours = np.array([1.0, 0.8, 1.0]), np.array([-1.0, 0.8, 1.0])
    assert verdict(ours, theirs, theirs, kinked, at).word == "kink"
    assert verdict(ours, theirs, theirs, kinked, np.array([0.1, 0.4, 1.0])).word == "wrong"


def test_a_function_that_bends_is_no_kink() -> None:
    differences = Differences.of(lambda step: 1e3 * step**2, 1.0)
    assert not differences.kink(0.5, 1e-3)
    assert abs(differences.slope) < 1e-6


def test_noise_leaves_it_undecided() -> None:
    rng = np.random.default_rng(0)
    right = smooth_gradient(AT)

    def noisy(x):
        return smooth(x) + float(rng.normal(0, 1e-1))

    assert verdict(right * 1.002, right, right, noisy).word in {"undecided", "kink"}


def test_a_gradient_of_nothing_but_rounding_is_right() -> None:
    assert distance(np.array([3e-9]), np.array([0.0]), 1.0) == 0
    assert distance(np.array([3e-3]), np.array([0.0]), 1.0) == np.inf
    assert distance(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), 1.0) == 0
    assert distance(np.array([np.nan]), np.array([1.0]), 1.0) == np.inf


@pytest.mark.parametrize(("factor", "word"), [(1.0, "right"), (1.01, "right"), (2.0, "wrong")])
def test_a_gradient_that_is_small_beside_others_is_judged_by_itself(factor, word) -> None:
    exact = smooth_gradient(AT) * 1e-8

    def small(x):
        return 1e-8 * smooth(x)

    near = exact * (1 + 1e-6)
    ours = exact * factor
    assert judge(ours, near, lambda: exact, small, AT, largest=3.0).word == word
    # where torch's own is nothing but rounding, that of the larger gradients is an excuse
    noise = exact * [3.0, -2.0, 0.5]
    assert judge(ours, noise, lambda: exact, small, AT, largest=3.0).word == "right"


def test_the_worst_counts() -> None:
    words = ["right", "kink", "wrong", "torch wrong"]
    assert worst(Verdict(w) for w in words).word == "wrong"
    assert worst([]).word == "right"


def test_another_shape_is_wrong() -> None:
    assert verdict([1.0], AT, AT).word == "wrong"
    assert judge_alone(np.ones(2), smooth, AT, largest=1.0).word == "wrong"


def test_a_formula_that_is_right_in_float64_is_off_by_rounding() -> None:
    right = smooth_gradient(AT)
    wrong = verdict(right + 1e-2, right, right)
    assert or_rounding(wrong, right, right, 3.0).word == "rounding"
    assert or_rounding(wrong, right + 1e-4, right, 3.0).word == "wrong"
    assert or_rounding(wrong, None, right, 3.0).word == "wrong"
    assert or_rounding(Verdict("kink"), right, right, 3.0).word == "kink"


def test_what_is_infinite_is_not_moved() -> None:
    at = np.array([-np.inf, -1.2, 0.8])

    def function(x):
        return smooth(np.where(np.isfinite(x), x, 0.0))

    gradient = np.where(np.isfinite(at), smooth_gradient(np.where(np.isfinite(at), at, 0)), 0.0)
    assert judge_alone(gradient, function, at, largest=3.0).word == "right"
    assert judge_alone(np.add(gradient, [0, 0, 0.1]), function, at, largest=3.0).word == "wrong"


def test_gradients_are_compared_together() -> None:
    """Also a small one beside a large one."""
    at = {"a": AT, "b": AT * 2}

    def function(moved):
        return smooth({**at, **moved}["a"]) + 1e-3 * smooth({**at, **moved}["b"])

    right = {"a": smooth_gradient(AT), "b": 1e-3 * smooth_gradient(AT * 2)}
    options = {"tolerance": 1e-3, "steps": (1e-3, 1e-4, 1e-5)}
    assert judge_together(right, function, at, **options).word == "right"
    wrong = {**right, "a": right["a"] * [1, 1, 1.1]}
    assert judge_together(wrong, function, at, **options).word == "wrong"


def test_a_jump_has_no_derivative() -> None:
    at = np.array([0.0, 0.4])

    def function(x):
        return float(np.sign(x[0]) + x[1])

    assert judge_alone(np.array([0.0, 1.0]), function, at, largest=1.0).word == "kink"
    assert judge_alone(np.array([0.0, 1.1]), function, at + 0.2, largest=1.0).word == "wrong"


def test_a_right_gradient_takes_two_central_differences_a_direction() -> None:
    calls = []

    def counted(x):
        calls.append(x)
        return smooth(x)

    assert judge_alone(smooth_gradient(AT), counted, AT, largest=3.0).word == "right"
    assert len(calls) == 4 * 4


def test_kinks_of_opposite_signs_are_looked_at_axis_by_axis() -> None:
    """|x₀| − |x₁| at zero is flat along (1, 1), and any two slopes within ±1 are a choice."""

    def saddle(x):
        return float(abs(x[0]) - abs(x[1]) + x[2])

    def said(gradient, seed):
        at = np.array([0.0, 0.0, 0.8])
        return judge_alone(np.array(gradient), saddle, at, largest=1.0, seed=seed).word

    assert {said([1.0, 1.0, 1.0], seed) for seed in range(8)} == {"kink"}
    assert {said([1.5, 1.0, 1.0], seed) for seed in range(8)} == {"wrong"}
    assert {said([1.0, 1.0, 1.2], seed) for seed in range(8)} == {"wrong"}


def test_many_kinks_where_torch_chose_the_other_side_are_kinks() -> None:
    """Inputs of ReLU6 that are exactly zero: torch drops the gradient there, Clip passes it."""

    def relus(x):
        return float(np.maximum(x[:4], 0) @ [1.0, -2.0, 3.0, -1.5] + x[4])

    at = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    exact = np.array([0.0, 0.0, 0.0, 0.0, 1.0])

    def said(gradient):
        ours = np.array(gradient)
        return judge_by_differences(ours, exact, relus, at, largest=3.0).word

    assert said([1.0, -2.0, 3.0, -1.5, 1.0]) == "kink"
    assert said([1.0, -2.0, 3.5, -1.5, 1.0]) == "wrong"
    assert said([1.0, -2.0, 3.0, -1.5, 1.2]) == "wrong"


def test_a_function_that_bends_within_the_smallest_step_is_looked_at_closer() -> None:
    """As a logarithm near zero does: larger steps see another function."""

    def bends(x):
        return float(np.log(x[0] ** 2 + 1e-14) / 2 + x[1])

    at = np.array([2e-7, 1.0])
    slope = np.array([at[0] / (at[0] ** 2 + 1e-14), 1.0])
    assert judge_alone(slope, bends, at, largest=1.0).word == "right"
    assert judge_alone(slope * [1.05, 1.0], bends, at, largest=1.0).word != "right"


def test_a_gradient_nearer_to_float64_than_torch_is_right() -> None:
    exact = np.array([1.0, 2.0])
    torch32, ours, far = exact * 1.03, exact * 1.02, exact * 0.96

    def about(gradient) -> str:
        return compare(gradient, torch32, lambda: exact, largest=2.0).word

    assert about(ours) == "right"
    assert about(far) == "undecided"


def test_what_shrinks_with_precision_is_rounding() -> None:
    zero, wrong = np.zeros(3), Verdict("wrong", np.inf)
    rounded = np.full(3, 1e-6)
    assert or_rounding(wrong, np.full(3, 1e-15), zero, 1e-6, rounded).word == "rounding"
    assert or_rounding(wrong, np.full(3, 1e-7), zero, 1e-6, rounded).word == "wrong"
