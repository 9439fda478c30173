"""The benchmark: `python3 -m benchmarks.run`, with nothing but Python ≥ 3.10.

It makes its environments under `.venv-bench` the first time; onnxtrain is what a plain `pip
install` gives. Every workload is run by each contestant in a process of its own, two threads each:
onnxtrain (`Trainer.fit`, Module + Optimizer, ORTModule, ORTTrainer), PyTorch eager and compiled
(fused optimizers), onnxruntime-training 1.19.2, jax, onnxsim's `compile_training_loop` and scikit-
learn, where they can do the workload. Then ours and PyTorch's once more, in one process. Same
weights, same batches, whole steps with the optimizer; the first losses must agree. Turns of a third
of a second are interleaved, of which the first tenth of a second is not counted; all times are
kept, and the tables show medians and quartiles over all rounds of all runs of the same sources.

A run is a file, `benchmarks/results/runs/<version>-<date>-<number>.json`, written workload by
workload: `--resume` goes on with one that was cut. `docs/performance.md`, the plots and the table
in the README are made of them. Runs with `--quick`, of some workloads or of some peers only are
shown and not stored.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import runs
from .environments import ROOT, main_python, old_python
from .race import OURS, PEERS, disagreements, race
from .report import overview
from .workloads import WORKLOADS

ROUNDS = 6
SECONDS = 60.0
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
    bad = 0
    store = not (options.quick or options.workloads or options.peers != ",".join(PEERS))
    try:
        with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-") as text:
            kept = Path(text) if options.runs > 1 else None
            for number in range(options.runs):
                resume = options.resume and number == 0
                bad |= one_run(options, pythons, store, resume=resume, kept=kept)
    except KeyboardInterrupt:
        print("\ninterrupted; the contestants have been ended", file=sys.stderr)
        bad = 130
    if store:
        subprocess.run([python, "-m", "benchmarks.report"], check=True, cwd=ROOT)
    return bad


def one_run(
    options: argparse.Namespace,
    pythons: dict[str, str],
    store: bool,
    *,
    resume: bool,
    kept: Path | None,
) -> int:
    """All workloads that are asked for or missing; 1 when there is something to complain about."""
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    facts = runs.facts_now(rounds)
    run = (runs.unfinished(facts) if resume else None) or runs.begin(facts)
    names = options.workloads or run.missing
    before = {n: e["seconds"] for r in runs.stored() for n, e in r.workloads.items()}
    guess = sum(before.get(n, SECONDS) for n in names) / 60
    print(f"{len(names)} workloads, {rounds} rounds: about {guess:.0f} minutes", flush=True)
    if store:
        print(f"{run.path.relative_to(ROOT)}, load {facts['load']}", flush=True)
    fresh: dict[str, Any] = {}
    try:
        for name in names:
            fresh[name] = race(
                name, pythons, rounds, kept=kept, beside=True, profile=options.profile
            )
            print(f"{name}: {fresh[name]['seconds']:.0f} s {fresh[name]['spent']}", flush=True)
            if store:
                run.add(name, fresh[name])
    finally:
        if fresh:
            print(overview([runs.Run(run.path, facts, fresh)]))
    return complain(fresh)


def arguments() -> argparse.Namespace:
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=head, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = argparse.ArgumentParser.add_argument
    choice(parser, "workloads", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    choice(parser, "--rounds", type=int, default=0, help=f"{ROUNDS}, with --quick 1")
    choice(parser, "--runs", type=int, default=1, help="complete runs, one after the other")
    choice(parser, "--resume", action="store_true", help="go on with the run that was cut")
    choice(parser, "--quick", action="store_true", help="one round, to try it out; not stored")
    choice(parser, "--peers", default=",".join(PEERS), help="of: " + ", ".join(PEERS))
    choice(parser, "--profile", action="store_true", help="times per operator type too")
    choice(parser, "--python", default="", help="of an environment with everything but the old")
    choice(parser, "--old-python", default="", help="of one with onnxruntime-training 1.19.2")
    options = parser.parse_args()
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    unknown = set(options.peers.split(",")) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options


def complain(results: dict[str, Any]) -> int:
    """1 when a contestant's losses are not torch's, or one of ours failed."""
    bad = 0
    for name, entry in results.items():
        for peer, gap in disagreements(entry).items():
            limit = entry["tolerance"]
            print(f"LOSSES DIFFER: {name}, {peer}: by {gap:.2g}, allowed {limit:g}")
            bad = 1
        for peer in OURS:
            error = entry["peers"].get(peer, {}).get("error")
            if error and peer not in WORKLOADS[name].left_out:
                print(f"FAILED: {name}, {peer}: {error}")
                bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
