"""The benchmark's runs, page, table and plots from small made-up runs; nothing is timed here."""

from __future__ import annotations

import json
import math
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks import environments, race, report, run, runs, worker
from benchmarks.contestants.base import Cannot, Clock, Loop, peak
from benchmarks.contestants.profiling import own_times, shares
from benchmarks.figures import BESIDE, Figures, Spread, geometric_mean
from benchmarks.growth import CURVES, names
from benchmarks.handover import handover
from benchmarks.race import differences, disagreements
from benchmarks.workloads import OTHERS, WORKLOADS, find

ROOT = Path(__file__).resolve().parents[2]


def peer(*times: float, losses=(2.0, 1.5), **more):
    return {
        "times_ms": list(times),
        "first_step_parts_s": {"import": 1.0, "artifacts": 0.5, "session": 1.5, "first run": 0.5},
        "rss_mb": 100.0,
        "losses": list(losses),
        "remark": "",
        "error": "",
        **more,
    }


def entry(title: str, beside=None, **peers):
    return {
        "title": title,
        "date": "2026-02-03 04:05 UTC",
        "load": 0.1,
        "handover_us": 0.25,
        "rounds": 2,
        "seconds": 60.0,
        "spent": {"rounds": 60.0},
        "tolerance": 1e-3,
        "peers": peers,
        "beside": beside or {},
        "operators": {"ours_parts": {"MatMul": 0.75, "outside nodes": 0.25}},
    }


def first_run_workloads():
    beside = {"eager": peer(3.0, 3.0), "compiled": peer(5.0, 5.0), "ours_parts": peer(6.0, 6.0)}
    return {
        "mlp_sgd": entry(
            "first", beside, ours=peer(2.0, 2.0), ours_parts=peer(4.0, 3.0, artifacts_rss_mb=150.0),
            ortmodule=peer(1.0, 1.0), orttrainer=peer(2.5, 2.5),
            eager=peer(3.0, 3.0, rss_mb=400.0), compiled=peer(5.0, 5.0),
            sklearn=peer(8.0, 6.0, remark="Adam without weight decay"),
        ),
        "mlp_adamw": entry(
            "second", ours=peer(5.0), ours_parts=peer(4.0), ortmodule=peer(2.0), eager=peer(2.0),
            compiled=peer(1.0), old=peer(losses=(), error="it has no such optimizer"),
        ),
    }  # fmt: skip


def facts(**more):
    return {
        "version": "1.0",
        "date": "2026-02-03 04:05 UTC",
        "commit": "abc",
        "source": "s1",
        "changed": "",
        "machine": {"cores": 2, "architecture": "x86_64", "instructions": ["avx2", "fma"]},
        "load": 0.1,
        "rounds": 2,
        "asked": ["mlp_sgd", "mlp_adamw"],
        "packages": {"python": "3.11"},
        **more,
    }


@pytest.fixture
def folder(tmp_path):
    """Three runs of one state, of which the last was cut, and one of a state before."""
    before = facts(version="0.9", source="s0", commit="old", date="2026-01-01 00:00 UTC")
    changes = [{}, {"eager": peer(6.0, 6.0)}, {"eager": peer(9.0, 9.0)}]
    for number, (about, change) in enumerate(
        [(before, {}), *((facts(), change) for change in changes)]
    ):
        one = runs.begin(about, tmp_path)
        for name, result in first_run_workloads().items():
            if number < 3 or name == "mlp_sgd":
                one.add(name, {**result, "peers": {**result["peers"], **change}})
    return tmp_path


@pytest.fixture
def group(folder):
    return runs.newest(runs.stored(folder))


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


def test_runs_are_files_of_their_own(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "0.9-2026-01-01-1.json", "1.0-2026-02-03-1.json", "1.0-2026-02-03-2.json",
        "1.0-2026-02-03-3.json",
    ]  # fmt: skip
    found = runs.stored(folder)
    assert [one.missing for one in found] == [[], [], [], ["mlp_adamw"]]
    assert found[1].workloads == first_run_workloads()
    assert '"times_ms": [ 4.0, 3.0 ]' in found[1].path.read_text()


def test_runs_of_the_same_sources_belong_together(folder):
    found = runs.stored(folder)
    assert [[one.name for one in group] for group in runs.by_state(found)] == [
        ["0.9-2026-01-01-1"],
        ["1.0-2026-02-03-1", "1.0-2026-02-03-2", "1.0-2026-02-03-3"],
    ]
    assert len(runs.newest(found)) == 3  # the one that was cut counts too
    assert runs.newest(found[:1]) == found[:1]
    later = runs.Run(folder / "x.json", facts(source="s2"), {})
    assert later not in runs.newest([*found, later])  # none of its runs is complete


def test_a_cut_run_goes_on_with_the_same_sources_only(folder):
    cut = runs.unfinished(facts(), folder)
    assert cut is not None
    assert cut.missing == ["mlp_adamw"]
    assert runs.unfinished(facts(source="s2"), folder) is None
    cut.add("mlp_adamw", first_run_workloads()["mlp_adamw"])
    assert runs.unfinished(facts(), folder) is None


def test_a_whole_run_is_stored_workload_by_workload_and_resumed(tmp_path, monkeypatch, capsys):
    asked = []

    def fake_race(name, pythons, rounds, **options):
        if len(asked) == 2:
            asked.append("cut")
            raise KeyboardInterrupt
        asked.append(name)
        return {**first_run_workloads()["mlp_sgd"], "packages": {"python": "3"}}

    monkeypatch.setattr(run, "race", fake_race)
    monkeypatch.setattr(runs.begin, "__defaults__", (tmp_path,))
    monkeypatch.setattr(runs.stored, "__defaults__", (tmp_path,))
    monkeypatch.setattr(runs.unfinished, "__defaults__", (tmp_path,))
    monkeypatch.setattr(run, "main_python", lambda given: "python")
    monkeypatch.setattr(run, "old_python", lambda given: ("", "none here"))
    monkeypatch.setattr(run.subprocess, "run", lambda *command, **options: None)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run"])
    monkeypatch.setattr(runs, "_git", lambda *arguments: "same")
    assert run.main() == 130
    (stored,) = runs.stored()
    assert list(stored.workloads) == list(WORKLOADS)[:2]
    monkeypatch.setattr(sys, "argv", ["run", "--resume"])
    assert run.main() == 0
    (stored,) = runs.stored()
    assert not stored.missing
    assert stored.facts["packages"] == {"python": "3"}
    assert asked == [*list(WORKLOADS)[:2], "cut", *list(WORKLOADS)[2:]]
    monkeypatch.setattr(sys, "argv", ["run", "--quick", "cnn"])
    assert run.main() == 0
    assert len(runs.stored()) == 1  # only whole runs are stored
    assert "Torch ÷ ours, in one process" in capsys.readouterr().out


def test_spread():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == (7.0, 7.0, 7.0)
    assert math.isnan(Spread.of([]).median)


def test_figures_pool_every_round_of_every_run(group):
    figures = Figures(group)
    assert figures.names == ["mlp_sgd", "mlp_adamw"]
    assert figures.time("mlp_sgd", "eager") == (3.75, 6.0, 8.25)
    # eager's median is 6 over the runs: compiled is the better one, in two of them not by itself
    assert figures.better_torch("mlp_sgd") == "compiled"
    assert figures.against_torch("mlp_sgd", "ours").median == 2.5
    # round by round: 5 ÷ 4 and 5 ÷ 3, three times each
    assert figures.against_torch("mlp_sgd", "ours_parts").median == pytest.approx(35 / 24)
    assert figures.against_torch("mlp_sgd", "ours_parts", BESIDE).median == 0.5
    assert math.isnan(figures.ratio("mlp_sgd", "old", "ours").median)
    mean = geometric_mean([2.5, 0.2, math.nan])
    assert figures.mean("ours") == mean
    assert mean == (pytest.approx(math.sqrt(0.5)), 2, 0.2)


def test_every_ratio_below_one_is_listed_with_its_reason(group):
    figures = Figures(group)
    assert {(loss.name, loss.way, loss.kind) for loss in figures.losses()} == {
        ("mlp_adamw", "ours", "alone"), ("mlp_adamw", "ours_parts", "alone"),
        ("mlp_adamw", "ortmodule", "alone"), ("mlp_sgd", "ours_parts", "beside"),
    }  # fmt: skip
    reasons = {
        "mlp_adamw/ours/alone": "particular", "mlp_adamw/*/*": "general", "*/*/beside": "any",
    }  # fmt: skip
    text = report.losses_table(figures, reasons)
    assert (
        "| second | Trainer | torch compiled | time, a process each | 0.20 | particular |" in text
    )
    assert "| second | ORTModule | torch compiled | time, a process each | 0.50 | general |" in text
    assert "| first | Module + Optimizer | torch eager | time, one process | 0.50 | any |" in text
    assert report.UNEXPLAINED in report.losses_table(figures, {})
    assert "None" in report.losses_table(Figures([]), {})


def test_losses_to_other_peers_and_in_memory_are_listed_too(group):
    results = group[0].workloads["mlp_sgd"]["peers"]
    results["jax"], results["ortmodule"]["rss_mb"] = peer(1.0, 1.0), 800.0
    losses = {(loss.way, loss.kind): loss.ratio.median for loss in Figures(group[:1]).losses()}
    assert losses["ortmodule", "memory"] == 0.5
    assert losses["ours_parts", "jax"] == pytest.approx((1 / 4 + 1 / 3) / 2)


def test_page_has_every_way_in_a_column_and_every_run(folder, growth):
    text = report.page(runs.stored(folder), growth, "## By hand\n\nlost because\n", {})
    # the better torch ÷ Trainer, Module + Optimizer, ORTModule, ORTTrainer
    assert "| first | 6.00 (3.75–8.25) | 5.00 | 2.50 | 1.46 (1.25–1.67) | 5.00 | 2.00 |" in text
    assert "| second | 6.00 (4.00–6.00) | 1.00 | 0.20 | 0.25 | 0.50 | – |" in text
    assert "| first | 3.00 | 5.00 | – | 0.50 | – | – |" in text
    assert "| first | 6.00 (3.75–8.25) | – | 2.40 (1.50–3.30) | – |" in text  # eager ÷ the two
    assert "| first |  |  |  | 2.00¹ |" in text
    assert "| second | cannot |  |  |  |" in text
    assert "scikit-learn: Adam without weight decay" in text
    assert "- **predecessor**: `it has no such optimizer` (second)" in text
    assert "complete runs: 2, cut ones: 1, rounds in each: 2" in text
    assert "2 cores, x86_64, avx2 fma. python 3.11" in text
    assert (
        "| 1.0-2026-02-03-3 | 2026-02-03 04:05 UTC | abc | 0.1 | 0.25 (0.25–0.25) | 1 | 1 |" in text
    )
    assert "| 0.9, 2026-01-01, old | 2 cores, x86_64, avx2 fma | 1 |" in text
    assert "| 1.0, 2026-02-03, abc | 2 cores, x86_64, avx2 fma | 3 |" in text
    assert "MatMul 75%, outside nodes 25%" in text
    assert "| encoder | batch size 8 | 8.00 | 16.00 | – | 2.00 |" in text
    assert "| 2000 | 10000 | 2.00 | 2.00× | 4.00 | 2.00× |" in text
    assert text.endswith("lost because\n")
    assert "better of" not in text


def test_memory_and_start(group):
    figures = Figures(group[:1])
    assert (
        "| first | 100 | 100 | 100 | 100 | 400 | 100 | – | – | 150 | 0.25 | 0.25 | 0.25 | 0.25 |"
        in report.memory_table(figures)
    )
    start = "| first | 1.0 | 0.5 | 1.5 | 0.5 | 3.5 | 3.5 | 3.5 | 3.5 | 3.5 | 3.5 | – | – |"
    assert start in report.start_table(figures)


def test_only_what_is_between_the_marks_is_replaced(folder):
    text = f"# head\n{report.MARK}\nold\n{report.MARK}\ntail\n"
    new = report.put_between_marks(text, report.short_table(runs.stored(folder)))
    assert new.startswith("# head\n")
    assert new.endswith("tail\n")
    assert "old\n" not in new
    assert "| first | 5.00 | 2.50 | 1.46 | 5.00 | 2.00 | 0.50 |" in new
    assert report.put_between_marks(new, "again") == report.put_between_marks(text, "again")
    assert report.put_between_marks("no marks", "x") == "no marks"


@pytest.mark.parametrize(
    ("ms", "text"), [(0.04123, "0.0412"), (1.234, "1.23"), (56.78, "56.8"), (1234.5, "1234")]
)
def test_times_have_three_digits(ms, text):
    assert report.three_digits(ms) == text


def test_plots(folder, growth, tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    found = runs.stored(folder)
    draw(found, growth, tmp_path / "a")
    draw(found, growth, tmp_path / "b")
    for name in ("ratios.svg", "versions.svg", "growth.svg", "nodes.svg"):
        text = (tmp_path / "a" / name).read_text()
        assert ET.fromstring(text).tag.endswith("svg")
        assert len(text) < 100_000
        assert text == (tmp_path / "b" / name).read_text()
    assert "first" in (tmp_path / "a" / "ratios.svg").read_text()
    assert "0.9, 2026-01-01, old" in (tmp_path / "a" / "versions.svg").read_text()


def test_losses_are_compared_with_torch(capsys):
    results = first_run_workloads()
    second = results["mlp_adamw"]
    assert disagreements(second) == {}
    second["peers"]["jax"] = peer(1.0, losses=(2.0, 1.6))
    second["peers"]["onnxsim"] = peer(1.0, losses=(2.0, math.nan))
    assert set(disagreements(second)) == {"jax", "onnxsim"}
    assert differences(second)["jax"] == pytest.approx(0.1 / 1.5, rel=1e-2)
    assert run.complain(results) == 1
    assert "LOSSES DIFFER: mlp_adamw, jax" in capsys.readouterr().out


@pytest.mark.parametrize("way", race.OURS)
def test_failures_of_ours_are_loud(way, capsys):
    results = first_run_workloads()
    assert run.complain(results) == 0
    results["mlp_sgd"]["peers"][way] = peer(losses=(), error="boom")
    assert run.complain(results) == 1
    assert "boom" in capsys.readouterr().out


def test_stored_runs_make_the_published_page():
    """docs/performance.md and the README are what the stored runs say."""
    found = runs.stored()
    growth = json.loads((ROOT / "benchmarks" / "growth.json").read_text())
    by_hand = (ROOT / "benchmarks" / "losses.md").read_text()
    reasons = json.loads((ROOT / "benchmarks" / "reasons.json").read_text())
    text = report.page(found, growth, by_hand, reasons)
    assert (ROOT / "docs" / "performance.md").read_text() == text
    readme = (ROOT / "README.md").read_text()
    assert report.put_between_marks(readme, report.short_table(found)) == readme


def test_the_environment_has_what_a_plain_install_gives():
    """Nothing that makes onnxtrain faster is added by name: its own dependencies bring it."""
    named = " ".join(environments.MAIN)
    assert "numba" not in named
    assert "[fast" not in named


FAKE = """
import json, sys
pace = {"eager": 0.05, "slow": 1.0}
def ready(peer):
    return {"parts": {"session": 1.0}, "losses": [1.0], "step": pace.get(peer, 0.12),
            "remark": "", "rss": 5.0}
for line in sys.stdin:
    peer, *numbers = line.split()
    if peer == "ready":
        cannot = {"error": "it cannot"}
        print(json.dumps(cannot if numbers[0] == "jax" else ready(numbers[0])), flush=True)
        continue
    before, steps = map(int, numbers)
    if peer == "old":
        sys.exit("it fell over")
    seconds = pace.get(peer, 0.12) * steps
    answer = {"seconds": seconds, "processor": before, "steps": steps, "rss": 6.0}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def fake_worker(tmp_path, monkeypatch):
    (tmp_path / "worker.py").write_text(FAKE)
    monkeypatch.setattr(race, "HERE", tmp_path)
    return tmp_path


def test_contestants_share_a_process_or_have_one_each(fake_worker):
    together = [(["eager", "ours", "jax"], sys.executable), (["old"], sys.executable)]
    shown, beside = race.compete(together, fake_worker, rounds=3)
    assert beside == {}
    assert shown["eager"]["times_ms"] == [50.0] * 3
    assert shown["ours"]["times_ms"] == [120.0] * 3
    assert shown["eager"]["steps"] == round(race.TURN / 0.05)  # what takes the time of a turn
    assert shown["ours"]["steps"] == round(race.TURN / 0.12)
    assert shown["ours"]["rss_mb"] == 6.0
    assert shown["jax"]["error"] == "it cannot"
    assert shown["jax"]["times_ms"] == []
    assert shown["old"]["error"] == "it fell over"


def test_long_rounds_are_few(fake_worker, monkeypatch):
    monkeypatch.setattr(race, "LONG", 0.0)
    shown, _ = race.compete([(["eager"], sys.executable)], fake_worker, rounds=9)
    assert len(shown["eager"]["times_ms"]) == race.ENOUGH


def test_those_beside_come_into_the_process_of_the_first(fake_worker):
    each = [([peer], sys.executable) for peer in ("eager", "jax", "ours", "sklearn", "ortmodule")]
    spent = race.Stopwatch()
    alone, beside = race.compete(
        each, fake_worker, 2, beside=["ortmodule", "eager", "jax", "ours"], spent=spent
    )
    assert list(alone) == ["eager", "jax", "ours", "sklearn", "ortmodule"]
    assert list(beside) == ["ortmodule", "eager", "ours"]  # jax could not alone
    assert [result["times_ms"] for result in beside.values()] == [
        [120.0] * 2,
        [50.0] * 2,
        [120] * 2,
    ]
    assert list(spent.parts) == ["get ready", "rounds", "get ready beside", "rounds beside"]


@pytest.mark.parametrize(
    ("peer", "before", "steps"),
    [
        ("eager", round(race.WAKE / 0.05), round(race.TURN / 0.05)),
        ("ours", round(race.WAKE / 0.12), round(race.TURN / 0.12)),
        ("slow", 0, 1),
    ],
)
def test_a_turn_begins_with_steps_that_are_not_counted(fake_worker, peer, before, steps):
    host = race.Host([peer], sys.executable, fake_worker)
    try:
        host.get_ready()
        [contestant] = host.contestants
        race.run_rounds([contestant], 1, pause=0.0)
        assert (contestant.before, contestant.steps) == (before, steps)
        assert contestant.processor_times == [before / steps]  # as the worker was told
    finally:
        host.kill()


def test_what_is_prepared_is_kept_for_the_next_run(tmp_path, monkeypatch):
    calls = []

    def run_prepare(command, **_):
        calls.append(command)
        (Path(command[4]) / "spec.json").write_text("{}")

    monkeypatch.setattr(race.subprocess, "run", run_prepare)
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        race.prepare("mlp_sgd", "python", ("ours",), folder, tmp_path / "kept")
        assert (folder / "spec.json").read_text() == "{}"
    assert len(calls) == 1
    race.prepare("mlp_sgd", "python", ("ours",), folder := tmp_path / "alone")
    assert len(calls) == 2
    assert (folder / "spec.json").exists()


def test_handing_work_between_cores_takes_microseconds():
    microseconds = handover()
    assert microseconds is None or 0 < microseconds < 1e4


def test_reasons_of_workers_fit_a_table():
    assert worker.reason(Cannot("it has no such layer")) == "it has no such layer"
    assert worker.reason(ValueError("first; more\nsecond")) == "ValueError: first"
    assert len(worker.reason(ValueError("x" * 500))) == 160


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
    assert loop.many(batches, 3) == 3
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
    assert find("decoder") is OTHERS["decoder"]
