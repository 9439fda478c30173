"""`--task causal-lm`: text in, a language model out, with its cache and samples; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain import text
from tests.text.models import TEXTS, WORDS, decoder, tokenizer_json, write_jsonl
from tests.text.test_models import empty_cache
from tests.text.test_models import run as logits

from .models import classifier, write_npz

pytest.importorskip("tokenizers")
TASK = ("--task", "causal-lm", "--tokenizer", "tokenizer.json", "--lr", "0.02")


@pytest.fixture
def files(folder) -> None:
    onnx.save(decoder(), "lm.onnx")
    tokenizer_json()
    write_jsonl()


def test_a_language_model_is_trained_on_text(run, files) -> None:
    result = run(
        "train", "lm.onnx", "--data", "text.jsonl", "--val", "text.jsonl", *TASK, "--epochs", "30",
        "--batch-size", "4", "--max-length", "16", "--prompt", "the cat", "--output", "a",
        "--accumulate", "2", "--recompute", "auto",
    )  # fmt: skip
    assert result.code == 0, result.err
    history = json.loads(Path("a/history.json").read_text())
    perplexity = history["val_perplexity"]
    assert perplexity[-1] < 0.6 * perplexity[0]
    assert perplexity[-1] == pytest.approx(np.exp(history["val_loss"][-1]))
    samples = Path("a/samples.txt").read_text()
    assert "prompt: 'the cat'" in samples
    assert "before: " in samples
    assert "after: " in samples
    assert "the cat" in Path("a/report.html").read_text()
    trained, original = onnx.load("a/model.onnx"), onnx.load("lm.onnx")
    for values in ("input", "output"):
        names = [[v.name for v in getattr(m.graph, values)] for m in (trained, original)]
        assert names[0] == names[1]
    ids = np.array([[3, 4, 5], [3, 10, 11]])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids),
             "position_ids": np.tile(np.arange(3), (2, 1)), **empty_cache()}  # fmt: skip
    assert np.abs(logits(trained, feeds) - logits(original, feeds)).max() > 0.1


def test_packed_texts_are_kept_apart_where_the_model_allows_it(run, files) -> None:
    options = ("--data", "text.jsonl", *TASK, "--max-length", "16", "--sample-tokens", "0")
    result = run("train", "lm.onnx", *options, "--epochs", "1", "--output", "a")
    assert result.code == 0, result.err
    assert "see each other" not in result.err
    inputs = [i.name for i in onnx.load("a/artifacts/training_model.onnx").graph.input]
    assert "documents" in inputs
    assert "documents" not in [i.name for i in onnx.load("a/model.onnx").graph.input]
    model = onnx.load("lm.onnx")  # positions that the model counts itself
    del model.graph.input[2]
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["input_ids"], ["position_ids"]))
    onnx.save(model, "counts.onnx")
    result = run("train", "counts.onnx", *options, "--epochs", "1", "--output", "b")
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert "the model takes no position_ids" in said
    assert "Packed texts see each other; --no-packing gives each a row" in said


def test_an_adapter_is_trained_on_text(run, files) -> None:
    Path("text.txt").write_text("\n".join(TEXTS * 3))
    result = run(
        "lora", "lm.onnx", "--data", "text.txt", "--no-packing", "--padding-side", "left", *TASK,
        "--rank", "2", "--epochs", "2", "--sample-tokens", "0", "--output", "a",
    )  # fmt: skip
    assert result.code == 0, result.err
    names = {p.name for p in Path("a").iterdir()}
    assert {"model.onnx", "adapter", "adapter.onnx_adapter", "base.onnx"} <= names
    assert "samples.txt" not in names
    assert Path("a/artifacts/tokenizer.json").read_bytes() == Path("tokenizer.json").read_bytes()
    with_cache = {i.name for i in onnx.load("a/model.onnx").graph.input}
    assert "past_key_values.1.value" in with_cache


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "causal-lm"), "--tokenizer tokenizer.json"),
        (("--task", "casual-lm"), "Did you mean 'causal-lm'"),
        (("--loss", "causal_lm", "--tokenizer", "tokenizer.json"), "goes with --task causal-lm"),
        ((*TASK, "--loss", "mse"), "leave --loss out"),
        ((*TASK, "--padding-side", "up"), "--padding-side 'up'"),
        ((*TASK, "--text-column", "body"), "no column 'body'"),
        ((*TASK, "--sample-tokens", "-1"), "--sample-tokens is -1"),
        (("--task", "causal-lm", "--tokenizer", "large.json"), "do not belong together"),
        (("--task", "causal-lm", "--tokenizer", "no.json"), "There is no tokenizer file"),
        ((*TASK, "--data", "long.txt", "--max-length", "65"), "a smaller --max-length"),
    ],
)
def test_mistakes_are_told(run, files, arguments, said) -> None:
    tokenizer_json("large.json", [*WORDS, "zebra"])
    Path("long.txt").write_text("the cat sat on a mat " * 20)
    result = run("train", "lm.onnx", "--data", "text.jsonl", *arguments)
    assert result.code in (1, 2)
    assert said in " ".join(result.err.split())
    assert not Path("runs").exists()


def test_arrays_of_tokens_need_no_task(run, folder) -> None:
    onnx.save(decoder(cache=False), "lm.onnx")
    tokenizer_json()
    inputs = text.LanguageInputs.of("lm.onnx")
    rows = text.causal_lm_rows(TEXTS * 4, "tokenizer.json", 8)
    np.savez("train.npz", **rows.arrays(inputs))
    result = run("train", "lm.onnx", "--data", "train.npz", "--loss", "causal_lm", "--epochs", "1")
    assert result.code == 0, result.err
    wrong = rows.arrays(inputs)
    wrong["labels"] = wrong["labels"] + 50
    np.savez("wrong.npz", **wrong)
    result = run("train", "lm.onnx", "--data", "wrong.npz", "--loss", "causal_lm")
    assert "the model has 21 classes" in " ".join(result.err.split())


def test_a_student_learns_from_a_teacher(run, files) -> None:
    """A language model and its teacher, both with a cache; and a classifier."""
    onnx.save(decoder(1, seed=3), "small.onnx")
    result = run(
        "train", "small.onnx", "--data", "text.jsonl", *TASK, "--teacher", "lm.onnx", "--epochs",
        "1", "--sample-tokens", "0", "--max-length", "16", "--output", "a",
    )  # fmt: skip
    assert result.code == 0, result.err
    weights = {t.name for t in onnx.load("a/model.onnx").graph.initializer}
    assert weights == {t.name for t in onnx.load("small.onnx").graph.initializer}
    classifier("teacher.onnx")
    classifier("student.onnx")
    write_npz()
    options = ("--data", "train.npz", "--teacher", "teacher.onnx", "--epochs", "2", "--output", "b")
    result = run("train", "student.onnx", "--loss", "cross_entropy", *options)
    assert result.code == 0, result.err
    assert {t.name for t in onnx.load("b/model.onnx").graph.initializer} == {
        "enc_w", "head_w", "head_b"
    }  # fmt: skip
    for arguments, said in (
        (("--loss", "mse"), "compares classes or tokens"),
        (("--loss", "cross_entropy", "--temperature", "0"), "--temperature is a positive"),
        (("--loss", "cross_entropy", "--distill-alpha", "2"), "at most 1"),
    ):
        result = run("train", "student.onnx", *arguments, *options)
        assert said in " ".join(result.err.split())
