"""The benchmark: `python3 -m benchmarks.run`, with nothing but Python ≥ 3.10.

It makes its environments under `.venv-bench` the first time. Every workload is run by each
contestant in a process of its own, two threads each: onnxtrain (`Trainer`, and Module + Optimizer),
PyTorch eager and compiled (fused optimizers), onnxruntime-training 1.19.2, jax, onnxsim's
`compile_training_loop` and scikit-learn, where they can do the workload. Same weights, same
batches, whole steps with the optimizer; the first losses must agree. Rounds are interleaved, the
best round counts, ratios are what is compared: time of the peer ÷ ours.

Results go to `benchmarks/results.json`, workload by workload; `docs/performance.md`, the plots and
the table in the README are written from it. A run with `--quick` or with some of the peers only is
shown and not stored: its ratios could not be compared with the others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .environments import ROOT, main_python, old_python
from .race import PEERS, disagreements, race
from .report import table
from .workloads import WORKLOADS

RESULTS = Path(__file__).resolve().parent / "results.json"
SECONDS = 100.0
"""Guess for a workload that has not been measured yet."""


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    python = main_python(options.python)
    pythons = dict.fromkeys(options.peers.split(","), python)
    if "old" in pythons:
        pythons["old"], reason = old_python(options.old_python)
        if reason:
            print(f"without the predecessor: {reason}", flush=True)
            del pythons["old"]
    names = [*options.workloads, *options.only] or list(WORKLOADS)
    rounds = options.rounds or (1 if options.quick else 12)
    stored = load(RESULTS)
    guess = sum(stored.get(n, {}).get("seconds", SECONDS) for n in names)
    print(f"{len(names)} workloads, {rounds} rounds: about {guess / 60:.0f} minutes", flush=True)
    store = options.store or (not options.quick and set(pythons) >= set(PEERS) - {"old"})
    fresh: dict[str, Any] = {}
    interrupted = 0
    try:
        for name in names:
            fresh[name] = race(
                name, pythons, rounds, quick=options.quick, profile=not options.no_profile
            )
            print(f"{name}: {fresh[name]['seconds']:.0f} s", flush=True)
            if store:  # read again: another run may have stored something meanwhile
                save(RESULTS, {**load(RESULTS), name: fresh[name]})
    except KeyboardInterrupt:
        print("\ninterrupted; the contestants have been ended", file=sys.stderr)
        interrupted = 130
    if fresh:
        print(table(fresh))
    if store and fresh:
        write = [python, "-m", "benchmarks.report"]
        subprocess.run(write, check=True, cwd=ROOT)
    return complain(fresh) or interrupted


def arguments() -> argparse.Namespace:
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=head, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = argparse.ArgumentParser.add_argument
    choice(parser, "workloads", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    choice(parser, "--only", action="append", default=[], metavar="NAME", help="this workload")
    choice(parser, "--rounds", type=int, default=0, help="12, with --quick 1")
    choice(parser, "--quick", action="store_true", help="few steps, to try it out; not stored")
    choice(parser, "--peers", default=",".join(PEERS), help="of: " + ", ".join(PEERS))
    choice(parser, "--store", action="store_true", help="store the results in any case")
    choice(parser, "--no-profile", action="store_true", help="no times per operator type")
    choice(parser, "--python", default="", help="of an environment with everything but the old")
    choice(parser, "--old-python", default="", help="of one with onnxruntime-training 1.19.2")
    options = parser.parse_args()
    unknown = {*options.workloads, *options.only} - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    unknown = set(options.peers.split(",")) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(path: Path, results: dict[str, Any]) -> None:
    """In the order of the workloads; never half a file."""
    ordered = {name: results[name] for name in WORKLOADS if name in results}
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(ordered, indent=1) + "\n")
    os.replace(scratch, path)


def complain(results: dict[str, Any]) -> int:
    """1 when a contestant's losses are not torch's, or one of ours failed."""
    bad = 0
    for name, entry in results.items():
        for peer, gap in disagreements(entry).items():
            limit = entry["tolerance"]
            print(f"LOSSES DIFFER: {name}, {peer}: by {gap:.2g}, allowed {limit:g}")
            bad = 1
        for peer in ("ours", "ours_parts"):
            error = entry["peers"].get(peer, {}).get("error")
            if error:
                print(f"FAILED: {name}, {peer}: {error}")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
