"""The example with a BERT-like classifier runs, and learns the same with and without ORTModule."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import onnx
import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "bert_classification"
MODULES = ("data", "model", "train")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(FOLDER))
    kept = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(kept)


SMALL = [
    "--pretrain", "3", "--log-every", "3", "--epochs", "1", "--steps", "6", "--batch", "8",
    "--width", "16", "--heads", "2", "--layers", "1", "--length", "12", "--vocabulary", "200",
    "--dropout", "0", "--exporter", "torchscript",
]  # fmt: skip


def test_same_curve_as_torch_and_export(
    example: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = example["train"].main
    ort = main([*SMALL, "--output", str(tmp_path / "ort.onnx")])
    plain = main([*SMALL, "--output", str(tmp_path / "torch.onnx"), "--plain-torch"])
    assert len(ort.losses) == 6
    assert ort.losses == pytest.approx(plain.losses, rel=1e-4)
    assert ort.accuracies == plain.accuracies == [ort.exported_accuracy]
    model = onnx.load(tmp_path / "ort.onnx")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param for d in dims] == ["batch", "length"]
    assert "accuracy" in capsys.readouterr().out


def test_corpus(example: dict[str, ModuleType]) -> None:
    data = example["data"]
    corpus = data.load(length=16, vocabulary=300)
    rows, labels = corpus.train
    assert len(corpus.words) == 300
    assert rows.shape == (len(labels), 16)
    assert (rows[:, 0] == data.START).all()
    assert set(labels.tolist()) == set(range(len(data.PACKAGES)))
    most = Counter(corpus.valid[1].tolist()).most_common(1)[0][1]
    assert most < 0.4 * len(corpus.valid[1])
    hidden, targets = data.hide(rows, 300, torch.Generator().manual_seed(0))
    chosen = targets != -100
    assert torch.equal(targets[chosen], rows[chosen])
    assert torch.equal(hidden[~chosen], rows[~chosen])
    share = (hidden[chosen] == data.MASK).float().mean()
    assert 0.7 < share < 0.9
