"""The benchmark of two gigabytes of weights, on a decoder of a few thousand."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from benchmarks import large

torch = pytest.importorskip("torch")
TINY = {"vocabulary": 40, "width": 32, "heads": 4, "groups": 2, "layers": 6, "length": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        patch.setattr(large, "SHAPE", TINY)
        assert large.write_model(place)["parameters"] > 40_000
    return place


@pytest.mark.parametrize("case", large.IN_TORCH)
def test_every_case_trains_what_it_says_as_torch_does(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "SHAPE", TINY)
    written = large.write_artifacts(folder, case)
    assert written["disk"] > 0
    ours, theirs = large.train(folder, case, 2), large.eager(folder, case, 2)
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4)
    assert ours["losses"][0] != ours["losses"][-1]
    assert ours["load"] <= ours["steps"] <= ours["checkpoint"] <= ours["export"]


@pytest.mark.parametrize("case", [c for c in large.TITLES if c.startswith("lora")])
def test_adapters_train_alone(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxtrain.api import CheckpointState

    monkeypatch.setattr(large, "SHAPE", TINY)
    large.write_artifacts(folder, case)
    state = CheckpointState.load_checkpoint(folder / case / "checkpoint")
    assert all("lora" in name.lower() for name, _ in state.parameters)
    assert len(large.train(folder, case, 1)["losses"]) == 2


def test_the_table_has_a_line_for_each_case() -> None:
    ours = {"load": 1, "steps": 2000, "checkpoint": 3, "export": 4, "seconds": 0.5, "least": 0.4,
            "most": 0.6}  # fmt: skip
    row = {"artifacts": {"peak": 5, "disk": 6}, "ours": ours}
    theirs = {"steps": 4000, "seconds": 1.0, "least": 0.9, "most": 1.1}
    table = large.section({"all-sgd": {**row, "eager": theirs}, "lora": row}).split("\n")
    assert len(table) == 4
    assert table[2].startswith("| everything, SGD |")
    assert table[2].endswith("| 4.00 | 1.00 (0.90–1.10) | 2.00 | 0.50 |")
    assert table[3].endswith("| 0.50 (0.40–0.60) |  |  |  |  |")
    assert not large.section({})
