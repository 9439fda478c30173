"""Single operators, forward and backward, against torch eager.

python -m benchmarks.operators [--only GLOB] [--list package.module:ATTRIBUTE] [--seconds 2]

Both sides run in turns in one process with two threads; `ORTModule` is ours. Every case has a
process of its own, so that one that crashes or hangs is a row and not the end. The rows are
written to a JSON file as they come, and all that are there to a Markdown page.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import importlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OWN_LIST = "benchmarks.operator_cases:CASES"
RESULTS = ROOT / "benchmarks" / "operators.json"
PAGE = ROOT / "docs" / "operator_speed.md"
THREADS = 2

Row = dict[str, Any]


# --- one case, in its own process --------------------------------------------------------------


def measure(source: str, name: str, seconds: float) -> Row:
    """First call and later calls of both sides, and the largest difference of their results."""
    import torch

    from onnxtrain.torch import ORTModule

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    case = cases_of(source)[name]()
    theirs = Side(copy.deepcopy(case.module), case.inputs)
    ours = Side(ORTModule(case.module), case.inputs)
    row: Row = {"name": name, "eager_first": theirs.first(), "ours_first": ours.first()}
    row["difference"] = difference(theirs.results(), ours.results())
    walls, cpus = in_turns([theirs.run, ours.run], seconds)
    for side, wall, cpu in zip(("eager", "ours"), walls, cpus):
        row[side] = statistics.median(wall)
        row[f"{side}_spread"] = [min(wall), *_quartiles(wall)]
        row[f"{side}_cpu"] = statistics.median(cpu)
    return row


class Side:
    """A module, its arguments, and the gradients of its outputs."""

    def __init__(self, module: Any, inputs: Sequence[Any]) -> None:
        import torch

        self.module = module
        self.inputs = [
            x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
            for x in inputs
        ]
        self.grown = [x for x in self.inputs if torch.is_tensor(x) and x.requires_grad]
        self.seeds: list[Any] | None = None

    def run(self) -> list[Any]:
        """Forward and backward; the outputs that have a gradient."""
        import torch

        for x in (*self.grown, *self.module.parameters()):
            x.grad = None
        outputs = self.module(*self.inputs)
        together = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        graded = [y for y in together if torch.is_tensor(y) and y.requires_grad]
        if self.seeds is None:
            generator = torch.Generator().manual_seed(1)
            self.seeds = [torch.randn(y.shape, generator=generator) for y in graded]
        torch.autograd.backward(graded, self.seeds)
        return graded

    def first(self) -> float:
        """Seconds of the first call."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def results(self) -> list[Any]:
        """Outputs and gradients."""
        outputs = self.run()
        return [*outputs, *(x.grad for x in (*self.grown, *self.module.parameters()))]


def difference(theirs: Sequence[Any], ours: Sequence[Any]) -> float:
    """The largest difference, as a part of the largest number of the tensor that it is in."""
    parts = []
    for a, b in zip(theirs, ours, strict=True):
        if a is None or b is None or not a.numel():
            continue
        largest, apart = a.detach().abs().max(), (a - b).detach().abs().max()
        parts.append(float(apart) / max(float(largest), 1e-30))
    return max(parts, default=0.0)


def in_turns(
    sides: Sequence[Callable[[], Any]], seconds: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Wall and CPU milliseconds of a call, side after side, at least seven rounds."""
    start = time.perf_counter()
    sides[0]()
    repeat = max(1, min(100, int(0.01 / (time.perf_counter() - start))))
    walls: list[list[float]] = [[] for _ in sides]
    cpus: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(walls[0]) < 7:
        for run, wall, cpu in zip(sides, walls, cpus):
            run()  # the other side's data is still in the caches
            used, start = time.process_time(), time.perf_counter()
            for _ in range(repeat):
                run()
            wall.append((time.perf_counter() - start) / repeat * 1e3)
            cpu.append((time.process_time() - used) / repeat * 1e3)
    return walls, cpus


def _quartiles(numbers: Sequence[float]) -> list[float]:
    first, _, third = statistics.quantiles(numbers, n=4)
    return [first, third]


# --- all cases ---------------------------------------------------------------------------------


def cases_of(source: str) -> Any:
    """The mapping that ``package.module:ATTRIBUTE`` names."""
    module, _, attribute = source.partition(":")
    return getattr(importlib.import_module(module), attribute)


def run_apart(source: str, name: str, seconds: float, limit: float) -> Row:
    """The row of one case from a process of its own; what went wrong, if it did."""
    command = [sys.executable, "-m", "benchmarks.operators", "--list", source, "--case", name]
    command += ["--seconds", str(seconds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no result in {limit:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        row: Row = json.loads(lines[-1])
        return row
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return {"name": name, "error": last[:200]}


def stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {"about": {}, "rows": []}


def keep(path: Path, row: Row) -> list[Row]:
    """Put the row into the file, in the place of an older one of the same name; all rows."""
    results = stored(path)
    others = [r for r in results["rows"] if r["name"] != row["name"]]
    results = {"about": about(), "rows": [*others, row]}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return [*others, row]


def about() -> dict[str, Any]:
    import onnxruntime
    import torch

    return {
        "threads": THREADS,
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }


# --- the page ----------------------------------------------------------------------------------

HEAD = """# Operator by operator

Made by `python3 -m benchmarks.operators`; the numbers are in `benchmarks/operators.json`. Forward
and backward of one module or function through [`ORTModule`](guides/pytorch.md), about a million
elements, beside torch eager in one process with two threads, in turns. Milliseconds are medians
(in brackets: least, first and third quartile); the ratio is torch's time ÷ ours, above 1 onnxtrain
is faster. The first call exports, differentiates and creates the sessions. Slowest first.
"""


def page(results: dict[str, Any]) -> str:
    """All rows as a Markdown page."""
    rows = sorted(results["rows"], key=lambda r: ratio(r) or 0)
    timed = [r for r in rows if "error" not in r]
    lines = [HEAD, _summary(timed, results["about"]), ""]
    lines += [
        "| case | ours, ms | torch eager, ms | ratio | of the best | of CPU time | first call, s |"
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [_line(r) for r in timed]
    failed = [r for r in rows if "error" in r]
    if failed:
        lines += ["", "Without a result:", ""]
        lines += [f"- {r['name']}: `{r['error']}`" for r in failed]
    return "\n".join(lines) + "\n"


def ratio(row: Row) -> float | None:
    return None if "error" in row else row["eager"] / row["ours"]


def _summary(rows: Sequence[Row], versions: dict[str, Any]) -> str:
    ratios = [row["eager"] / row["ours"] for row in rows]
    if not ratios:
        return ""
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    slow = sum(r < 1 for r in ratios)
    very = sum(r < 0.5 for r in ratios)
    return (
        f"{len(ratios)} cases, geometric mean **{mean:.2f}**; {slow} slower than torch, {very} of "
        f"them by more than twice. onnxruntime {versions.get('onnxruntime')}, "
        f"torch {versions.get('torch')}, measured {versions.get('day')}."
    )


def _line(row: Row) -> str:
    cells = [row["name"].replace("|", "\\|")]
    for side in ("ours", "eager"):
        least, low, high = row[f"{side}_spread"]
        cells.append(f"{row[side]:.3g} ({least:.3g}, {low:.3g}–{high:.3g})")
    cells.append(f"{row['eager'] / row['ours']:.2f}")
    cells.append(f"{row['eager_spread'][0] / row['ours_spread'][0]:.2f}")
    cells.append(f"{row['eager_cpu'] / row['ours_cpu']:.2f}")
    cells.append(f"{row['ours_first']:.1f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of cases, as a pattern")
    parser.add_argument("--list", default=OWN_LIST, help="where the cases are")
    parser.add_argument("--seconds", type=float, default=2, help="how long to time each case")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a case may take")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.list, options.case, options.seconds)))
        return
    for name in cases_of(options.list):
        if fnmatch.fnmatch(name, options.only):
            row = run_apart(options.list, name, options.seconds, options.limit)
            keep(options.results, row)
            print(_line(row) if "error" not in row else f"{name}: {row['error']}", flush=True)
    options.page.write_text(page(stored(options.results)))


if __name__ == "__main__":
    main()
