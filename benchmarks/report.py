"""The page docs/performance.md and the README's table, out of the stored results.

`python -m benchmarks.report` writes them again; nothing is measured. What is written by hand, the
section "Where it loses, and why", is kept in `benchmarks/losses.md`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .race import differences

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
IMAGES = "images/performance"
NAMES = {
    "eager": "torch eager", "compiled": "torch compiled", "old": "predecessor", "jax": "jax",
    "onnxsim": "onnxsim", "sklearn": "scikit-learn",
}  # fmt: skip
MARK = "<!-- benchmark -->"
Entry = dict[str, Any]


def best(entry: Entry) -> float:
    """Our time in ms: the better of Trainer and of Module + Optimizer."""
    return min(_time(entry, "ours"), _time(entry, "ours_parts"))


def ratio(entry: Entry, peer: str) -> float:
    """The peer's time ÷ ours; nan without either."""
    mine, theirs = best(entry), _time(entry, peer)
    return theirs / mine if math.isfinite(mine) and math.isfinite(theirs) else math.nan


def ratio_to_torch(entry: Entry) -> float:
    """Against the better of torch eager and compiled."""
    return min(
        (r for r in (ratio(entry, "eager"), ratio(entry, "compiled")) if math.isfinite(r)),
        default=math.nan,
    )


def geometric_mean(ratios: Iterable[float]) -> tuple[float, int]:
    """Over those that are there, and how many that are."""
    known = [r for r in ratios if math.isfinite(r)]
    if not known:
        return math.nan, 0
    return math.exp(sum(map(math.log, known)) / len(known)), len(known)


def _time(entry: Entry, peer: str) -> float:
    return entry["peers"].get(peer, {}).get("ms") or math.inf


def _number(value: float | None, digits: int = 2) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}f}"


def _rows(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- tables ------------------------------------------------------------------------------------


def table(results: dict[str, Entry]) -> str:
    """Our times, and the peers' ratios."""
    peers = [p for p in NAMES if any(p in e["peers"] for e in results.values())]
    rows = []
    for entry in results.values():
        both = (_number(entry["peers"].get(p, {}).get("ms")) for p in ("ours", "ours_parts"))
        rows.append([entry["title"], *both, *(_cell(entry, p) for p in peers)])
    means = [geometric_mean(ratio(e, p) for e in results.values()) for p in peers]
    rows.append([
        "**geometric mean** (of so many)", "", "",
        *(f"**{_number(mean)}** ({count})" if count else "" for mean, count in means),
    ])  # fmt: skip
    head = ["workload", "Trainer, ms", "Module + Optimizer, ms", *(NAMES[p] for p in peers)]
    mean, count = geometric_mean(map(ratio_to_torch, results.values()))
    text = "Geometric mean against the better of torch eager and compiled:"
    return f"{_rows(head, rows)}\n\n{text} **{_number(mean)}** (over {count})."


def _cell(entry: Entry, peer: str) -> str:
    value = ratio(entry, peer)
    if math.isfinite(value):
        return f"{value:.2f}" + ("¹" if entry["peers"][peer].get("remark") else "")
    return "cannot" if entry["peers"].get(peer, {}).get("error") else ""


def start_table(results: dict[str, Entry]) -> str:
    """Time to the first step, by parts."""
    head = ["workload", "import", "differentiate + artifacts", "session", "first run", "in all",
            "torch eager", "torch compiled", "predecessor", "jax"]  # fmt: skip
    rows = []
    for entry in results.values():
        mine = entry["peers"].get("ours_parts", {})
        parts = mine.get("first_step_parts_s") or {}
        rows.append([
            entry["title"],
            *(_number(parts.get(k), 1) for k in ("import", "artifacts", "session", "first run")),
            *(
                _number(entry["peers"].get(p, {}).get("first_step_s"), 1)
                for p in ("ours_parts", "eager", "compiled", "old", "jax")
            ),
        ])  # fmt: skip
    return _rows(head, rows)


def memory_table(results: dict[str, Entry]) -> str:
    """Peak memory, and ours ÷ torch's."""
    head = ["workload", "Trainer", "Module + Optimizer", "writing artifacts", "torch eager",
            "torch compiled", "predecessor", "jax", "ours ÷ eager"]  # fmt: skip
    rows = []
    for entry in results.values():
        peers = entry["peers"]
        made = peers.get("ours_parts", {}).get("artifacts_rss_mb")
        sizes = {p: found.get("rss_mb") for p, found in peers.items()}
        mine = min((s for s in (sizes.get("ours"), sizes.get("ours_parts")) if s), default=math.nan)
        share = mine / sizes["eager"] if sizes.get("eager") else math.nan
        cells = [sizes.get("ours"), sizes.get("ours_parts"), made]
        cells += [sizes.get(p) for p in ("eager", "compiled", "old", "jax")]
        rows.append([entry["title"], *(_number(c, 0) for c in cells), _number(share)])
    return _rows(head, rows)


def operator_table(results: dict[str, Entry]) -> str:
    """Shares of the operator types in a step of Module + Optimizer, and of the one-graph step."""
    rows = []
    for entry in results.values():
        for peer, label in (("ours_parts", "Module + Optimizer"), ("ours", "Trainer")):
            found = entry.get("operators", {}).get(peer)
            if found:
                shares = ", ".join(f"{k} {v:.0%}" for k, v in found.items() if v >= 0.005)
                rows.append([entry["title"], label, shares])
    return _rows(["workload", "by", "share of the step"], rows)


def loss_table(results: dict[str, Entry]) -> str:
    """How far the first five losses are from torch's, relatively."""
    peers = [p for p in ("ours", "ours_parts", *NAMES) if p != "eager"]
    rows = []
    for entry in results.values():
        gaps = differences(entry)
        cells = (f"{gaps[p]:.1g}" if p in gaps else "" for p in peers)
        limit = entry.get("tolerance")
        rows.append([entry["title"], *cells, f"{limit:g}" if limit else "–"])
    titles = {"ours": "Trainer", "ours_parts": "Module + Optimizer", **NAMES}
    return _rows(["workload", *(titles[p] for p in peers), "allowed"], rows)


def refusals(results: dict[str, Entry]) -> str:
    """What the peers cannot do, and why; each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in results.values():
        for peer, found in entry["peers"].items():
            if found.get("error"):
                key = NAMES.get(peer, peer), found["error"].replace("|", "/").replace("`", "'")
                reasons.setdefault(key, []).append(entry["title"])
    return "\n".join(
        f"- **{peer}**: `{why}` ({'; '.join(titles)})" for (peer, why), titles in reasons.items()
    )


def growth_table(growth: dict[str, Any]) -> str:
    """All points of all curves."""
    rows = []
    for curve in growth.get("curves", []):
        for point in curve["points"]:
            mine, theirs = point["ms"].get("ours_parts"), point["ms"].get("eager")
            quotient = theirs / mine if mine and theirs else None
            rows.append([
                curve["title"], f"{curve['axis']} {point['at']}", _number(mine), _number(theirs),
                _number(point["ms"].get("compiled")), _number(quotient),
            ])  # fmt: skip
    head = ["model", "at", "ours, ms", "torch eager, ms", "torch compiled, ms", "eager ÷ ours"]
    return _rows(head, rows)


def node_table(growth: dict[str, Any]) -> str:
    """Differentiation, one session and a ready Module against the number of nodes."""
    rows, last = [], None
    for point in growth.get("nodes", []):
        times = [point[f"{kind}_s"] for kind in ("differentiate", "session", "module")]
        grown = [f"{b / a:.2f}×" for a, b in zip(last, times)] if last else [""] * len(times)
        cells = [c for time, more in zip(times, grown) for c in (_number(time), more)]
        rows.append([str(point["nodes"]), str(point["nodes_with_gradient"]), *cells])
        last = times
    kinds = ("differentiate", "one session", "Module ready")
    head = ["nodes", "with gradients", *(c for k in kinds for c in (f"{k}, s", "growth"))]
    return _rows(head, rows)


# --- pages -------------------------------------------------------------------------------------

PAGE = """# Measured

Made by `python3 -m benchmarks.run` (all of it; it sets up its own environments) and
`python3 -m benchmarks.growth`; the raw numbers are in `benchmarks/results.json` and
`benchmarks/growth.json`. Every contestant runs in a process of its own with two threads: same
weights, same batches, whole steps with the optimizer. Rounds are interleaved and the best of
{rounds} counts. Columns of peers are ratios, their time ÷ ours: above 1 onnxtrain is faster. "Ours"
is the better of `Trainer` (one graph for the whole step, where that is faster) and of
Module + Optimizer. PyTorch uses its fused optimizers; the predecessor is onnxruntime-training
1.19.2; jax is a compiled step of plain `jax.numpy`; onnxsim is its `compile_training_loop`;
scikit-learn is `MLPClassifier` or `MLPRegressor`.

Machine: {machine}. Measured {dates}.

## Time per step

![Time of the peers ÷ ours, by workload]({images}/ratios.svg)

{table}

{remarks}

{refusals}

## Memory

Peak resident memory in MB, of the process that trains. The artifacts are written by another
process, once; what that needs is a column of its own.

{memory}

## Time to the first step

Seconds, from an ONNX model (for torch: from a module) to the end of the first step;
Module + Optimizer by parts.

{start}

## Time per operator type

From onnxruntime's profiler, in runs of their own that are not timed. "Outside nodes" is the rest
of the step: calls, bindings, a compiled update.

{operators}

## Do they compute the same?

Largest relative difference of the first five losses from those of torch eager. A contestant beyond
what is allowed makes the benchmark fail.

{losses_agree}

{growth}{by_hand}"""

GROWTH = """## Growth

Step time against batch size, sequence length, depth and width; the other sizes stay as they are.

![Step time against batch size, length, depth and width]({images}/growth.svg)

{growth_table}

Differentiation (load, normalize, differentiate, optimize), the creation of one session of the
result by onnxruntime, and the time until a `Module` is ready, which cuts models of more than 12,000
nodes into pieces, against the number of nodes of the model:

![Seconds against the number of nodes]({images}/nodes.svg)

{node_table}

"""


def page(results: dict[str, Entry], growth: dict[str, Any], by_hand: str) -> str:
    """The whole page."""
    entries = list(results.values())
    dates = sorted({e.get("date", "")[:10] for e in entries} - {""})
    remarks = sorted({
        f"{NAMES[p]}: {e['peers'][p]['remark']}"
        for e in entries for p in NAMES if e["peers"].get(p, {}).get("remark")
    })  # fmt: skip
    cannot = refusals(results)
    return PAGE.format(
        rounds=" or ".join(map(str, sorted({e.get("rounds", 5) for e in entries}))),
        machine="; ".join(dict.fromkeys(_machine(e) for e in entries if e.get("machine"))),
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "",
        images=IMAGES,
        table=table(results),
        remarks="¹ " + "; ".join(remarks) if remarks else "",
        refusals=f"What cannot be done, and what was said about it:\n\n{cannot}" if cannot else "",
        memory=memory_table(results),
        start=start_table(results),
        operators=operator_table(results),
        losses_agree=loss_table(results),
        growth=_growth(growth),
        by_hand=by_hand,
    )


def _growth(growth: dict[str, Any]) -> str:
    if not growth:
        return ""
    tables = {"growth_table": growth_table(growth), "node_table": node_table(growth)}
    return GROWTH.format(images=IMAGES, **tables)


def _machine(entry: Entry) -> str:
    found = entry["machine"]
    instructions = " ".join(found["instructions"]) or "no AVX2"
    return (
        f"{found['cores']} cores, {found['architecture']}, {instructions}; "
        f"Python {found['python']}, onnxruntime {found['onnxruntime']}, torch {found['torch']}"
    )


def short_table(results: dict[str, Entry]) -> str:
    """For the README: a line per workload."""
    peers = ("old", "jax", "sklearn")
    rows = [
        [e["title"], _number(best(e)), _number(ratio_to_torch(e)), *(_cell(e, p) for p in peers)]
        for e in results.values()
    ]
    means = [geometric_mean(map(ratio_to_torch, results.values()))[0]]
    means += [geometric_mean(ratio(e, p) for e in results.values())[0] for p in peers]
    rows.append(["geometric mean", "", *map(_number, means)])
    head = ["time ÷ ours", "ours, ms", "torch, the better of eager and compiled",
            "onnxruntime-training 1.19.2", "jax", "scikit-learn"]  # fmt: skip
    return _rows(head, rows).replace("¹", "")


def put_between_marks(text: str, new: str) -> str:
    """The text with what stands between the two marks replaced; as it was without two marks."""
    before, *inside, after = text.split(MARK) if text.count(MARK) == 2 else (text, "")
    return f"{before}{MARK}\n{new}\n{MARK}{after}" if inside else text


def main() -> None:
    from .plots import draw

    results = json.loads((HERE / "results.json").read_text())
    growth_file = HERE / "growth.json"
    growth = json.loads(growth_file.read_text()) if growth_file.exists() else {}
    draw(results, growth, ROOT / "docs" / IMAGES)
    by_hand = (HERE / "losses.md").read_text()
    (ROOT / "docs" / "performance.md").write_text(page(results, growth, by_hand))
    readme = ROOT / "README.md"
    readme.write_text(put_between_marks(readme.read_text(), short_table(results)))


if __name__ == "__main__":
    main()
