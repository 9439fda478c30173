"""Kill a command-line run again and again at random moments; resuming must give the same weights.

    python -m tests.faults.kills --count 1000
    python -m tests.faults.kills --count 100 --seed 7      a part of them, other moments

One process imports everything once and forks for every run, so that kills come while it works. A
run has Dropout, accumulation and a schedule; it is killed (SIGKILL) at a random moment, resumed,
killed again … until it ends by itself. Then its checkpoint, its history and its model must be those
of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from onnxtrain.cli import main as command
from tests.cli.models import classifier, write_npz

ARGUMENTS = [
    "train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--val", "0.2",
    "--batch-size", "8", "--accumulate", "3", "--epochs", "6", "--schedule", "cosine",
    "--seed", "5", "--quiet",
]  # fmt: skip
SAME = ("checkpoint", "steps.csv", "history.csv", "history.json", "model.onnx")


def start(output: str) -> int:
    """Start a run in a process of its own, or go on with one; gives the number of the process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with (
            open("log.txt", "a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            resume = ["--resume"] if Path(output, "checkpoint").exists() else ["--overwrite"]
            code = command([*ARGUMENTS, "--output", output, *resume])
            Path("modules.txt").write_text("\n".join(sys.modules), encoding="utf-8")
    finally:
        os._exit(code)


def import_what_a_run_imports() -> None:
    """Commands import what they need when they need it: most of a short run is that."""
    for name in Path("modules.txt").read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ImportError):  # names that a package gives to objects of its own
            importlib.import_module(name)


def wait(child: int) -> int:
    """How the run ended: its exit code, or minus the number of the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed(child: int, seconds: float) -> int:
    """Wait so long, then kill."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return wait(child)


def differences(output: str) -> list[str]:
    """What is not as in the run that nobody disturbed."""
    wrong = [n for n in SAME if Path("whole", n).read_bytes() != Path(output, n).read_bytes()]
    wrong += [p.name for p in Path(output).iterdir() if p.name.endswith(".tmp")]
    wrong += [p.name for p in Path().iterdir() if p.name.startswith(f".{output}-")]
    return wrong


def kill_often(count: int, seed: int) -> tuple[int, int, list[str]]:
    """Kills, finished runs, and what went wrong."""
    chance, kills, runs, faults = random.Random(seed), 0, 0, []
    if wait(start("whole")) != 0:
        raise SystemExit(f"the undisturbed run failed:\n{Path('log.txt').read_text()}")
    import_what_a_run_imports()
    began = time.monotonic()
    wait(start("again"))
    length = time.monotonic() - began
    while kills < count:
        output, here = f"run{runs}", 0
        while True:
            # later kills come later: a busy machine gets to the end of a run too
            code = killed(start(output), chance.uniform(0.0, 1.2 * length * 1.1**here))
            if code != -signal.SIGKILL:
                break
            kills, here = kills + 1, here + 1
        runs += 1
        wrong = [f"exit code {code}"] if code else differences(output)
        faults += [f"{output} after {here} kills: {w}" for w in wrong]
        print(f"\r{kills} kills, {runs} runs, {len(faults)} faults", end="", file=sys.stderr)
    print(file=sys.stderr)
    return kills, runs, faults


def main(arguments: list[str] | None = None) -> int:
    """Run as a command; 1 if anything differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        classifier(dropout=0.4)
        write_npz()
        kills, runs, faults = kill_often(chosen.count, chosen.seed)
        os.chdir("/")
    print(f"{kills} kills in {runs} runs, {len(faults)} faults")
    for fault in faults[:50]:
        print(f"  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
