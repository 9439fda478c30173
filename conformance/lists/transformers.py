"""One small model of every architecture of transformers, with random weights.

The name of a case is a model type, as `AutoConfig` knows it. Of its classes the one with the most
usual head is taken, because heads tie weights and reshape; where there is none, the bare model.
Optimum's exporter is not tried: optimum-onnx 0.1.0, the newest, wants transformers below 4.58.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils import _pytree as pytree

from conformance.cases import TorchCase

from .tiny_configs import tiny
from .torchvision_build import import_torchvision

PACKAGES = ["transformers>=5", "timm", "torchvision"]

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

Inputs = dict[str, torch.Tensor]

WITHOUT_MASK = ("xlnet",)
"""It subtracts a mask of integers from a float, which torch's exporter cannot decompose."""

HEADS = [
    "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC",
    "AUDIO_CLASSIFICATION", "SPEECH_SEQ_2_SEQ", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION",
    "OBJECT_DETECTION", "DEPTH_ESTIMATION",
]  # fmt: skip
"""Kinds of heads, in the order in which one is looked for."""

BATCH = 30
"""How many cases share a process."""

ROWS, LENGTH, FRAMES, SAMPLES, REGIONS = 2, 8, 32, 1600, 4


def names() -> list[str]:
    """Model types, the most used first, then families by name, parts of a family last."""
    mapping = _auto().MODEL_MAPPING_NAMES
    rest = sorted((name for name in mapping if name not in FIRST), key=_part_of_a_family)
    return [name for name in FIRST if name in mapping] + rest


PARTS = {
    "bark": ("semantic_config", "BarkSemanticModel"),
    "musicgen": ("decoder", "MusicgenForCausalLM"),
    "musicgen_melody": ("decoder", "MusicgenMelodyForCausalLM"),
    "emu3": ("text_config", "Emu3ForCausalLM"),
    "llama4": ("text_config", "Llama4ForCausalLM"),
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
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 1  # classifiers of sequences look for it
    model = getattr(transformers, class_name)(config).eval()
    _prefer_exportable_experts(model)
    inputs = inputs_of(model)
    return TorchCase(
        Tensors(model, list(inputs)).eval(),
        tuple(inputs.values()),
        family=model.__module__.split(".")[-2],
        exporters=("dynamo", "torchscript"),
    )


def _prefer_exportable_experts(model: Any) -> None:
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


def inputs_of(model: Any) -> Inputs:
    """What the forward of this model asks for; the first choice of inputs that it takes."""
    errors: list[Exception] = []
    for choose in CHOICES:
        try:
            inputs = choose(model)
            with torch.no_grad():
                model(**inputs)
        except Exception as error:  # noqa: PERF203 - a few tries
            errors.append(error)
        else:
            return inputs
    raise errors[0]


def _main_inputs(model: Any) -> Inputs:
    """The main input of the class, and what goes with it."""
    wanted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    if main not in wanted:
        main = next((n for n in MAKERS if n in wanted and n != "attention_mask"), main)
    names = [main]
    if "input_ids" in wanted and hasattr(model.config, "vision_config"):
        names = ["input_ids", "pixel_values"]
    if "input_ids" in names and model.config.model_type not in WITHOUT_MASK:
        names.append("attention_mask")
    names += [n for n, p in wanted.items() if p.default is p.empty and n in MAKERS]
    more = ["decoder_input_ids", "bbox", "visual_feats", "visual_pos"]
    if main == "states":
        more += ["actions", "rewards", "returns_to_go", "timesteps", "attention_mask"]
    if "past_values" in names and "future_time_features" in wanted:
        more += ["future_time_features", "future_values"]
    return _made(model, [*names, *more])


def _text_with_images(model: Any) -> Inputs:
    """Text with as many placeholders as the images have features."""
    pixels, config = _image(model), model.config
    with torch.no_grad():
        features = pytree.tree_leaves(
            model.get_image_features(pixels, return_dict=True).pooler_output
        )
    count = sum(part.shape[:-1].numel() for part in features) // ROWS
    token = _first(config, "image_token_id", "image_token_index", default=0)
    ids = torch.cat([torch.full((ROWS, count), token), _tokens(model)], 1)
    inputs = {"input_ids": ids, "pixel_values": pixels, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["token_type_ids"] = (ids == token).to(torch.int64)
    return inputs


def _long_features(model: Any) -> Inputs:
    """Spectrograms in columns, as long as the encoder has positions."""
    frames = 2 * _first(
        model.config, "max_source_positions", "audio_config.max_source_positions", default=16
    )
    mels = _features(model).shape[-1]
    inputs = _main_inputs(model)
    inputs["input_features"] = torch.randn(ROWS, mels, frames)
    if "input_features_mask" in inputs:
        inputs["input_features_mask"] = torch.ones(ROWS, frames, dtype=torch.int64)
    return inputs


def _video_only(model: Any) -> Inputs:
    return {"pixel_values": _video(model)}


def _mono(model: Any) -> Inputs:
    return {"input_values": torch.randn(ROWS, 1, SAMPLES)}


def _patches(model: Any) -> Inputs:
    """Images cut into patches already, one of 4 × 4 for each row."""
    config = model.config
    width = _first(config, "in_channels", "in_chans", default=3) * config.patch_size**2
    width *= getattr(config, "temporal_patch_size", 1)
    names = list(inspect.signature(model.forward).parameters)
    grid = torch.tensor([[1, 4, 4]] * ROWS)
    return {names[0]: torch.randn(16 * ROWS, width), "grid_thw": grid}


def _codebooks(model: Any) -> Inputs:
    """Tokens of several codebooks, one after the other."""
    count = _first(model.config, "num_codebooks", "decoder_config.num_channels", default=1)
    inputs, rows = _main_inputs(model), torch.cat([_tokens(model)] * count)
    inputs["decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"] = rows
    inputs.pop("attention_mask", None)
    return inputs


def _text_only(model: Any) -> Inputs:
    return _made(model, ["input_ids", "attention_mask", "decoder_input_ids"])


def _image_only(model: Any) -> Inputs:
    return _made(model, ["pixel_values"])


def _made(model: Any, names: list[str]) -> Inputs:
    """Inputs of these names, as far as the model has them."""
    wanted = inspect.signature(model.forward).parameters
    return {name: MAKERS[name](model) for name in dict.fromkeys(names) if name in wanted}


def _first(config: Any, *paths: str, default: int) -> Any:
    for path in paths:
        value: Any = config
        for part in path.split("."):
            value = getattr(value, part, None)
        if value is not None:
            return value
    return default


def _tokens(model: Any) -> torch.Tensor:
    size = _first(
        model.config, "vocab_size", "text_config.vocab_size", "model_config.vocab_size", default=96
    )
    return torch.randint(min(size // 2, 40), min(size, 96), (ROWS, LENGTH))  # none is special


def _mask(model: Any) -> torch.Tensor:
    """The second row is shorter by two."""
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[1, -2:] = 0
    return mask


def _image(model: Any) -> torch.Tensor:
    size = _first(model.config, "image_size", "vision_config.image_size", default=64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = _first(model.config, "num_channels", "vision_config.num_channels", default=3)
    return torch.randn(ROWS, channels, height, width)


def _video(model: Any) -> torch.Tensor:
    frames = _first(model.config, "num_frames", default=4)
    return _image(model)[:, None].expand(-1, frames, -1, -1, -1).contiguous()


def _samples(model: Any) -> torch.Tensor:
    mels = getattr(model.config, "num_mel_bins", None)
    if mels and hasattr(model.config, "max_length"):
        return torch.randn(ROWS, model.config.max_length, mels)
    return torch.randn(ROWS, SAMPLES)


def _features(model: Any) -> torch.Tensor:
    mels = _first(
        model.config,
        "num_mel_bins",
        "encoder_config.num_mel_bins",
        "audio_config.num_mel_bins",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        default=16,
    )
    positions = getattr(model.config, "max_source_positions", None)
    if model.config.model_type == "whisper" and positions:
        return torch.randn(ROWS, mels, 2 * positions)
    return torch.randn(ROWS, FRAMES, mels)


def _boxes(model: Any) -> torch.Tensor:
    corners = torch.randint(0, 30, (ROWS, LENGTH, 2))
    return torch.cat([corners, corners + 5], -1)


def _series(model: Any) -> torch.Tensor:
    config = model.config
    lags = getattr(config, "lags_sequence", None) or [0]
    length = getattr(config, "context_length", 8) + max(lags)
    channels = getattr(config, "num_input_channels", 0)
    return torch.randn(ROWS, length, channels) if channels else torch.randn(ROWS, length)


def _observed(model: Any) -> torch.Tensor:
    return torch.ones_like(_series(model))


def _time_features(model: Any) -> torch.Tensor:
    return torch.randn(*_series(model).shape[:2], model.config.num_time_features)


def _future_features(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, model.config.prediction_length, model.config.num_time_features)


def _future_values(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, model.config.prediction_length)


def _regions(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, REGIONS, model.config.visual_feat_dim)


def _region_boxes(model: Any) -> torch.Tensor:
    return torch.rand(ROWS, REGIONS, model.config.visual_pos_dim)


def _query_embeddings(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, REGIONS, model.config.hidden_size)


def _states(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, model.config.state_dim)


def _actions(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, model.config.act_dim)


def _rewards(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, 1)


def _timesteps(model: Any) -> torch.Tensor:
    return torch.arange(LENGTH).expand(ROWS, -1).contiguous()


def _frames_mask(model: Any) -> torch.Tensor:
    return torch.ones(ROWS, FRAMES, dtype=torch.int64)


MAKERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "input_ids": _tokens, "attention_mask": _mask, "pixel_values": _image,
    "input_features": _features, "input_values": _samples, "decoder_input_ids": _tokens,
    "input_features_mask": _frames_mask, "past_time_features": _time_features,
    "past_observed_mask": _observed, "future_time_features": _future_features,
    "future_values": _future_values, "bbox": _boxes, "pixel_values_videos": _video,
    "past_values": _series, "visual_feats": _regions, "visual_pos": _region_boxes,
    "query_embeds": _query_embeddings, "qformer_input_ids": _tokens, "states": _states,
    "actions": _actions, "rewards": _rewards, "returns_to_go": _rewards, "timesteps": _timesteps,
}  # fmt: skip


CHOICES: list[Callable[[Any], Inputs]] = [
    _main_inputs, _text_with_images, _text_only, _image_only, _long_features, _video_only, _mono,
    _patches, _codebooks,
]  # fmt: skip
"""Sets of inputs, in the order in which they are tried."""


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
