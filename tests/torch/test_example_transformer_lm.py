"""The getting-started example: both scripts run, and without dropout they have the same curve."""

from __future__ import annotations

import copy
import importlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from onnxtrain.graph.contract import RANDOM_INPUT

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


def test_with_dropout_the_perplexity_agrees(example) -> None:
    """Masks differ, so the curves do; averaged over seeds the final perplexity is the same.

    At a learning rate of 5 so short a run depends on the masks by 10 %, whoever draws them; at 1
    by less than 0.1 %. The last line is what the tolerance is worth: no dropout changes far more.
    """
    sizes = ["--steps", "40", "--epochs", "5", "--vocabulary", "100", "--width", "32"]
    arguments = [*sizes, "--rate", "1", "--decay", "0.5"]
    found = example["compare"].main([*arguments, "--seeds", "2"])
    plain, ort = (statistics.fmean(found[name]) for name in ("PyTorch", "ORTTrainer"))
    assert found["PyTorch"] != found["ORTTrainer"]
    assert ort == pytest.approx(plain, rel=0.02)
    without = example["train"].main([*arguments, "--dropout", "0"]).perplexities[-1]
    assert without != pytest.approx(plain, rel=0.04)


def drops_of(graph: onnx.GraphProto) -> list[tuple[str, str, str]]:
    """Input, result and mask of what was a Dropout: mask → uint8 → float → scaled → times x."""

    def reader(name: str, op_type: str) -> onnx.NodeProto:
        return next(n for n in graph.node if name in n.input and n.op_type == op_type)

    found = []
    for node in graph.node:
        if node.op_type == "LessOrEqual" and "/draw/" in node.name:
            mask = node.output[0]
            byte = next(n for n in graph.node if mask in n.input and "/draw/Cast" in n.name)
            scaled = reader(reader(byte.output[0], "Cast").output[0], "Mul")
            product = reader(scaled.output[0], "Mul")
            x = next(n for n in product.input if n != scaled.output[0])
            found.append((x, product.output[0], mask))
    return found


def test_every_dropout_drops_in_every_step(example, tmp_path: Path) -> None:
    """Rates, scale and independence of all masks, as the graph of the step draws them."""
    torch.manual_seed(0)
    rate, words, width = 0.2, 50, 16
    model = example["model"].TransformerModel(words, width, hidden=width, dropout=rate)
    sites = sum(isinstance(m, nn.Dropout) for m in model.modules())
    sites += sum(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    trainer = example["train_ort"].OrtTrainer(model, words)
    source, target = torch.randint(words, (35, 20)), torch.randint(words, (700,))
    trainer.step(source, target, 0.0)
    engine = trainer.trainer._core.engine
    (step,) = engine._steps.values()
    proto = onnx.load_from_string(step.artifact.model.encode())
    # onnxruntime's own optimizations leave every draw in place
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(proto.SerializeToString(), options)
    kept = onnx.load(tmp_path / "optimized.onnx")
    assert sum(n.op_type == "LessOrEqual" for n in kept.graph.node) == sites == 9
    drops = drops_of(proto.graph)
    seen = [name for names in drops for name in names]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(seen))
    options.optimized_model_filepath = ""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    feeds = {"src": source.numpy(), "label": target.numpy(), **engine.weights()}
    feeds |= {"learning_rate": np.zeros(1, np.float32), "step": np.ones(1, np.int64)}
    feeds = {i.name: feeds[i.name] for i in session.get_inputs() if i.name != RANDOM_INPUT}
    masks: list[list[np.ndarray]] = [[] for _ in drops]
    for count in range(20):
        found = session.run(seen, {**feeds, RANDOM_INPUT: np.array([5, count])})
        for i, (x, y, mask) in enumerate(zip(found[::3], found[1::3], found[2::3])):
            np.testing.assert_allclose(y, x * mask / (1 - rate), rtol=1e-5, atol=1e-7)
            masks[i].append(mask.ravel() - (1 - rate))
    variance = rate * (1 - rate)
    deviations = [np.array(m) for m in masks]
    for i, d in enumerate(deviations):
        assert abs(d.mean()) < 5 * (variance / d.size) ** 0.5  # the rate
        assert abs(np.mean(d[1:] * d[:-1])) < 0.03 * variance  # from step to step
        assert abs(np.mean(d[:, 1:] * d[:, :-1])) < 0.03 * variance  # between neighbours
        for other in deviations[:i]:
            if other.shape == d.shape:
                assert abs(np.mean(d * other)) < 0.03 * variance  # between sites


def test_the_loss_with_dropout_has_torchs_distribution(example) -> None:
    """At fixed weights, over many draws: mean and spread, which a missing site would change."""
    torch.manual_seed(0)
    words, count = 50, 300
    model = example["model"].TransformerModel(words, 16, hidden=16, dropout=0.2)
    plain = example["train"].TorchTrainer(model, words)
    source = torch.randint(words, (35, 20))
    target = ((source * 7 + 3) % words).reshape(-1)
    for _ in range(100):
        plain.step(source, target, 1.0)
    ort = example["train_ort"].OrtTrainer(copy.deepcopy(model), words)
    a, b = (np.array([t.step(source, target, 0.0) for _ in range(count)]) for t in (plain, ort))
    assert ort.evaluate(source, target) == pytest.approx(plain.evaluate(source, target), rel=1e-4)
    assert a.mean() > 2 * plain.evaluate(source, target)  # dropout does something
    assert abs(a.mean() - b.mean()) < 4 * ((a.var() + b.var()) / count) ** 0.5
    assert b.std() == pytest.approx(a.std(), rel=0.25)


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
