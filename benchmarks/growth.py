"""How time grows: `python3 -m benchmarks.growth [--compiled] [--rounds 3] [--only batch]`.

Step time of onnxtrain (Module + Optimizer) and of torch against batch size, sequence length, depth
and width of a transformer encoder, and against batch size and width of an MLP: contestants in
processes of their own, rounds interleaved, the median counts. Then the time of differentiation and
of session creation against the number of nodes. Stored in `benchmarks/growth.json`; a run of some
of the curves replaces those only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .environments import ROOT, main_python
from .race import race

STORED = Path(__file__).resolve().parent / "growth.json"
ENCODER = {"batch": 8, "length": 64, "layers": 2, "width": 128}
MLP = {"batch": 64, "width": 512}
CURVES: dict[str, tuple[str, dict[str, int], str, list[int]]] = {
    "batch": ("encoder", ENCODER, "batch", [2, 4, 8, 16, 32]),
    "length": ("encoder", ENCODER, "length", [32, 64, 128, 256, 512]),
    "layers": ("encoder", ENCODER, "layers", [1, 2, 4, 8, 16]),
    "width": ("encoder", ENCODER, "width", [64, 128, 256, 512]),
    "mlp_batch": ("mlp", MLP, "batch", [16, 64, 256, 1024]),
    "mlp_width": ("mlp", MLP, "width", [128, 256, 512, 1024]),
}
TITLES = {"batch": "batch size", "length": "sequence length", "layers": "depth, layers",
          "width": "width"}  # fmt: skip
SECONDS = {"curve": 14.0, "nodes": 150.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="torch.compile too (longer)")
    parser.add_argument("--quick", action="store_true", help="two points, one round; not stored")
    parser.add_argument("--only", action="append", default=[], choices=[*CURVES, "nodes"])
    parser.add_argument("--python", default="", help="of an environment for the benchmark")
    options = parser.parse_args()
    wanted = options.only or [*CURVES, "nodes"]
    python = main_python(options.python)
    points = len({n for c in wanted if c in CURVES for n in names(c)})
    seconds = points * SECONDS["curve"] + ("nodes" in wanted) * SECONDS["nodes"]
    print(f"{points} points: about {seconds / 60:.0f} minutes", flush=True)
    peers = ["ours_parts", "eager", *(["compiled"] if options.compiled else [])]
    found = json.loads(STORED.read_text()) if STORED.exists() else {}
    curves = {c["name"]: c for c in found.get("curves", [])}
    began, known = time.time(), dict[str, dict[str, Any]]()
    for name in (c for c in CURVES if c in wanted):
        curves[name] = measure(name, python, peers, options, known)
        print(f"{name}: {time.time() - began:.0f} s so far", flush=True)
    found["curves"] = [curves[n] for n in CURVES if n in curves]
    if "nodes" in wanted:
        found["nodes"] = nodes(python, options.quick)
    if options.quick:
        print(json.dumps(found, indent=1))
        return 0
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    return subprocess.call([python, "-m", "benchmarks.report"], cwd=ROOT)


def names(curve: str) -> list[str]:
    """Its workloads."""
    kind, base, axis, values = CURVES[curve]
    return [
        kind + ":" + ",".join(f"{k}={v}" for k, v in {**base, axis: value}.items())
        for value in values
    ]


def measure(
    curve: str, python: str, peers: list[str], options: argparse.Namespace, known: dict[str, Any]
) -> dict[str, Any]:
    """One curve; a point that another curve had too is taken from there."""
    kind, base, axis, values = CURVES[curve]
    points = []
    for value, name in list(zip(values, names(curve)))[: 2 if options.quick else None]:
        if name not in known:
            rounds = 1 if options.quick else options.rounds
            known[name] = race(name, dict.fromkeys(peers, python), rounds)
            errors = {p: r["error"] for p, r in known[name]["peers"].items() if r["error"]}
            if errors:
                print(f"FAILED: {name}: {errors}", flush=True)
        times = {
            peer: statistics.median(result["times_ms"])
            for peer, result in known[name]["peers"].items() if result["times_ms"]
        }  # fmt: skip
        points.append({"at": value, "ms": times})
    fixed = ", ".join(f"{k} {v}" for k, v in base.items() if k != axis)
    return {
        "name": curve,
        "model": kind if kind != "mlp" else "MLP",
        "title": f"{kind if kind != 'mlp' else 'MLP'}, {fixed}",
        "axis": TITLES[axis],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "statistic": "median",
        "points": points,
    }


def nodes(python: str, quick: bool) -> list[dict[str, Any]]:
    """Differentiation and session creation by node count, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nodes.json"
        command = [python, "-m", "benchmarks.differentiation_cost", "--json", str(file)]
        subprocess.run([*command, *(["--nodes", "300", "600"] if quick else [])], check=True,
                       cwd=ROOT)  # fmt: skip
        found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


if __name__ == "__main__":
    sys.exit(main())
