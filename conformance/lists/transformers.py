"""One small model of every architecture of transformers, with random weights.

The name of a case is a model type, as `AutoConfig` knows it. Of its classes the one with the most
usual head is taken, because heads tie weights and reshape; where there is none, the bare model.
Optimum's exporter, which wants an older transformers, has a list of its own.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils import _pytree as pytree

from conformance.cases import TorchCase

from .tiny_configs import SPREAD, tiny
from .torchvision_build import import_torchvision
from .transformers_inputs import inputs_of

PACKAGES = ["transformers>=5", "timm", "torchvision", "scipy"]

FIRST = [
    "bert", "gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi",
    "phi3", "t5", "bart", "vit", "swin", "clip", "whisper", "wav2vec2", "deberta", "mixtral",
    "siglip", "detr", "sam", "mamba", "deberta-v2", "bloom", "qwen3_moe", "gpt_oss",
    "deepseek_v3", "segformer", "modernbert", "mamba2", "recurrent_gemma", "rwkv", "gemma3",
    "llava", "hubert", "convnextv2", "dinov2", "falcon", "gpt_neox", "gptj", "xlnet", "big_bird",
    "longformer", "reformer", "vits", "speecht5", "rt_detr", "deformable_detr", "mask2former",
    "videomae", "timesformer", "layoutlmv3", "perceiver", "canine", "funnel", "zamba2", "jamba",
    "falcon_h1", "qwen3_next", "xlstm", "lfm2", "patchtst", "time_series_transformer",
    "autoformer", "informer", "encodec", "dac", "mimi", "sew-d", "wavlm", "wav2vec2-bert",
    "yolos", "dpt", "vit_mae", "swinv2", "swin2sr", "levit", "cvt", "pvt_v2", "mobilevit",
    "poolformer", "focalnet", "dinat", "esm", "tapas", "lxmert", "flava", "blip", "blip-2",
    "owlvit", "clipseg", "groupvit", "git", "musicgen", "bark", "mra", "yoso", "nystromformer",
    "ibert", "phimoe", "switch_transformers", "nllb-moe", "olmoe", "jetmoe", "llama4_text",
    "gemma3n_text", "gemma4_text", "granitemoehybrid", "nemotron_h", "minimax", "bamba",
    "kimi_linear", "olmo_hybrid", "qwen2_vl", "qwen2_moe", "distilbert", "roberta", "albert",
    "electra", "xlm-roberta", "mt5", "opt", "gpt_neo", "mbart", "pegasus", "m2m_100", "marian",
    "blenderbot", "led", "convnext", "resnet", "deit", "beit", "layoutlm", "mpnet", "stablelm",
    "starcoder2", "cohere", "olmo", "olmo2", "smollm3", "granite", "nemotron", "mobilenet_v2",
    "efficientnet", "regnet", "convbert", "mobilebert", "squeezebert", "fnet", "roformer",
    "rembert", "camembert", "ernie",
]  # fmt: skip
"""What is used most comes first, a family of each kind before others of its kind: a run that
is cut off has seen it."""

HEADS = [
    "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC",
    "AUDIO_CLASSIFICATION", "SPEECH_SEQ_2_SEQ", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION",
    "OBJECT_DETECTION", "DEPTH_ESTIMATION",
]  # fmt: skip
"""Kinds of heads, in the order in which one is looked for."""

BATCH = 30
"""How many cases share a process."""


def names() -> list[str]:
    """Model types, the most used first, then families by name, parts of a family last."""
    mapping = _auto().MODEL_MAPPING_NAMES
    rest = sorted((name for name in mapping if name not in FIRST), key=_part_of_a_family)
    return [name for name in FIRST if name in mapping] + rest


PARTS = {
    "bark": ("semantic_config", "BarkSemanticModel"),
    "musicgen": ("decoder", "MusicgenForCausalLM"),
    "musicgen_melody": ("decoder", "MusicgenMelodyForCausalLM"),
}
"""Models of several that are called one after the other: the part that is tried, and its class."""


def case(name: str) -> TorchCase:
    """The model of this type with small sizes, and inputs for it."""
    return of_type(name, _class_name(name))


def of_type(name: str, class_name: str) -> TorchCase:
    """A small model of this class, with the configuration of the type."""
    import_torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = tiny(transformers.CONFIG_MAPPING[name], name)
    if name in PARTS:
        part, class_name = PARTS[name]
        config = getattr(config, part)
    model_class = getattr(transformers, class_name)
    config = _config_for(model_class, config)
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 1  # classifiers of sequences look for it
    model = model_class(config).eval()
    prefer_exportable_experts(model)
    _fill_zeros(model)
    inputs = inputs_of(model)
    return TorchCase(
        Tensors(model, list(inputs)).eval(),
        tuple(inputs.values()),
        family=model.__module__.split(".")[-2],
        exporters=("dynamo", "torchscript"),
    )


def _config_for(model_class: type, config: Any) -> Any:
    """The part of a configuration that a class is for: the text's, where its head is of text."""
    wanted = getattr(model_class, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return config
    parts = [part for part in vars(config).values() if isinstance(part, wanted)]
    return parts[0] if parts else config


def _fill_zeros(model: torch.nn.Module) -> None:
    """Random numbers for matrices that begin as zeros.

    A router of zeros gives every expert the same score, and which of them are the best is then a
    matter of how torch and onnxruntime sort; a factor of zeros hides what is behind it.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and not parameter.any():
                parameter.normal_(std=SPREAD)


def prefer_exportable_experts(model: Any) -> None:
    """All experts in one batched product: other forms have an operator or a loop of their own."""
    with contextlib.suppress(AttributeError, ValueError, KeyError):
        model.set_experts_implementation("batched_mm")


class Tensors(torch.nn.Module):
    """A model of transformers as a function from tensors to a tuple of its floating outputs."""

    def __init__(self, model: torch.nn.Module, inputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The floating outputs, in the order in which the model has them."""
        leaves = pytree.tree_leaves(self.model(**dict(zip(self.inputs, values))))
        return tuple(leaf for leaf in leaves if _is_floating(leaf))


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _auto() -> Any:
    import_torchvision()
    from transformers.models.auto import modeling_auto

    return modeling_auto


def _class_name(name: str) -> str:
    auto = _auto()
    for head in HEADS:
        mapping = getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES")
        if name in mapping:
            return _one(mapping[name])
    return _one(auto.MODEL_MAPPING_NAMES[name])


def _one(value: Any) -> str:
    return str(value[0] if isinstance(value, (tuple, list)) else value)


def _part_of_a_family(name: str) -> tuple[bool, str]:
    endings = ("_model", "_text", "_vision", "_encoder", "_decoder", "_audio", "_backbone")
    return name.endswith(endings), name
