"""Memory against time with recomputation: `python -m benchmarks.memory_curve [--layers 2 8 24]`.

A transformer encoder (width 256, 16×128 tokens, AdamW, clipping) is trained with several values of
`recompute`, and by torch eager, plain and with `torch.utils.checkpoint` around every layer. Each
point is a process of its own with two threads; rounds are interleaved, the best time and the
largest peak of resident memory count. Artifacts are written by a process before. Stored in
`benchmarks/memory_curve.json` and drawn to `docs/images/memory_curve.svg`; a run of some depths
replaces those only, `--draw` only draws.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "memory_curve.json"
PICTURE = ROOT / "docs" / "images" / "memory_curve.svg"
DEPTHS = (2, 8, 24)
BATCH, LENGTH, WIDTH, VOCABULARY, THREADS = 16, 128, 256, 8000, 2
SETTINGS: dict[int, list[str]] = {
    2: ["none", "cheap", "2", "4", "auto"],
    8: ["none", "cheap", "2", "4", "8", "auto"],
    24: ["none", "cheap", "2", "4", "8", "24", "auto"],
}
TORCH = ("torch", "torch checkpoint")
Step = Callable[[Any, Any], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="*", default=list(DEPTHS), choices=DEPTHS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--draw", action="store_true", help="only draw what is stored")
    parser.add_argument("--work", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work)))
        return 0
    found = json.loads(STORED.read_text()) if STORED.exists() else {}
    for layers in [] if options.draw else options.layers:
        found[str(layers)] = measure(layers, options.rounds, options.steps)
        STORED.write_text(json.dumps(found, indent=1) + "\n")
    draw(found, PICTURE)
    return 0


def measure(layers: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """All points of one depth."""
    names = [*SETTINGS[layers], *TORCH]
    best: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="onnxtrain-memory-") as folder:
        call("prepare", layers, folder)
        for _ in range(rounds):
            for name in names:
                got = call("run", layers, folder, name, steps)
                old = best.get(name, got)
                best[name] = {
                    "name": name,
                    "seconds": min(got["seconds"], old["seconds"]),
                    "peak": max(got["peak"], old["peak"]),
                    "start": max(got["start"], old["start"]),
                    "loss": got["loss"],
                }
    for name in names:
        row = best[name]
        grown = row["peak"] - row["start"]
        print(
            f"{layers:3} layers, {name:16}: {1e3 * row['seconds']:7.0f} ms, "
            f"peak {row['peak']:6.0f} MiB, of which steps {grown:6.0f}, loss {row['loss']:.6f}",
            flush=True,
        )
    return [best[name] for name in names]


def call(*arguments: object) -> dict[str, Any]:
    """One piece of work in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_curve", "--work", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# --- in the processes ----------------------------------------------------------------------------


def work(task: str, layers: str, folder: str, name: str = "", steps: str = "0") -> dict[str, Any]:
    """Write the artifacts, or run one contestant."""
    if task == "prepare":
        return prepare(int(layers), Path(folder))
    import numpy as np

    data = np.load(Path(folder) / "batch.npz")
    maker = torch_step if name in TORCH else our_step
    step = maker(int(layers), Path(folder), name)
    start = now()
    times, loss = [], 0.0
    for _ in range(2 + int(steps)):
        began = time.perf_counter()
        loss = step(data["x"], data["y"])
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": min(times[2:]), "peak": peak, "start": start, "loss": loss}


def now() -> float:
    """Resident memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def prepare(layers: int, folder: Path) -> dict[str, Any]:
    """Weights, a batch, and the artifacts of every setting."""
    import numpy as np
    import onnx
    import torch

    from onnxtrain import artifacts, optim
    from onnxtrain.torch.export import export

    from .torch_models import Encoder

    torch.manual_seed(0)
    model = Encoder(VOCABULARY, WIDTH, layers=layers, length=LENGTH)
    x, y = torch.randint(0, VOCABULARY, (BATCH, LENGTH)), torch.randint(0, 2, (BATCH,))
    np.savez(folder / "batch.npz", x=x.numpy(), y=y.numpy())
    torch.save(model.state_dict(), folder / "weights.pt")
    exported = export(
        model, (x,), input_names=["x"], output_names=["output"],
        dynamic_axes={"x": {0: "batch"}}, training=True, exporter="torchscript",
    )  # fmt: skip
    onnx.save(exported.model, folder / "model.onnx")
    for name in SETTINGS[layers]:
        target = folder / name
        target.mkdir()
        artifacts.generate_artifacts(
            str(folder / "model.onnx"),
            requires_grad=[n for n, _ in model.named_parameters()],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=optim.adamw(form="torch", weight_decay=0.01, clip=optim.ClipNorm(1.0)),
            artifact_directory=target,
            recompute=None if name == "none" else int(name) if name.isdigit() else name,
        )
    return {}


def our_step(layers: int, folder: Path, name: str) -> Step:
    from onnxtrain.api import CheckpointState, Module, Optimizer
    from onnxtrain.runtime.session.devices import session_options

    options = session_options(weights_change=True, pattern=False)
    options.intra_op_num_threads = THREADS
    state = CheckpointState.load_checkpoint(str(folder / name / "checkpoint"))
    module = Module(str(folder / name / "training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(str(folder / name / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-3)

    def step(x: Any, y: Any) -> float:
        loss = float(module(x, y))
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return step


def torch_step(layers: int, folder: Path, name: str) -> Step:
    import torch
    from torch.utils.checkpoint import checkpoint

    from .torch_models import Encoder

    torch.set_num_threads(THREADS)
    model = Encoder(VOCABULARY, WIDTH, layers=layers, length=LENGTH)
    model.load_state_dict(torch.load(folder / "weights.pt"))
    if name == "torch checkpoint":
        for block in model.blocks:
            plain = block.forward
            block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)

    def step(x: Any, y: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        output = model(torch.from_numpy(x))
        loss = torch.nn.functional.cross_entropy(output, torch.from_numpy(y))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


# --- the picture ---------------------------------------------------------------------------------


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """One panel per depth: milliseconds to the right, MiB upwards."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "onnxtrain"})
    from matplotlib import pyplot

    depths = sorted(found, key=int)
    figure, panels = pyplot.subplots(1, len(depths), figsize=(4 * len(depths), 3.4), squeeze=False)
    for panel, depth in zip(panels[0], depths):
        for torch in (False, True):
            rows = [r for r in found[depth] if (r["name"] in TORCH) == torch]
            panel.scatter(
                [1e3 * r["seconds"] for r in rows], [r["peak"] for r in rows],
                c="#4477aa" if torch else "#222222", marker="s" if torch else "o",
                label="torch" if torch else "onnxtrain, recompute=",
            )  # fmt: skip
            for row in rows:
                panel.annotate(
                    row["name"], (1e3 * row["seconds"], row["peak"]), fontsize=8,
                    xytext=(4, 4), textcoords="offset points",
                )  # fmt: skip
        panel.set_title(f"{depth} layers")
        panel.set_xlabel("step, ms")
        panel.set_ylim(bottom=0)
        panel.margins(x=0.25)
    panels[0][0].set_ylabel("peak resident memory, MiB")
    panels[0][0].legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", facecolor="white", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
