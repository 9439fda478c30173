"""A configuration of transformers scaled down by rules over the names of its attributes.

Every class of configuration has its own words for the same few things: width, depth, heads,
vocabulary, image. `tiny` reads the defaults, applies the first rule whose pattern matches the name,
and constructs the class anew, so that what the class derives from these values fits again.
`OVERRIDES` has what no rule can know, one line per family.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

WIDTH, HEADS, HEAD_WIDTH, INNER, LAYERS, VOCABULARY, POSITIONS = 32, 4, 8, 48, 2, 96, 64
IMAGE, PATCH, MELS = 32, 8, 16
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
    r"|.*pos_feats|intra_bottleneck_size|upsample_groups|hidden_size_global|output_channels)$"
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
    (r"(.*lora_rank|sliding_window|attention_window|local_attention)$", at_most(16)),
    (r"(image_size|pretrain_image_size|crop_size|img_size)$", at_most(IMAGE)),
    (r"(patch_size)$", at_most(PATCH)),
    (r"(num_mel_bins|n_mels|feature_size)$", at_most(MELS)),
    (r"(mamba_d_state|state_size|ssm_state_size)$", at_most(8)),
    (r"(num_queries|num_latents)$", at_most(6)),
    (r"(num_conv_pos_embeddings|num_conv_pos_embedding_groups)$", at_most(4)),
    (WIDTHS, ascending),
]  # fmt: skip

_EFFICIENTNET = {
    "image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320,
}  # fmt: skip
_GEMMA3N = {
    "intermediate_size": [48, 48], "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.0, 0.0], "laurel_rank": 4, "vocab_size_per_layer_input": 96,
}  # fmt: skip

OVERRIDES: dict[str, dict[str, Any]] = {
    "longformer": {"onnx_export": True},
    "led": {"onnx_export": True},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "nemotron": {"num_key_value_heads": 2},
    "ministral": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 32},
    "autoformer": {
        "prediction_length": 4,
        "context_length": 8,
        "lags_sequence": [1, 2, 3],
        "num_time_features": 2,
        "label_length": 4,
    },
    "informer": {
        "prediction_length": 4,
        "context_length": 8,
        "lags_sequence": [1, 2, 3],
        "num_time_features": 2,
        "label_length": 4,
    },
    "time_series_transformer": {
        "prediction_length": 4,
        "context_length": 8,
        "lags_sequence": [1, 2],
        "num_time_features": 2,
    },
    "swin": {"image_size": 64, "window_size": 2},
    "donut-swin": {"image_size": 64, "window_size": 2},
    "maskformer-swin": {"image_size": 64, "window_size": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "hidden_size": 32, "chunk_size": 4},
    "efficientnet": _EFFICIENTNET,
    "align": {"projection_dim": 80, "vision_config": _EFFICIENTNET},
    "levit": {"image_size": 64, "patch_size": 16, "hidden_sizes": [32, 48, 64]},
    "wav2vec2-bert": {"vocab_size": VOCABULARY},
    "wav2vec2-conformer": {"vocab_size": VOCABULARY},
    "bridgetower": {
        "hidden_size": 128,
        "text_config": {"hidden_size": 128},
        "vision_config": {"hidden_size": 128},
    },
    "reformer": {
        "axial_pos_embds_dim": [8, 24],
        "axial_pos_shape": [4, 2],
        "attn_layers": ["local", "lsh"],
        "num_buckets": 2,
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "longcat_flash": {
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "qk_head_dim": 16,
        "head_dim": 8,
        "v_head_dim": 8,
    },
    "mask2former": {
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 32,
        "num_queries": 6,
    },
    "deepseek_v3": {"first_k_dense_replace": 1},
    "zamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "neomme": {"sliding_window": 16},
    "gemma3n_text": _GEMMA3N,
    "gemma3n": {"text_config": _GEMMA3N},
    "instructblip": {"image_token_index": 90},
    "instructblipvideo": {"image_token_index": 90},
    "siglip2": {"vision_config": {"num_patches": 16}},
    "wavlm": {"num_buckets": 8},
    "seggpt": {"image_size": [32, 32]},
    "cvt": {"embed_dim": [16, 32, 64], "depth": [1, 2, 3]},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "bros": {"hidden_size": 64},
    "dpt": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
    "bit": {"num_groups": 4, "embedding_size": 16},
    "lilt": {"channel_shrink_ratio": 2, "hidden_size": 48},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8},
    "mobilevitv2": {"image_size": 64},
    "sam": {"vision_config": {"num_pos_feats": WIDTH // 2}},
    "sam_hq": {"vision_config": {"num_pos_feats": WIDTH // 2}},
    "zamba2": {
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
        "chunk_size": 4,
        "adapter_rank": 8,
    },
    "nemotron_h": {"n_groups": 2, "mamba_num_heads": 8, "chunk_size": 4},
    "blip-2": {"image_token_index": 90},
    "vits": {
        "upsample_initial_channel": 32,
        "upsample_rates": [4, 4],
        "upsample_kernel_sizes": [8, 8],
        "flow_size": 32,
        "spectrogram_bins": 17,
        "wavenet_layers": 1,
    },
    "chameleon": {"vocabulary_map": {"<image>": 90}},
    "blt": {"encoder_hash_byte_group_vocab": VOCABULARY},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "hunyuan_vl": {"text_config": {"head_dim": HEAD_WIDTH}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": WIDTH // 4}},
    "granite_speech5_ctc": {"context_size": 16},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": WIDTH}},
}
"""What no rule can know, by family; a dictionary in it is for a part of the configuration."""

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
    _keep_kinds_of_layers(config, values)
    values.update({name: value for name, value in overrides.items() if name not in values})
    if hasattr(config, "use_cache"):
        values["use_cache"] = False
    return values


def _part(part: Any, overrides: dict[str, Any]) -> dict[str, Any]:
    """A configuration inside another one; what differs from its class's defaults stays."""
    if part.model_type == "timm_backbone":
        return dict(BACKBONE)
    kept = {
        k: v
        for k, v in part.to_diff_dict().items()
        if isinstance(v, (str, bool, float)) or k == "out_features"
    }
    return {**kept, **_values(part, overrides), "model_type": part.model_type}


def _divide_rotations(config: Any) -> None:
    """A rotary embedding of three axes divides half of a head's width."""
    rope = vars(config).get("rope_parameters")
    known = getattr(config, "ignore_keys_at_rope_validation", None) or ()
    if isinstance(rope, dict) and "mrope_section" in {*known, *rope}:
        half = int(HEAD_WIDTH * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 3), half // 3, half // 3]


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


def _keep_kinds_of_layers(config: Any, values: dict[str, Any]) -> None:
    """Of each kind of layer the first, as many as there are layers left."""
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = config.to_dict().get(name)
        if isinstance(kinds, (list, tuple)) and kinds and not _is_derived(config, name):
            layers = values.get("num_hidden_layers", len(kinds))
            distinct = list(dict.fromkeys(kinds))
            values[name] = (distinct * layers)[:layers]
