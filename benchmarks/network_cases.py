"""The networks of PyTorch's compiler benchmarks as modules that give the loss of a batch.

The names are those of `conformance/lists/torch_benchmarks.py`. A network of timm has the sizes of
that list and is in training mode: BatchNormalization takes the statistics of the batch. One of
Hugging Face has those of `benchmarks/network_sizes.py` and its own loss. No Dropout drops anything,
so that losses can be compared. Weights, inputs and labels are random.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.network_sizes import TOKENS, reduced
from conformance.cases import TorchCase
from conformance.lists import timm as timm_list
from conformance.lists import torch_benchmarks
from conformance.lists import transformers as transformers_list
from conformance.lists.torchvision_build import import_torchvision

ROWS, LENGTH = 4, 128
"""Sequences, or images, of a batch; tokens of a sequence."""
DROPOUTS = (torch.nn.Dropout, torch.nn.Dropout2d, torch.nn.AlphaDropout)
EXPORTERS = ("dynamo", "torchscript")
"""The first that can export a network is taken."""


class Classified(torch.nn.Module):
    """The cross-entropy of a classifier of images."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, image: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean over the batch."""
        return cross_entropy(self.module(image), labels)


class OwnLoss(torch.nn.Module):
    """A model of transformers as a function from tensors to the loss that it computes itself."""

    def __init__(self, model: torch.nn.Module, inputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """The loss of a batch with labels."""
        loss: torch.Tensor = self.model(**dict(zip(self.inputs, values, strict=True))).loss
        return loss


def case(name: str) -> TorchCase:
    """The network of this name; the same one in every process."""
    import_torchvision()
    torch.manual_seed(0)
    if name in torch_benchmarks.TIMM:
        return _of_timm(name)
    kind, class_name = torch_benchmarks.HUGGING_FACE[name]
    return _of_transformers(kind, class_name or name)


def _of_timm(name: str) -> TorchCase:
    make = timm_list.of_model(name, torch_benchmarks.SMALLER.get(name, {}))
    module, image = timm_list.smallest_image(make)
    torch.manual_seed(0)
    images = torch.randn(ROWS, *image.shape[1:])
    _drop_nothing(module)
    return TorchCase(Classified(module).train(), (images, torch.arange(ROWS)), family="timm")


def _drop_nothing(module: torch.nn.Module) -> None:
    """Neither numbers nor layers: some models of timm drop them if nothing else is said."""
    for layer in module.modules():
        names = ("p",) if isinstance(layer, DROPOUTS) else ("drop_prob", "drop_rate")
        for name in names:
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)


def _of_transformers(kind: str, class_name: str) -> TorchCase:
    import transformers

    transformers.logging.set_verbosity_error()
    model_class = getattr(transformers, class_name)
    model = model_class(reduced(transformers.CONFIG_MAPPING[kind], kind)).eval()
    transformers_list.prefer_exportable_experts(model)
    inputs = _inputs(model)
    return TorchCase(OwnLoss(model, list(inputs)).eval(), tuple(inputs.values()), family=kind)


def _inputs(model: Any) -> dict[str, torch.Tensor]:
    """A batch as PyTorch's benchmarks make one: tokens without padding, and labels."""
    config, wanted = model.config, inspect.signature(model.forward).parameters
    tokens, places = (TOKENS, config.vocab_size), (ROWS, LENGTH)
    corners = torch.randint(0, 400, (ROWS, LENGTH, 2))
    makers = {
        "input_ids": lambda: torch.randint(*tokens, places),
        "input_features": lambda: torch.randn(
            ROWS, config.num_mel_bins, 2 * config.max_source_positions
        ),
        "decoder_input_ids": lambda: torch.randint(*tokens, places),
        "bbox": lambda: torch.cat([corners, corners + 50], -1),
        "start_positions": lambda: torch.randint(0, LENGTH, (ROWS,)),
        "end_positions": lambda: torch.randint(0, LENGTH, (ROWS,)),
        "labels": lambda: _labels(model, tokens),
    }
    return {name: make() for name, make in makers.items() if name in wanted}


def _labels(model: Any, tokens: tuple[int, int]) -> torch.Tensor:
    if "SequenceClassification" in type(model).__name__:
        return torch.arange(ROWS) % model.config.num_labels
    return torch.randint(*tokens, (ROWS, LENGTH))
