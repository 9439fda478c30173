"""Whole training steps of the networks in PyTorch's own compiler benchmarks.

    python3 -m benchmarks.networks [--only GLOB] [--missing] [--rounds 7]

The names and sizes are those of `conformance/lists/torch_benchmarks.py`: all 18 of timm and all 55
of Hugging Face, scaled down, with random weights. A network is trained in a process of its own by
PyTorch eager, PyTorch compiled (both with the fused AdamW) and Module + Optimizer, two threads
each, in turns. What is minimised is the sum of all outputs times fixed random numbers, and the
first losses must agree. Rows are written as they come; with `--missing` a run that was cut goes on.
A network that fails or hangs is a row too.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.environments import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "networks.json"
PAGE = ROOT / "docs" / "network_speed.md"
LIST = "torch_benchmarks"
THREADS, RATE, DECAY = 2, 1e-4, 0.01
SIDES = ("eager", "compiled", "ours")
TURN = 0.15
"""Seconds of a turn that are timed, or one step."""
AGREE = 2e-3
"""How far the first losses may be apart, relative to the sum of their terms without signs."""
LIMIT = 420.0
"""Seconds that a network may take, compilation included."""

Row = dict[str, Any]
Step = Callable[[], float]


# --- one network, in its own process --------------------------------------------------------------


def measure(name: str, rounds: int) -> Row:
    """First steps and later ones of all sides; what went wrong of a side that has none."""
    import torch

    from conformance.lists import torch_benchmarks
    from conformance.torch_function import TorchFunction, random_weights

    torch.set_num_threads(THREADS)
    case = torch_benchmarks.case(name)
    function = TorchFunction(case)
    point = function.point()
    function.weights = random_weights(function.outputs(point))
    _, size = function.loss_and_size({})
    row: Row = {"name": name, "parameters": sum(p.numel() for p in case.module.parameters())}
    makers = {
        "eager": lambda: torch_step(case, function.weights, is_compiled=False),
        "compiled": lambda: torch_step(case, function.weights, is_compiled=True),
        "ours": lambda: our_step(case, function),
    }
    steps, losses = dict[str, Step](), dict[str, list[float]]()
    for side, make in makers.items():
        start = time.perf_counter()
        try:
            step = make()
            losses[side] = [step()]
            row[f"{side}_first"] = time.perf_counter() - start
            losses[side] += [step() for _ in range(2)]
            steps[side] = step
        except Exception as error:
            row[f"{side}_error"] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    if "ours" in steps and "eager" in steps:
        apart = max(abs(a - b) for a, b in zip(losses["ours"], losses["eager"], strict=True))
        row["losses_apart"] = apart / max(size, 1e-30)
    for side, times in in_turns(steps, rounds).items():
        row[side] = times
    return row


def torch_step(case: Any, weights: Sequence[Any], *, is_compiled: bool) -> Step:
    """A step of PyTorch's, on a copy of the module."""
    import copy

    import torch
    from torch.utils import _pytree as pytree

    module = copy.deepcopy(case.module)
    factors = [torch.from_numpy(w) for w in weights]

    def loss_of(*args: Any, **kwargs: Any) -> Any:
        leaves = [x for x in pytree.tree_leaves(module(*args, **kwargs)) if torch.is_tensor(x)]
        return sum((x * w).sum() for x, w in zip(leaves, factors, strict=True) if w.numel())

    forward = torch.compile(loss_of) if is_compiled else loss_of
    trained = [p for p in module.parameters() if p.requires_grad]
    update = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY, fused=True)

    def step() -> float:
        update.zero_grad(set_to_none=True)
        loss = forward(*case.inputs, **case.kwargs)
        loss.backward()
        update.step()
        return float(loss.detach())

    return step


def our_step(case: Any, function: Any) -> Step:
    """Module and Optimizer on artifacts of the exported network."""
    import onnxtrain
    from conformance.exporters import EXPORTERS
    from conformance.sessions import Session
    from conformance.torch_function import arrays
    from conformance.weighted import LOSS, weight_of, with_loss
    from onnxtrain import CheckpointState, Module, Optimizer, optim

    exported = EXPORTERS["dynamo"](case)
    feeds = arrays(function.inputs)
    outputs = Session(exported.model, whole=True).run(feeds)
    counted = [n for n, w in zip(exported.outputs, function.weights, strict=True) if w.size]
    model = with_loss(exported.model, {n: outputs[n] for n in counted})
    weights = [w for w in function.weights if w.size]
    feeds |= {weight_of(LOSS, n): w for n, w in zip(counted, weights, strict=True)}
    gradients = function.gradients(function.point())
    moved = [n for n, g in gradients.items() if n in exported.names and bool(g.any())]
    with tempfile.TemporaryDirectory() as folder:
        onnxtrain.generate_artifacts(
            model, requires_grad=[exported.names[n] for n in moved], artifact_directory=folder,
            no_gradient=exported.barriers,
            optimizer=optim.adamw(preset="torch", weight_decay=DECAY),
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = Module(f"{folder}/training_model.onnx", state)
        update = Optimizer(f"{folder}/optimizer_model.onnx", module)
    update.set_learning_rate(RATE)
    stored = {i.name for i in model.graph.initializer}
    batch = [feeds[i.name] for i in model.graph.input if i.name not in stored]

    def step() -> float:
        loss = module(*batch)
        update.step()
        module.lazy_reset_grad()
        return float(loss[0] if isinstance(loss, list | tuple) else loss)

    return step


def in_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step by round; every turn begins with a step that is not timed."""
    times: dict[str, list[float]] = {side: [] for side in steps}
    for number in range(rounds):
        for side in list(steps) if number % 2 == 0 else reversed(list(steps)):
            steps[side]()
            count, start = 0, time.perf_counter()
            while count == 0 or time.perf_counter() - start < TURN:
                steps[side]()
                count += 1
            times[side].append((time.perf_counter() - start) / count * 1e3)
    return times


# --- all networks ---------------------------------------------------------------------------------


def run_apart(python: str, name: str, rounds: int) -> Row:
    """The row of one network from a process of its own."""
    command = [python, "-m", "benchmarks.networks", "--worker", name, "--rounds", str(rounds)]
    settings = {**os.environ, "ONNXTRAIN_QUIET": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False,
            env=settings,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no result in {LIMIT:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        return {"name": name, "error": f"exit code {done.returncode}: {last}"}
    row: Row = json.loads(lines[-1])
    return row


def ratios(row: Row, peers: Sequence[str] = ("eager", "compiled")) -> list[float]:
    """The better torch ÷ ours, round by round; nothing where a side is missing."""
    medians = {side: statistics.median(row[side]) for side in peers if row.get(side)}
    if not medians or not row.get("ours"):
        return []
    better = min(medians, key=lambda side: medians[side])
    return [theirs / ours for theirs, ours in zip(row[better], row["ours"], strict=True)]


HEAD = """# Network by network

Made by `python3 -m benchmarks.networks`; the numbers are in `benchmarks/results/networks.json`.
Whole training steps (AdamW) of the networks in PyTorch's own compiler benchmarks: 55 names of
Hugging Face and 18 of timm, with the sizes of [the public list](conformance.md#torch_benchmarks)
(small configurations of the former, small images for the latter), random weights, through the
dynamo exporter. PyTorch eager, PyTorch compiled (both with its fused AdamW) and Module + Optimizer
run in turns in one process, two threads each; the first three losses must agree. Milliseconds are
medians over the rounds; the ratio is the better torch's time ÷ ours, taken round by round (in
brackets: its quartiles), above 1 onnxtrain is faster. Slowest first.
"""
COLUMNS = (
    "network", "parameters", "ours, ms", "torch eager, ms", "torch compiled, ms",
    "better torch ÷ ours", "eager ÷ ours", "first step: ours, s", "compiled, s",
)  # fmt: skip


def page(results: dict[str, Any]) -> str:
    """All rows as a Markdown page."""
    rows = [r for r in results["rows"] if ratios(r)]
    rows.sort(key=lambda r: statistics.median(ratios(r)))
    failed = [r for r in results["rows"] if not ratios(r)]
    about = results["about"]
    lines = [HEAD, f"{about.get('packages', '')}; last measured {about.get('day')}."]
    if about.get("note"):
        lines += ["", str(about["note"])]
    lines += ["", _summary(rows, failed), "", "| " + " | ".join(COLUMNS) + " |"]
    lines += ["|---" * len(COLUMNS) + "|", *map(_line, rows)]
    if failed:
        lines += ["", f"Without a ratio ({len(failed)}):", ""]
        lines += [f"- {r['name']}: `{_reason(r)}`" for r in failed]
    missing = [r for r in rows if not r.get("compiled")]
    if missing:
        lines += ["", "Not compiled by torch, so that the better torch is eager:", ""]
        lines += [f"- {r['name']}: `{r.get('compiled_error', '')[:120]}`" for r in missing]
    return "\n".join(lines) + "\n"


def _reason(row: Row) -> str:
    reason = row.get("error") or row.get("ours_error") or row.get("eager_error") or "no times"
    return str(reason).replace("`", "")


def _summary(rows: Sequence[Row], failed: Sequence[Row]) -> str:
    if not rows:
        return "No rows yet."
    best = [statistics.median(ratios(r)) for r in rows]
    mean = math.exp(statistics.fmean(map(math.log, best)))
    far = [r["name"] for r in rows if r.get("losses_apart", 0.0) > AGREE]
    text = (
        f"{len(rows)} networks, geometric mean **{mean:.2f}**, the least {best[0]:.2f}; "
        f"{sum(b < 1 for b in best)} slower than the better torch, {sum(b < 0.9 for b in best)} of "
        f"them below 0.9; {len(failed)} without a ratio."
    )
    return text + (f" Losses are further apart than {AGREE}: {', '.join(far)}." if far else "")


def _line(row: Row) -> str:
    spread = ratios(row)
    low, middle, high = statistics.quantiles(spread, n=4) if len(spread) > 1 else spread * 3
    eager = statistics.median(ratios(row, ("eager",))) if row.get("eager") else float("nan")
    cells = [row["name"], f"{row['parameters']:,}"]
    cells += [
        f"{statistics.median(row[side]):.3g}" if row.get(side) else "–"
        for side in ("ours", "eager", "compiled")
    ]
    cells += [f"{middle:.2f} ({low:.2f}–{high:.2f})", f"{eager:.2f}"]
    cells += [f"{row['ours_first']:.1f}"]
    cells += [f"{row['compiled_first']:.0f}" if "compiled_first" in row else "–"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of networks, as a pattern")
    parser.add_argument("--missing", action="store_true", help="only networks without a ratio")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no network after so many")
    parser.add_argument("--note", default="", help="what should be said of this run")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker, options.rounds)), flush=True)
        return
    run(options)


def run(options: argparse.Namespace) -> None:
    """All networks that are asked for, and the page."""
    from conformance.environment import lists, python_of

    python = python_of(LIST, lists()[LIST])
    listing = "from conformance.lists.torch_benchmarks import names; print(*names(), sep='\\n')"
    names = subprocess.check_output([python, "-c", listing], cwd=ROOT, text=True).split("\n")
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"about": {}, "rows": []}
    done = {r["name"] for r in results["rows"] if ratios(r)} if options.missing else set()
    begun = time.monotonic()
    for name in names:
        if not name or name in done or not fnmatch.fnmatchcase(name, options.only):
            continue
        if options.seconds and time.monotonic() - begun > options.seconds:
            print("the rest is left for another run (--missing)", flush=True)
            break
        row = run_apart(python, name, options.rounds)
        results["rows"] = [r for r in results["rows"] if r["name"] != name] + [row]
        note = options.note or results["about"].get("note", "")
        results["about"] = {"day": time.strftime("%Y-%m-%d"), "packages": _packages(python)}
        results["about"] |= {"note": note} if note else {}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(results), encoding="utf-8")
        found = ratios(row)
        shown = f"{statistics.median(found):.2f}" if found else _reason(row)
        print(f"{name:50} {shown}", flush=True)


def _packages(python: str) -> str:
    names = ("onnxruntime", "torch", "transformers", "timm")
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {names}))"
    versions = subprocess.check_output([python, "-c", code], cwd=ROOT, text=True).split()
    return ", ".join(f"{name} {version}" for name, version in zip(names, versions, strict=True))


if __name__ == "__main__":
    sys.exit(main())
