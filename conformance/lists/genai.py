"""Language models as onnxruntime-genai's model builder writes them, with random weights.

Each architecture is a tiny configuration of transformers, saved with random weights and a
tokenizer of a few words, and given to the builder: float32, and weights of four or eight bits
(`MatMulNBits`, `QMoE`), which stay frozen while gradients pass through them.

Five cases the builder (0.18.0) cannot make: it builds PhiMoE for CUDA only, reads fields of Gemma 3
that transformers 5 has renamed, and takes gpt-oss in four bits from the original file alone.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..cases import OnnxCase

PACKAGES = ["onnxruntime-genai==0.18.0", "transformers", "tokenizers"]
BATCH = 10

PROMPTS, LENGTH, VOCABULARY = 2, 6, 80
"""No other size is that of the vocabulary: the builder tells an embedding from a head by sizes."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
LONG: dict[str, Any] = {
    "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4}),
    "llama-rope3": ("Llama", {"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "phi": ("Phi", {"partial_rotary_factor": 0.5, "hidden_size": 128}),
    "phi3": ("Phi3", {"original_max_position_embeddings": 64}),
    "phi3-long": ("Phi3", LONG),
    "phimoe": ("Phimoe", EXPERTS | LONG | {"rope_scaling": LONG["rope_scaling"] | {
        "short_mscale": 1.2, "long_mscale": 1.2}}),
    "gemma": ("Gemma", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16}),
    "granite": ("Granite", {"attention_multiplier": 0.3, "embedding_multiplier": 2.0,
                            "residual_multiplier": 0.5, "logits_scaling": 2.0}),
    "olmo": ("Olmo", {}),
    "nemotron": ("Nemotron", {"partial_rotary_factor": 0.5, "hidden_size": 128}),
    "ernie": ("Ernie4_5", {"head_dim": 16}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 1]}),
    "gpt-oss": ("GptOss", EXPERTS | {"head_dim": 16, "sliding_window": 4}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"],
                      "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2Moe", {"layer_types": ["conv", "full_attention"], "num_experts": 4,
                            "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                            "num_dense_layers": 1}),
    "granitemoehybrid": ("GraniteMoeHybrid", EXPERTS | {
        "layer_types": ["attention", "attention"], "shared_intermediate_size": 32}),
}  # fmt: skip

VARIANTS: dict[str, tuple[str, list[str]]] = {
    "fp32": ("fp32", []),
    "int4": ("int4", ["accuracy_level=1"]),
    "int4-asymmetric": ("int4", ["accuracy_level=1", "is_symmetric=false", "block_size=16"]),
    "int4-rtn": ("int4", ["accuracy_level=1", "algo_config=rtn"]),
    "int4-kquant-mixed": ("int4", ["accuracy_level=1", "algo_config=k_quant_mixed"]),
    "int4-qdq": ("int4", ["use_qdq=true"]),
    "int8": ("int8", ["accuracy_level=1"]),
}
"""Precision and options of the builder; `accuracy_level=1` computes with float32."""

WIDER = {"int4-kquant-mixed": {"intermediate_size": 128}}
"""The tool behind this variant needs rows that are whole blocks of 64."""

ALSO: dict[str, list[str]] = {
    "gemma2": ["windowed_kv_cache=false"],
    "gemma3": ["windowed_kv_cache=false"],
    "gpt-oss": ["windowed_kv_cache=false"],
}
"""Options that an architecture needs: prompts begin with empty caches."""

FEW = ("llama", "qwen3", "gemma2")
"""Architectures that are built in every variant."""

OPTIONS: dict[str, tuple[str, str, list[str]]] = {
    "llama/fp32/no-embedding": ("llama", "fp32", ["exclude_embeds=true"]),
    "llama/fp32/no-head": ("llama", "fp32", ["exclude_lm_head=true"]),
    "llama/fp32/hidden-states": ("llama", "fp32", ["include_hidden_states=true"]),
    "llama/fp32/last-token": ("llama", "fp32", ["prune_lm_head=true"]),
    "llama/fp32/separate-qkv": ("llama", "fp32", ["fuse_qkv=false"]),
    "llama/fp32/gate-up": ("llama", "fp32", ["fuse_mlp_gate_up=true"]),
    "qwen3/fp32/fused-norm": ("qwen3", "fp32", ["fuse_qk_norm_gqa=true"]),
}


def names() -> list[str]:
    """One name per architecture and variant."""
    listed = [f"{a}/{v}" for a in ARCHITECTURES for v in ("fp32", "int4")]
    listed += [f"{a}/{v}" for a in FEW for v in VARIANTS if v not in ("fp32", "int4")]
    return listed + list(OPTIONS)


def case(name: str) -> OnnxCase:
    """The model that the builder writes, and a batch of two prompts."""
    architecture, variant, extra = OPTIONS.get(name, (*name.split("/")[:2], []))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        family, settings = ARCHITECTURES[architecture]
        precision, options = VARIANTS[variant]
        _save(source, family, settings | WIDER.get(variant, {}))
        _build(source, target, precision, [*options, *ALSO.get(architecture, []), *extra])
        model = onnx.load(target / "model.onnx")
    sizes = SIZES | ARCHITECTURES[architecture][1]
    head_size = sizes["hidden_size"] // sizes["num_attention_heads"]
    return OnnxCase(model, _feeds(model, head_size), exporter="onnxruntime-genai")


def _save(folder: Path, family: str, settings: dict[str, Any]) -> None:
    """A model of transformers with random weights, and a tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    torch.manual_seed(0)
    head, configuration = _classes(transformers, family)
    model = head(configuration(**(SIZES | settings)))
    with torch.no_grad():  # norms of ones and biases of zeros would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.float32).save_pretrained(folder)
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, VOCABULARY)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2")
    fast.save_pretrained(folder)


def _classes(transformers: Any, family: str) -> tuple[Any, Callable[..., Any]]:
    text = f"{family}TextConfig" if hasattr(transformers, f"{family}TextConfig") else ""
    head = getattr(transformers, f"{family}ForCausalLM")
    return head, getattr(transformers, text or f"{family}Config")


def _build(source: Path, target: Path, precision: str, options: list[str]) -> None:
    importlib.import_module("onnxruntime_genai.models")  # puts the builder's folder on the path
    builder = importlib.import_module("onnxruntime_genai.models.builder")
    place = ("", str(source), str(target), precision, "cpu", str(target / "cache"))
    builder.create_model(*place, **builder.parse_extra_options(*place, options))


def _feeds(model: onnx.ModelProto, head_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Prompts of full length with empty caches, as generation starts and as training runs."""
    rng = np.random.default_rng(0)
    given = {
        "batch_size": PROMPTS, "sequence_length": LENGTH, "total_sequence_length": LENGTH,
        "past_sequence_length": 0, "past_sliding_length": 0, "kv_cache_dim": head_size,
    }  # fmt: skip
    feeds: dict[str, np.ndarray[Any, Any]] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or given[d.dim_param] for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if value.name == "input_ids":
            feeds[value.name] = rng.integers(3, VOCABULARY, shape).astype(dtype)
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones(shape, dtype)
        elif value.name == "position_ids":
            feeds[value.name] = np.broadcast_to(np.arange(LENGTH, dtype=dtype), shape).copy()
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = np.zeros(shape, dtype)
        else:
            feeds[value.name] = rng.uniform(-1, 1, shape).astype(dtype)
    return feeds
