"""What a step cannot be faster than."""

from __future__ import annotations

import pytest
from benchmarks import limits
from benchmarks.figures import Figures
from benchmarks.workloads import WORKLOADS

pytest.importorskip("torch")


def test_products_of_a_step_are_counted_in_both_directions() -> None:
    """The input of the first layer has no gradient, so that it has two products and not three."""
    counted = limits.counts(WORKLOADS["mlp_small"])
    layers = [(100, 50), (50, 10), (10, 1)]
    products = sum(inner * outer * (2 if inner == 100 else 3) for inner, outer in layers)
    assert counted["gflop"] == pytest.approx(2 * 15 * products / 1e9, abs=1e-4)
    weights = sum(inner * outer + outer for inner, outer in layers)
    assert counted["update_mb"] == pytest.approx(weights * 4 * 3 / 1e6, abs=1e-3)


def test_products_and_the_update_follow_each_other() -> None:
    known = {"gflop_per_s": 100.0, "gb_per_s": 10.0}
    assert limits.at_the_limit({"gflop": 1.0, "update_mb": 50.0}, known) == pytest.approx(15.0)


def test_workloads_and_processors_that_were_not_counted_have_no_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = {
        "a processor": {
            "day": "2026-02-03",
            "rates": {"gflop_per_s": 100.0, "gb_per_s": 10.0},
            "counts": {"mlp_sgd": {"gflop": 1.0, "update_mb": 50.0}},
        }
    }
    peers = {name: {"times_ms": [30.0, 30.0], "error": ""} for name in ("eager", "ours_parts")}
    peers["compiled"] = {"times_ms": [20.0, 20.0], "error": ""}
    entries = {name: {"title": name, "peers": peers} for name in ("mlp_sgd", "lstm")}
    figures = Figures([])
    monkeypatch.setattr(figures, "runs", [_Run(entries)])
    text = limits.section(results, figures, "a processor")
    assert "| mlp_sgd | 1.00 | 50.0 | 15.0 | 30.0 | 0.50 | 0.75 |" in text
    assert "lstm" not in text
    assert limits.section(results, figures, "another") == "Not measured on this processor."


class _Run:
    def __init__(self, workloads: dict[str, object]) -> None:
        self.workloads = workloads
