"""A small model of every family of torchvision, on small images, with random weights.

Sizes are those of the family's smallest model; rows of equal blocks are cut to one or two, and
transformers are narrower. A detector is tried without the choice of boxes, which has no gradient
and is no part of a graph: its backbone and heads, the heads of regions at fixed boxes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.cases import TorchCase

from .shrink import keep_layers, narrow, spread
from .torchvision_build import import_torchvision

PACKAGES = ["torchvision"]
BATCH = 39
"""How many cases share a process."""

Make = Callable[..., torch.nn.Module]
CLASSES = 10
SEEDS = {"inception_v3": 1}
"""Of weights and images, where it is not 0: with that, one number in front of a ReLU is zero but
for rounding, and the graph of the gradients and the training graph take different sides of it."""
_RESNET = {f"layer{i}": (0,) for i in (1, 2, 3, 4)}
_BACKBONE = {f"backbone.{name}": places for name, places in _RESNET.items()}
_BODY = {f"backbone.body.{name}": places for name, places in _RESNET.items()}
_SWIN = {"embed_dim": 24, "depths": [2, 1, 1, 1], "num_heads": [1, 2, 4, 8]}
_DETECTOR = {"weights_backbone": None}

SHAPES: dict[str, tuple[int, ...]] = {
    "alexnet": (2, 3, 64, 64), "vgg11": (2, 3, 32, 32), "vgg11_bn": (2, 3, 32, 32),
    "resnet18": (2, 3, 32, 32), "resnext50_32x4d": (2, 3, 32, 32),
    "wide_resnet50_2": (2, 3, 32, 32), "densenet121": (2, 3, 32, 32),
    "squeezenet1_1": (2, 3, 64, 64), "googlenet": (2, 3, 64, 64), "inception_v3": (2, 3, 96, 96),
    "mobilenet_v2": (2, 3, 32, 32), "mobilenet_v3_small": (2, 3, 32, 32),
    "mnasnet0_5": (2, 3, 32, 32), "shufflenet_v2_x0_5": (2, 3, 32, 32),
    "efficientnet_b0": (2, 3, 32, 32), "efficientnet_v2_s": (2, 3, 32, 32),
    "regnet_x_400mf": (2, 3, 32, 32), "regnet_y_400mf": (2, 3, 32, 32),
    "convnext_tiny": (2, 3, 32, 32), "vit_b_32": (2, 3, 64, 64), "swin_t": (2, 3, 64, 64),
    "swin_v2_t": (2, 3, 64, 64), "maxvit_t": (2, 3, 64, 64), "fcn_resnet50": (2, 3, 32, 32),
    "deeplabv3_mobilenet_v3_large": (2, 3, 32, 32), "lraspp_mobilenet_v3_large": (2, 3, 32, 32),
    "r3d_18": (1, 3, 4, 32, 32), "mc3_18": (1, 3, 4, 32, 32), "r2plus1d_18": (1, 3, 4, 32, 32),
    "s3d": (1, 3, 16, 64, 64), "mvit_v2_s": (1, 3, 4, 32, 32), "swin3d_t": (1, 3, 4, 64, 64),
    "raft_small": (1, 3, 128, 128), "ssdlite320_mobilenet_v3_large": (1, 3, 64, 64),
    "fasterrcnn_mobilenet_v3_large_320_fpn": (1, 3, 64, 64), "fcos_resnet50_fpn": (1, 3, 64, 64),
    "retinanet_resnet50_fpn": (1, 3, 64, 64), "maskrcnn_resnet50_fpn": (1, 3, 64, 64),
    "keypointrcnn_resnet50_fpn": (1, 3, 64, 64),
}  # fmt: skip
"""Of the input, by name of the model: its family's smallest."""

OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": False, "aux_logits": False},
    "inception_v3": {"init_weights": False, "aux_logits": False},
    "fcn_resnet50": _DETECTOR, "deeplabv3_mobilenet_v3_large": _DETECTOR,
    "lraspp_mobilenet_v3_large": _DETECTOR, "ssdlite320_mobilenet_v3_large": _DETECTOR,
    "fasterrcnn_mobilenet_v3_large_320_fpn": _DETECTOR, "fcos_resnet50_fpn": _DETECTOR,
    "retinanet_resnet50_fpn": _DETECTOR, "maskrcnn_resnet50_fpn": _DETECTOR,
    "keypointrcnn_resnet50_fpn": _DETECTOR,
}  # fmt: skip
"""Of the function that makes it."""

LAYERS: dict[str, dict[str, tuple[int, ...]]] = {
    "resnext50_32x4d": _RESNET, "wide_resnet50_2": _RESNET, "fcn_resnet50": _BACKBONE,
    "fcos_resnet50_fpn": _BODY, "retinanet_resnet50_fpn": _BODY, "maskrcnn_resnet50_fpn": _BODY,
    "keypointrcnn_resnet50_fpn": _BODY, "r3d_18": _RESNET, "r2plus1d_18": _RESNET,
    "efficientnet_b0": {f"features.{i}": (0, 1) for i in range(1, 8)},
    "efficientnet_v2_s": {f"features.{i}": (0, 1) for i in range(1, 7)},
    "convnext_tiny": {f"features.{i}": (0,) for i in (1, 3, 5, 7)},
}  # fmt: skip
"""What is left of rows of equal blocks."""

SECOND_IMAGE = ("raft_small",)
WIDEST_OF_MOBILENET = 960


def names() -> list[str]:
    """One model of each family."""
    return list(SHAPES)


def case(name: str) -> TorchCase:
    """The model of this name, and images for it."""
    import_torchvision()
    torch.manual_seed(SEEDS.get(name, 0))
    module = _made(name).eval()
    inputs = tuple(torch.randn(SHAPES[name]) for _ in range(2 if name in SECOND_IMAGE else 1))
    spread(module, *inputs)
    options = {"num_flow_updates": 2} if name in SECOND_IMAGE else {}
    return TorchCase(
        module, inputs, options, family="torchvision", exporters=("dynamo", "torchscript")
    )


def _made(name: str) -> torch.nn.Module:
    import torchvision

    sized = _sized()
    if name in sized:
        return sized[name](num_classes=CLASSES)
    options = OPTIONS.get(name, {})
    if name not in SECOND_IMAGE:
        options = {"num_classes": CLASSES, **options}
    module: Any = torchvision.models.get_model(name, weights=None, **options)
    keep_layers(module, LAYERS.get(name, {}))
    if name.startswith(("alexnet", "vgg")):
        narrow(module.classifier, 4096, 64)
    if name == "s3d":
        module.avgpool = torch.nn.AvgPool3d(2, 1)  # its own is for images of 224
    if name.startswith("deeplabv3"):
        module.classifier = _narrow_head()
    if hasattr(module, "rpn"):
        return Regions(module)
    return Dense(module) if hasattr(module, "anchor_generator") else module


def _sized() -> dict[str, Make]:
    """Models whose functions take no other sizes than their own."""
    from torchvision.models import densenet, maxvit, swin_transformer, vision_transformer
    from torchvision.models.video import mvit
    from torchvision.models.video import swin_transformer as swin3d

    swin = swin_transformer.SwinTransformer
    second = {
        "block": swin_transformer.SwinTransformerBlockV2,
        "downsample_layer": swin_transformer.PatchMergingV2,
    }
    return {
        "densenet121": partial(densenet.DenseNet, 32, (2, 2, 2, 2), 64),
        "vit_b_32": partial(vision_transformer.VisionTransformer, 64, 32, 2, 3, 96, 192),
        "swin_t": partial(swin, [4, 4], window_size=[2, 2], **_SWIN),
        "swin_v2_t": partial(swin, [4, 4], window_size=[2, 2], **_SWIN, **second),
        "swin3d_t": partial(
            swin3d.SwinTransformer3d, [2, 4, 4], window_size=[2, 2, 2], **_SWIN
        ),
        "maxvit_t": partial(
            maxvit.MaxVit, (64, 64), stem_channels=16, partition_size=2,
            block_channels=[16, 32, 64, 128], block_layers=[1, 1, 1, 1], head_dim=16,
            stochastic_depth_prob=0.2,
        ),
        "mvit_v2_s": partial(
            mvit.MViT, (32, 32), 4, _stages_of_mvit(mvit.MSBlockConfig), residual_pool=True,
            residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True,
        ),
    }  # fmt: skip


def _narrow_head() -> torch.nn.Sequential:
    """DeepLab's head with 32 channels; its own has 256."""
    from torchvision.models.segmentation import deeplabv3

    head = deeplabv3.DeepLabHead(WIDEST_OF_MOBILENET, CLASSES)
    head[0] = deeplabv3.ASPP(WIDEST_OF_MOBILENET, [12, 24, 36], 32)
    head[1] = torch.nn.Conv2d(32, 32, 3, padding=1, bias=False)
    head[2] = torch.nn.BatchNorm2d(32)
    head[4] = torch.nn.Conv2d(32, CLASSES, 1)
    return head


def _stages_of_mvit(block: Callable[..., Any]) -> list[Any]:
    """The first block of each of three stages."""
    kernel, same, half = [3, 3, 3], [1, 1, 1], [1, 2, 2]
    return [
        block(1, 24, 24, kernel, kernel, same, [1, 4, 4]),
        block(2, 24, 48, kernel, kernel, half, half),
        block(4, 48, 96, kernel, kernel, half, same),
    ]


class Dense(torch.nn.Module):
    """Of a detector in one stage what it says at every place of its maps."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores and boxes at all places."""
        answer: dict[str, torch.Tensor] = self.head(list(self.backbone(images).values()))
        return answer


class Regions(torch.nn.Module):
    """Of a detector in two stages the proposals at every place, and the heads at two boxes."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.proposals = detector.backbone, detector.rpn.head
        self.heads = detector.roi_heads
        boxes = torch.tensor([[0.0, 3.0, 5.0, 40.0, 44.0], [0.0, 17.3, 2.1, 60.2, 30.9]])
        self.register_buffer("boxes", boxes)

    def forward(self, images: torch.Tensor) -> list[Any]:
        """Proposals, then classes and boxes, then masks or keypoints."""
        features = self.backbone(images)
        heads = self.heads
        answer = [
            self.proposals(list(features.values())),
            heads.box_predictor(heads.box_head(self._pooled(features["0"], 7))),
        ]
        if heads.has_mask():
            answer.append(heads.mask_predictor(heads.mask_head(self._pooled(features["0"], 14))))
        if heads.has_keypoint():
            pooled = self._pooled(features["0"], 14)
            answer.append(heads.keypoint_predictor(heads.keypoint_head(pooled)))
        return answer

    def _pooled(self, features: torch.Tensor, size: int) -> torch.Tensor:
        """RoiAlign as torchvision writes it in torch's own operators."""
        from torchvision.ops.roi_align import _roi_align

        plain = inspect.unwrap(_roi_align)  # it compiles itself
        scale = features.shape[-1] / 64
        pooled: torch.Tensor = plain(features, self.boxes, scale, size, size, 2, False)
        return pooled
