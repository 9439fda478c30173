"""This tree against an earlier commit: `python3 -m benchmarks.versions COMMIT [NAME ...]`.

Both trees run the same workloads with the same weights and batches, each in processes of its own,
interleaved: `Trainer`, and Module + Optimizer. With `--ortmodule` it is ORTModule (some three
minutes on two idle cores), whose time is taken relative to PyTorch's in the same process. What
counts is time now ÷ time before, round by round: the median, and beside it the quartiles. Where
others use the machine, many short rounds (`--rounds 60 --turn 0.1`) tell more than a few. With
`--processor-time` each has one thread, and the time is the processor's: on a busy machine only that
says something. With `--files` the artifacts of both trees are run by this one, step by step in
turns (`benchmarks.files_of_versions`), which tells a hundredth, of the graphs and not of how steps
run. No peer is needed, but torch, which makes the models.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .environments import ROOT, main_python
from .race import TURN, Host, run_rounds
from .workloads import WORKLOADS

WAYS = ("ours", "ours_parts")
OURS_MODULE = "benchmarks.contestants.ours"


def main() -> int:
    options = arguments()
    python = main_python(options.python)
    with tempfile.TemporaryDirectory(prefix="onnxtrain-versions-") as text:
        before = Path(text) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", before, options.commit], check=True,
                       cwd=ROOT, capture_output=True)  # fmt: skip
        try:
            sources = {"now": ROOT / "src", "before": before / "src"}
            print("| workload | way | before, ms | now, ms | now ÷ before | spread |")
            print("|---|---|---|---|---|---|")
            for name in options.workloads or ([] if options.ortmodule else WORKLOADS):
                if options.files:
                    compare_files(name, python, sources, seconds=3.0 * options.rounds)
                    continue
                compare(name, python, sources, options)
            if options.ortmodule:
                compare_ortmodule(python, sources, options.rounds, options.processor_time)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], check=True, cwd=ROOT)
    return 0


def arguments() -> argparse.Namespace:
    head, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=head, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the tree to compare with")
    parser.add_argument("workloads", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7, help="how often each has its turn")
    parser.add_argument("--turn", type=float, default=TURN, help="seconds that a turn takes")
    parser.add_argument("--python", default="", help="of an environment that has torch")
    parser.add_argument("--ortmodule", action="store_true", help="ORTModule, in turns with torch")
    parser.add_argument("--processor-time", action="store_true", help="of one thread")
    parser.add_argument("--files", action="store_true", help="both trees' files, run by this one")
    return parser.parse_args()


def compare(name: str, python: str, sources: dict[str, Path], options: argparse.Namespace) -> None:
    """One workload, both ways, a row each."""
    processor_time = options.processor_time
    threads = 1 if processor_time else 2
    hosts: dict[tuple[str, str], Host] = {}
    with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-", ignore_cleanup_errors=True) as text:
        common = Path(text) / "common"
        common.mkdir()
        command = [python, "-m", "benchmarks.prepare", name, str(common)]
        subprocess.run(command, check=True, cwd=ROOT)
        try:
            for tree, source in sources.items():
                folder = Path(text) / tree  # the artifacts of each tree are its own
                shutil.copytree(common, folder)
                for way in WAYS:
                    hosts[way, tree] = Host([way], python, folder, source, threads)
                    hosts[way, tree].get_ready()
            contestants = {key: host.contestants[0] for key, host in hosts.items()}
            run_rounds(list(contestants.values()), options.rounds, options.turn)
        finally:
            for host in hosts.values():
                host.kill()
    for way in WAYS:
        now, before = contestants[way, "now"], contestants[way, "before"]
        if now.error or before.error:
            print(f"| {name} | {way} | {before.error} | {now.error} | | |", flush=True)
        elif processor_time:
            show(name, way, now.processor_times, before.processor_times)
        else:
            show(name, way, now.times, before.times)


def compare_files(name: str, python: str, sources: dict[str, Path], seconds: float) -> None:
    """The artifacts of one workload, both ways; the spread is that of half the steps."""
    for way, kind in zip(WAYS, ("one", "parts")):
        with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-") as text:
            commands = [
                ("now", ["benchmarks.prepare", name, text]),
                *((tree, [OURS_MODULE, text, f"{text}/{tree}", kind]) for tree in sources),
                ("now", ["benchmarks.files_of_versions", text, way, str(seconds)]),
            ]
            for tree, arguments in commands:
                env = {**os.environ, "PYTHONPATH": str(sources[tree]), "PYTHONWARNINGS": "ignore"}
                done = subprocess.run([python, "-m", *arguments], check=True, cwd=ROOT, env=env,
                                      stdout=subprocess.PIPE, text=True)  # fmt: skip
        times = json.loads(done.stdout.splitlines()[-1])
        show(name, f"files, {way}", times["now"], times["before"])


def compare_ortmodule(
    python: str, sources: dict[str, Path], rounds: int, processor_time: bool
) -> None:
    """ORTModule ÷ eager in one process, of each tree in turns."""
    kind = "cpu" if processor_time else "median"
    servers: dict[str, subprocess.Popen[str]] = {}
    try:
        names: list[str] = []
        for tree, source in sources.items():  # one after the other: making the models takes a core
            servers[tree] = ortmodule_server(python, source, 1 if processor_time else 0)
            names = answer(servers[tree])
        for name in names:
            ratios: dict[str, list[float]] = {tree: [] for tree in sources}
            for number in range(rounds):
                for tree in list(sources)[:: 1 if number % 2 == 0 else -1]:
                    times = answer(servers[tree], name)
                    ratios[tree].append(times[f"ortmodule_{kind}"] / times[f"eager_{kind}"])
            show(name, "ORTModule ÷ eager", ratios["now"], ratios["before"], unit=1.0)
    finally:
        for server in servers.values():
            server.kill()
            server.communicate()


def ortmodule_server(python: str, source: Path, threads: int) -> subprocess.Popen[str]:
    """A process that measures models by name, see `benchmarks.ortmodule_speed`."""
    command = [python, "-m", "benchmarks.ortmodule_speed", "--seconds", "0.5", "--serve"]
    command += ["--threads", str(threads)]
    env = {
        **os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "ignore", "ONNXTRAIN_QUIET": "1",
    }  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)


def answer(server: subprocess.Popen[str], question: str = "") -> Any:
    """What a server says, to a question or by itself."""
    assert server.stdin is not None
    assert server.stdout is not None
    if question:
        print(question, file=server.stdin, flush=True)
    line = server.stdout.readline()
    if not line:
        raise SystemExit("ORTModule could not be measured; its process has said why.")
    return json.loads(line)


def show(name: str, way: str, now: list[float], before: list[float], unit: float = 1e3) -> None:
    """A row: medians, and of the ratios round by round the median and the quartiles.

    A machine that others use too is slow for seconds at a time: the turns of one round share that.
    """
    low, middle, high = statistics.quantiles((a / b for a, b in zip(now, before)), n=4)
    old, new = statistics.median(before), statistics.median(now)
    spread = f"{low:.2f} … {high:.2f}"
    row = f"| {name} | {way} | {old * unit:.4g} | {new * unit:.4g} | {middle:.3f} | {spread} |"
    print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
