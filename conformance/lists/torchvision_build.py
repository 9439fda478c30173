"""Imports torchvision whatever torch it was built for.

A wheel of torchvision built for another torch cannot load its compiled operators, and then its
import fails although the models need none of them. The schemas it looks for are declared here.
"""

from __future__ import annotations

import importlib.util
import sys

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_torchvision() -> None:
    """Imports torchvision; declares the operators that its compiled part did not bring.

    Where it is not installed, families that need none of it are tried without.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision
    except RuntimeError:
        _forget("torchvision")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", schema)
        import torchvision  # noqa: F401


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
