"""The benchmark of single operators: its cases, its rows, its page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import operators

torch = pytest.importorskip("torch")


def row(name: str, ours: float, eager: float) -> operators.Row:
    times = {"ours": ours, "eager": eager, "ours_cpu": ours, "eager_cpu": eager}
    spread = {f"{s}_spread": [times[s]] * 3 for s in ("ours", "eager")}
    return {"name": name, **times, **spread, "ours_first": 1.0, "difference": 0.0}


def test_page_sorts_and_counts() -> None:
    rows = [row("fast", 1, 4), row("slow", 4, 1), {"name": "broken", "error": "no result"}]
    text = operators.page({"about": {"day": "today"}, "rows": rows})
    assert text.index("| slow |") < text.index("| fast |") < text.index("broken: `no result`")
    assert "2 cases, geometric mean **1.00**; 1 slower than torch, 1 of" in text


def test_reasons_that_many_share_are_one_line() -> None:
    missing = "X: dynamo: DispatchError: No ONNX function found for <OpOverload(op='aten.{}', o"
    errors = {
        "median": missing.format("median"), "kept": "X: cannot be exported to ONNX. dynamo: Y",
        "lu": missing.format("lu_factor"), "polar": operators.COMPLEX,
        "ceil": operators.NO_GRADIENT, "floor": operators.NO_GRADIENT,
        "slow": "no result in 120 s",
    }  # fmt: skip
    rows = [{"name": name, "error": error} for name, error in errors.items()]
    lines = operators.page({"about": {}, "rows": rows}).split("\n")
    assert "Without a result (7):" in lines
    assert [line for line in lines if line.startswith("- ")] == [
        "- the exporter has no form of an operator (2): median, lu (`aten.lu_factor`)",
        "- the exporter fails (1): kept",
        "- a complex result, which ONNX does not have (1): polar",
        "- no output that both sides differentiate (2): ceil, floor",
        "- slow: `no result in 120 s`",
    ]


class Some(torch.nn.Module):
    """Outputs of which some have no gradient, as each side decides."""

    def __init__(self, *graded: bool) -> None:
        super().__init__()
        self.graded = graded

    def forward(self, x):
        return tuple(x * 2 if g else (x * 2).detach() for g in self.graded)


@pytest.mark.parametrize(
    ("theirs", "ours", "common"),
    [
        ((True, False, True), (True, True, False), 1),
        ((True, True), (True, True), 2),
        ((True, False), (False, True), 0),
    ],
)
def test_sides_agree_on_outputs(theirs, ours, common: int) -> None:
    x = torch.ones(3, requires_grad=True)
    sides = operators.Side(Some(*theirs), (x,)), operators.Side(Some(*ours), (x,))
    for side in sides:
        side.first()
    if not common:
        with pytest.raises(operators.NotComparableError, match=operators.NO_GRADIENT):
            operators.agree(*sides)
        return
    operators.agree(*sides)
    results = [side.results() for side in sides]
    assert [len(r) for r in results] == [common + 1] * 2
    assert operators.difference(*results) == 0


def test_two_threads_are_a_column(tmp_path: Path) -> None:
    path, one, two = tmp_path / "rows.json", row("a", 2, 1), {**row("a", 1, 3), "threads": 2}
    for each in (one, two, {**one, "threads": 1}):
        rows = operators.keep(path, each)
    assert [r.get("threads") for r in rows] == [2, 1]
    (line,) = (t for t in operators.page({"about": {}, "rows": rows}).split("\n") if "| a |" in t)
    assert line.endswith("| 1.0 | 3.00 |")


def test_a_row_replaces_the_older_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for one in (row("a", 1, 1), row("b", 1, 1), row("a", 2, 1)):
        operators.keep(path, one)
    stored = json.loads(path.read_text())
    assert [(r["name"], r["ours"]) for r in stored["rows"]] == [("b", 1), ("a", 2)]


def test_sides_run_in_turns() -> None:
    module = torch.nn.Linear(3, 2)
    side = operators.Side(module, (torch.ones(4, 3, requires_grad=True),))
    first = side.results()
    assert operators.difference(first, side.results()) == 0
    assert [tuple(t.shape) for t in first] == [(4, 2), (4, 3), (2, 3), (2,)]
    walls, cpus = operators.in_turns([side.run, side.run], 0.01)
    assert len(walls[0]) == len(cpus[1]) >= 7


@pytest.mark.parametrize(
    ("theirs", "ours", "wanted"),
    [
        ([4.0, 2.0], [4.0, 1.0], 0.25),
        ([np.nan, np.inf, 2.0], [np.nan, np.inf, 1.0], 0.5),
        ([1.0, 2.0], [1.0, np.nan], np.inf),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_differences(theirs, ours, wanted: float) -> None:
    assert operators.difference([torch.tensor(theirs)], [torch.tensor(ours)]) == wanted


def test_tables_are_enlarged() -> None:
    from benchmarks import operator_tables

    layer = torch.nn.Linear(3, 2)
    case = operator_tables.enlarged(layer, (torch.ones(4, 3, requires_grad=True),), {}, 100)
    assert [tuple(x.shape) for x in case.inputs] == [(100, 3)]
    assert case.inputs[0].requires_grad
    assert case.module(*case.inputs).shape == (100, 2)
    square = operator_tables.enlarged(torch.linalg.det, (torch.eye(4),), {}, 100)
    assert [tuple(x.shape) for x in square.inputs] == [(4, 4)]  # 100 × 4 has no determinant
    vector = torch.ones(4)
    assert operator_tables.result_elements(torch.outer, (vector, vector), {}) == 16
    outer = operator_tables.enlarged(torch.outer, (vector, vector), {}, 10**6)
    assert outer.module(*outer.inputs).numel() <= operator_tables.LARGEST
    make = operator_tables.bounded(torch.ones)
    assert make((2, 3)).shape == (2, 3)
    with pytest.raises(operator_tables.TooLargeError):
        make(4096, 4096)


def test_nested_arguments_are_tensors_of_a_module() -> None:
    from benchmarks import operator_tables

    parts = [torch.ones(2, 1), torch.zeros(2, 1)]
    module = operator_tables.Flat(torch.cat, (parts,), {"dim": 1})
    assert module(*module.tensors).tolist() == [[1, 0], [1, 0]]


def test_a_case_that_fails_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_cases.py").write_text(
        "def bad():\n    raise ValueError('no')\nCASES = {'x': bad}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert list(operators.cases_of("own_cases:CASES")) == ["x"]
    assert "no" in operators.run_apart("own_cases:CASES", "x", 0.1, 60)["error"]


def test_ordinary_modules_have_ordinary_sizes() -> None:
    """About a million numbers, the tokens of recurrent layers and attention less; PyTorch runs."""
    from benchmarks.ordinary_modules import ORDINARY

    for name, make in ORDINARY.items():
        case = make()
        sizes = [value.numel() for value in case.inputs if value.is_floating_point()]
        assert 1e4 < max(sizes) < 2e6, name
        with torch.no_grad():
            assert case.module(*case.inputs) is not None
