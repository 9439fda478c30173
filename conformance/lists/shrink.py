"""Networks that are made smaller after they were made, and none of whose branches vanishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)
FROZEN = ("weight", "bias")
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def keep_layers(module: nn.Module, parts: Mapping[str, Sequence[int]]) -> None:
    """Of rows of layers, by their paths, leaves only some."""
    for path, places in parts.items():
        parent, _, name = path.rpartition(".")
        layers = module.get_submodule(path)
        assert isinstance(layers, nn.Sequential)
        rest = nn.Sequential(*(layers[i] for i in places if i < len(layers)))
        _replace(module.get_submodule(parent), name, rest)


def _replace(parent: nn.Module, name: str, part: nn.Module) -> None:
    if isinstance(parent, nn.Sequential):
        parent[int(name)] = part
    elif isinstance(parent, nn.ModuleDict):
        parent[name] = part
    else:
        setattr(parent, name, part)


def narrow(layers: nn.Sequential, wide: int, width: int) -> None:
    """Linear layers of a row become narrower where they were `wide`."""
    for place, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            sizes = [width if n == wide else n for n in (layer.in_features, layer.out_features)]
            layers[place] = nn.Linear(*sizes)


@torch.no_grad()
def spread(module: nn.Module, *images: torch.Tensor) -> None:
    """Random weights under which no layer's gradients vanish beside another's.

    What is initialized to train well from the start (factors of zero or 1e-5, heads of 0.001, norms
    that know no statistics yet) leaves gradients that nothing can be learned from by comparing.
    """
    scatter_constants(module)
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            weight = layer.weight
            least = weight[0].numel() ** -0.5
            weight.mul_(torch.clamp(least / weight.std().clamp(min=1e-9), min=1.0))
    _take_statistics(module, *images)


def _take_statistics(module: nn.Module, *images: torch.Tensor) -> None:
    """Statistics of the norms of batches, from a few more images."""
    norms = [m for m in module.modules() if isinstance(m, BATCH_NORMS)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        module(*(torch.randn(6, *image.shape[1:]) for image in images))
    for norm, momentum in zip(norms, momenta):
        norm.eval()
        norm.momentum = momentum


@torch.no_grad()
def scatter_constants(module: nn.Module) -> None:
    """Parameters that begin as a constant get random values around it.

    A branch whose last factor begins at zero, or at 1e-5, has gradients that vanish beside the
    others, and would be compared in vain. So would a frozen norm's, whose factors are buffers: it
    leaves zeros for a ReLU to bend at.
    """
    frozen = [b for name, b in module.named_buffers() if name.rpartition(".")[2] in FROZEN]
    for tensor in [*module.parameters(), *frozen]:
        if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
            tensor.add_(0.2 * torch.randn_like(tensor))
