"""`--task sentence-similarity`: pairs in, an encoder out, measured before and after; mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain import text
from tests.text.models import WORDS, tokenizer_json
from tests.text.test_encoder import SIZE, encoder

pytest.importorskip("tokenizers")
TASK = ("--task", "sentence-similarity", "--tokenizer", "tokenizer.json", "--lr", "0.05")
ALIKE = [(WORDS[2 * i], WORDS[2 * i + 1]) for i in range(8)]


@pytest.fixture
def files(folder) -> None:
    onnx.save(encoder(), "encoder.onnx")
    tokenizer_json()
    scored = [(a, b, 5) for a, b in ALIKE]
    scored += [(a, ALIKE[i - 3][1], 1) for i, (a, _) in enumerate(ALIKE)]
    write_csv("scored.csv", "sentence1,sentence2,score", scored)
    write_csv("pairs.csv", "anchor,positive", ALIKE)
    triples = [(a, b, ALIKE[i - 2][0]) for i, (a, b) in enumerate(ALIKE)]
    rows = [dict(zip(("anchor", "positive", "negative"), t)) for t in triples]
    Path("triples.jsonl").write_text("\n".join(map(json.dumps, rows)))


def write_csv(path: str, head: str, rows) -> None:
    Path(path).write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


def measured(folder: str) -> dict[str, dict[str, float]]:
    return json.loads(Path(folder, "similarity.json").read_text())


def test_scored_pairs_are_put_in_order(run, files) -> None:
    result = run("train", "encoder.onnx", "--data", "scored.csv", "--val", "scored.csv", *TASK,
                 "--epochs", "25", "--output", "a")  # fmt: skip
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert "16 rows of 2 texts with a score; the loss is cosent" in said
    assert "before: spearman" in said
    values = measured("a")
    assert values["after"]["spearman"] > 0.8
    assert values["after"]["spearman"] > values["before"]["spearman"] + 0.3
    assert "spearman" in Path("a/report.html").read_text()
    # what was measured is what the written encoder gives
    session = ort.InferenceSession("a/sentence_encoder.onnx", providers=["CPUExecutionProvider"])
    assert [o.name for o in session.get_outputs()] == ["sentence_embedding"]
    inputs = text.LanguageInputs.of("a/model.onnx")
    tokenizer = text.load_tokenizer("tokenizer.json")
    pairs, scores = text.read_pairs("scored.csv")
    a, b = (
        text.embed(lambda f: session.run(None, f)[0], inputs, tokenizer, [p[i] for p in pairs])
        for i in (0, 1)
    )
    got = text.spearman(text.cosine_similarities(a, b), np.array(scores))
    assert got == pytest.approx(values["after"]["spearman"], abs=1e-3)
    trained = onnx.load("a/model.onnx")
    assert [o.name for o in trained.graph.output] == ["h"]  # the inputs and outputs it came with


@pytest.mark.parametrize(
    ("data", "options", "loss", "measure"),
    [
        ("pairs.csv", (), "multiple_negatives_ranking", "accuracy_at_1"),
        ("pairs.csv", ("--matryoshka", f"{SIZE},3"), "multiple_negatives_ranking", "accuracy_at_1"),
        ("triples.jsonl", ("--loss", "triplet", "--margin", "2"), "triplet", "triplet_accuracy"),
        ("triples.jsonl", ("--pooling", "cls"), "multiple_negatives_ranking", "accuracy_at_1"),
        ("half.csv", ("--loss", "cosine_similarity"), "cosine_similarity", "spearman"),
    ],
)
def test_losses(run, files, data, options, loss, measure) -> None:
    write_csv("half.csv", "text1,text2,score", [(a, b, 1.0) for a, b in ALIKE] + [
        (a, ALIKE[i - 3][1], 0.1) for i, (a, _) in enumerate(ALIKE)])  # fmt: skip
    result = run("train", "encoder.onnx", "--data", data, *TASK, *options, "--epochs", "20",
                 "--output", "a")  # fmt: skip
    assert result.code == 0, result.err
    assert f"the loss is {loss}" in " ".join(result.err.split())
    before, after = measured("a")["before"], measured("a")["after"]
    assert after[measure] > before[measure]
    assert after[measure] > 0.8


def test_an_adapter_is_trained_on_pairs_and_the_run_resumes(run, files) -> None:
    line = ("lora", "encoder.onnx", "--data", "pairs.csv", *TASK, "--rank", "2")
    result = run(*line, "--epochs", "2", "--output", "a")
    assert result.code == 0, result.err
    assert {"adapter", "model.onnx", "sentence_encoder.onnx"} <= {
        p.name for p in Path("a").iterdir()
    }
    assert run(*line, "--epochs", "3", "--output", "a", "--resume").code == 0
    assert len(json.loads(Path("a/history.json").read_text())["loss"]) == 3


def test_columns_have_other_names(run, files) -> None:
    write_csv(
        "named.csv", "id,left,right,how", [(i, a, b, i % 3) for i, (a, b) in enumerate(ALIKE)]
    )
    result = run("train", "encoder.onnx", "--data", "named.csv", *TASK, "--features", "left,right",
                 "--target", "how", "--epochs", "1", "--output", "a")  # fmt: skip
    assert result.code == 0, result.err
    assert "with a score; the loss is cosent" in " ".join(result.err.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--loss", "mse"), "--loss 'mse' is not known"),
        (("--loss", "triplet"), "takes three texts per row"),
        (("--loss", "cosent"), "takes a number per row, and pairs.csv has none"),
        (("--data", "scored.csv", "--loss", "cosine_similarity"), "scores up to 5"),
        (("--pooling", "max"), "--pooling 'max' is not known"),
        (("--matryoshka", "4,big"), "lengths with commas"),
        (("--matryoshka", "64"), "go up to 64"),
        (("--val", "triples.jsonl"), "has 3 texts per row, and pairs.csv 2"),
        (("--features", "left,right"), "has no 'left'"),
        (("--tokenizer", "large.json"), "do not belong together"),
        (("--teacher", "encoder.onnx"), "--teacher compares classes or tokens"),
        (("--scale", "0"), "--scale is 0"),
        (
            ("--data", "pairs.csv", "--features", "anchor,q"),
            "pairs.csv, line 2 has no 'q'; it has 'anchor', 'positive'.",
        ),
        (("--data", "short.csv"), "line 2 has 1 columns, and the first line 2"),
        (("--data", "words.csv"), "'score' is str 'high', and it must be a number"),
    ],
)
def test_mistakes_are_told(run, files, options, said) -> None:
    tokenizer_json("large.json", [*WORDS, "zebra"])
    write_csv("short.csv", "anchor,positive", [("one",)])
    write_csv("words.csv", "sentence1,sentence2,score", [("one", "two", "high")])
    result = run("train", "encoder.onnx", "--data", "pairs.csv", *TASK, *options)
    assert result.code == 1
    assert said in " ".join(result.err.split())
    assert not Path("runs").exists()


def test_a_loss_of_vectors_needs_the_task(run, files) -> None:
    result = run("train", "encoder.onnx", "--data", "pairs.csv", "--loss", "cosent")
    assert "goes with --task sentence-similarity" in " ".join(result.err.split())


def test_a_vector_that_all_texts_share_is_nearest_to_none() -> None:
    from onnxtrain.cli.similarity import measures

    same, different = np.ones((4, 3)), np.eye(4)
    assert measures([same, same], None) == {"accuracy_at_1": 0.0}
    assert measures([different, different], None) == {"accuracy_at_1": 1.0}
    twice = different[[0, 0, 1, 2]]  # two rows have one text: it is right for both
    tokens = np.array([[5], [5], [6], [7]])
    assert measures([twice, twice], None, tokens) == {"accuracy_at_1": 1.0}
    assert measures([twice, twice], None) == {"accuracy_at_1": 0.5}
