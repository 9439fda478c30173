"""Whole training steps of the networks in PyTorch's own compiler benchmarks.

    python3 -m benchmarks.networks --prepare [--missing] [--only GLOB] [--cache FOLDER]
    python3 -m benchmarks.networks [--missing] [--only GLOB] [--cache FOLDER] [--rounds 7]

All 18 names of timm and all 55 of Hugging Face; `benchmarks/network_cases.py` has their sizes. The
first command compiles and exports and times nothing, so that it may run while others work; the
second one does what is not prepared and then times PyTorch eager, PyTorch compiled (both with the
fused AdamW) and Module + Optimizer in turns, in a process per network, two threads each. Rows are
written as they come; with `--missing` a run that was cut goes on. A network or a side that fails
or hangs is a row, too.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.network_steps import (
    EXACT,
    PACKAGES,
    RATE,
    SIDES,
    Row,
    folder_of,
    give_up,
    is_prepared,
    measure,
    prepare,
    read_notes,
    settings,
)  # fmt: skip

RESULTS = ROOT / "benchmarks" / "results" / "networks.json"
PAGE = ROOT / "docs" / "network_speed.md"
CACHE = ROOT / ".cache" / "networks"
LIST = "torch_benchmarks"
AGREE, TIMES = 1e-3, 2.0
"""How far the change of a loss may be from that in float64, relative to it: so far, or so many
times as far as that of the worse torch is."""
PREPARING, MEASURING = 1200.0, 420.0
"""Seconds that one side of a network may take to prepare, and its row."""


# --- a process per network ------------------------------------------------------------------------


def prepare_apart(python: str, name: str, options: argparse.Namespace) -> str:
    """Prepares a network; a side at which the process hangs or dies is left out of the next try."""
    for _ in range(len(SIDES) + 2):
        row = run_apart(python, name, options, "--prepare")
        if "error" not in row:
            return "; ".join(f"{s}: {row[f'{s}_error']}" for s in SIDES if f"{s}_error" in row)
        if not give_up(folder_of(options.cache, name), row["error"]):
            break
    return str(row["error"])


def run_apart(python: str, name: str, options: argparse.Namespace, *more: str) -> Row:
    """The row of one network, or what is prepared of it, from a process of its own."""
    command = [python, "-m", "benchmarks.networks", "--worker", name, *more]
    command += ["--rounds", str(options.rounds), "--cache", str(options.cache)]
    limit = PREPARING if more else MEASURING
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False,
            env=settings(options.cache),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"no result in {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [""])[-1][:200]
        return {"name": name, "error": f"exit code {done.returncode}: {last}"}
    row: Row = json.loads(lines[-1])
    return row


# --- what rows say --------------------------------------------------------------------------------


def apart(row: Row, side: str) -> tuple[float, float]:
    """How far a side's losses are from those in float64, relative to these: the first, and changes.

    Infinite where one is no number, or where there is nothing to compare.
    """
    exact, found = row["losses"].get(EXACT), row["losses"].get(side)
    if not exact or not found or not all(map(math.isfinite, found)):
        return math.inf, math.inf
    changes = [
        abs((f - found[0]) - (e - exact[0])) / max(abs(e - exact[0]), 1e-30)
        for e, f in zip(exact[1:], found[1:], strict=True)
    ]
    return abs(found[0] - exact[0]) / max(abs(exact[0]), 1e-30), max(changes)


def agrees(row: Row) -> bool:
    """Whether our losses are as near to those in float64 as can be asked for."""
    theirs = zip(apart(row, "eager"), apart(row, "compiled"), strict=True)
    known = [max(filter(math.isfinite, pair), default=0.0) for pair in theirs]
    return all(
        ours <= max(AGREE, TIMES * other)
        for ours, other in zip(apart(row, "ours"), known, strict=True)
    )


def ratios(row: Row, peers: Sequence[str] = ("eager", "compiled")) -> list[float]:
    """The better torch ÷ ours, round by round; nothing where a side is missing."""
    medians = {side: statistics.median(row[side]) for side in peers if row.get(side)}
    if not medians or not row.get("ours"):
        return []
    better = min(medians, key=lambda side: medians[side])
    return [theirs / ours for theirs, ours in zip(row[better], row["ours"], strict=True)]


HEAD = f"""# Network by network

Made by `python3 -m benchmarks.networks`; the numbers are in `benchmarks/results/networks.json`.
Whole training steps (AdamW) of the networks in PyTorch's own compiler benchmarks: 55 names of
Hugging Face and 18 of timm. PyTorch eager, PyTorch compiled (both with its fused AdamW) and
Module + Optimizer run in turns in one process, two threads each. Milliseconds are medians over the
rounds; the ratio is the better torch's time ÷ ours, taken round by round (in brackets: its
quartiles), above 1 onnxtrain is faster. Slowest first.

**Sizes.** Networks of Hugging Face have their family's widths and heads divided by one power of two
(at most 512 wide: BERT has 384, 6 heads of 64 and 1536 inside), two layers (two and two where there
are encoder and decoder), 8192 tokens at most, and four rows of 128 tokens; what is minimised is the
model's own loss. Those of timm have the sizes of [the public list](conformance.md#torch_benchmarks)
and four small images, in training mode: BatchNormalization takes the batch's statistics. Nothing is
dropped. Weights are random.

**Losses.** PyTorch in float64 says what the first three losses are. The column *apart* has how far
ours and eager's are from that, relative to how far the loss has moved: it shows gradients, not the
digits before them. Ours may be {AGREE} off, or {TIMES:.0f} times as far as torch's own
float32; so may the first loss, which is compared by itself. The learning rate is {RATE}: the first
steps of AdamW move every weight by that much whatever its gradient's size, so that at 1e-4 rounding
that decides about the signs of small gradients moves the loss (torch eager is then 30 % from
float64 with adv_inception_v3, whose last BatchNormalizations see four numbers per channel), and at
1e-6 weights of 1 round the step itself.

**First step.** Seconds of the processor, compilers included, until the first step is done: export,
artifacts and sessions for ours; torch.compile with one compiling process and empty caches. They are
of the preparation (`--prepare`), which other work does not disturb as it does the clock.
"""
COLUMNS = (
    "network", "parameters", "ours, ms", "torch eager, ms", "torch compiled, ms",
    "better torch ÷ ours", "eager ÷ ours", "first step: ours, s", "compiled, s",
    "apart: ours (eager)", "exporter",
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
    far = [r["name"] for r in rows if not agrees(r)]
    text = (
        f"{len(rows)} networks, geometric mean **{mean:.2f}**, the least {best[0]:.2f}; "
        f"{sum(b < 1 for b in best)} slower than the better torch, {sum(b < 0.9 for b in best)} of "
        f"them below 0.9; {len(failed)} without a ratio."
    )
    return text + (f" Losses do not agree: {', '.join(far)}." if far else "")


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
    cells += [
        f"{apart(row, 'ours')[1]:.0e} ({apart(row, 'eager')[1]:.0e})",
        row.get("exporter", "–"),
    ]
    return "| " + " | ".join(cells) + " |"


# --- all networks ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of networks, as a pattern")
    parser.add_argument("--missing", action="store_true", help="only those not done yet")
    parser.add_argument("--prepare", action="store_true", help="compile and export, time nothing")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where what is prepared lies")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no network after so many")
    parser.add_argument("--note", default="", help="what should be said of this run")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.cache = options.cache.resolve()
    if options.worker:
        print(json.dumps(work(options)), flush=True)
        return
    run(options)


def work(options: argparse.Namespace) -> Row:
    """What a process for one network does."""
    if options.prepare:
        return prepare(options.worker, options.cache)[1]
    return measure(options.worker, options.rounds, options.cache)


def run(options: argparse.Namespace) -> None:
    """All networks that are asked for, and the page."""
    from conformance.environment import lists, python_of

    python = python_of(LIST, lists()[LIST])
    results = stored()
    for name in _names(python, options, results):
        if options.prepare:
            print(f"{name:50} {prepare_apart(python, name, options) or 'prepared'}", flush=True)
            continue
        row = run_apart(python, name, options)
        results["rows"] = [r for r in results["rows"] if r["name"] != name] + [row]
        note = options.note or results["about"].get("note", "")
        results["about"] = {"day": time.strftime("%Y-%m-%d"), "packages": _packages(python)}
        results["about"] |= {"note": note} if note else {}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(results), encoding="utf-8")
        found = ratios(row)
        shown = f"{statistics.median(found):.2f}" if found else _reason(row)
        print(f"{name:50} {shown}", flush=True)


def stored() -> dict[str, Any]:
    """The rows of runs before, those of networks of other sizes left out."""
    if not RESULTS.is_file():
        return {"about": {}, "rows": []}
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    rows = [r for r in results["rows"] if "definition" in r or "error" in r]
    return results | {"rows": rows} if rows else {"about": {}, "rows": []}


def is_timed(row: Row, place: Path) -> bool:
    """Whether a row has a ratio, and of the network that is prepared now, if one is."""
    prepared = read_notes(place).get("definition", row.get("definition"))
    return bool(ratios(row)) and row.get("definition") == prepared


def _names(python: str, options: argparse.Namespace, results: dict[str, Any]) -> Iterator[str]:
    """Names that are asked for, those that are done left out if so; until the time is over."""
    listing = "from conformance.lists.torch_benchmarks import names; print(*names(), sep='\\n')"
    names = subprocess.check_output([python, "-c", listing], cwd=ROOT, text=True).split()
    rows = {row["name"]: row for row in results["rows"]}
    begun = time.monotonic()
    for name in names:
        place = folder_of(options.cache, name)
        is_done = is_prepared(place) if options.prepare else is_timed(rows.get(name, {}), place)
        if (options.missing and is_done) or not fnmatch.fnmatchcase(name, options.only):
            continue
        if options.seconds and time.monotonic() - begun > options.seconds:
            print("the rest is left for another run (--missing)", flush=True)
            return
        yield name


def _packages(python: str) -> str:
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {PACKAGES}))"
    versions = subprocess.check_output([python, "-c", code], cwd=ROOT, text=True).split()
    return ", ".join(f"{name} {version}" for name, version in zip(PACKAGES, versions, strict=True))


if __name__ == "__main__":
    sys.exit(main())
