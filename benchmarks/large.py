"""Two gigabytes of weights, trained whole and in part: `python3 -m benchmarks.large [--only CASE]`.

A decoder in the shape of Llama (48 layers, width 1024, 16 heads on 4, 32,000 words, 0.59 billion
parameters) with random weights, 2×64 tokens. What is trained: everything, by SGD and by AdamW; the
last four blocks; adapters of rank 8 beside all linear layers but the last, with the weights in
float32 and in four bits. Every stage is a process of its own with two threads: artifacts, then
`Module` + `Optimizer` (loading, steps, a checkpoint, the exported model). The peer is PyTorch eager
with the same weights trained, where that needs no further package. Memory is the peak of what was
resident up to the end of a stage, disk is what a stage wrote, time is the median of the steps.

The rows go to `benchmarks/results/large.json`, and from there to `docs/performance.md`.
The model (2.4 GB) and the artifacts are written to a folder that is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .contestants.base import peak
from .environments import ROOT, main_python

RESULTS = Path(__file__).parent / "results" / "large.json"
SHAPE = {"vocabulary": 32_000, "width": 1024, "heads": 16, "groups": 4, "layers": 48, "length": 64}
BATCH, THREADS, RATE, LAST_BLOCKS = 2, 2, 1e-4, 4
TITLES = {
    "all-sgd": "everything, SGD",
    "all-adamw": "everything, AdamW",
    "last-adamw": "the last four blocks and the head, AdamW",
    "lora": "adapters of rank 8, AdamW",
    "lora-int4": "adapters of rank 8 on weights of four bits, AdamW",
}
"""What is trained and how, and what the page calls it."""
IN_TORCH = ("all-sgd", "all-adamw", "last-adamw")
Row = dict[str, Any]


def main() -> int:
    if "--work" in sys.argv:
        print(json.dumps(work(*sys.argv[sys.argv.index("--work") + 1 :])))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(TITLES), choices=TITLES, metavar="CASE")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    python = main_python()
    rows: dict[str, Row] = stored()
    with tempfile.TemporaryDirectory(prefix="onnxtrain-large-", dir=ROOT) as folder:
        model = call(python, "model", folder)
        for case in options.only:
            row = {"day": time.strftime("%Y-%m-%d"), "model": model}
            row["artifacts"] = call(python, "artifacts", folder, case)
            row["ours"] = call(python, "train", folder, case, options.steps)
            if case in IN_TORCH:
                row["eager"] = call(python, "eager", folder, case, options.steps)
            rows[case] = row
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
            print(case, json.dumps(row), flush=True)
    print(section(rows))
    return 0


def call(python: str, *task: object) -> Row:
    """One stage in a process of its own; its peak of memory is among what it tells."""
    command = [python, "-m", "benchmarks.large", "--work", *map(str, task)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def stored() -> dict[str, Row]:
    """What has been measured."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


# --- in the processes -----------------------------------------------------------------------------


def work(task: str, folder: str, case: str = "", steps: str = "0") -> Row:
    place = Path(folder)
    if task == "model":
        return write_model(place)
    if task == "artifacts":
        return write_artifacts(place, case)
    maker: Callable[..., Row] = eager if task == "eager" else train
    return maker(place, case, int(steps))


def write_model(folder: Path) -> Row:
    """The decoder as torch's exporter writes it, weights beside it; and its weights for torch.

    The exporter's optimizer would turn weights around and give equal ones a single name.
    """
    import torch

    from .transformer_models import Llama

    torch.manual_seed(0)
    module = Llama(**SHAPE).eval()
    tokens = torch.zeros(BATCH, SHAPE["length"], dtype=torch.int64)
    torch.save(module.state_dict(), folder / "weights.pt")
    torch.onnx.export(
        module, (tokens,), folder / "model.onnx", input_names=["tokens"], output_names=["logits"],
        dynamo=True, optimize=False, external_data=True, verbose=False,
    )  # fmt: skip
    count = sum(p.numel() for p in module.parameters())
    return {"parameters": count, "disk": disk(folder, ("model.onnx*",))}


def parameters() -> list[str]:
    """Names of the decoder's parameters."""
    import torch

    from .transformer_models import Llama

    with torch.device("meta"):
        return [name for name, _ in Llama(**SHAPE).named_parameters()]


def disk(folder: Path, patterns: tuple[str, ...]) -> float:
    """MB of the files that these patterns match; a file with two names counts once."""
    files = {f.stat().st_ino: f.stat().st_size for p in patterns for f in folder.glob(p)}
    return round(sum(files.values()) / 1e6, 1)


def trained(names: list[str], case: str) -> list[str]:
    """Which parameters: all, or those of the last blocks and what is behind them."""
    if case.startswith("all"):
        return names
    blocks = range(SHAPE["layers"] - LAST_BLOCKS, SHAPE["layers"])
    behind = ("norm.", "head.", *(f"blocks.{i}." for i in blocks))
    return [name for name in names if name.startswith(behind)]


def write_artifacts(folder: Path, case: str) -> Row:
    """The folder of a case, by path: as somebody does whose model is larger than 2 GB."""
    import onnx

    from onnxtrain import lora, losses, optim, quant
    from onnxtrain.artifacts import generate_artifacts

    began, model = time.perf_counter(), folder / "model.onnx"
    target = folder / case
    target.mkdir()
    options: dict[str, Any] = {}
    if case.startswith("lora"):
        if case == "lora-int4":
            quant.quantize(model, bits=4, output=target / "base.onnx")
            model = target / "base.onnx"
        lora.add(model, "all-linear", 8, output=target / "adapted.onnx")
        model = target / "adapted.onnx"
    else:
        graph = onnx.load(model, load_external_data=False).graph
        names = {t.name for t in graph.initializer}
        missing = [name for name in parameters() if name not in names]
        if missing:
            raise RuntimeError(f"the exporter has renamed {missing[0]} and {len(missing) - 1} more")
        options["requires_grad"] = trained(parameters(), case)
    update = optim.sgd() if case == "all-sgd" else optim.adamw(preset="torch")
    generate_artifacts(
        model, loss=losses.CrossEntropyLoss(), optimizer=update, artifact_directory=target,
        **options,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "peak": round(peak()), "disk": disk(target, ("*",))}


def batch() -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (BATCH, SHAPE["length"])
    tokens = rng.integers(0, SHAPE["vocabulary"], shape)
    return tokens, rng.integers(0, SHAPE["vocabulary"], tokens.size)


def train(folder: Path, case: str, steps: int) -> Row:
    """Load, steps, checkpoint, export: the peak behind each."""
    from onnxtrain.api import CheckpointState, Module, Optimizer

    place, row = folder / case, Row()
    start = time.perf_counter()
    state = CheckpointState.load_checkpoint(place / "checkpoint")
    model = Module(place / "training_model.onnx", state, place / "eval_model.onnx")
    optimizer = Optimizer(place / "optimizer_model.onnx", model)
    optimizer.set_learning_rate(RATE)
    row["load_seconds"] = round(time.perf_counter() - start, 1)
    row["load"] = round(peak())
    tokens, labels = batch()

    def step() -> float:
        loss = float(model(tokens, labels))
        optimizer.step()
        model.lazy_reset_grad()
        return loss

    row |= timed(step, steps)
    CheckpointState.save_checkpoint(state, place / "saved", include_optimizer_state=True)
    row["checkpoint"] = round(peak())
    model.export_model_for_inferencing(place / "trained.onnx", ["logits"])
    row["export"] = round(peak())
    row["disk"] = disk(place, ("saved*", "trained.onnx*"))
    return row


def eager(folder: Path, case: str, steps: int) -> Row:
    """PyTorch with fused optimizers."""
    import torch

    from .transformer_models import Llama

    torch.set_num_threads(THREADS)
    with torch.device("meta"):
        module = Llama(**SHAPE)
    module.load_state_dict(torch.load(folder / "weights.pt", mmap=True), assign=True)
    names = set(trained([n for n, _ in module.named_parameters()], case))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in names)
    left = [p for p in module.parameters() if p.requires_grad]
    update = (
        torch.optim.SGD(left, RATE, fused=True)
        if case == "all-sgd"
        else torch.optim.AdamW(left, RATE, weight_decay=0.01, fused=True)
    )
    tokens, labels = (torch.from_numpy(x) for x in batch())

    def step() -> float:
        update.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(module(tokens), labels)
        loss.backward()
        update.step()
        return float(loss.detach())

    return timed(step, steps)


def timed(step: Callable[[], float], steps: int) -> Row:
    """The first step, the median of the others with least and most, the first losses, the peak."""
    losses, times = [], []
    for _ in range(1 + steps):
        start = time.perf_counter()
        losses.append(round(step(), 5))
        times.append(time.perf_counter() - start)
    return {
        "first_seconds": round(times[0], 2),
        "seconds": round(statistics.median(times[1:]), 3),
        "least": round(min(times[1:]), 3),
        "most": round(max(times[1:]), 3),
        "losses": losses,
        "steps": round(peak()),
    }


# --- the page -------------------------------------------------------------------------------------

HEAD = (
    "trained", "artifacts: peak", "disk", "loaded", "steps", "checkpoint", "export",
    "seconds a step", "torch eager: steps", "seconds a step", "time ÷ ours", "memory, ours ÷ eager",
)  # fmt: skip


def section(rows: dict[str, Row]) -> str:
    """The table of the page, "" when nothing was measured."""
    if not rows:
        return ""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for case, title in TITLES.items():
        if case in rows:
            lines.append("| " + " | ".join([title, *_cells(rows[case])]) + " |")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    ours, theirs = row["ours"], row.get("eager")
    sizes = [row["artifacts"]["peak"], row["artifacts"]["disk"]]
    sizes += [ours[stage] for stage in ("load", "steps", "checkpoint", "export")]
    cells = [f"{size / 1000:.2f}" for size in sizes] + [_seconds(ours)]
    if theirs is None:
        return [*cells, "", "", "", ""]
    quotients = theirs["seconds"] / ours["seconds"], ours["steps"] / theirs["steps"]
    return [
        *cells, f"{theirs['steps'] / 1000:.2f}", _seconds(theirs), *(f"{q:.2f}" for q in quotients)
    ]  # fmt: skip


def _seconds(row: Row) -> str:
    return f"{row['seconds']:.2f} ({row['least']:.2f}–{row['most']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
