"""The page docs/performance.md and the README's table, out of the stored runs.

`python -m benchmarks.report` writes them again; nothing is measured. What is written by hand is in
`benchmarks/losses.md`, and the reason for every ratio below 1 in `benchmarks/reasons.json`.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import large, limits, products
from . import runs as stored_runs
from .figures import (
    ALONE,
    BASE,
    BESIDE,
    OTHERS,
    Figures,
    Loss,
    Mean,
    Spread,
    geometric_mean,
)  # fmt: skip
from .growth_report import growth_section, rows_of, shown, three_digits
from .race import OURS, TORCH, differences
from .runs import Run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
IMAGES = "images/performance"
NAMES = {
    "ours": "Trainer", "ours_parts": "Module + Optimizer", "ortmodule": "ORTModule",
    "orttrainer": "ORTTrainer",
    "eager": "torch eager", "compiled": "torch compiled", "old": "predecessor", "jax": "jax",
    "onnxsim": "onnxsim", "sklearn": "scikit-learn",
}  # fmt: skip
FROM_TORCH = ("ortmodule", "orttrainer")
TRANSFORMERS = ("encoder", "token_encoder", "gpt2", "vit", "llama")
KINDS = {"alone": "time, a process each", "beside": "time, one process", "memory": "memory"}
SETTINGS = {ALONE: "a process each", BESIDE: "one process"}
MARK = "<!-- benchmark -->"
UNEXPLAINED = "not explained yet"
TURNS = (
    "turns of a fifth of a second or one step, with a pause between; a tenth of a second of steps "
    "before is not counted (after idleness they are slow; steps of a fifth of a second and more "
    "have no such beginning)"
)
TURNS_BEFORE = "turns of a quarter of a second or one step, with a pause between"
"""Of runs that did not measure the time from core to core yet."""


# --- tables ------------------------------------------------------------------------------------


def torch_table(figures: Figures, setting: str) -> str:
    """Torch's times, and the better one ÷ each of ours."""
    rows = []
    if not any(figures.last(name).get(setting) for name in figures.names):
        return "Not measured in these runs."
    for name in figures.names:
        times = (_times(figures.time(name, peer, setting)) for peer in TORCH)
        ratios = (_spread(figures.against_torch(name, way, setting)) for way in figures.ways)
        rows.append([figures.last(name)["title"], *times, *ratios])
    means = [figures.mean(way, setting) for way in figures.ways]
    rows.append(["**geometric mean**, the least", "", "", *map(_mean, means)])
    subset = [name for name in TRANSFORMERS if name in figures.names]
    if len(subset) > 1:
        means = [figures.mean(way, setting, subset) for way in figures.ways]
        rows.append([f"of the {len(subset)} transformers", "", "", *map(_mean, means)])
    head = ["workload", *(f"{NAMES[p]}, ms" for p in TORCH), *(NAMES[way] for way in figures.ways)]
    return rows_of(head, rows)


def eager_table(figures: Figures) -> str:
    """Torch eager ÷ the two ways that take a module of torch's, in both settings."""
    ways = [way for way in FROM_TORCH if way in figures.ways]
    columns = [(way, setting) for way in ways for setting in SETTINGS]
    rows = []
    for name in figures.names:
        ratios = (figures.ratio(name, "eager", *column) for column in columns)
        rows.append([figures.last(name)["title"], *map(_spread, ratios)])
    means = (
        geometric_mean(figures.ratio(n, "eager", *column).median for n in figures.names)
        for column in columns
    )
    rows.append(["**geometric mean**, the least", *map(_mean, means)])
    head = (f"{NAMES[way]}, {SETTINGS[setting]}" for way, setting in columns)
    return rows_of(["workload", *head], rows)


def times_table(figures: Figures) -> str:
    """Milliseconds of everybody."""
    peers = [p for p in NAMES if any(p in figures.peers(n) for n in figures.names)]
    rows = [
        [figures.last(n)["title"], *(_times(figures.time(n, p)) for p in peers)]
        for n in figures.names
    ]
    return rows_of(["workload", *(NAMES[p] for p in peers)], rows)


def peers_table(figures: Figures) -> str:
    """Peers other than torch ÷ Module + Optimizer."""
    rows = [
        [figures.last(n)["title"], *(_peer_cell(figures, n, p) for p in OTHERS)]
        for n in figures.names
    ]
    means = (
        geometric_mean(figures.ratio(n, p, BASE).median for n in figures.names) for p in OTHERS
    )
    rows.append(["**geometric mean**, the least", *map(_mean, means)])
    return rows_of(["workload", *(NAMES[p] for p in OTHERS)], rows)


def _peer_cell(figures: Figures, name: str, peer: str) -> str:
    ratio, result = figures.ratio(name, peer, BASE), figures.peers(name).get(peer, {})
    if math.isfinite(ratio.median):
        return _spread(ratio) + ("¹" if result.get("remark") else "")
    return "cannot" if result.get("error") else ""


def memory_table(figures: Figures) -> str:
    """Peak memory, and each of ours ÷ torch's."""
    peers = (*figures.ways, "eager", "compiled", "old", "jax")
    rows = []
    for name in figures.names:
        eager = figures.memory(name, "eager")
        made = figures.memory(name, BASE, "artifacts_rss_mb")
        sizes = [*(figures.memory(name, p) for p in peers), made]
        shares = (figures.memory(name, way) / eager for way in figures.ways)
        rows.append([
            figures.last(name)["title"], *(shown(s, 0) for s in sizes), *map(shown, shares),
        ])  # fmt: skip
    shares_head = [f"{NAMES[way]} ÷ eager" for way in figures.ways]
    return rows_of(
        ["workload", *(NAMES[p] for p in peers), "writing artifacts", *shares_head], rows
    )


def start_table(figures: Figures) -> str:
    """Time to the first step, of Module + Optimizer by parts."""
    parts = {"import": "import", "artifacts": "differentiate + artifacts", "session": "session",
             "first run": "first run"}  # fmt: skip
    mine = [way for way in ("ours", *FROM_TORCH) if way in figures.ways]
    peers = (BASE, *mine, "eager", "compiled", "old", "jax")
    rows = []
    for name in figures.names:
        parts_of_base = figures.start(name, BASE)
        whole = (sum(figures.start(name, p).values()) or math.nan for p in peers)
        cells = [*(parts_of_base.get(k, math.nan) for k in parts), *whole]
        rows.append([figures.last(name)["title"], *(shown(c, 1) for c in cells)])
    head = ["workload", *parts.values(), "in all", *(NAMES[p] for p in peers[1:])]
    return rows_of(head, rows)


def operator_table(figures: Figures) -> str:
    """Shares of the operator types in a step, of the last run that was profiled."""
    rows = []
    for name in figures.names:
        profiled = [e["operators"] for e in figures.entries(name) if e.get("operators")]
        for way, found in (profiled[-1] if profiled else {}).items():
            shares = ", ".join(f"{k} {v:.0%}" for k, v in found.items() if v >= 0.005)
            rows.append([figures.last(name)["title"], NAMES[way], shares])
    return rows_of(["workload", "by", "share of the step"], rows) if rows else ""


def agreement_table(figures: Figures) -> str:
    """How far the first five losses are from torch's, relatively."""
    peers = [p for p in NAMES if p != "eager"]
    rows = []
    for name in figures.names:
        entry = figures.last(name)
        gaps = differences(entry)
        cells = (f"{gaps[p]:.1g}" if p in gaps else "" for p in peers)
        rows.append([entry["title"], *cells, f"{entry['tolerance']:g}"])
    return rows_of(["workload", *(NAMES[p] for p in peers), "allowed"], rows)


def refusals(figures: Figures) -> str:
    """What the peers cannot do, and why; each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name in figures.names:
        for peer, result in figures.peers(name).items():
            if result.get("error"):
                key = NAMES[peer], result["error"].replace("|", "/").replace("`", "'")
                reasons.setdefault(key, []).append(figures.last(name)["title"])
    return "\n".join(
        f"- **{peer}**: `{why}` ({'; '.join(titles)})" for (peer, why), titles in reasons.items()
    )


def losses_table(figures: Figures, reasons: Mapping[str, str]) -> str:
    """Every ratio below 1, with its reason."""
    rows = [
        [figures.last(loss.name)["title"], NAMES[loss.way], NAMES[loss.peer],
         KINDS.get(loss.kind, KINDS["alone"]), _spread(loss.ratio), reason(reasons, loss)]
        for loss in figures.losses()
    ]  # fmt: skip
    if not rows:
        return "None of what these runs measured is below 1."
    return rows_of(["workload", "by", "better", "what", "theirs ÷ ours", "reason"], rows)


def reason(reasons: Mapping[str, str], loss: Loss) -> str:
    """The most particular one of `workload/way/kind`, where any part may be a star."""
    parts = (loss.name, loss.way, loss.kind)
    stars = sorted(itertools.product((False, True), repeat=3), key=sum)
    keys = ("/".join("*" if star else p for star, p in zip(s, parts)) for s in stars)
    return next((reasons[key] for key in keys if key in reasons), UNEXPLAINED)


def runs_table(runs: Sequence[Run]) -> str:
    """Every run by itself: what it measured under which conditions."""
    rows = []
    for run in runs:
        alone = Figures([run])
        means = [alone.mean(way, setting) for setting in SETTINGS for way in OURS]
        minutes = sum(e["seconds"] for e in run.workloads.values()) / 60
        commit = run.facts["commit"] + (" (changed)" if run.facts.get("changed") else "")
        rows.append([
            run.name, run.facts["date"], commit, str(run.facts.get("load", "–")),
            handovers(run), str(len(run.workloads)), f"{minutes:.0f}", *map(_mean, means),
        ])  # fmt: skip
    columns = (f"{NAMES[way]}, {place}" for place in SETTINGS.values() for way in OURS)
    return rows_of(
        ["run", "begun", "commit", "load", "core to core, µs", "workloads", "minutes", *columns],
        rows,
    )


def handovers(run: Run) -> str:
    """Microseconds from core to core before the workloads: the median, the least and the most."""
    known = [e["handover_us"] for e in run.workloads.values() if e.get("handover_us")]
    if not known:
        return "–"
    return f"{statistics.median(known):.2f} ({min(known):.2f}–{max(known):.2f})"


def history(runs: Iterable[Run]) -> list[tuple[str, dict[str, Mean]]]:
    """By state of the sources: its name, and the mean of each way over what all states have."""
    groups = [Figures(group) for group in stored_runs.by_state(runs)]
    common = [n for n in (groups[-1].names if groups else []) if all(n in g.names for g in groups)]
    facts = [group.runs[0].facts for group in groups]
    labels = [f"{f['version']}, {f['date'][:10]}, {f['commit']}" for f in facts]
    return [(x, {w: g.mean(w, names=common) for w in OURS}) for x, g in zip(labels, groups)]


def history_table(runs: Sequence[Run]) -> str:
    """The geometric mean of each way, by state of the sources."""
    groups = stored_runs.by_state(runs)
    rows = [
        [label, machine_of(group[0]), str(len(group)), *(_mean(means[way]) for way in OURS)]
        for group, (label, means) in zip(groups, history(runs))
    ]
    head = ["version, first run, commit", "machine", "runs", *(NAMES[way] for way in OURS)]
    return rows_of(head, rows)


def _spread(value: Spread, form: Callable[[float], str] = shown) -> str:
    low, middle, high = map(form, value)
    return middle if low == high else f"{middle} ({low}–{high})"


def _times(value: Spread) -> str:
    return _spread(value, three_digits)


def _mean(mean: Mean) -> str:
    return f"**{shown(mean.value)}** ({mean.count}), {shown(mean.least)}" if mean.count else "–"


def machine_of(run: Run) -> str:
    """Cores, instruction set, and the processor where the run says which."""
    machine = run.facts["machine"]
    instructions = " ".join(machine["instructions"]) or "no AVX2"
    facts = [f"{machine['cores']} cores", machine["architecture"], instructions]
    return ", ".join([*facts, *filter(None, [machine.get("processor")])])


# --- pages -------------------------------------------------------------------------------------


def overview(runs: Sequence[Run]) -> str:
    """What the driver shows at the end of a run."""
    figures = Figures(runs)
    parts = ["Torch ÷ ours, a process each:", torch_table(figures, ALONE),
             "Torch ÷ ours, in one process:", torch_table(figures, BESIDE),
             f"Other peers ÷ {NAMES[BASE]}:", peers_table(figures)]  # fmt: skip
    return "\n\n".join(parts)


def page(runs: Sequence[Run], growth: dict[str, Any], by_hand: str, reasons: dict[str, str]) -> str:
    """The whole page."""
    shown_runs = stored_runs.newest(runs)
    figures = Figures(shown_runs)
    remarks = sorted({
        f"{NAMES[p]}: {result['remark']}"
        for n in figures.names for p, result in figures.peers(n).items() if result.get("remark")
    })  # fmt: skip
    facts = shown_runs[-1].facts
    packages = ", ".join(f"{k} {v}" for k, v in facts.get("packages", {}).items())
    cannot = refusals(figures)
    template = (HERE / "performance.template.md").read_text().rstrip("\n")
    return template.format(
        images=IMAGES,
        version=facts["version"],
        complete=sum(not run.missing for run in shown_runs),
        cut=sum(bool(run.missing) for run in shown_runs),
        rounds=" or ".join(sorted({str(run.facts["rounds"]) for run in shown_runs})),
        machine=machine_of(shown_runs[-1]),
        packages=packages,
        turns=TURNS_BEFORE if all(handovers(run) == "–" for run in shown_runs) else TURNS,
        notes=" ".join(sorted({run.facts["note"] for run in shown_runs if "note" in run.facts})),
        alone=torch_table(figures, ALONE),
        beside=torch_table(figures, BESIDE),
        eager=eager_table(figures),
        losses=losses_table(figures, reasons),
        times=times_table(figures),
        peers=peers_table(figures),
        remarks="¹ " + "; ".join(remarks) if remarks else "",
        refusals=f"What cannot be done, and what was said about it:\n\n{cannot}" if cannot else "",
        memory=memory_table(figures),
        start=start_table(figures),
        operators=operator_table(figures) or "Not profiled (`--profile`).",
        agreement=agreement_table(figures),
        runs=runs_table(shown_runs),
        history=history_table(runs),
        products=products.section(products.stored()),
        limits=limits.section(limits.stored(), figures, facts["machine"].get("processor", "")),
        large=large.section(large.stored()),
        growth=growth_section(growth, IMAGES),
        by_hand=by_hand,
    )


def short_table(runs: Sequence[Run]) -> str:
    """For the README: a line per workload, medians only."""
    figures = Figures(stored_runs.newest(runs))
    rows = []
    for name in figures.names:
        torch_time = figures.time(name, figures.better_torch(name)).median
        ratios = [figures.against_torch(name, way).median for way in figures.ways]
        ratios += [figures.against_torch(name, BASE, BESIDE).median]
        ratios += [figures.ratio(name, p, BASE).median for p in OTHERS]
        rows.append([figures.last(name)["title"], three_digits(torch_time), *map(shown, ratios)])
    means = [figures.mean(way) for way in figures.ways] + [figures.mean(BASE, BESIDE)]
    means += [
        geometric_mean(figures.ratio(n, p, BASE).median for n in figures.names) for p in OTHERS
    ]
    rows.append(["geometric mean", "", *(shown(mean.value) for mean in means)])
    head = ["", "torch, ms", *(f"torch ÷ {NAMES[way]}" for way in figures.ways),
            "torch ÷ Module + Optimizer, in one process",
            *(f"{NAMES[p]} ÷ Module + Optimizer" for p in OTHERS)]  # fmt: skip
    return rows_of(head, rows)


def put_between_marks(text: str, new: str) -> str:
    """The text with what stands between the two marks replaced; as it was without two marks."""
    before, *inside, after = text.split(MARK) if text.count(MARK) == 2 else (text, "")
    return f"{before}{MARK}\n{new}\n{MARK}{after}" if inside else text


def main() -> None:
    from .plots import draw

    runs = stored_runs.stored()
    growth_file = HERE / "growth.json"
    growth = json.loads(growth_file.read_text()) if growth_file.exists() else {}
    reasons = json.loads((HERE / "reasons.json").read_text())
    draw(runs, growth, ROOT / "docs" / IMAGES)
    by_hand = (HERE / "losses.md").read_text()
    (ROOT / "docs" / "performance.md").write_text(page(runs, growth, by_hand, reasons))
    readme = ROOT / "README.md"
    readme.write_text(put_between_marks(readme.read_text(), short_table(runs)))
    for loss in Figures(stored_runs.newest(runs)).losses():
        if reason(reasons, loss) == UNEXPLAINED:
            print(f"no reason for {loss.name}/{loss.way}/{loss.kind}: {loss.ratio.median:.2f}")


if __name__ == "__main__":
    main()
