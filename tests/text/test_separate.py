"""Packed texts that do not see each other compute what each computes in a row of its own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain import artifacts, losses, text
from onnxtrain.api import Trainer
from tests.onnxblock.harness import run

from .models import TEXTS, decoder, tokenizer_json

pytest.importorskip("tokenizers")
SIZE, WORDS = 4, 21


def attention(
    nodes: str, inputs: str = "", opset: str = '"": 18', last: str = "v"
) -> onnx.ModelProto:
    """One layer of attention over words and positions; `nodes` computes v from q."""
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{opset}]>"
        f"g (int64[batch, length] input_ids, int64[batch, length] position_ids{inputs})"
        f" => (float[batch, length, {WORDS}] logits)"
        "{ w = Gather (words, input_ids) p = Gather (places, position_ids) q = Add (w, p)"
        f"{nodes} logits = MatMul ({last}, out) }}"
    )
    rng = np.random.default_rng(0)
    shapes = {"words": (WORDS, SIZE), "places": (64, SIZE), "out": (SIZE, WORDS)}
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    for name, array in {"one": [1], "heads": [0, 0, 2, 2], "joined": [0, 0, SIZE]}.items():
        if any(name in n.input for n in model.graph.node):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(array), name))
    return model


SPLIT = "h = Reshape (q, heads) t = Transpose <perm = [0, 2, 1, 3]> (h)"
SCORED = f"{SPLIT} k = Transpose <perm = [0, 2, 3, 1]> (h) s = MatMul (t, k)"
JOIN = "y = MatMul (a, t) z = Transpose <perm = [0, 2, 1, 3]> (y) v = Reshape (z, joined)"
OPERATOR = "<q_num_heads = 2, kv_num_heads = 2, is_causal = 1>"
FORMS = {
    "two layers, a mask per token": decoder(cache=False),
    "a mask of pairs to add": attention(
        f"{SCORED} b = Add (s, attention_mask) a = Softmax <axis = -1> (b) {JOIN}",
        ", float[batch, one, length, length] attention_mask",
    ),
    "a mask of pairs, of flags": attention(
        f"{SCORED} b = Where (attention_mask, s, far) a = Softmax <axis = -1> (b) {JOIN}".replace(
            "b = Where", "far = Constant <value_float = -1e9> () b = Where"
        ),
        ", bool[batch, one, length, length] attention_mask",
    ),
    "an operator": attention(f"v = Attention {OPERATOR} (q, q, q)", opset='"": 23'),
    "a fused operator": attention(
        "v = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> (q, q, q)",
        opset='"": 18, "com.microsoft": 1',
    ),
}
"""The same attention as exporters write it."""


def alone(model: onnx.ModelProto, ids: list[int]) -> np.ndarray:
    """Scores of one text in a row of its own, by the model as it was."""
    names = {i.name: i for i in model.graph.input}
    tokens = np.array([ids])
    feeds = {"input_ids": tokens, "position_ids": np.arange(len(ids))[None]}
    if "attention_mask" in names:
        kind = names["attention_mask"].type.tensor_type
        seen = np.tril(np.ones((len(ids), len(ids)), bool))[None, None]
        feeds["attention_mask"] = (
            np.ones_like(tokens) if len(kind.shape.dim) == 2
            else seen if kind.elem_type == onnx.TensorProto.BOOL
            else np.where(seen, 0, -1e9).astype(np.float32)
        )  # fmt: skip
    return run(model, feeds)[0][0]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("form", FORMS)
def test_scores_of_packed_texts_are_those_of_each(form, side) -> None:
    model = FORMS[form]
    separated = text.separate_documents(model)
    inputs = text.LanguageInputs.of(separated)
    texts = [[3, 5, 4, 7], [8, 9], [6, 3, 10, 11, 12]]
    tokens, documents = np.zeros((2, 8), np.int64), np.full((2, 8), -1)
    places = [(0, 0, 0, 0), (0, 1, 4, 1), (1, 2, 0, 0)]
    shift = 2 if side == "left" else 0
    for row, index, start, number in places:
        at = slice(start + shift, start + shift + len(texts[index]))
        tokens[row, at], documents[row, at] = texts[index], number
    mask = (documents >= 0).astype(np.int64)
    (scores,) = run(separated, inputs.feeds(tokens, mask, documents))
    for row, index, start, _ in places:
        got = scores[row, start + shift : start + shift + len(texts[index])]
        np.testing.assert_allclose(got, alone(model, texts[index]), rtol=1e-4, atol=1e-5)


def rows(separate: bool, packing: bool = True) -> text.Rows:
    return text.causal_lm_rows(TEXTS * 2, "tokenizer.json", 16, packing=packing, separate=separate)


def test_loss_and_gradient_of_packed_texts_are_those_of_rows(tmp_path, monkeypatch) -> None:
    """All texts in one batch: the same loss, and after one step the same weights."""
    monkeypatch.chdir(tmp_path)
    tokenizer_json()
    packed, single = rows(separate=True), rows(separate=False, packing=False)
    assert len(packed.tokens) < len(single.tokens)
    assert packed.documents.max() >= 1
    results = []
    for name, data, model in (
        ("single", single, decoder(cache=False)),
        ("packed", packed, text.separate_documents(decoder(cache=False))),
    ):
        (tmp_path / name).mkdir()
        artifacts.generate_artifacts(
            model, loss=losses.CausalLMLoss(), optimizer=artifacts.OptimType.SGD,
            artifact_directory=tmp_path / name,
        )  # fmt: skip
        trainer = Trainer.from_directory(name, learning_rate=0.5)
        arrays = data.arrays(text.LanguageInputs.of(model))
        loss = trainer.evaluate(arrays, 100)["loss"]
        trainer.fit(arrays, 1, 100, progress=False)
        results.append((loss, {n: p.data.copy() for n, p in trainer.state.parameters}))
    (want, before), (got, after) = results
    assert got == pytest.approx(want, rel=1e-5)
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-6)


def test_texts_share_rows_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer_json()
    packed = rows(separate=True)
    tokenizer = text.load_tokenizer("tokenizer.json")
    lengths = []
    for row, numbers in enumerate(packed.documents):
        for number in range(numbers.max() + 1):
            place = np.flatnonzero(numbers == number)
            assert (np.diff(place) == 1).all()
            assert packed.labels[row, place[0]] == text.IGNORED
            lengths.append(len(place))
    want = [len(ids) + 1 for ids in tokenizer.encode(TEXTS * 2)]  # with the end of each
    assert sorted(lengths) == sorted(want)
    assert (packed.documents >= 0).sum() == packed.mask.sum() == sum(want)
    long = text.causal_lm_rows(
        ["the cat sat on a mat and a dog"], "tokenizer.json", 4, separate=True
    )
    assert [int(d.max()) for d in long.documents] == [0, 0, 0]  # three pieces, none shares a row


def test_what_cannot_be_kept_apart_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer_json()
    plain = decoder(cache=False)
    with pytest.raises(text.TextError, match=r"text\.separate_documents"):
        rows(separate=True).arrays(text.LanguageInputs.of(plain))
    with pytest.raises(text.TextError, match="has a cache"):
        text.separate_documents(decoder())
    no_positions = decoder(cache=False)
    del no_positions.graph.input[2]
    constant = onnx.helper.make_node("Identity", ["input_ids"], ["position_ids"])
    no_positions.graph.node.insert(0, constant)
    with pytest.raises(text.TextError, match="takes no position_ids"):
        text.separate_documents(no_positions)
    with pytest.raises(text.TextError, match="no attention in a form that is known"):
        text.separate_documents(attention("v = Relu (q)"))
    flat = attention("k = Transpose <perm = [0, 2, 1]> (q) s = MatMul (q, k) a = Softmax (s)"
                     " v = MatMul (a, q)")  # fmt: skip
    with pytest.raises(text.TextError, match="have 3 dimensions"):
        text.separate_documents(flat)
    pairs = FORMS["a mask of pairs to add"]
    with pytest.raises(text.TextError, match="separate_documents computes a mask of pairs"):
        text.LanguageInputs.of(pairs)
