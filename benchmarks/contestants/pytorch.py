"""PyTorch with its fused optimizers, eager and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import THREADS, Clock, Loop


def eager(folder: Path, spec: dict[str, Any], clock: Clock, compiled: bool = False) -> Loop:
    import torch

    from benchmarks.workloads import find

    clock.lap("import")
    torch.set_num_threads(THREADS)
    workload = find(spec["name"])
    model = workload.model()
    model.load_state_dict(torch.load(folder / "weights.pt"))
    if workload.trainable:
        model.eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in spec["trainable"])
    options = dict(spec["optimizer"])
    kind, clip = options.pop("name"), options.pop("clip", None)
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = classes[kind](trained, fused=True, **options)
    functional = torch.nn.functional
    criterion = functional.cross_entropy if spec["loss"] == "ce" else functional.mse_loss

    def forward(x: Any, y: Any) -> Any:
        return criterion(model(x), y)

    if compiled:
        forward = torch.compile(forward)

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


def compiled(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    return eager(folder, spec, clock, compiled=True)
