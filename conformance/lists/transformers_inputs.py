"""What the models of transformers are called with, by the names that their `forward` has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

Inputs = dict[str, torch.Tensor]

WITHOUT_MASK = ("xlnet",)
"""It subtracts a mask of integers from a float, which torch's exporter cannot decompose."""

ROWS, LENGTH, FRAMES, SAMPLES, REGIONS, SIDE = 2, 8, 32, 1600, 4, 4


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
    first, *others = [main] if isinstance(main, str) else main
    if first not in wanted:
        first = next((n for n in MAKERS if n in wanted and n != "attention_mask"), first)
    names = [first, *others]
    if "input_ids" in wanted and hasattr(model.config, "vision_config"):
        names = ["input_ids", "pixel_values"]
    if "input_ids" in names and model.config.model_type not in WITHOUT_MASK:
        names.append("attention_mask")
    names += [n for n, p in wanted.items() if p.default is p.empty and n in MAKERS]
    more = ["decoder_input_ids", "bbox", "visual_feats", "visual_pos"]
    if first == "states":
        more += ["actions", "rewards", "returns_to_go", "timesteps", "attention_mask"]
    if first == "query_embeds":
        more += ["encoder_hidden_states"]
    if model.config.model_type == "vit_mae":
        more += ["noise"]  # what it would draw, and hide by
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
    if "input_features_mask" in inspect.signature(model.forward).parameters:
        inputs["input_features_mask"] = torch.ones(ROWS, frames, dtype=torch.int64)
    return inputs


def _video_only(model: Any) -> Inputs:
    return {"pixel_values": _video(model)}


def _mono(model: Any) -> Inputs:
    return {"input_values": torch.randn(ROWS, 1, SAMPLES)}


def _main_and_mono(model: Any) -> Inputs:
    return {**_main_inputs(model), **_mono(model)}


def _video_and_mono(model: Any) -> Inputs:
    """Frames with their sound, and a text where there is one."""
    return {**_made(model, ["input_ids", "pixel_values_videos"]), **_mono(model)}


def _mono_states(model: Any) -> Inputs:
    return {"hidden_states": torch.randn(ROWS, 1, SAMPLES)}


def _stacked_features(model: Any) -> Inputs:
    """Spectrograms in rows with their differences, of two frames each."""
    inputs = _main_inputs(model)
    return {**inputs, "input_features": torch.cat([inputs["input_features"]] * 4, -1)}


def _one_row_of_video(model: Any) -> Inputs:
    return {name: value[:1] for name, value in _text_and_video(model).items()}


def _text_and_mono(model: Any) -> Inputs:
    return {"input_ids": _tokens(model), **_mono(model)}


def _text_and_image(model: Any) -> Inputs:
    return _made(
        model, ["input_ids", "attention_mask", "pixel_values", "image_embeds_position_mask"]
    )


def _text_and_video(model: Any) -> Inputs:
    names = ["input_ids", "attention_mask", "qformer_input_ids", "qformer_attention_mask"]
    return {**_made(model, names), "pixel_values": _video(model)}


def _text_and_spectrogram(model: Any) -> Inputs:
    """Spectrograms in rows, as images of one channel."""
    config = model.config.audio_config
    frames = config.spec_size**2 // config.num_mel_bins
    return {
        **_text_only(model),
        "input_features": torch.randn(ROWS, 1, frames, config.num_mel_bins),
    }


def _text_and_columns(model: Any) -> Inputs:
    """Spectrograms in columns, of the length that the text has after a model's reduction."""
    mels = _first(
        model.config, "decoder_config.feature_size", "audio_config.num_mel_bins", default=16
    )
    reduction = getattr(model.config, "audio_length_per_tok", 1)
    return {**_text_only(model), "input_features": torch.randn(ROWS, mels, LENGTH * reduction)}


def _pairs_of_images(model: Any) -> Inputs:
    """Two images for each row; where there is text, every token sees both."""
    images = torch.stack([_image(model), _image(model)], 1)
    names = ["input_ids", "attention_mask", "action_embeds"]
    inputs = {**_made(model, names), "pixel_values": images}
    wanted = inspect.signature(model.forward).parameters
    if "image_attention_mask" in wanted:
        inputs["image_attention_mask"] = torch.ones(ROWS, LENGTH, 2, dtype=torch.int64)
    if "pixel_attention_mask" in wanted:
        inputs["pixel_attention_mask"] = torch.ones(ROWS, 2, dtype=torch.bool)
    return inputs


def _padded_patches(model: Any) -> Inputs:
    """As many patches for each image, with their places; the last one of the second is padding."""
    config = _first(model.config, "vision_config", default=model.config)
    width = getattr(config, "num_channels", 3) * config.patch_size**2
    mask = torch.ones(ROWS, SIDE**2, dtype=torch.int64)
    places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).expand(ROWS, -1, -1)
    inputs = {
        "pixel_values": torch.rand(ROWS, SIDE**2, width),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.tensor([[SIDE, SIDE]] * ROWS),
        "pixel_position_ids": places.contiguous(),
    }
    wanted = inspect.signature(model.forward).parameters
    return {**_made(model, ["input_ids"]), **{n: v for n, v in inputs.items() if n in wanted}}


def _patches(model: Any) -> Inputs:
    """Images cut into patches already, one of 4 × 4 for each row."""
    config = model.config
    width = _first(config, "in_channels", "in_chans", default=3) * config.patch_size**2
    width *= _first(config, "temporal_patch_size", "patch_temporal", default=1)
    return _with_grid(model, torch.randn(SIDE**2 * ROWS, width))


def _square_patches(model: Any) -> Inputs:
    """The same, each patch an image."""
    size = model.config.patch_size
    return _with_grid(model, torch.randn(SIDE**2 * ROWS, 3, size, size))


def _with_grid(model: Any, patches: torch.Tensor) -> Inputs:
    wanted = list(inspect.signature(model.forward).parameters)
    inputs = {wanted[0]: patches, "grid_thw": torch.tensor([[1, SIDE, SIDE]] * ROWS)}
    if "merge_sizes" in wanted:
        inputs["merge_sizes"] = torch.full((ROWS,), 2)
    return inputs


def _boxes_in_floats(model: Any) -> Inputs:
    inputs = _main_inputs(model)
    return {**inputs, "bbox": inputs["bbox"] / 64}


def _channels(model: Any) -> Inputs:
    """Tokens of several codebooks in the last axis; the text may be one of them."""
    count = _first(model.config, "decoder_config.num_channels", default=0)
    if count:
        return {**_main_inputs(model), "decoder_input_ids": _in_channels(model, count)}
    return {"input_ids": _in_channels(model, model.config.num_codebooks + 1)}


def _in_channels(model: Any, count: int) -> torch.Tensor:
    return torch.stack([_tokens(model)] * count, -1).contiguous()


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
    if model.config.model_type == "seggpt":
        height //= 2  # the prompt is put above
    channels = _first(model.config, "num_channels", "vision_config.num_channels", default=3)
    return torch.randn(ROWS, channels, height, width)


def _video(model: Any) -> torch.Tensor:
    frames = _first(model.config, "num_frames", "vision_config.num_frames", default=4)
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
        "semantic_model_config.feature_projection_input_dim",
        default=16,
    )
    mels *= _first(model.config, "num_stacked_frames", default=1)
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


def _encoded(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, REGIONS, model.config.encoder_hidden_size)


def _embeddings(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, model.config.hidden_size)


def _latents(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, model.config.hidden_size, LENGTH)


def _context(model: Any) -> torch.Tensor:
    width = len(model.config.target_layer_ids) * model.config.hidden_size
    return torch.randn(ROWS, LENGTH, width)


def _action_embeddings(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, LENGTH, model.config.dit_config.hidden_size)


def _noise(model: Any) -> torch.Tensor:
    """An order of the patches, in steps that nothing rounds away."""
    count = (model.config.image_size // model.config.patch_size) ** 2
    return torch.stack([torch.randperm(count) for _ in range(ROWS)]) / count


def _no_padding(model: Any) -> torch.Tensor:
    """In integers: as floats they would have a gradient, beside which all others are nothing."""
    return torch.zeros(_series(model).shape, dtype=torch.int64)


def _frequencies(model: Any) -> torch.Tensor:
    return torch.tensor([[0], [1]])


def _task(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, model.config.task_seq_len)


def _one_each(model: Any) -> torch.Tensor:
    return torch.ones(ROWS, dtype=torch.int64)


def _mel(model: Any) -> torch.Tensor:
    return torch.randn(ROWS, FRAMES, model.config.input_feat_size)


def _no_mel_padding(model: Any) -> torch.Tensor:
    return torch.zeros(ROWS, FRAMES, dtype=torch.bool)


def _image_places(model: Any) -> torch.Tensor:
    """Which tokens an image takes: the first ones."""
    mask = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    mask[:, : model.config.latent_query_num] = 1
    return mask


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
    "image_embeds_position_mask": _image_places, "encoder_hidden_states": _encoded,
    "inputs_embeds": _embeddings, "noise_embeds": _embeddings, "latents": _latents,
    "hidden_states": _latents, "prompt_pixel_values": _image, "prompt_masks": _image,
    "context_hidden_states": _context, "action_embeds": _action_embeddings,
    "past_values_padding": _no_padding, "freq": _frequencies, "task_inputs": _task,
    "classes_input_ids": _tokens, "classes_attention_mask": _mask, "tasks_input_ids": _tokens,
    "tasks_attention_mask": _mask, "classes_structure": _one_each, "audio_mel": _mel,
    "audio_mel_mask": _no_mel_padding, "qformer_attention_mask": _mask,
    "noise": _noise, "actions": _actions, "rewards": _rewards, "returns_to_go": _rewards,
    "timesteps": _timesteps,
}  # fmt: skip


CHOICES: list[Callable[[Any], Inputs]] = [
    _main_inputs, _text_with_images, _text_only, _image_only, _long_features, _video_only, _mono,
    _patches, _square_patches, _padded_patches, _codebooks, _channels, _text_and_image,
    _text_and_video, _text_and_mono, _text_and_spectrogram, _text_and_columns, _pairs_of_images,
    _boxes_in_floats, _main_and_mono, _mono_states, _stacked_features, _one_row_of_video,
    _video_and_mono,
]  # fmt: skip
"""Sets of inputs, in the order in which they are tried."""
