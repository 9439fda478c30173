"""What no rule of `tiny_configs` can know, one entry per family of transformers."""

from __future__ import annotations

from typing import Any

from .tiny_sizes import HEAD_WIDTH, VOCABULARY, WIDTH

_EFFICIENTNET = {
    "image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320,
}  # fmt: skip
_GEMMA3N = {
    "intermediate_size": [48, 48], "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0,
    "activation_sparsity_pattern": [0.0, 0.0], "laurel_rank": 4, "vocab_size_per_layer_input": 96,
}  # fmt: skip

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _both_attentions(rotated: float = 1.0) -> dict[str, Any]:
    """Rotary embeddings of full and of sliding attention."""
    kinds = ("full_attention", "sliding_attention")
    return {kind: {**_ROPE, "partial_rotary_factor": rotated} for kind in kinds}


_HIFIGAN = {
    "upsample_initial_channel": 32, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
}  # fmt: skip
_MUSE_AUDIO = {
    "num_hidden_layers": 4, "hidden_sizes": [8, 16, 32, 32], "depths": [1, 1, 1, 1],
    "patch_sizes": [4, 2, 2, 2],
}  # fmt: skip
_LCNET4 = {"stem_channels": [3, 48, 96], "stage_out_channels": [96, 96, 192, 384]}
_QWEN4 = {
    "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
    "indexer_compress_ratio": 2, "hc_lowrank": 8, "ngram_vocab_size_base": 97,
    "split_ngram_parts": 1,
}  # fmt: skip
_SMALL_MOBILENET = {"architecture": "mobilenetv4_conv_small_035"}
"""One of timm's in the place of a network of 300 million parameters."""
_EDGETAM_VISION = {
    "backbone_config": {
        "architecture": "resnet10t",
        "model_args": {"in_chans": 3, "features_only": True, "out_indices": [1, 2, 3, 4]},
    },
    "backbone_channel_list": [512, 256, 128, 64],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}
_DAC = {"downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2]}
_PE_VISION = {
    "architecture": "vit_pe_core_tiny_patch16_384", "num_classes": 16,
    "model_args": {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3},
}  # fmt: skip
_VIBEVOICE = {"downsampling_ratios": [2, 4], "depths": [1, 1, 1]}
_HIERA_DET = {
    "hidden_size": 16, "embed_dim_per_stage": [16, 32, 64, 128], "blocks_per_stage": [1, 2, 2, 1],
    "num_attention_heads_per_stage": [1, 2, 4, 4], "window_size_per_stage": [4, 4, 4, 4],
    "global_attention_blocks": [2, 4], "image_size": [64, 64],
}  # fmt: skip
_SAM2_VISION = {
    "backbone_config": _HIERA_DET, "backbone_channel_list": [128, 64, 32, 16],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
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
    "zamba": {
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "attention_hidden_size": 2 * WIDTH,
        "attention_head_dim": 2 * HEAD_WIDTH,
    },
    "neomme": {"sliding_window": 16, "rope_parameters": _both_attentions(0.5)},
    "gemma3n_text": _GEMMA3N,
    "gemma3n_vision": _SMALL_MOBILENET,
    "gemma3n": {
        "text_config": _GEMMA3N,
        "vision_config": {**_SMALL_MOBILENET, "hidden_size": 960},
        "vision_soft_tokens_per_image": 4,
    },
    "instructblip": {"image_token_index": 90},
    "instructblipvideo": {"video_token_index": 90},
    "siglip2": {"vision_config": {"num_patches": 16}},
    "wavlm": {"num_buckets": 8},
    "seggpt": {
        "image_size": [64, 32],
        "num_hidden_layers": 5,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [1, 2, 3, 4],
    },
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
    "dots1": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "hunyuan_vl": {"text_config": {"head_dim": HEAD_WIDTH}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
        "vision_config": {"sam_config": {"downsample_channels": [WIDTH, WIDTH]}},
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": WIDTH // 4}},
    "gradium_phonon_tts": {"flow_head_config": {"condition_dim": WIDTH}},
    "clvp": {
        "decoder_config": {"decoder_fixing_codes": [83, 45, 45, 24]},
        "text_config": {"num_attention_heads": 1},
        "speech_config": {"num_attention_heads": 1},
    },
    "edgetam": {"vision_config": _EDGETAM_VISION},
    "edgetam_vision_model": _EDGETAM_VISION,
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0], [-2, 1]],
        "spatial_target_layers": [0, 1],
        "vision_config": {"hidden_size": 64},
    },
    "gemma4_audio": {"subsampling_conv_channels": [16, 8]},
    "lw_detr": {
        "projector_scale_factors": [1.0],
        "backbone_config": {"num_windows": 4, "window_block_indices": [0, 2], "image_size": 64},
    },
    "pe_audio": {"audio_config": {"dac_config": _DAC}},
    "pe_audio_encoder": {"dac_config": _DAC},
    "pe_video": {"video_config": {"vision_config": _PE_VISION}},
    "pe_video_encoder": {"vision_config": _PE_VISION},
    "pe_audio_video": {
        "audio_video_config": {
            "audio_config": {"dac_config": _DAC},
            "video_config": {"vision_config": _PE_VISION},
        },
    },
    "pe_audio_video_encoder": {
        "audio_config": {"dac_config": _DAC},
        "video_config": {"vision_config": _PE_VISION},
    },
    "cohere_compass": {"text_config": {"rope_parameters": _both_attentions()}},
    "cohere_compass_text": {"rope_parameters": _both_attentions()},
    "depth_pro": {
        "patch_size": 32,
        "image_size": 128,
        "fusion_hidden_size": 16,
        "intermediate_hook_ids": [1, 0],
        "intermediate_feature_dims": [16, 16],
        "scaled_images_feature_dims": [32, 32, 16],
    },
    "dots3_note": {
        "vision_config": {
            "adapter_in_dim": WIDTH,
            "adapter_out_dim": WIDTH,
            "mlp_layer_types": ["dense", "sparse"],
        },
        "audio_config": {"adapter_input_size": WIDTH, "adapter_out_dim": WIDTH},
    },
    "efficientloftr": {
        "stage_num_blocks": [1, 1, 1, 1],
        "out_features": [16, 16, 32, 32],
        "hidden_size": 32,
        "num_channels": 1,
        "num_attention_heads": 8,
    },
    "ernie4_5_vl_moe": {
        "text_config": {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]}},
    },
    "fast_vlm": {"vision_config": {"architecture": "resnet10t", "hidden_size": 512}},
    "fastspeech2_conformer_with_hifigan": {"vocoder_config": {**_HIFIGAN, "model_in_dim": 16}},
    "hunyuan_vl_text": {"head_dim": HEAD_WIDTH},
    "kosmos-2": {"latent_query_num": 4},
    "mistral4": {"head_dim": 16},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": WIDTH}},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "muse_spark": {"audio_config": _MUSE_AUDIO},
    "muse_spark_audio": _MUSE_AUDIO,
    "nemo_speechlm": {
        "text_config": {"n_groups": 2, "mamba_num_heads": 8, "chunk_size": 4},
    },
    "paddleocr_vl": {
        "text_config": {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}},
    },
    "pocket_tts": {"flow_head_config": {"condition_dim": WIDTH}},
    "pp_doclayout_v3": {"x4_feat_dim": 16},
    "pp_ocrv5_mobile_rec": {"image_size": 96},
    "pp_ocrv5_server_rec": {"image_size": 96},
    "pp_ocrv6_small_det": {
        "backbone_config": {**_LCNET4, "out_features": ["stage1", "stage2", "stage3", "stage4"]},
        "layer_list_out_channels": _LCNET4["stage_out_channels"],
    },
    "pp_ocrv6_small_rec": {"backbone_config": _LCNET4},
    "pp_ocrv6_tiny_rec": {"backbone_config": _LCNET4},
    "perception_lm": {"vision_config": _PE_VISION},
    "sapiens2": {
        "head_config": {"upsample_out_channels": [16, 8], "conv_out_channels": [8]},
        "num_key_value_heads_per_layer": [4, 2],
    },
    "qwen2_5_omni_thinker": {"vision_start_token_id": 9},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 9},
    "qwen3_asr_encoder": {"max_source_positions": 50},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "sam2": {"vision_config": _SAM2_VISION},
    "sam2_vision_model": _SAM2_VISION,
    "sam2_hiera_det_model": _HIERA_DET,
    "sam3_tracker": {
        "vision_config": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    },
    "step3p7": {
        "text_config": {"sliding_window": 16, "rope_parameters": _both_attentions()},
    },
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "textnet": {"stem_out_channels": 16},
    "timesfm": {"context_length": 16, "patch_length": 8, "horizon_length": 8},
    "timm_backbone": {"backbone": "resnet10t", "use_pretrained_backbone": False},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2, "image_size": 64},
    "uvdoc": {
        "backbone_config": {
            "depths": [1, 1, 1, 3, 3, 3],
            "out_features": [f"stage{number}" for number in range(1, 7)],
        },
    },
    "vibevoice_acoustic_tokenizer": _VIBEVOICE,
    "vibevoice_acoustic_tokenizer_encoder": _VIBEVOICE,
    "vibevoice_acoustic_tokenizer_decoder": {**_VIBEVOICE, "depths": [1, 1, 1]},
    "videoprism": {"vision_config": {"image_size": 36, "num_frames": 4}},
    "clap": {
        "audio_config": {
            "spec_size": 64,
            "num_mel_bins": 32,
            "window_size": 2,
            "hidden_size": 8 * WIDTH,
        },
    },
}
"""What no rule can know, by family; a dictionary in it is for a part of the configuration."""
