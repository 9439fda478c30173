"""Sentence encoders: pooling found or added, several texts in one run, vectors that learn."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import artifacts, losses, text
from onnxtrain.api import Trainer
from tests.onnxblock.harness import run

from .models import VOCABULARY, WORDS, tokenizer_json

pytest.importorskip("tokenizers")
SIZE = 6


def encoder(states: bool = True, mask: bool = True) -> onnx.ModelProto:
    """Tokens to states [batch, length, size]; or to a vector, the sum over the tokens."""
    given = ", int64[batch, length] attention_mask" if mask else ""
    end = (
        "" if states else "two = Constant <value_ints = [1]> () v = ReduceSum <keepdims=0> (h, two)"
    )
    out = f"float[batch, length, {SIZE}] h" if states else f"float[batch, {SIZE}] v"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        f"g (int64[batch, length] input_ids{given}) => ({out})"
        f"{{ e = Gather (words, input_ids) m = MatMul (e, mix) h = Tanh (m) {end} }}"
    )
    rng = np.random.default_rng(0)
    for name, shape in {"words": (VOCABULARY, SIZE), "mix": (SIZE, SIZE)}.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


IDS = np.array([[3, 4, 5, 0], [6, 7, 0, 0], [8, 9, 10, 11]])
MASK = (IDS > 0).astype(np.int64)
FEEDS = {"input_ids": IDS, "attention_mask": MASK}


def test_states_are_averaged_over_the_tokens_that_the_mask_has() -> None:
    (states,) = run(encoder(), FEEDS)
    want = (states * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True)
    (got,) = run(text.sentence_encoder(encoder()), FEEDS)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    (first,) = run(text.sentence_encoder(encoder(), pooling="cls"), FEEDS)
    np.testing.assert_allclose(first, states[:, 0], rtol=1e-6)
    (unit,) = run(text.sentence_encoder(encoder(), normalize=True), FEEDS)
    np.testing.assert_allclose(unit, want / np.linalg.norm(want, axis=1, keepdims=True), rtol=1e-5)
    plain = text.sentence_encoder(encoder(mask=False))
    np.testing.assert_allclose(run(plain, {"input_ids": IDS})[0], states.mean(1), rtol=1e-5)


def test_vectors_are_taken_as_they_are() -> None:
    model = encoder(states=False, mask=False)
    (want,) = run(model, {"input_ids": IDS})
    made = text.sentence_encoder(model)
    assert [o.name for o in made.graph.output] == ["sentence_embedding"]
    np.testing.assert_array_equal(run(made, {"input_ids": IDS})[0], want)
    with pytest.raises(text.TextError, match="pooling='mean'"):
        text.sentence_encoder(model, pooling="mean")
    with pytest.raises(text.TextError, match="pooling='none'"):
        text.sentence_encoder(encoder(), pooling="none")
    with pytest.raises(text.TextError, match="not 'max'"):
        text.sentence_encoder(model, pooling="max")  # type: ignore[arg-type]


def test_texts_of_a_row_are_encoded_in_one_run() -> None:
    single = text.sentence_encoder(encoder())
    double = text.sentence_encoder(encoder(), texts=2)
    onnx.checker.check_model(double, full_check=True)
    assert [o.name for o in double.graph.output] == ["sentence_embedding_0", "sentence_embedding_1"]
    assert sum(n.op_type == "Tanh" for n in double.graph.node) == 1
    pairs = {k: np.stack([v, v[::-1]], axis=1) for k, v in FEEDS.items()}
    (want,) = run(single, FEEDS)
    first, second = run(double, pairs)
    np.testing.assert_allclose(first, want, rtol=1e-6)
    np.testing.assert_allclose(second, want[::-1], rtol=1e-6)


def test_pairs_come_closer(tmp_path) -> None:
    onnx.save(encoder(), tmp_path / "encoder.onnx")
    tokenizer = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    inputs = text.LanguageInputs.of(tmp_path / "encoder.onnx")
    pairs = [(WORDS[i], WORDS[-1 - i]) for i in range(8)]
    (tmp_path / "run").mkdir()
    artifacts.generate_artifacts(
        text.sentence_encoder(tmp_path / "encoder.onnx", texts=2),
        loss=losses.MatryoshkaLoss(losses.MultipleNegativesRankingLoss(), [SIZE, 3]),
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path / "run",
    )
    data = text.similarity_rows(pairs, tokenizer, inputs)
    assert {k: v.shape for k, v in data.items()} == dict.fromkeys(FEEDS, (8, 2, 1))
    trainer = Trainer.from_directory(tmp_path / "run", learning_rate=0.05)
    history = trainer.fit(data, 40, 8, progress=False)
    assert history["loss"][-1] < 0.3 * history["loss"][0]
    text.with_weights(tmp_path / "encoder.onnx", trainer.state, tmp_path / "trained.onnx")
    plain = text.sentence_encoder(tmp_path / "trained.onnx")

    def vectors(feeds):
        return run(plain, feeds)[0]

    a, b = (text.embed(vectors, inputs, tokenizer, [p[i] for p in pairs]) for i in (0, 1))
    assert text.cosine_similarities(a, b).min() > 0.6
    assert np.median(text.cosine_similarities(a, b[::-1])) < 0.5


def test_rows_in_all_their_forms(tmp_path) -> None:
    tokenizer = tokenizer_json(tmp_path / "tokenizer.json")
    inputs = text.LanguageInputs.of(encoder())
    want = text.similarity_rows([("the cat", "a dog", 0.5), ("now", "then", 1)], tokenizer, inputs)
    assert want["target"].tolist() == [0.5, 1.0]
    assert want["attention_mask"].tolist() == [[[1, 1], [1, 1]], [[1, 0], [1, 0]]]
    rows = [
        {"sentence1": "the cat", "sentence2": "a dog", "score": 0.5},
        {"sentence1": "now", "sentence2": "then", "score": 1},
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for source in (rows, tmp_path / "d.jsonl"):
        got = text.similarity_rows(source, tokenizer, inputs)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([], {}, "no rows"),
        ([[]], {}, "name two or more columns"),
        ([{"a": "x", "b": "y"}], {}, "name two or more columns"),
        ([("x",)], {}, "name two or more columns"),
        ([{"a": "x", "b": 3}], {"columns": ("a", "b")}, "'b' is int, and it must be text"),
        ([{"anchor": "x", "positive": "y", "score": "high"}], {}, "must be a number"),
        ([("x", "y"), ("x",)], {}, "Row 1 has no 1"),
        ([3], {}, "rows are dicts or tuples"),
        (3, {}, "are not understood"),
    ],
)
def test_wrong_rows_are_told(tmp_path, rows, options, said) -> None:
    tokenizer = tokenizer_json(tmp_path / "tokenizer.json")
    with pytest.raises(text.TextError, match=said):
        text.similarity_rows(rows, tokenizer, text.LanguageInputs.of(encoder()), **options)


def test_spearman_equals_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 6, 30), rng.normal(size=30)
        assert text.spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert np.isnan(text.spearman(np.ones(3), np.arange(3)))
