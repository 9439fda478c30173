"""One contestant in a process of its own: `python worker.py PEER DIRECTORY`.

Reads the model, the weights and the batches that `benchmarks.prepare` wrote into the directory,
gets ready, makes a first step and prints what that took. Then each line on standard input is a
number of steps to make; the answer is a line of JSON with their time and the last loss.

The file stands alone: the environment of onnxruntime-training 1.19.2 runs it too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
Step = Callable[[Any, Any], float]


def main() -> None:
    peer, folder = sys.argv[1], Path(sys.argv[2])
    spec = json.loads((folder / "spec.json").read_text())
    import numpy as np

    data = np.load(folder / "batches.npz")
    batches = [(data[f"x{i}"], data[f"y{i}"]) for i in range(spec["batches"])]
    start = time.perf_counter()
    step = PEERS[peer](folder, spec)
    first = step(*batches[0])
    answer(first_step=time.perf_counter() - start, loss=first, rss=peak())
    position = 1
    for line in sys.stdin:
        count = int(line)
        loss = 0.0
        start = time.perf_counter()
        for _ in range(count):
            loss = step(*batches[position % len(batches)])
            position += 1
        answer(seconds=time.perf_counter() - start, loss=loss, rss=peak())


def answer(**values: float) -> None:
    print(json.dumps({k: float(v) for k, v in values.items()}), flush=True)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- onnxtrain ---------------------------------------------------------------------------------


def ours(folder: Path, spec: dict[str, Any]) -> Step:
    """The one-graph step as `Trainer` runs it."""
    from onnxtrain.api import Trainer

    trainer = Trainer.from_directory(_artifacts(folder, spec, True), learning_rate=_rate(spec))
    engine = trainer._engine

    def step(x: Any, y: Any) -> float:
        return float(engine.run((x, y))[0])

    return step


def ours_parts(folder: Path, spec: dict[str, Any]) -> Step:
    """Module and Optimizer, two calls a step."""
    from onnxtrain.api import CheckpointState, Module, Optimizer

    directory = _artifacts(folder, spec, False)
    state = CheckpointState.load_checkpoint(f"{directory}/checkpoint")
    model = Module(f"{directory}/training_model.onnx", state, f"{directory}/eval_model.onnx")
    optimizer = Optimizer(f"{directory}/optimizer_model.onnx", model)
    optimizer.set_learning_rate(_rate(spec))

    def step(x: Any, y: Any) -> float:
        loss = float(model(x, y))
        optimizer.step()
        model.lazy_reset_grad()
        return loss

    return step


def _artifacts(folder: Path, spec: dict[str, Any], step_model: bool) -> str:
    import tempfile

    from onnxtrain import artifacts, optim

    options = dict(spec["optimizer"])
    name, _, clip = options.pop("name"), options.pop("lr"), options.pop("clip", None)
    if name == "adamw":
        options.update(form="torch", weight_decay=0.01)
    if clip:
        options["clip"] = clip
    directory = tempfile.mkdtemp(prefix="onnxtrain-bench-")
    loss = (
        artifacts.LossType.CrossEntropyLoss if spec["loss"] == "ce" else artifacts.LossType.MSELoss
    )
    artifacts.generate_artifacts(
        str(folder / "model.onnx"),
        requires_grad=spec["trainable"],
        frozen_params=[],
        loss=loss,
        optimizer=getattr(optim, name)(**options),
        artifact_directory=directory,
        step_model=step_model,
    )
    return directory


def _rate(spec: dict[str, Any]) -> float:
    return float(spec["optimizer"]["lr"])


# --- PyTorch -----------------------------------------------------------------------------------


def eager(folder: Path, spec: dict[str, Any], compiled: bool = False) -> Step:
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.workloads import WORKLOADS

    torch.set_num_threads(THREADS)
    workload = WORKLOADS[spec["name"]]
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

    return step


def compiled(folder: Path, spec: dict[str, Any]) -> Step:
    return eager(folder, spec, compiled=True)


# --- onnxruntime-training 1.19.2 ---------------------------------------------------------------


def old(folder: Path, spec: dict[str, Any]) -> Step:
    import tempfile

    import onnx
    import onnxruntime
    from onnxruntime.training import artifacts, onnxblock
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    options = dict(spec["optimizer"])
    if options["name"] == "sgd" and not options.get("momentum"):
        clip = onnxblock.optim.ClipGradNorm(options["clip"]) if options.get("clip") else None
        optimizer = onnxblock.optim.SGD(clip_grad=clip)
    elif options["name"] in ("adam", "adamw"):
        clip = onnxblock.optim.ClipGradNorm(options["clip"]) if options.get("clip") else None
        decay = 0.01 if options["name"] == "adamw" else 0.0
        optimizer = onnxblock.optim.AdamW(weight_decay=decay, clip_grad=clip)
    else:
        raise SystemExit("onnxruntime-training has no such optimizer")
    directory = tempfile.mkdtemp(prefix="onnxtrain-bench-")
    loss = (
        artifacts.LossType.CrossEntropyLoss if spec["loss"] == "ce" else artifacts.LossType.MSELoss
    )
    artifacts.generate_artifacts(
        onnx.load(folder / "model_old.onnx"),
        requires_grad=spec["trainable"],
        frozen_params=[],
        loss=loss,
        optimizer=optimizer,
        artifact_directory=directory,
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = THREADS
    state = CheckpointState.load_checkpoint(f"{directory}/checkpoint")
    model = Module(f"{directory}/training_model.onnx", state, f"{directory}/eval_model.onnx",
                   session_options=settings)  # fmt: skip
    updater = Optimizer(f"{directory}/optimizer_model.onnx", model)
    updater.set_learning_rate(_rate(spec))
    model.train()

    def step(x: Any, y: Any) -> float:
        value = float(model(x, y))
        updater.step()
        model.lazy_reset_grad()
        return value

    return step


PEERS: dict[str, Callable[[Path, dict[str, Any]], Step]] = {
    "ours": ours,
    "ours_parts": ours_parts,
    "eager": eager,
    "compiled": compiled,
    "old": old,
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    main()
