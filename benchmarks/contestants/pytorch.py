"""PyTorch's modules: eager and compiled with fused optimizers, in ORTModule, in ORTTrainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.workloads import find

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


def orttrainer(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    """Model, loss and update in one graph, described as the predecessor's users do."""
    import torch

    from onnxtrain.torch import ORTTrainer

    clock.lap("import")
    model, workload = _model(folder, spec), find(spec["name"])
    trainer = ORTTrainer(
        model, _description(folder, model, is_dynamic=workload.dynamic), _config(spec["optimizer"]),
        loss_fn=_criterion(spec),
        options={
            "utils": {
                "frozen_weights": [
                    n for n, _ in model.named_parameters() if n not in spec["trainable"]
                ],
                "grad_norm_clip": bool(spec["optimizer"].get("clip")),
            },
            "exporter": workload.exporter,
        },
    )  # fmt: skip
    clock.lap("session")

    def step(x: Any, y: Any) -> float:
        return float(trainer.train_step(torch.from_numpy(x), torch.from_numpy(y))[0])

    return Loop(step)


def _description(folder: Path, model: Any, *, is_dynamic: bool) -> dict[str, Any]:
    """Inputs and outputs as `ORTTrainer` wants them; the first axis is open where it may be."""
    import numpy as np
    import torch

    data = np.load(folder / "batches.npz")
    with torch.no_grad():
        result = model(torch.from_numpy(data["x0"]))

    rows = len(data["x0"])

    def sizes(shape: Any) -> list[int | str]:
        """Rows of labels and outputs may be those of all positions of a batch."""
        axis = "batch" if shape[0] == rows else "positions"
        return [axis, *shape[1:]] if is_dynamic else list(shape)

    first = next(iter(inspect.signature(model.forward).parameters))
    return {
        "inputs": [(first, sizes(data["x0"].shape)), ("label", sizes(data["y0"].shape))],
        "outputs": [("loss", [], True), ("output", sizes(result.shape))],
    }


def _config(options: dict[str, Any]) -> Any:
    """The optimizer with PyTorch's defaults."""
    from onnxtrain.torch import optim

    kind, rate, clip = options["name"], options["lr"], options.get("clip")
    if kind == "sgd":
        return optim.SGDConfig(lr=rate, max_norm_clip=clip)
    decay = 0.01 if kind == "adamw" else 0.0
    limit = {"max_norm_clip": clip} if clip else {}
    return optim.AdamConfig(lr=rate, lambda_coef=decay, **limit)


def _model(folder: Path, spec: dict[str, Any]) -> Any:
    import torch

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
