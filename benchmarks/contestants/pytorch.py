"""PyTorch with its fused optimizers: eager, compiled, and with the module in an ORTModule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .base import THREADS, Clock, Loop


def eager(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    import torch  # noqa: F401 - its time

    clock.lap("import")
    model, criterion = _model(folder, spec), _criterion(spec)
    return _loop(model, lambda x, y: criterion(model(x), y), spec, clock)


def compiled(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    """The loss is compiled with the model, which makes it faster than the model alone."""
    import torch

    clock.lap("import")
    model, criterion = _model(folder, spec), _criterion(spec)
    forward = torch.compile(lambda x, y: criterion(model(x), y))
    return _loop(model, forward, spec, clock)


def ortmodule(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    """The model alone is wrapped, as users do; loss and optimizer are PyTorch's."""
    from onnxtrain.torch import ORTModule

    clock.lap("import")
    model, criterion = _model(folder, spec), _criterion(spec)
    wrapped = ORTModule(model)
    return _loop(model, lambda x, y: criterion(wrapped(x), y), spec, clock)


def _model(folder: Path, spec: dict[str, Any]) -> Any:
    import torch

    from benchmarks.workloads import find

    torch.set_num_threads(THREADS)
    workload = find(spec["name"])
    model = workload.model()
    model.load_state_dict(torch.load(folder / "weights.pt"))
    if workload.trainable:
        model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in spec["trainable"])
    return model


def _criterion(spec: dict[str, Any]) -> Callable[[Any, Any], Any]:
    from torch.nn.functional import cross_entropy, mse_loss

    return cross_entropy if spec["loss"] == "ce" else mse_loss


def _loop(
    model: Any, forward: Callable[[Any, Any], Any], spec: dict[str, Any], clock: Clock
) -> Loop:
    """Whole steps: loss, gradients, clipping, update."""
    import torch

    options = dict(spec["optimizer"])
    kind, clip = options.pop("name"), options.pop("clip", None)
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = classes[kind](trained, fused=True, **options)

    def step(x: Any, y: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(torch.from_numpy(x), torch.from_numpy(y))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        return float(loss.detach())

    clock.lap("session")
    return Loop(step)
