"""onnxruntime-training 1.19.2: its artifacts, its Module and its Optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import THREADS, Cannot, Clock, Loop


def start(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    if not (folder / "model_old.onnx").exists():
        raise Cannot("the exporter that its documentation asks for cannot write this model")
    import onnx
    import onnxruntime
    from onnxruntime.training import artifacts, onnxblock
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    clock.lap("import")
    options = dict(spec["optimizer"])
    clip = onnxblock.optim.ClipGradNorm(options["clip"]) if options.get("clip") else None
    if options["name"] == "sgd" and not options.get("momentum"):
        optimizer = onnxblock.optim.SGD(clip_grad=clip)
    elif options["name"] in ("adam", "adamw"):
        decay = 0.01 if options["name"] == "adamw" else 0.0
        optimizer = onnxblock.optim.AdamW(eps=1e-8, weight_decay=decay, clip_grad=clip)
    else:
        raise Cannot("it has no SGD with momentum")
    directory = folder / "artifacts_old"
    directory.mkdir()
    losses = artifacts.LossType
    artifacts.generate_artifacts(
        onnx.load(folder / "model_old.onnx"),
        requires_grad=spec["trainable"],
        frozen_params=[],
        loss=losses.CrossEntropyLoss if spec["loss"] == "ce" else losses.MSELoss,
        optimizer=optimizer,
        artifact_directory=str(directory),
    )
    clock.lap("artifacts")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    state = CheckpointState.load_checkpoint(f"{directory}/checkpoint")
    model = Module(f"{directory}/training_model.onnx", state, f"{directory}/eval_model.onnx",
                   session_options=settings)  # fmt: skip
    updater = Optimizer(f"{directory}/optimizer_model.onnx", model)
    updater.set_learning_rate(float(spec["optimizer"]["lr"]))
    model.train()
    clock.lap("session")

    def step(x: Any, y: Any) -> float:
        value = float(model(x, y))
        updater.step()
        model.lazy_reset_grad()
        return value

    return Loop(step)
