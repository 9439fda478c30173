"""A configuration of transformers scaled down by rules over the names of its attributes.

Every class of configuration has its own words for the same few things: width, depth, heads,
vocabulary, image. `tiny` reads the defaults, applies the first rule whose pattern matches the name,
and constructs the class anew, so that what the class derives from these values fits again.
`tiny_overrides` has what no rule can know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .tiny_overrides import OVERRIDES
from .tiny_sizes import HEAD_WIDTH, HEADS, INNER, LAYERS, VOCABULARY, WIDTH

POSITIONS, IMAGE, PATCH, MELS = 64, 32, 8, 16
SPREAD = 0.2
"""Of random weights: so that with this width a layer's output is as large as its input."""

Rule = tuple[str, Callable[[Any], Any]]


def at_most(limit: int) -> Callable[[Any], Any]:
    """Numbers above the limit become it; a list keeps its length."""

    def scale(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(scale(item) for item in value)
        return min(value, limit) if isinstance(value, int) else value

    return scale


def ascending(value: Any) -> Any:
    """The widths of successive stages; a single number is a width."""
    if isinstance(value, (list, tuple)):
        return [min(WIDTH // 2 * 2**index, 4 * WIDTH) for index in range(len(value))]
    return min(value, WIDTH)


def stage_heads(value: Any) -> Any:
    """The heads of successive stages, which divide `ascending` widths."""
    if isinstance(value, (list, tuple)):
        return [min(2**index, HEADS) for index in range(len(value))]
    return min(value, HEADS)


def token(value: Any) -> Any:
    """A special token's number inside the small vocabulary; small ones stay."""
    if isinstance(value, (list, tuple)):
        return [token(item) for item in value]
    return value if value < 8 else 8 + value % 32


WIDTHS = (
    r"(.*hidden_size|d_model|n_embd|.*_?embed_dim|emb_dim|dim|hidden_dim|.*embedding_size"
    r"|.*projection_dim|.*_hidden_dim|d_latents|.*conv_dim|.*proj_size"
    r"|.*pos_feats|mask_dim|intra_bottleneck_size|upsample_groups|hidden_size_global|output_channels)$"
)

RULES: list[Rule] = [
    (r".*(token_id|token_index|_token_ids|_index)$", token),
    (r"image_embedding_size$", lambda v: IMAGE // PATCH if isinstance(v, int) else v),
    (r"encoder_in_channels$", lambda v: [WIDTH * 2**index for index in range(len(v))]),
    (r"decoder_in_channels$", at_most(WIDTH)),
    (r"num_filters$", at_most(4)),
    (r"stem_channels$", at_most(WIDTH // 2)),
    (r"stage_mid_channels$", at_most(WIDTH // 4)),
    (r"stage_in_channels$", lambda v: [WIDTH // 2, *ascending(v)[:-1]]),
    (r"stage_out_channels$", ascending),
    (r"(pretraining_tp|chunk_size_feed_forward|num_labels|.*_coefficient|.*_cost)$", lambda v: v),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|top_k|moe_k)$", at_most(2)),
    (r"(n_group|num_expert_group|topk_group)$", at_most(1)),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts)$", at_most(4)),
    (r"(n_shared_experts|num_shared_experts|expert_capacity)$", at_most(4)),
    (r"(num_heads|num_attention_heads|num_head)$", stage_heads),
    (r".*(_heads|n_head|num_head)$", at_most(HEADS)),
    (r"(type_vocab_size|additional_vocab_size)$", lambda v: v),
    (r".*vocab_size.*$", at_most(VOCABULARY)),
    (r".*(intermediate|ffn|feed_?forward|d_ff|mlp_dim|inner_dim|_inner).*$", at_most(INNER)),
    (r"(max_.*position.*|n_positions|max_seq_len|n_ctx)$", at_most(POSITIONS)),
    (r"(num_feat_extract_layers|out_indices|num_conv_layers)$", lambda v: v),
    (r"rotary_dim$", at_most(HEAD_WIDTH // 2)),
    (r"(conv_dim|tdnn_dim)$", at_most(WIDTH)),
    (r"(depths|layer_depths|stage_num_blocks|num_encoder_blocks_list)$", at_most(1)),
    (r"(depth|block_sizes|.*num_.*layers|n_layers?|.*_layers|num_blocks)$", at_most(LAYERS)),
    (r"(hidden_sizes|embed_dims|embedding_dims|neck_hidden_sizes|stage_channels)$", ascending),
    (r"(.*head_dim|d_head|d_kv|.*_head_size|kv_channels)$", at_most(HEAD_WIDTH)),
    (r"(.*lora_rank|sliding_window|attention_window|local_attention|context_size)$", at_most(16)),
    (r"(image_size|pretrain_image_size|crop_size|img_size)$", at_most(IMAGE)),
    (r"(patch_size)$", at_most(PATCH)),
    (r"(num_mel_bins|n_mels|feature_size)$", at_most(MELS)),
    (r"(mamba_d_state|state_size|ssm_state_size)$", at_most(8)),
    (r"(num_queries|num_latents)$", at_most(6)),
    (r"(num_conv_pos_embeddings|num_conv_pos_embedding_groups)$", at_most(4)),
    (WIDTHS, ascending),
]  # fmt: skip

BACKBONE = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
"""In place of a backbone with weights of its own."""


def tiny(config_class: type, family: str) -> Any:
    """The class's default configuration, scaled down."""
    config = config_class(**_values(config_class(), OVERRIDES.get(family, {})))
    for part in (config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))):
        _divide_rotations(part)
    return config


def _values(config: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """The arguments that make a small one like this configuration."""
    values: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        part = config.__dict__.get(name)
        if name in overrides and not isinstance(overrides[name], dict):
            values[name] = overrides[name]
        elif hasattr(part, "to_dict"):
            values[name] = _part(part, overrides.get(name, {}))
        elif name in ("initializer_range", "init_std"):
            values[name] = SPREAD
        elif isinstance(value, (int, list, tuple)) and not isinstance(value, bool):
            scaled = _scaled(name, value)
            if scaled is not None and scaled != value and not _is_derived(config, name):
                values[name] = scaled
    _keep_grouping(config, values)
    _keep_stages(config, values)
    _keep_kinds_of_layers(config, values)
    _keep_rotations(config, values)
    values.update({name: value for name, value in overrides.items() if name not in values})
    if hasattr(config, "use_cache"):
        values["use_cache"] = False
    return values


def _part(part: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """A configuration inside another one; what differs from its class's defaults stays."""
    if part.model_type == "timm_backbone":
        return dict(BACKBONE)
    if part.model_type == "timm_wrapper":
        whole = {"model_type": part.model_type, "architecture": part.architecture, "num_labels": 2}
        return {**whole, **overrides}
    kept = {
        k: v
        for k, v in part.to_diff_dict().items()
        if isinstance(v, (str, bool, float)) or k == "out_features"
    }
    return {**kept, **_values(part, overrides), "model_type": part.model_type}


def _keep_rotations(config: Any, values: dict[str, Any]) -> None:
    """Of a rotary embedding that has its sections from the start: some classes check them."""
    rope = config.to_dict().get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        values["rope_parameters"] = {**rope, "mrope_section": _sections(rope)}


def _divide_rotations(config: Any) -> None:
    """A rotary embedding of three axes divides half of a head's width."""
    rope = vars(config).get("rope_parameters")
    known = getattr(config, "ignore_keys_at_rope_validation", None) or ()
    if isinstance(rope, dict) and "mrope_section" in {*known, *rope}:
        sections = _sections(rope)
        if sum(rope.get("mrope_section", ())) != sum(sections):
            rope["mrope_section"] = sections


def _sections(rope: dict[str, Any]) -> list[int]:
    half = int(HEAD_WIDTH * rope.get("partial_rotary_factor", 1.0)) // 2
    return [half - 2 * (half // 3), half // 3, half // 3]


def _scaled(name: str, value: Any) -> Any:
    for pattern, scale in RULES:
        if re.fullmatch(pattern, name):
            try:
                return scale(value)
            except TypeError:
                return None
    return None


def _is_derived(config: Any, name: str) -> bool:
    name = config.attribute_map.get(name, name)
    return isinstance(getattr(type(config), name, None), property)


def _keep_grouping(config: Any, values: dict[str, Any]) -> None:
    """Fewer heads of keys than of queries stay fewer, equal numbers stay equal."""
    known = config.to_dict()
    groups, heads = known.get("num_key_value_heads"), known.get("num_attention_heads")
    if isinstance(groups, int) and isinstance(heads, int):
        smaller = values.get("num_attention_heads", heads)
        values["num_key_value_heads"] = smaller if groups == heads else min(groups, smaller // 2)


def _keep_stages(config: Any, values: dict[str, Any]) -> None:
    """A backbone whose stages are layers has as many layers as it gives features of stages."""
    known = config.to_dict()
    stages, layers = known.get("out_features"), values.get("num_hidden_layers")
    last = f"stage{known.get('num_hidden_layers')}"
    if isinstance(stages, list) and layers and last in (known.get("stage_names") or ()):
        values["num_hidden_layers"] = layers = max(layers, len(stages))
        values["out_features"] = [f"stage{layers - back}" for back in reversed(range(len(stages)))]


def _keep_kinds_of_layers(config: Any, values: dict[str, Any]) -> None:
    """Of each kind of layer the first, as many as there are layers left."""
    known = config.to_dict()
    before = known.get("num_hidden_layers")
    for name, kinds in known.items():
        if not isinstance(kinds, (list, tuple)) or not kinds or _is_derived(config, name):
            continue
        layers = values.get("num_hidden_layers", len(kinds))
        if name in KINDS_OF_LAYERS or (_is_per_layer(kinds, before) and isinstance(kinds[0], str)):
            distinct = list(dict.fromkeys(kinds))
            values[name] = (distinct * layers)[:layers]
        elif _is_per_layer(kinds, before):
            values[name] = list(values.get(name, kinds))[:layers]


KINDS_OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type")


def _is_per_layer(values: Sequence[Any], layers: Any) -> bool:
    """Whether there is one for each layer; what has few entries may be about other stages."""
    return len(values) == layers and len(values) > 4
