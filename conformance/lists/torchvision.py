"""The smallest model of every family of torchvision, on small images, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from conformance.cases import TorchCase

from .torchvision_build import import_torchvision

PACKAGES = ["torchvision"]
BATCH = 6
"""How many cases share a process."""

MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ((2, 3, 64, 64), {}),
    "vgg11": ((2, 3, 32, 32), {}),
    "vgg11_bn": ((2, 3, 32, 32), {}),
    "resnet18": ((2, 3, 32, 32), {}),
    "resnext50_32x4d": ((2, 3, 32, 32), {}),
    "wide_resnet50_2": ((2, 3, 32, 32), {}),
    "densenet121": ((2, 3, 32, 32), {}),
    "squeezenet1_1": ((2, 3, 64, 64), {}),
    "googlenet": ((2, 3, 64, 64), {"init_weights": False, "aux_logits": False}),
    "inception_v3": ((2, 3, 96, 96), {"init_weights": False, "aux_logits": False}),
    "mobilenet_v2": ((2, 3, 32, 32), {}),
    "mobilenet_v3_small": ((2, 3, 32, 32), {}),
    "mnasnet0_5": ((2, 3, 32, 32), {}),
    "shufflenet_v2_x0_5": ((2, 3, 32, 32), {}),
    "efficientnet_b0": ((2, 3, 32, 32), {}),
    "efficientnet_v2_s": ((2, 3, 32, 32), {}),
    "regnet_x_400mf": ((2, 3, 32, 32), {}),
    "regnet_y_400mf": ((2, 3, 32, 32), {}),
    "convnext_tiny": ((2, 3, 32, 32), {}),
    "vit_b_32": ((2, 3, 64, 64), {"image_size": 64}),
    "swin_t": ((2, 3, 64, 64), {}),
    "swin_v2_t": ((2, 3, 64, 64), {}),
    "maxvit_t": ((1, 3, 64, 64), {"input_size": (64, 64), "partition_size": 2}),
    "fcn_resnet50": ((2, 3, 32, 32), {"weights_backbone": None}),
    "deeplabv3_mobilenet_v3_large": ((2, 3, 32, 32), {"weights_backbone": None}),
    "lraspp_mobilenet_v3_large": ((2, 3, 32, 32), {"weights_backbone": None}),
    "r3d_18": ((1, 3, 4, 32, 32), {}),
    "mc3_18": ((1, 3, 4, 32, 32), {}),
    "r2plus1d_18": ((1, 3, 4, 32, 32), {}),
    "s3d": ((1, 3, 16, 64, 64), {}),
    "mvit_v2_s": ((1, 3, 16, 224, 224), {}),
    "swin3d_t": ((1, 3, 4, 64, 64), {}),
    "raft_small": ((1, 3, 128, 128), {}),
    "ssdlite320_mobilenet_v3_large": ((1, 3, 320, 320), {"weights_backbone": None}),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ((1, 3, 96, 96), {"weights_backbone": None}),
    "fcos_resnet50_fpn": ((1, 3, 96, 96), {"weights_backbone": None}),
    "retinanet_resnet50_fpn": ((1, 3, 96, 96), {"weights_backbone": None}),
    "maskrcnn_resnet50_fpn": ((1, 3, 96, 96), {"weights_backbone": None}),
    "keypointrcnn_resnet50_fpn": ((1, 3, 96, 96), {"weights_backbone": None}),
}  # fmt: skip
"""Shape of the input and arguments of the constructor, by name."""

TWO_IMAGES = ("raft_small",)


def names() -> list[str]:
    """One model of each family."""
    return list(MODELS)


def case(name: str) -> TorchCase:
    """The model of this name, and images for it."""
    import_torchvision()
    import torchvision

    torch.manual_seed(0)
    shape, options = MODELS[name]
    module = torchvision.models.get_model(name, weights=None, **options).eval()
    inputs = tuple(torch.randn(shape) for _ in range(2 if name in TWO_IMAGES else 1))
    return TorchCase(module, inputs, family="torchvision", exporters=("dynamo", "torchscript"))
