"""Tokenizers, texts and adapters of somebody else's in JavaScript: refused by name, and quickly."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxtrain import lora
from tests.js import language, tools

from .limits import SECONDS

pytest.importorskip("tokenizers")

REFUSED = {
    "tokenizer is not JSON": "TextError: tokenizer.json is not JSON",
    "tokenizer is a list": "TextError: tokenizer.json is not an object",
    "tokenizer is not UTF-8": "TextError: tokenizer.json is not JSON",
    "tokenizer is nested": "TextError: tokenizer.json is not JSON",
    "tokenizer is too large": "TextError: tokenizer.json has 67108865 bytes",
    "tokenizer is empty": "TextError: tokenizer.json has the model none",
    "model of words": 'has the model "WordLevel". JavaScript knows byte-level byte-pair encoding',
    "model is null": "has the model null",
    "bytes as a fallback": 'has "byte_fallback" true',
    "another decoder": 'has the decoder "WordPiece"',
    "another pre-tokenizer": 'has the pre-tokenizer "Whitespace"',
    "no pre-tokenizer": "has the pre-tokenizer null",
    "another normalizer": 'has the normalizer "Lowercase"',
    "an expression without end": 'splits text by "(a+)+$"',
    "vocabulary of text": '"vocab" is no object',
    "a negative token": '"the" has the number -1',
    "a token too large": '"the" has the number 1099511627776',
    "a token that is a fraction": '"the" has the number 0.5',
    "merges of one": "merge 0 is no pair of tokens",
    "merges of numbers": "merge 0 is no pair of tokens",
    "merges of strangers": 'merge 0 has tokens that "vocab" lacks',
    "merges are an object": '"merges" is no list',
    "an added token without a number": "an added token has no number",
    "an added token that strips": 'the token "<|endoftext|>" has lstrip, which is not supported',
    "config is a list": "tokenizer_config.json is not an object",
    "text of 100 MB": "The text has 100.0 million characters, and 4.2 million are the most here.",
    "text of 100 MB as bytes": "The text has 100.0 million characters",
    "half a character": "half of a character at place 1",
    "tokens of another model": "has 1000000 tokens, and the model knows 300",
    "adapter is empty": "AdapterError: The file is no .onnx_adapter",
    "adapter is junk": "AdapterError: The file is no .onnx_adapter",
    "adapter is a name only": "AdapterError: The .onnx_adapter is damaged",
    "adapter is cut": "AdapterError: The .onnx_adapter is damaged",
    "adapter that grows": "a part is larger than the file",
    "weights are junk": "AdapterError: adapter_model.safetensors is damaged",
    "weights are settings": "AdapterError: adapter_model.safetensors is damaged",
    "settings are junk": "AdapterError: adapter_config.json is not JSON",
    "settings are null": "AdapterError: adapter_config.json describes no LoRA adapter",
    "settings of another kind": "AdapterError: adapter_config.json describes no LoRA adapter",
    "settings without a rank": "AdapterError: adapter_config.json has r=0",
    "settings of many ranks": 'AdapterError: adapter_config.json: rank_pattern={"q_proj":3}',
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder: Path = tmp_path_factory.mktemp("strangers")
    adapted = language.write(language.base_model(folder / "lm.onnx"), folder / "artifacts")
    adapter = language.trained(adapted)
    language.byte_pairs(folder / "tokenizer.json")
    lora.save_onnx_adapter(adapter, folder / "python.onnx_adapter")
    lora.save_peft(adapter, folder / "python_peft")
    (found,) = tools.run_node("strangers.mjs", tools.LIBRARY, tools.modules(), folder)
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, answers: dict) -> None:
    answer = answers["report"][name]
    assert answer.get("isOurs"), answer
    assert REFUSED[name] in answer["error"]
    assert answer["seconds"] < SECONDS


def test_every_case_is_expected(answers: dict) -> None:
    assert answers["report"].keys() == REFUSED.keys()


def test_files_damaged_by_chance_are_read_or_refused(answers: dict) -> None:
    assert answers["odd"] == []
    assert min(answers["outcomes"].values()) > 50


def test_a_word_without_end_is_split_in_time(answers: dict) -> None:
    assert answers["longWord"] < 2 * SECONDS
