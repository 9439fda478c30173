"""Single operators, forward and backward, against torch eager.

python -m benchmarks.operators [--only GLOB] [--list package.module:ATTRIBUTE] [--seconds 2]
    [--threads 1]

Both sides run in turns in one process; `ORTModule` is ours. Every case has a process of its own,
forked from one that has imported everything, so that one that crashes or hangs is a row and not
the end. The rows are written to a JSON file as they come, and all that are there to a Markdown
page. With `--missing` only cases without a row are run: a run that was cut off goes on.

The lists: `benchmarks.operator_cases:CASES`, `benchmarks.ordinary_modules:ORDINARY`, and PyTorch's
own tables, `benchmarks.operator_tables:OPERATORS` (OpInfo) and `benchmarks.operator_tables:MODULES`
(ModuleInfo), which need the packages expecttest and hypothesis.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import importlib
import json
import math
import multiprocessing
import os
import re
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OWN_LIST = "benchmarks.operator_cases:CASES"
RESULTS = ROOT / "benchmarks" / "results" / "operators.json"
NOTES = ROOT / "benchmarks" / "operator_notes.md"
PAGE = ROOT / "docs" / "operator_speed.md"

Row = dict[str, Any]


# --- one case, in its own process --------------------------------------------------------------


def measure(source: str, name: str, seconds: float) -> Row:
    """First call and later calls of both sides, and the largest difference of their results."""
    import torch

    from onnxtrain.torch import ORTModule

    torch.manual_seed(0)
    case = cases_of(source)[name]()
    theirs = Side(copy.deepcopy(case.module), case.inputs)
    ours = Side(ORTModule(case.module), case.inputs)
    row: Row = {"name": name, "list": source.partition(":")[2]}
    row["threads"] = torch.get_num_threads()
    row["elements"] = max((x.numel() for x in case.inputs if torch.is_tensor(x)), default=0)
    row["eager_first"] = theirs.first()
    if theirs.is_complex:
        raise NotComparableError(COMPLEX)
    row["ours_first"] = ours.first()
    agree(theirs, ours)
    row["difference"] = difference(theirs.results(), ours.results())
    walls, cpus = in_turns([theirs.run, ours.run], seconds)
    for side, wall, cpu in zip(("eager", "ours"), walls, cpus):
        row[side] = statistics.median(wall)
        row[f"{side}_spread"] = [min(wall), *_quartiles(wall)]
        row[f"{side}_cpu"] = statistics.median(cpu)
    return row


COMPLEX = "complex result"
NO_GRADIENT = "no output that both sides differentiate"


class NotComparableError(Exception):
    """There is nothing to compare; the message says why."""


class Side:
    """A module, its arguments, and the gradients of its outputs.

    Attributes:
        graded: places of the outputs that have a gradient in the last call.
        is_complex: whether one of the outputs was complex.
    """

    def __init__(self, module: Any, inputs: Sequence[Any]) -> None:
        import torch

        self.module = module
        self.inputs = [
            x.detach().clone().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
            for x in inputs
        ]
        self.grown = [x for x in self.inputs if torch.is_tensor(x) and x.requires_grad]
        self.seeds: list[Any] | None = None
        self.graded: set[int] = set()
        self.is_complex = False
        self._only: set[int] | None = None

    def only(self, places: set[int]) -> None:
        """Differentiate these outputs from now on, and no others."""
        self._only, self.seeds = places, None

    def run(self) -> list[Any]:
        """Forward and backward; the outputs that have a gradient."""
        import torch

        for x in (*self.grown, *self.module.parameters()):
            x.grad = None
        outputs = self.module(*self.inputs)
        together = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        have = {i: y for i, y in enumerate(together) if torch.is_tensor(y) and y.requires_grad}
        self.graded = set(have)
        graded = [y for i, y in have.items() if self._only is None or i in self._only]
        self.is_complex = any(torch.is_tensor(y) and y.is_complex() for y in together)
        if self.seeds is None:
            generator = torch.Generator().manual_seed(1)
            self.seeds = [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in graded]
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


def agree(theirs: Side, ours: Side) -> None:
    """Let two sides that have run differentiate the same outputs.

    torch has a gradient of zeros for what is constant piece by piece (`ceil`), where ours has none,
    and none for some outputs of its composed operators (the mean of `native_layer_norm`).
    """
    common = theirs.graded & ours.graded
    if not common:
        raise NotComparableError(NO_GRADIENT)
    for side in (theirs, ours):
        side.only(common)


def difference(theirs: Sequence[Any], ours: Sequence[Any]) -> float:
    """The largest difference, as a part of the largest number of the tensor that it is in."""
    parts = []
    for a, b in zip(theirs, ours, strict=True):
        if a is None or b is None or not a.numel():
            continue
        parts.append(_apart(a.detach(), b.detach()))
    return max(parts, default=0.0)


def _apart(a: Any, b: Any) -> float:
    """What both say is no number, or the same infinity, is equal; what one says is infinitely far.

    Powers of negative numbers, say, have no logarithm for a gradient on either side.
    """
    same = (a == b) | (a.isnan() & b.isnan())
    apart = (a - b).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(same, 0)
    largest = a.abs().nan_to_num(nan=0, posinf=0).max()
    return float(apart.max()) / max(float(largest), 1e-30)


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
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, source, name, seconds))
    process.start()
    sending.close()
    row: Row = {"name": name, "list": source.partition(":")[2], "threads": _threads()}
    try:
        if receiving.poll(limit):
            return {**row, **receiving.recv()}
        return {**row, "error": f"no result in {limit:.0f} s"}
    except EOFError:
        process.join()
        return {**row, "error": f"exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _send(pipe: Any, source: str, name: str, seconds: float) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    try:
        row = measure(source, name, seconds)
    except NotComparableError as reason:
        row = {"error": str(reason)}
    except Exception as error:
        lines = "".join(traceback.format_exception_only(error)).split("\n")
        row = {"error": lines[0][:200]}
    pipe.send(row)


def stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {"about": {}, "rows": []}


def keep(path: Path, row: Row) -> list[Row]:
    """Put the row into the file, in the place of one with its name and threads; all rows."""
    results = stored(path)
    others = [r for r in results["rows"] if _key(r) != _key(row)]
    path.parent.mkdir(exist_ok=True)
    results = {"about": about(), "rows": [*others, row]}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return [*others, row]


def _key(row: Row) -> tuple[str, str, int]:
    return row.get("list", ""), row["name"], row.get("threads", 1)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def about() -> dict[str, Any]:
    import onnxruntime
    import torch

    return {
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }


# --- the page ----------------------------------------------------------------------------------

HEAD = """# Operator by operator

Made by `python3 -m benchmarks.operators`; the numbers are in `benchmarks/results/operators.json`.
Forward and backward of one module or function through [`ORTModule`](guides/pytorch.md), beside
torch eager in one process, in turns. Milliseconds are medians (in brackets: least, first and third
quartile); the ratio is torch's time ÷ ours, above 1 onnxtrain is faster. The first call exports,
differentiates and creates the sessions. Slowest first. All columns are of one thread but the last,
which has the ratio of the medians with two, where that was measured.
"""

TITLES = {
    "CASES": (
        "Layers and functions at about a million elements",
        "`benchmarks/operator_cases.py`.",
    ),
    "ORDINARY": (
        "PyTorch's modules at ordinary sizes",
        "`benchmarks/ordinary_modules.py`.",
    ),
    "MODULES": (
        "PyTorch's table of modules",
        "ModuleInfo: the largest sample of each, its first axis repeated.",
    ),
    "OPERATORS": (
        "PyTorch's table of operators",
        "OpInfo: of each operator that has a gradient the largest sample, enlarged if possible.",
    ),
}
COLUMNS = (
    "case", "elements", "ours, ms", "torch eager, ms", "ratio", "of the best", "of CPU time",
    "first call, s", "two threads",
)  # fmt: skip


def page(results: dict[str, Any], notes: str = "") -> str:
    """All rows as a Markdown page, list by list."""
    lines = [HEAD, _setting(results["about"]), notes]
    for name, (title, text) in TITLES.items():
        rows = [r for r in results["rows"] if r.get("list", "CASES") == name]
        if rows:
            lines += [f"\n## {title}\n", text, "", *_table(rows)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    single = [r for r in rows if r.get("threads", 1) == 1]
    two = {r["name"]: r for r in rows if r.get("threads", 1) == 2 and "error" not in r}
    timed = sorted((r for r in single if "error" not in r), key=lambda r: ratio(r) or 0)
    lines = [_summary(timed), "", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    lines += [_line(r, two.get(r["name"])) for r in timed]
    failed = [r for r in single if "error" in r]
    if failed:
        lines += ["", f"Without a result ({len(failed)}):", "", *_reasons(failed)]
    return lines


KINDS = (
    ("the exporter has no form of an operator", r"No ONNX function found for <\w+\(op='([\w.]+)'"),
    ("the exporter fails", r"cannot be exported to ONNX"),
    ("has a backward of its own that a graph would lose", r"has a backward of its own"),
    ("a complex result, which ONNX does not have", f"^{COMPLEX}$"),
    (NO_GRADIENT, f"^{NO_GRADIENT}$"),
)
"""Reasons that many cases share, and how to know them; what a group matches is named."""


def _reasons(failed: Sequence[Row]) -> list[str]:
    """Why there is no result: a line for each kind, and one for each case of no kind."""
    kinds: dict[str, list[str]] = {title: [] for title, _ in KINDS}
    others = []
    for row in failed:
        for title, pattern in KINDS:
            if match := re.search(pattern, row["error"]):
                kinds[title].append(_named(row["name"], match.groups()))
                break
        else:
            others.append(f"- {row['name']}: `{row['error'].replace('`', '')}`")
    return [f"- {k} ({len(n)}): {', '.join(n)}" for k, n in kinds.items() if n] + others


def _named(name: str, operators: Sequence[str]) -> str:
    """The name of a case, and the operators that it stumbles over, if they are others."""
    others = [f"`{o}`" for o in operators if o.partition(".")[2] != name]
    return f"{name} ({', '.join(others)})" if others else name


def ratio(row: Row) -> float | None:
    return None if "error" in row else row["eager"] / row["ours"]


def _setting(versions: dict[str, Any]) -> str:
    return (
        f"onnxruntime {versions.get('onnxruntime')}, torch {versions.get('torch')}, "
        f"last measured {versions.get('day')}.\n"
    )


def _summary(rows: Sequence[Row]) -> str:
    ratios = [row["eager"] / row["ours"] for row in rows]
    if not ratios:
        return ""
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    slow, very = sum(r < 1 for r in ratios), sum(r < 0.5 for r in ratios)
    late = sum(r["ours_first"] > 5 for r in rows)
    return (
        f"{len(ratios)} cases, geometric mean **{mean:.2f}**; {slow} slower than torch, {very} of "
        f"them by more than twice; {late} took more than five seconds to the first answer."
    )


def _line(row: Row, two: Row | None = None) -> str:
    cells = [row["name"].replace("|", "\\|"), f"{row.get('elements', 0):,}"]
    for side in ("ours", "eager"):
        least, low, high = row[f"{side}_spread"]
        cells.append(f"{row[side]:.3g} ({least:.3g}, {low:.3g}–{high:.3g})")
    cells.append(f"{row['eager'] / row['ours']:.2f}")
    cells.append(f"{row['eager_spread'][0] / row['ours_spread'][0]:.2f}")
    cells.append(f"{row['eager_cpu'] / row['ours_cpu']:.2f}")
    cells.append(f"{row['ours_first']:.1f}")
    cells.append("" if two is None else f"{ratio(two):.2f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of cases, as a pattern")
    parser.add_argument("--list", default=OWN_LIST, help="where the cases are")
    parser.add_argument("--missing", action="store_true", help="only cases without a row")
    parser.add_argument("--seconds", type=float, default=2, help="how long to time each case")
    parser.add_argument("--limit", type=float, default=120, help="seconds that a case may take")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--notes", type=Path, default=NOTES, help="Markdown with the reasons")
    parser.add_argument("--page", type=Path, default=PAGE)
    run(parser.parse_args())


def _warm_up() -> None:
    """Import what a first call imports, before the processes of the cases are forked."""
    import torch

    importlib.import_module("onnxtrain.torch.ortmodule")
    torch.onnx.export(torch.nn.ReLU(), (torch.ones(2),), dynamo=True, verbose=False)


def run(options: argparse.Namespace) -> None:
    """Measure what is asked for, and write the page of all that is there."""
    import torch

    torch.set_num_threads(options.threads)
    _warm_up()
    have = {_key(r) for r in stored(options.results)["rows"]} if options.missing else set()
    attribute = options.list.partition(":")[2]
    for name in cases_of(options.list):
        if fnmatch.fnmatch(name, options.only) and (attribute, name, options.threads) not in have:
            row = run_apart(options.list, name, options.seconds, options.limit)
            keep(options.results, row)
            print(_line(row) if "error" not in row else f"{name}: {row['error']}", flush=True)
    notes = options.notes.read_text() if options.notes.is_file() else ""
    options.page.write_text(page(stored(options.results), notes))


if __name__ == "__main__":
    main()
