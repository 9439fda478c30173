"""Configurations of transformers for the benchmark of networks: wide layers, few of them.

PyTorch's benchmarks take a class's default configuration, of 100 million to 7 billion parameters.
Here its widths and heads are divided by one power of two, so that the ratios between them stay:
BERT's 768 with 12 heads of 64 and 3072 inside becomes 384 with 6 heads of 64 and 1536 inside.
"""

from __future__ import annotations

import re
from typing import Any

WIDTH, NARROW, LEAST_HEADS = 512, 128, 4
"""The widest a layer's output is, what is never divided further, and how few heads there are."""
LAYERS, EXPERTS, VOCABULARY, POSITIONS = 2, 8, 8192, 512
"""At most so many, the layers in each of encoder and decoder."""
WINDOW, SOUND = 64, 256
"""Tokens that a local attention sees, half of a row; positions of an encoder of sound."""
TOKENS = 64
"""Special tokens have numbers below this one, and none is drawn for an input."""

PUBLISHED: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True},
    "qwen3": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
              "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "gemma3_text": {"hidden_size": 2560, "intermediate_size": 10240},
    "gpt_oss": {"num_local_experts": 32},
}  # fmt: skip
"""What the published model of a name has, where its class's defaults are another model's."""

OVERRIDES: dict[str, dict[str, Any]] = {
    "longformer": {"onnx_export": True},
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]]},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
                "hidden_size": 180, "intermediate_size": 180, "num_attention_heads": 4},
}  # fmt: skip
"""What no rule knows. gpt-oss stretches its rotations for rows of 131,072 tokens; the one form of
its experts that can be exported gathers weights for every token: 1.6 GB at twice this width."""

MAIN_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
WIDTHS = (
    r"(.*hidden_size|d_model|n_embd|dim|hidden_dim|.*intermediate_size|.*ffn_dim|d_ff|d_inner"
    r"|embedding_size|.*embed_proj_dim|.*bottleneck_size)"
)
HEADS = r"(n_heads?|num_heads|.*attention_heads)"
HEAD_WIDTHS = r"(head_dim|d_head|d_kv|query_pre_attn_scalar)"
AT_MOST = {
    r"(n_layers?|num_.*layers|encoder_layers|decoder_layers)": LAYERS,
    r"num_local_experts": EXPERTS, r"num_experts_per_tok": 2, r"vocab_size": VOCABULARY,
    r"(max_position_embeddings|n_positions|max_2d_position_embeddings)": POSITIONS,
    r"max_source_positions": SOUND, r"(attention_window|window_size|sliding_window)": WINDOW,
}  # fmt: skip
"""Limits by name, the first whose pattern matches the whole name."""


def reduced(config_class: type, family: str) -> Any:
    """The configuration of this family, narrower and with fewer layers; without Dropout."""
    published = config_class(**PUBLISHED.get(family, {})).to_dict()
    values = _widths(published) | _limits(published) | _kinds_of_layers(published)
    values |= {n: 0.0 for n, v in published.items() if "drop" in n and isinstance(v, float)}
    values |= {n: _token(v) for n, v in published.items() if n.endswith(("token_id", "token_ids"))}
    if values.get("pad_token_id", 1) is None:
        values["pad_token_id"] = 1  # classifiers of sequences look for it
    kept = {n: v for n, v in published.items() if n in PUBLISHED.get(family, {})}
    return config_class(**{**kept, **values, "use_cache": False, **OVERRIDES.get(family, {})})


def _widths(published: dict[str, Any]) -> dict[str, Any]:
    """Widths and heads, divided; fewer heads of keys than of queries stay as many times fewer."""
    width = next(published[name] for name in MAIN_WIDTHS if name in published)
    divisor = 1
    while width // divisor > WIDTH:
        divisor *= 2
    values = {n: max(min(v, NARROW), v // divisor) for n, v in _of(published, WIDTHS)}
    for name, heads in _of(published, HEADS):
        values[name] = fewer = min(heads, max(LEAST_HEADS, heads // divisor))
        values |= {n: v * heads // (fewer * divisor) for n, v in _of(published, HEAD_WIDTHS)}
        if isinstance(groups := published.get("num_key_value_heads"), int):
            values["num_key_value_heads"] = max(1, groups * fewer // heads)
    return values


def _limits(published: dict[str, Any]) -> dict[str, Any]:
    limits = {n: limit for pattern, limit in AT_MOST.items() for n, _ in _of(published, pattern)}
    return {n: min(published[n], limit) for n, limit in limits.items()}


def _kinds_of_layers(published: dict[str, Any]) -> dict[str, Any]:
    """Of each kind the first, as many as there are layers left."""
    kinds = published.get("layer_types")
    return {"layer_types": (list(dict.fromkeys(kinds)) * LAYERS)[:LAYERS]} if kinds else {}


def _of(published: dict[str, Any], pattern: str) -> list[tuple[str, int]]:
    """Positive whole numbers whose whole name matches."""
    return [
        (name, value)
        for name, value in published.items()
        if isinstance(value, int) and value > 0 and re.fullmatch(pattern, name)
    ]


def _token(value: Any) -> Any:
    """A special token's number where no other token is; small ones stay."""
    if isinstance(value, list | tuple):
        return [_token(item) for item in value]
    return value if value is None or value < TOKENS else TOKENS // 2 + value % (TOKENS // 2)
