"""Configurations of the benchmark of networks: divided by one number, so that ratios stay."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.network_sizes import LAYERS, TOKENS, VOCABULARY, WINDOW, reduced

GROUPED = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 32000, "eos_token_id": 31999,
    "sliding_window": 4096, "attention_dropout": 0.1, "initializer_range": 0.02,
    "layer_types": ["sliding", "sliding", "full"] * 10 + ["sliding", "full"],
}  # fmt: skip


def config_class(**defaults: Any) -> type:
    """A class of configurations, as far as the rules know one."""

    class Config:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(defaults | values)

        def to_dict(self) -> dict[str, Any]:
            return dict(vars(self))

    return Config


def test_widths_and_heads_are_divided_by_one_number() -> None:
    config = reduced(config_class(**GROUPED), "mistral")
    assert (config.hidden_size, config.intermediate_size) == (512, 1792)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 1, 128)


def test_what_is_long_is_cut_and_what_drops_is_off() -> None:
    config = reduced(config_class(**GROUPED), "mistral")
    assert config.num_hidden_layers == LAYERS
    assert config.layer_types == ["sliding", "full"]
    assert (config.vocab_size, config.sliding_window) == (VOCABULARY, WINDOW)
    assert config.eos_token_id < TOKENS
    assert (config.attention_dropout, config.initializer_range) == (0.0, 0.02)


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ({"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
         {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}),
        ({"d_model": 512, "num_heads": 8, "d_kv": 64, "d_ff": 2048},
         {"d_model": 512, "num_heads": 8, "d_kv": 64, "d_ff": 2048}),
        ({"hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
         {"hidden_size": 288, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}),
        ({"d_model": 1024, "encoder_layers": 12, "decoder_layers": 1, "encoder_attention_heads": 16,
          "decoder_attention_heads": 2},
         {"d_model": 512, "encoder_layers": LAYERS, "decoder_layers": 1,
          "encoder_attention_heads": 8, "decoder_attention_heads": 2}),
        ({"hidden_size": 4096, "embedding_size": 128, "num_attention_heads": 64},
         {"hidden_size": 512, "embedding_size": 128, "num_attention_heads": 8}),
        ({"dim": 768, "hidden_dim": 3072, "n_heads": 12, "pad_token_id": None},
         {"dim": 384, "hidden_dim": 1536, "n_heads": 6, "pad_token_id": 1}),
    ],
)  # fmt: skip
def test_families_have_other_words(published: dict[str, Any], expected: dict[str, Any]) -> None:
    config = reduced(config_class(**published), "made up")
    assert {name: getattr(config, name) for name in expected} == expected


def test_a_published_model_and_what_no_rule_knows_win() -> None:
    config = reduced(config_class(hidden_size=4096, intermediate_size=11008), "llama")
    assert (config.hidden_size, config.intermediate_size) == (512, 2048)
    assert config.tie_word_embeddings
    assert reduced(config_class(hidden_size=64), "longformer").onnx_export
