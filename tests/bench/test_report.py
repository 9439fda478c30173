"""The benchmark's page, table and plots from stored results; nothing is timed here."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks import report, run
from benchmarks.contestants.base import Clock, Loop, peak
from benchmarks.contestants.profiling import own_times, shares
from benchmarks.growth import CURVES, names
from benchmarks.race import differences, disagreements
from benchmarks.workloads import WORKLOADS, find

ROOT = Path(__file__).resolve().parents[2]


def peer(ms: float | None, losses=(2.0, 1.5), **more):
    return {
        "ms": ms,
        "first_step_s": 3.5,
        "first_step_parts_s": {"import": 1.0, "artifacts": 0.5, "session": 1.5, "first run": 0.5},
        "rss_mb": 100.0,
        "losses": list(losses),
        "remark": "",
        "error": "",
        **more,
    }


def entry(title: str, **peers):
    return {
        "title": title,
        "date": "2026-02-03 04:05 UTC",
        "rounds": 5,
        "seconds": 61.0,
        "machine": {
            "cores": 2, "architecture": "x86_64", "instructions": ["avx2", "fma"],
            "python": "3.11", "onnxruntime": "1.31", "torch": "2.13",
        },
        "tolerance": 1e-3,
        "peers": peers,
        "operators": {"ours_parts": {"MatMul": 0.75, "outside nodes": 0.25}},
    }  # fmt: skip


@pytest.fixture
def results():
    return {
        "mlp_sgd": entry(
            "first", ours=peer(2.0), ours_parts=peer(4.0, artifacts_rss_mb=150.0),
            eager=peer(3.0, rss_mb=400.0), compiled=peer(5.0),
            sklearn=peer(8.0, remark="Adam without weight decay"),
        ),
        "mlp_adamw": entry(
            "second", ours=peer(5.0), ours_parts=peer(4.0), eager=peer(2.0), compiled=peer(8.0),
            old=peer(None, losses=(), error="it has no such optimizer"), sklearn=peer(16.0),
        ),
    }  # fmt: skip


@pytest.fixture
def growth():
    points = [{"at": n, "ms": {"ours_parts": 1.0 * n, "eager": 2.0 * n}} for n in (2, 4, 8)]
    return {
        "curves": [
            {"name": n, "model": "encoder", "title": "encoder", "axis": axis, "points": points}
            for n, axis in (("batch", "batch size"), ("length", "sequence length"),
                            ("layers", "depth, layers"), ("width", "width"))
        ],
        "nodes": [
            {"nodes": n, "nodes_with_gradient": 5 * n, "differentiate_s": n / 1e3,
             "session_s": n / 5e2, "module_s": n / 6e2}
            for n in (1000, 2000, 4000)
        ],
    }  # fmt: skip


def test_ratios(results):
    first, second = results.values()
    assert report.best(first) == 2.0
    assert report.ratio(first, "eager") == 1.5
    assert report.ratio_to_torch(second) == 0.5
    assert math.isnan(report.ratio(first, "old"))
    mean, count = report.geometric_mean(map(report.ratio_to_torch, results.values()))
    assert mean == pytest.approx(math.sqrt(1.5 * 0.5))
    assert count == 2


def test_page_has_every_number_also_where_it_loses(results, growth):
    text = report.page(results, growth, "## By hand\n\nlost because\n")
    assert "| first | 2.00 | 4.00 | 1.50 | 2.50 |  | 4.00¹ |" in text
    assert "| second | 5.00 | 4.00 | 0.50 | 2.00 | cannot | 4.00 |" in text
    assert "scikit-learn: Adam without weight decay" in text
    assert "- **predecessor**: `it has no such optimizer` (second)" in text
    assert "2 cores, x86_64, avx2 fma" in text
    assert "2026-02-03" in text
    assert "| first | 100 | 100 | 150 | 400 | 100 | – | – | 0.25 |" in text
    assert "| first | 1.0 | 0.5 | 1.5 | 0.5 | 3.5 | 3.5 | 3.5 | – | – |" in text
    assert "MatMul 75%, outside nodes 25%" in text
    assert "| encoder | batch size 8 | 8.00 | 16.00 | – | 2.00 |" in text
    assert "| 2000 | 10000 | 2.00 | 2.00× | 4.00 | 2.00× |" in text
    assert text.endswith("lost because\n")


def test_page_without_growth_and_of_older_results(results):
    for found in results.values():
        del found["operators"], found["tolerance"]
        for result in found["peers"].values():
            del result["first_step_parts_s"], result["losses"]
    text = report.page(results, {}, "")
    assert "## Growth" not in text
    assert "| first | 2.00 |" in text


def test_only_what_is_between_the_marks_is_replaced(results):
    text = f"# head\n{report.MARK}\nold\n{report.MARK}\ntail\n"
    new = report.put_between_marks(text, report.short_table(results))
    assert new.startswith("# head\n")
    assert new.endswith("tail\n")
    assert "old\n" not in new
    assert "| first | 2.00 | 1.50 |" in new
    assert report.put_between_marks(new, "again") == report.put_between_marks(text, "again")
    assert report.put_between_marks("no marks", "x") == "no marks"


def test_plots(results, growth, tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    draw(results, growth, tmp_path / "a")
    draw(results, growth, tmp_path / "b")
    for name in ("ratios.svg", "growth.svg", "nodes.svg"):
        text = (tmp_path / "a" / name).read_text()
        assert ET.fromstring(text).tag.endswith("svg")
        assert len(text) < 100_000
        assert text == (tmp_path / "b" / name).read_text()
    ratios = (tmp_path / "a" / "ratios.svg").read_text()
    assert "first" in ratios
    assert ">0.50<" in ratios


def test_losses_are_compared_with_torch(results, capsys):
    second = results["mlp_adamw"]
    assert disagreements(second) == {}
    second["peers"]["jax"] = peer(1.0, losses=(2.0, 1.6))
    second["peers"]["onnxsim"] = peer(1.0, losses=(2.0, math.nan))
    assert set(disagreements(second)) == {"jax", "onnxsim"}
    assert differences(second)["jax"] == pytest.approx(0.1 / 1.5, rel=1e-2)
    assert run.complain(results) == 1
    assert "LOSSES DIFFER: mlp_adamw, jax" in capsys.readouterr().out


def test_failures_of_ours_are_loud(results, capsys):
    assert run.complain(results) == 0
    results["mlp_sgd"]["peers"]["ours"] = peer(None, losses=(), error="boom")
    assert run.complain(results) == 1
    assert "boom" in capsys.readouterr().out


def test_results_are_merged_by_workload(results, tmp_path):
    path = tmp_path / "results.json"
    run.save(path, {"mlp_adamw": results["mlp_adamw"]})
    run.save(path, {**run.load(path), "mlp_sgd": results["mlp_sgd"]})
    assert list(run.load(path)) == ["mlp_sgd", "mlp_adamw"]
    assert run.load(path) == results
    assert list(tmp_path.iterdir()) == [path]


def test_stored_results_can_be_shown():
    stored = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert set(stored) == set(WORKLOADS)
    text = report.page(stored, {}, "")
    assert all(f"| {e['title']} |" in text for e in stored.values())


def test_time_of_a_body_is_not_counted_twice():
    def node(op, ts, dur):
        name, args = f"{op}_kernel_time", {"op_name": op}
        return {"cat": "Node", "name": name, "ts": ts, "dur": dur, "args": args}

    def model_run(ts):
        return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 100}

    events = [
        model_run(0), node("Scan", 10, 50),
        model_run(100), node("Add", 110, 5), node("Scan", 120, 60),
        node("MatMul", 130, 20), node("Tanh", 160, 10), node("Add", 185, 5),
    ]  # fmt: skip
    spent = own_times(events, 1, 2)
    assert spent == {"Add": 10, "Scan": 30, "MatMul": 20, "Tanh": 10}
    found = shares(spent, 100)
    assert list(found) == ["Scan", "MatMul", "Add", "Tanh", "outside nodes"]
    assert found["outside nodes"] == pytest.approx(0.3)
    many = shares({f"op{i}": 1.0 for i in range(10)}, 20)
    assert many["2 others"] == pytest.approx(0.1)


def test_loop_takes_the_batches_in_turn():
    seen = []
    loop = Loop(lambda x, y: float(seen.append(x) or y))
    batches = [(i, i) for i in range(3)]
    assert loop.losses(batches, 2) == [0.0, 1.0]
    assert loop.many(batches, 3) == (3, 1.0)
    assert seen == [0, 1, 2, 0, 1]


def test_clock_and_memory():
    clock = Clock()
    clock.lap("a")
    clock.lap("b")
    before = clock.parts["a"]
    clock.lap("a")
    assert clock.parts["a"] > before
    assert list(clock.parts) == ["a", "b"]
    assert 5 < peak() < 100_000


def test_every_point_of_a_curve_is_a_workload():
    for curve in CURVES:
        for name in names(curve):
            assert find(name).title
    assert find("mlp:batch=16,width=128").title == "MLP 128-128-128-10, batch 16, SGD"
    assert find("cnn") is WORKLOADS["cnn"]
