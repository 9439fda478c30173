"""The smallest model of every module of timm, on small images, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from conformance.cases import TorchCase

from .torchvision_build import import_torchvision

PACKAGES = ["timm", "torchvision"]
BATCH = 6
"""How many cases share a process."""

SMALLEST = {
    "byoanet": "lambda_resnet26t", "cait": "cait_xxs24_224", "metaformer": "poolformer_s12",
    "efficientformer_v2": "efficientformerv2_s0", "mlp_mixer": "mixer_s32_224",
}  # fmt: skip
"""Of a module, its model with the fewest parameters; where the name does not tell."""

FEWER_LAYERS = {
    "beit": {"depth": 3}, "cait": {"depth": 3},
    "deepseek_vit": {"depth": 2, "embed_dim": 64, "num_heads": 4}, "gemma4_vit": {"depth": 2},
    "naflexvit": {"depth": 3}, "mobilenetv5": {},
}  # fmt: skip
"""Arguments for modules that have no small model."""

SIZE_WORDS = (
    "test", "atto", "femto", "pico", "nano", "tiny", "xxtiny", "xxs", "xs", "mobile", "micro",
    "small", "s", "050", "035", "18", "base",
)  # fmt: skip
SIZES = (64, 96, 128, 160, 224, 240, 256)


def names() -> list[str]:
    """Modules of timm, as `timm.list_modules` has them."""
    import_torchvision()
    import timm

    return [str(name) for name in timm.list_modules()]


def case(name: str) -> TorchCase:
    """The smallest model of this module."""
    import_torchvision()
    options = FEWER_LAYERS.get(name, {})
    module, image = smallest_image(SMALLEST.get(name) or _smallest(name), options)
    return TorchCase(module, (image,), family=name, exporters=("dynamo", "torchscript"))


def smallest_image(model: str, options: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    """The model for the smallest image that it takes, and such an image."""
    error: Exception | None = None
    for size in SIZES:
        torch.manual_seed(0)
        try:
            return _with_size(model, size, options)
        except Exception as reason:
            error = reason
    assert error is not None
    raise error


def _with_size(model: str, size: int, options: dict[str, Any]) -> tuple[Any, torch.Tensor]:
    import timm

    make = timm.create_model
    try:
        module = make(model, pretrained=False, num_classes=10, img_size=size, **options)
    except TypeError as reason:  # a convolutional network takes what it gets
        if "img_size" not in str(reason):
            raise
        module = make(model, pretrained=False, num_classes=10, **options)
    module = module.eval()
    image = torch.randn(2, module.pretrained_cfg["input_size"][0], size, size)
    with torch.no_grad():
        module(image)
    return module, image


def _smallest(module: str) -> str:
    """By the word for its size, then by the length of the name."""
    import timm

    models = timm.list_models(module=module)
    return min(models, key=lambda name: (_rank(name), len(name), name))


def _rank(name: str) -> int:
    words = name.split("_")
    return min((SIZE_WORDS.index(word) for word in words if word in SIZE_WORDS), default=99)
