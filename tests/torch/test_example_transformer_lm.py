"""The getting-started example: both scripts run, and without dropout they have the same curve."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "transformer_lm"
MODULES = ("model", "data", "loop", "train", "train_ort", "compare")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


SMALL = ["--steps", "8", "--epochs", "1", "--vocabulary", "60", "--width", "16", "--log-every", "4"]


def test_both_scripts_have_the_same_curve(example, capsys: pytest.CaptureFixture[str]) -> None:
    plain = example["train"].main([*SMALL, "--dropout", "0"])
    ort = example["train_ort"].main([*SMALL, "--dropout", "0"])
    # a learning rate of 5 lets rounding errors grow quickly, so few steps are compared
    assert ort.losses == pytest.approx(plain.losses, rel=1e-4)
    assert ort.perplexities == pytest.approx(plain.perplexities, rel=1e-3)
    assert len(plain.losses) == 8
    assert capsys.readouterr().out.count("end of epoch") == 2


def test_with_dropout_the_evaluation_agrees(example) -> None:
    """Masks differ, so the curves do; the perplexity on validation text is alike."""
    arguments = ["--steps", "30", "--epochs", "1", "--vocabulary", "40", "--width", "16"]
    plain = example["train"].main(arguments)
    ort = example["train_ort"].main(arguments)
    assert ort.losses != pytest.approx(plain.losses, rel=1e-4)
    assert ort.perplexities == pytest.approx(plain.perplexities, rel=0.1)


def test_wikitext_files_are_read(example, tmp_path: Path) -> None:
    data = example["data"]
    (tmp_path / "valid.txt").write_text("the cat 's <unk> hat , the dog . " * 30)
    (tmp_path / "test.txt").write_text("the dog and the cat . " * 30)
    corpus = data.load(str(tmp_path), batch=2)
    assert corpus.words[:2] == ["<unk>", "the"]
    assert corpus.train.shape[1] == corpus.valid.shape[1] == 2
    source, target = data.batches(corpus.train, 5)[1]
    assert torch.equal(source[1:].reshape(-1), target[: source[1:].numel()])
    assert len(data.load(str(tmp_path), 2, vocabulary=3).words) <= 4
    with pytest.raises(SystemExit, match="needs two of"):
        data.load(str(tmp_path / "nowhere"))
