"""Tables out of results.json."""

from __future__ import annotations

import math
from typing import Any


def table(results: dict[str, Any]) -> str:
    """Ratios (peer's time ÷ ours), memory and time to the first step."""
    head = (
        "workload", "ours, ms", "one graph / parts", "torch eager", "torch compiled", "predecessor",
        "memory ÷ eager", "first step, s: ours / compiled",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    torch_ratios, old_ratios = [], []
    for entry in (v for k, v in results.items() if k != "machine"):
        peers = entry["peers"]
        times = {p: peers[p]["ms"] for p in peers if peers[p].get("ms")}
        best = min(times.get("ours", math.inf), times.get("ours_parts", math.inf))
        if not math.isfinite(best):
            error = peers.get("ours", {}).get("error", "")
            lines.append(f"| {entry['title']} | failed: {error} | | | | | | |")
            continue
        theirs = [times[p] for p in ("eager", "compiled") if p in times]
        if theirs:
            torch_ratios.append(min(theirs) / best)
        if "old" in times:
            old_ratios.append(times["old"] / best)
        lines.append(_row(entry["title"], peers, times, best))
    lines.append("")
    lines.append(
        f"Geometric mean against the better of torch eager and compiled: {_mean(torch_ratios)}"
    )
    lines.append(f"Geometric mean against onnxruntime-training 1.19.2: {_mean(old_ratios)}")
    return "\n".join(lines)


def _row(title: str, peers: dict[str, Any], times: dict[str, float], best: float) -> str:
    def ratio(peer: str) -> str:
        if peer in times:
            return f"{times[peer] / best:.2f}"
        return "cannot" if peers.get(peer, {}).get("error") else ""

    both = " / ".join(f"{times[p]:.2f}" if p in times else "–" for p in ("ours", "ours_parts"))
    memory = (
        peers["ours_parts"]["rss_mb"] / peers["eager"]["rss_mb"] if "eager" in times else math.nan
    )
    first = " / ".join(
        f"{peers[p]['first_step_s']:.1f}" if p in times else "–" for p in ("ours", "compiled")
    )
    cells = [title, f"{best:.2f}", both, ratio("eager"), ratio("compiled"), ratio("old")]
    return "| " + " | ".join([*cells, f"{memory:.2f}", first]) + " |"


def _mean(ratios: list[float]) -> str:
    if not ratios:
        return "–"
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} (over {len(ratios)})"


PAGE = """# Measured

Made by `{command}`; the raw numbers are in `benchmarks/results.json`. Every
contestant runs in a process of its own with two threads: same weights, same batches, whole steps
with the optimizer. Rounds are interleaved and the best of {rounds} counts. Columns of peers are
ratios, their time ÷ ours: above 1 onnxtrain is faster. "Ours" is the better of the one-graph step
and of Module + Optimizer; PyTorch uses its fused optimizers; the predecessor is
onnxruntime-training 1.19.2.

Machine: {cores} cores, {architecture}, {instructions}; Python {python},
onnxruntime {onnxruntime}, torch {torch}.

{table}

Where it loses, and why:

- **MLP with AdamW**: the update of 670,000 parameters. The portable graph needs a dozen passes over
  memory, torch's fused kernel one; the compiled update (`onnxtrain[fast]`) is used from a million
  parameters on.
- **The small MLP against the predecessor**: its optimizer is one private node, ours a graph;
  `TrainingSession` (one graph, SGD folded into the products) is the fast path for such models.
- **Memory of the transformers**: more is kept for the backward pass than torch keeps;
  recomputation is on the roadmap.
"""


def page(results: dict[str, Any], command: str, rounds: int) -> str:
    """The whole page docs/performance.md."""
    machine = dict(results["machine"])
    machine["instructions"] = " ".join(machine["instructions"]) or "no AVX2"
    return PAGE.format(table=table(results), command=command, rounds=rounds, **machine)
