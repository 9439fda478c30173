"""What a step cannot be faster than: `python3 -m benchmarks.limits`, in its own environment.

Two rates of the processor, two threads: floating point operations of a large matrix product, and
bytes of a sum of two arrays that no cache holds. A workload's products and convolutions are counted
by PyTorch in one of its own steps, the bytes of its update by the optimizer's rule. Time at the
limit is both together: as if nothing else cost anything and every product ran like the largest one.
The rates and counts are kept by processor; times are those of the published runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .environments import ROOT, main_python
from .figures import BASE, Figures
from .growth_report import rows_of, shown, three_digits
from .products import Product, makers, processor
from .workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "limits.json"
THREADS, ROUNDS = 2, 9
LARGE = Product(2048, 2048, 2048, (0, 0), "a large square")
NUMBERS = 2**25
"""Of an array whose sum with another is timed: 128 MB."""
TOUCHED = {"sgd": 3, "momentum": 5, "adam": 7, "adamw": 7}
"""Numbers that an update reads or writes for each parameter: weight, gradient and moments, and
weight and moments once more."""
NOT_COUNTED = ("lstm",)
"""PyTorch's counter does not see into its recurrent kernels."""


def rates() -> dict[str, float]:
    """GFLOP/s and GB/s."""
    import torch

    sides = makers(LARGE, THREADS)
    operations = 2.0 * LARGE.rows * LARGE.columns * LARGE.summed
    product = min(_seconds(sides[side]) for side in ("onnxruntime", "onnxtrain"))
    torch.set_num_threads(THREADS)
    a, b, c = (torch.ones(NUMBERS) for _ in range(3))
    addition = _seconds(lambda: torch.add(a, b, out=c))
    return {
        "gflop_per_s": round(operations / product / 1e9, 1),
        "gb_per_s": round(3 * 4 * NUMBERS / addition / 1e9, 1),
    }


def _seconds(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def counts(workload: Workload) -> dict[str, float]:
    """GFLOP of products and convolutions in one step of PyTorch's, and MB that its update moves."""
    import torch
    from torch.nn.functional import cross_entropy, mse_loss
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    model = workload.model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(workload.trainable))
    x, y = workload.batch()
    with FlopCounterMode(display=False) as counter:
        (cross_entropy if workload.loss == "ce" else mse_loss)(model(x), y).backward()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    options = workload.optimizer
    rule = "momentum" if options.get("momentum") else options["name"]
    return {
        "gflop": round(counter.get_total_flops() / 1e9, 4),
        "update_mb": round(trained * 4 * TOUCHED[rule] / 1e6, 3),
    }


def at_the_limit(entry: Mapping[str, float], known: Mapping[str, float]) -> float:
    """Milliseconds."""
    products = entry["gflop"] / known["gflop_per_s"] * 1e3
    return products + entry["update_mb"] / known["gb_per_s"]


def section(results: Mapping[str, Any], figures: Figures, name: str) -> str:
    """The page's part, if the runs are of a processor whose rates are known."""
    entry = results.get(name)
    if not entry:
        return "Not measured on this processor."
    rows = []
    for workload in figures.names:
        if workload not in entry["counts"]:
            continue
        counted = entry["counts"][workload]
        limit = at_the_limit(counted, entry["rates"])
        torch = figures.time(workload, figures.better_torch(workload)).median
        ours = figures.time(workload, BASE).median
        rows.append([
            figures.last(workload)["title"], three_digits(counted["gflop"]),
            three_digits(counted["update_mb"]), three_digits(limit), three_digits(ours),
            shown(limit / ours), shown(limit / torch),
        ])  # fmt: skip
    head = [
        "workload", "products, GFLOP", "update, MB", "at the limit, ms", "Module + Optimizer, ms",
        "limit ÷ ours", "limit ÷ better torch",
    ]  # fmt: skip
    text = (
        f"{name} ({entry['day']}): {entry['rates']['gflop_per_s']:.0f} GFLOP/s in a product of "
        f"2048×2048×2048, {entry['rates']['gb_per_s']:.0f} GB/s in a sum of arrays of 128 MB, "
        "two threads each."
    )
    return f"{text}\n\n{rows_of(head, rows)}"


def stored() -> dict[str, Any]:
    """What has been measured, by processor."""
    return json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}


def main() -> int:
    if "--here" not in sys.argv:  # in the environment that has PyTorch
        return subprocess.call([main_python(), "-m", "benchmarks.limits", "--here"], cwd=ROOT)
    results, found = stored(), rates()
    counted = {name: counts(w) for name, w in WORKLOADS.items() if name not in NOT_COUNTED}
    results[processor()] = {"day": time.strftime("%Y-%m-%d"), "rates": found, "counts": counted}
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(json.dumps(results[processor()], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
