"""Text to rows: packed and filled up, prompts left out, and every way in which files are wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from onnxtrain import text
from onnxtrain.errors import OnnxTrainWarning

from .models import TEXTS, VOCABULARY, WORDS, tokenizer_json, write_jsonl

pytest.importorskip("tokenizers")
PAD, EOS = 0, 1


@pytest.fixture
def tokenizer(tmp_path) -> text.Tokenizer:
    return text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))


def test_a_tokenizer_knows_its_special_tokens(tmp_path, tokenizer) -> None:
    assert (tokenizer.size, tokenizer.pad_id, tokenizer.eos_id) == (VOCABULARY, PAD, EOS)
    assert tokenizer.bos_id is None
    ids = tokenizer.encode(["the cat", "zebra"])
    assert ids == [[3, 4], [2]]
    assert tokenizer.decode([3, 4, EOS]) == "the cat"
    named = {"eos_token": {"content": "the"}, "pad_token": "cat", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    again = text.load_tokenizer(tmp_path)
    assert (again.eos_id, again.pad_id) == (3, 4)


def test_objects_of_other_packages_are_tokenizers(tokenizer) -> None:
    assert text.load_tokenizer(tokenizer) is tokenizer
    assert text.load_tokenizer(tokenizer.backend).size == VOCABULARY
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, eos_token="cat")
    assert text.load_tokenizer(fast).eos_id == 4
    with pytest.raises(text.TextError, match="not dict"):
        text.load_tokenizer({})


def test_packed_rows_hold_every_token_once(tokenizer) -> None:
    rows = text.causal_lm_rows(TEXTS, tokenizer, 9)
    assert rows.tokens.shape[1] == 9
    want = [t for ids in tokenizer.encode(TEXTS) for t in [*ids, EOS]]
    assert rows.tokens[rows.mask > 0].tolist() == want
    np.testing.assert_array_equal(rows.labels[rows.mask > 0], rows.tokens[rows.mask > 0])
    assert (rows.mask[:-1] == 1).all()
    assert (rows.labels[rows.mask == 0] == text.IGNORED).all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_filled_rows_hold_a_text_each(tokenizer, side) -> None:
    rows = text.causal_lm_rows(TEXTS, tokenizer, 7, packing=False, padding_side=side)
    lengths = [min(len(ids) + 1, 7) for ids in tokenizer.encode(TEXTS)]
    assert rows.mask.sum(axis=1).tolist() == lengths
    assert rows.cut == sum(len(ids) + 1 > 7 for ids in tokenizer.encode(TEXTS))
    at = 0 if side == "right" else -1
    assert (rows.mask[:, at] == 1).all()
    assert (rows.tokens[rows.mask == 0] == PAD).all()


def test_a_prompt_is_read_and_not_learned(tmp_path, tokenizer) -> None:
    rows = [{"prompt": "the cat", "completion": "sat on"}, {"text": "a mat"}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = text.causal_lm_rows(tmp_path / "d.jsonl", tokenizer, packing=False)
    ignored = text.IGNORED
    sat, on, a, mat = tokenizer.encode(["sat on a mat"])[0]
    assert made.labels.tolist() == [
        [ignored, ignored, sat, on, EOS],
        [a, mat, EOS, ignored, ignored],
    ]
    assert made.tokens[0].tolist() == [3, 4, sat, on, EOS]


def test_every_kind_of_source_gives_the_same_rows(tmp_path, tokenizer) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": TEXTS, "n": range(len(TEXTS))}), tmp_path / "d.parquet")
    (tmp_path / "d.txt").write_text("\ufeff" + "\n".join(TEXTS), encoding="utf-8")
    write_jsonl(tmp_path / "d.jsonl", TEXTS)

    class Dataset:
        """As of Hugging Face: rows by iterating, each a dict."""

        def __iter__(self):
            return iter([{"body": t, "id": i} for i, t in enumerate(TEXTS)])

    want = text.causal_lm_rows(TEXTS, tokenizer, packing=False).tokens
    for source in ("d.parquet", "d.txt", "d.jsonl"):
        made = text.causal_lm_rows(tmp_path / source, tokenizer, packing=False)
        np.testing.assert_array_equal(made.tokens, want, err_msg=source)
    made = text.causal_lm_rows(Dataset(), tokenizer, packing=False, column="body")
    np.testing.assert_array_equal(made.tokens, want)


def test_a_real_data_set_of_hugging_face(tokenizer) -> None:
    datasets = pytest.importorskip("datasets")
    made = text.causal_lm_rows(datasets.Dataset.from_dict({"text": TEXTS}), tokenizer)
    np.testing.assert_array_equal(made.tokens, text.causal_lm_rows(TEXTS, tokenizer).tokens)


WRONG = {
    "no file": ("no.jsonl", None, "There is no file"),
    "a folder": ("folder.txt", "folder", "is a folder"),
    "another type": ("d.docx", b"x", "'.docx' is not known"),
    "no text": ("d.txt", b"", "holds no text"),
    "no utf-8": ("d.txt", b"good\n\xff\xfe", "line 2 is not text in UTF-8"),
    "no json": ("d.jsonl", b'{"text": "a"}\n{"text": ', "line 2 is not valid JSON"),
    "deep json": ("d.jsonl", b"[" * 100_000, "line 1 is not valid JSON"),
    "a number of a million digits": ("d.jsonl", b'{"text": ' + b"9" * 1_000_000, "not valid JSON"),
    "another column": ("d.jsonl", b'{"body": "x"}', "no column 'text'"),
    "a conversation": ("d.jsonl", b'{"messages": []}', "template"),
    "a text that is a number": ("d.jsonl", b'{"text": 3}', "'text' is a number"),
    "a row that is a number": ("d.jsonl", b"3", "is a number, and rows are texts"),
    "half a character": ("d.jsonl", rb'{"text": "a \ud800"}', "half of a character"),
    "no parquet": ("d.parquet", b"PAR1 and no more", "cannot be read as parquet"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_told(tmp_path, tokenizer, name) -> None:
    file, content, said = WRONG[name]
    if content == "folder":
        (tmp_path / file).mkdir()
    elif content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(text.TextError, match=said):
        text.causal_lm_rows(tmp_path / file, tokenizer, packing=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_length": 1}, "at least 2"),
        ({"padding_side": "top"}, "'right' or 'left'"),
    ],
)
def test_wrong_settings_are_told(tokenizer, options, said) -> None:
    with pytest.raises(text.TextError, match=said):
        text.causal_lm_rows(TEXTS, tokenizer, **options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "cannot be read as a tokenizer.json"),
        (b"\x00\xff", "cannot be read as a tokenizer.json"),
        (b"[" * 100_000, "cannot be read as a tokenizer.json"),
        (None, "There is no tokenizer file"),
    ],
)
def test_wrong_tokenizers_are_told(tmp_path, content, said) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(text.TextError, match=said):
        text.load_tokenizer(tmp_path / "tokenizer.json")


def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path) -> None:
    words = [*WORDS, *(f"w{i}" for i in range(5))]
    larger = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json", words))
    with pytest.raises(text.TextError, match=f"{VOCABULARY + 5} tokens, and lm.onnx knows"):
        text.check_vocabulary(larger, VOCABULARY, "lm.onnx")
    text.check_vocabulary(larger, 2 * larger.size, "lm.onnx")
    text.check_vocabulary(larger, None, "lm.onnx")
    with pytest.warns(OnnxTrainWarning, match="Is it the tokenizer that came with the model"):
        text.check_vocabulary(larger, 3 * larger.size, "lm.onnx")


def test_generation_draws_and_stops(tokenizer) -> None:
    """Scores that prefer one word, then the end."""
    inputs = text.LanguageInputs("input_ids", None, None, None, {"input_ids": np.dtype("i8")}, None)

    def scores(feeds):
        tokens = feeds["input_ids"]
        wanted = np.zeros((1, tokens.shape[1], VOCABULARY), np.float32)
        wanted[..., 5 if tokens.shape[1] < 4 else EOS] = 5.0
        return wanted

    assert text.generate(scores, inputs, tokenizer, "the cat") == tokenizer.decode([5, 5])
    drawn = {
        text.generate(scores, inputs, tokenizer, "the", 1, temperature=3.0, seed=s)
        for s in range(8)
    }
    assert len(drawn) > 1
    for limits in ({"top_k": 1}, {"top_p": 0.01}):
        assert text.generate(
            scores, inputs, tokenizer, "the", 1, temperature=3.0, seed=1, **limits
        ) == tokenizer.decode([5])
    with pytest.raises(text.TextError, match="top_p"):
        text.generate(scores, inputs, tokenizer, "the", top_p=0.0)
