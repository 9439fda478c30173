"""What is prepared of a network once, and what is done again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from benchmarks import network_cases, network_steps, networks  # noqa: E402

from conformance.cases import TorchCase  # noqa: E402

NAME = "a/classifier"


class Classifier(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A convolution whose norm takes the statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(8 * 6 * 6, 4),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where it is prepared; without torch.compile, which takes its time."""

    def case(name: str) -> TorchCase:
        assert name == NAME
        torch.manual_seed(0)
        module = network_cases.Classified(Classifier()).train()
        return TorchCase(module, (torch.randn(4, 3, 8, 8), torch.arange(4)))

    monkeypatch.setattr(network_cases, "case", case)
    monkeypatch.setattr(network_steps, "PACKAGES", ("torch", "onnxruntime"))
    monkeypatch.setattr(network_steps, "ORDER", ("eager", "ours"))
    return tmp_path


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for every export."""
    done = list[str]()
    export: Callable[..., None] = network_steps._export

    def noting(*args: object) -> None:
        done.append("export")
        export(*args)

    monkeypatch.setattr(network_steps, "_export", noting)
    return done


def test_all_sides_start_from_the_same_weights(folder: Path) -> None:
    row = network_steps.measure(NAME, 2, folder)
    assert networks.agrees(row)
    assert max(networks.apart(row, "eager")) < 1e-3
    assert len(row["eager"]) == len(row["ours"]) == 2
    assert row["exporter"] == "dynamo"
    assert row["parameters"] == 3 * 8 * 9 + 8 + 16 + 288 * 4 + 4
    assert {"sources", "inputs"}.isdisjoint(row)


def test_nothing_is_dropped() -> None:
    """Neither by a layer nor by a rate that a model hands to a function."""

    class Path(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.drop_prob, self.drop_rate = 0.1, 0.2
            self.inner = torch.nn.Sequential(torch.nn.Dropout(0.3), torch.nn.Dropout2d(0.4))

    path = Path()
    network_cases._drop_nothing(path)
    assert (path.drop_prob, path.drop_rate) == (0.0, 0.0)
    assert [layer.p for layer in path.inner] == [0.0, 0.0]


def test_what_is_done_is_not_done_again(folder: Path, exports: list[str]) -> None:
    _, before = network_steps.prepare(NAME, folder)
    _, after = network_steps.prepare(NAME, folder)
    assert exports == ["export"]
    assert after == before


def test_other_sources_write_artifacts_anew(
    folder: Path, exports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network_steps.prepare(NAME, folder)
    monkeypatch.setattr(network_steps, "sources", lambda: "of tomorrow")
    _, notes = network_steps.prepare(NAME, folder)
    assert exports == ["export"] * 2
    assert notes["sources"] == "of tomorrow"


def test_another_learning_rate_is_another_network(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, before = network_steps.prepare(NAME, folder)
    monkeypatch.setattr(network_steps, "RATE", 0.01)
    _, after = network_steps.prepare(NAME, folder)
    assert after["definition"] != before["definition"]
    assert after["losses"]["ours"][1] != before["losses"]["ours"][1]


def test_a_side_that_fails_leaves_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ValueError("no `graph`\nmore")

    monkeypatch.setattr(network_steps, "_export", fails)
    row = network_steps.measure(NAME, 1, folder)
    assert row["ours_error"] == "ValueError: no `graph`"
    assert row["eager"]
    assert "ours" not in row
    assert networks.ratios(row) == []


def test_notes_that_were_cut_off_count_as_none(folder: Path) -> None:
    place = network_steps.folder_of(folder, NAME)
    network_steps.prepare(NAME, folder)
    notes = place / network_steps.NOTES
    notes.write_text(notes.read_text()[:50])
    assert network_steps.read_notes(place) == {}
    assert network_steps.prepare(NAME, folder)[1]["losses"]["ours"]
