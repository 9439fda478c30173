"""Networks that are made smaller after they were made, and none of whose branches vanishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def keep_layers(module: torch.nn.Module, parts: Mapping[str, Sequence[int]]) -> None:
    """Of rows of layers, by their paths, leaves only some."""
    for path, places in parts.items():
        parent, _, name = path.rpartition(".")
        layers = module.get_submodule(path)
        assert isinstance(layers, torch.nn.Sequential)
        rest = torch.nn.Sequential(*(layers[i] for i in places if i < len(layers)))
        _replace(module.get_submodule(parent), name, rest)


def _replace(parent: torch.nn.Module, name: str, part: torch.nn.Module) -> None:
    if isinstance(parent, torch.nn.Sequential):
        parent[int(name)] = part
    elif isinstance(parent, torch.nn.ModuleDict):
        parent[name] = part
    else:
        setattr(parent, name, part)


def narrow(layers: torch.nn.Sequential, wide: int, width: int) -> None:
    """Linear layers of a row become narrower where they were `wide`."""
    for place, layer in enumerate(layers):
        if isinstance(layer, torch.nn.Linear):
            sizes = [width if n == wide else n for n in (layer.in_features, layer.out_features)]
            layers[place] = torch.nn.Linear(*sizes)


@torch.no_grad()
def scatter_constants(module: torch.nn.Module) -> None:
    """Parameters that begin as a constant get random values around it.

    A branch whose last factor begins at zero, or at 1e-5, has gradients that vanish beside the
    others, and would be compared in vain.
    """
    for parameter in module.parameters():
        if parameter.numel() > 1 and parameter.min() == parameter.max():
            parameter.add_(0.2 * torch.randn_like(parameter))
