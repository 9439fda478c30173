"""The smallest model of every module of timm, on small images, with random weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import torch

from conformance.cases import TorchCase

from .shrink import keep_layers, spread
from .torchvision_build import import_torchvision

PACKAGES = ["timm", "torchvision"]
BATCH = 30
"""How many cases share a process."""

Maker = Callable[..., Any]

SMALLEST = {
    "byoanet": "lambda_resnet26t", "cait": "cait_xxs24_224", "metaformer": "poolformer_s12",
    "efficientformer_v2": "efficientformerv2_s0", "mlp_mixer": "mixer_s32_224",
    "regnet": "regnety_002", "senet": "legacy_seresnet18",
    "swin_transformer": "swin_tiny_patch4_window7_224",
}  # fmt: skip
"""Of a module, its model with the fewest parameters; where the name does not tell."""

_STAGES = (1, 1, 2, 1)
_SWIN = {"depths": (2, 1, 1, 1), "embed_dim": 24, "num_heads": (1, 2, 4, 8)}
_VIT = {"depth": 2, "embed_dim": 96, "num_heads": 3}

SMALLER: dict[str, dict[str, Any]] = {
    "beit": _VIT, "cait": {"depth": 2},
    "coat": {"serial_depths": [1] * 4, "parallel_depth": 2, "embed_dims": [64] * 4},
    "convit": {"depth": 3, "local_up_to_layer": 2},
    "csatv2": {"depths": (1, 1, 2, 2), "transformer_depths": (0, 0, 1, 1)},
    "crossvit": {"depth": [[1, 2, 0], [1, 2, 0]]},
    "davit": {"depths": (1,) * 4, "embed_dims": (32, 64, 128, 256), "num_heads": (1, 2, 4, 8)},
    "deepseek_vit": {"depth": 2, "embed_dim": 64, "num_heads": 4}, "deit": {"depth": 2},
    "densenet": {"block_config": (2, 2, 2, 2)}, "dpn": {"k_sec": _STAGES},
    "dla": {"channels": [16, 16, 32, 64, 96, 128]}, "edgenext": {"depths": (1, 2, 2, 2)},
    "efficientformer": {"depths": (1, 1, 2, 2), "embed_dims": (16, 32, 64, 128)},
    "efficientformer_v2": {"depths": (1, 1, 3, 3)}, "efficientvit_msra": {"depth": [1, 1, 2]},
    "eva": {"depth": 2}, "fasternet": {"depths": _STAGES, "embed_dim": 32},
    "fastvit": {"layers": _STAGES, "embed_dims": (16, 32, 64, 128)}, "gemma4_vit": {"depth": 2},
    "hiera": {"stages": _STAGES, "embed_dim": 32},
    "iformer": {"depths": (1, 1, 3, 3), "attn_groups": (0, 0, 1, 1)},
    "hieradet_sam2": {"stages": (1, 2, 3, 2), "global_att_blocks": (4,), "embed_dim": 32},
    "inception_next": {"depths": _STAGES}, "lcnetv2": {"depths": _STAGES},
    "levit": {"depth": (1, 1, 1)}, "lowformer": {"depth_list": [0, 1, 1, 1, 1]},
    "maxxvit": {"depths": (1, 1, 1, 1)}, "mobilenetv5": {"channel_multiplier": 0.25},
    "naflexvit": _VIT, "nasnet": {"stem_size": 16, "num_features": 192},
    "nextvit": {"depths": (1, 1, 5, 1)}, "pit": {"depth": [1, 1, 1]},
    "qwen3_vit": _VIT, "rdnet": {"num_blocks_list": [1] * 7},
    "repvit": {"depth": _STAGES}, "res2net": {"layers": [1] * 4}, "resnetv2": {"layers": [1] * 4},
    "sequencer": {"layers": [1] * 4, "embed_dims": [48, 96, 96, 96], "hidden_sizes": [12] * 4},
    "shvit": {"depth": (1, 1, 2)}, "sknet": {"layers": [1] * 4}, "starnet": {"depths": _STAGES},
    "swiftformer": {"layers": list(_STAGES)}, "swin_transformer": _SWIN,
    "swin_transformer_v2": _SWIN, "swin_transformer_v2_cr": _SWIN,
    "tiny_vit": {"depths": list(_STAGES)}, "tnt": {"depth": 2},
    "tresnet": {"layers": [1] * 4, "width_factor": 0.5}, "twins": {"depths": [1, 2, 2, 2]},
    "visformer": {"depth": (2, 1, 1)},
    "vision_transformer_hybrid": {"depth": 2}, "vision_transformer_relpos": {"depth": 2},
    "vision_transformer_sam": {**_VIT, "global_attn_indexes": [1], "window_size": 3},
    "vitamin": {"depth": 2}, "xcit": {"depth": 2},
}  # fmt: skip
"""Arguments for modules that have no small model: fewer blocks of each kind, narrower ones."""

CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "convmixer": ("ConvMixer", {"dim": 64, "depth": 2, "kernel_size": 7, "patch_size": 7}),
    "focalnet": ("FocalNet", {"depths": _STAGES, "embed_dim": 24, "focal_levels": (3,) * 4}),
    "gcvit": ("GlobalContextVit",
              {"depths": (2, 1, 1, 1), "num_heads": (1, 2, 4, 8), "embed_dim": 32,
               "window_size": (4, 4, 2, 2)}),
    "nest": ("Nest", {"embed_dims": (32, 64, 128), "num_heads": (1, 2, 4), "depths": (1, 1, 1)}),
    "vgg": ("VGG", {"cfg": [8, "M", 16, "M", 32, 32, "M", 32, "M", 32, "M"], "mlp_ratio": 1 / 64}),
    "volo": ("VOLO", {"layers": _STAGES, "embed_dims": (48, 96, 96, 96), "num_heads": (3,) * 4}),
}  # fmt: skip
"""Modules whose models take no other sizes than their own: the class, and sizes for it."""

LAYERS: dict[str, dict[str, Sequence[int]]] = {
    "InceptionResnetV2": {"repeat": (0,), "repeat_1": (0,), "repeat_2": (0,)},
    "InceptionV4": {"features": (*range(7), 10, 11, 18, 19)},
}
"""What is left of long rows of equal blocks that no argument shortens."""

SKIPPED = {
    "InceptionV3": ("Mixed_5d", "Mixed_6c", "Mixed_6d", "Mixed_6e"),
    "PNASNet5Large": ("cell_2", "cell_3", "cell_6", "cell_7", "cell_10", "cell_11"),
}
"""Blocks between others of their kind that are left out."""

NARROWER = {"pnasnet": (6, ("ConvNormAct", "CellStem0", "Cell", "create_classifier"))}
"""Modules whose only model is too wide to be judged (86 million weights): what its widths are
divided by, and the names of the module that they are given to."""
WIDE = 50

SIZE_WORDS = (
    "test", "atto", "femto", "pico", "nano", "tiny", "xxtiny", "xxs", "xs", "mobile", "micro",
    "small", "s", "050", "035", "18", "base",
)  # fmt: skip
LARGE = ("mobilenetv5", "nasnet", "pnasnet")
"""Modules whose only models have far more nodes than the others."""
SIZES = (64, 96, 128, 160, 224, 240, 256)


class Latest(torch.nn.Module):
    """In the place of a block that is left out: what the block before it gave."""

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """The last of what the block would have combined."""
        return values[-1]


def names() -> list[str]:
    """Modules of timm, as `timm.list_modules` has them, large ones last."""
    import_torchvision()
    import timm

    return sorted(timm.list_modules(), key=LARGE.__contains__)


def case(name: str) -> TorchCase:
    """The smallest model of this module."""
    import_torchvision()
    module, image = smallest_image(_maker(name))
    return TorchCase(module, (image,), family=name, exporters=("dynamo", "torchscript"))


def of_model(model: str, options: Mapping[str, Any]) -> Maker:
    """Makes a model by its name; with sizes of its own if it has any."""
    import timm

    return partial(timm.create_model, model, pretrained=False, **options)


def _maker(name: str) -> Maker:
    """Makes the model of a module of timm."""
    if name in CLASSES:
        class_name, options = CLASSES[name]
        return partial(getattr(import_module(f"timm.models.{name}"), class_name), **options)
    make = of_model(SMALLEST.get(name) or _smallest(name), SMALLER.get(name, {}))
    return _narrower(name, make) if name in NARROWER else make


def _narrower(name: str, make: Maker) -> Maker:
    """Makes a model whose layers are told smaller widths."""
    by, parts = NARROWER[name]
    module = import_module(f"timm.models.{name}")

    def divided(width: Any) -> Any:
        is_wide = isinstance(width, int) and width > WIDE and width % by == 0
        return width // by if is_wide else width

    def narrowed(part: Maker) -> Maker:
        def made(*args: Any, **options: Any) -> Any:
            return part(*map(divided, args), **{n: divided(v) for n, v in options.items()})

        return made

    def made(**options: Any) -> Any:
        with contextlib.ExitStack() as patches:
            for part in parts:
                patch = mock.patch.object(module, part, narrowed(getattr(module, part)))
                patches.enter_context(patch)
            return make(**options)

    return made


def smallest_image(make: Maker) -> tuple[Any, torch.Tensor]:
    """The model for the smallest image that it takes, and such an image."""
    error: Exception | None = None
    for size in SIZES:
        torch.manual_seed(0)
        try:
            return _with_size(make, size)
        except Exception as reason:
            error = reason
    assert error is not None
    raise error


def _with_size(make: Maker, size: int) -> tuple[Any, torch.Tensor]:
    try:
        module = make(num_classes=10, img_size=size)
    except TypeError as reason:  # a convolutional network takes what it gets
        if "img_size" not in str(reason):
            raise
        module = make(num_classes=10)
    keep_layers(module.eval(), LAYERS.get(type(module).__name__, {}))
    for name in SKIPPED.get(type(module).__name__, ()):
        setattr(module, name, Latest())
    _forget_biases(module)
    image = torch.randn(2, 3, size, size)
    spread(module, image)
    with torch.no_grad():
        module(image)
    return module, image


def _forget_biases(module: torch.nn.Module) -> None:
    """Attention that gathers its biases at every call.

    Outside of training some layers keep the first gathering for later calls, where no gradient
    reaches the parameter that it was gathered from. Nothing else in these layers asks for the mode.
    """
    for layer in module.modules():
        if hasattr(layer, "attention_bias_cache"):
            layer.training = True


def _smallest(module: str) -> str:
    """By the word for its size, then by the length of the name."""
    import timm

    models = timm.list_models(module=module)
    return min(models, key=lambda name: (_rank(name), len(name), name))


def _rank(name: str) -> int:
    words = name.split("_")
    return min((SIZE_WORDS.index(word) for word in words if word in SIZE_WORDS), default=99)
