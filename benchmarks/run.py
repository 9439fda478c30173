"""The benchmark: `python -m benchmarks.run`, from an environment with onnxtrain[torch,fast].

Every workload is run by each contestant in a process of its own, two threads each: onnxtrain (the
one-graph step, and Module + Optimizer), PyTorch eager and compiled (fused optimizers), and, given
the Python of an environment with onnxruntime-training 1.19.2 (`--old-python`, or made by
`--make-old`), the predecessor. Same weights, same batches, whole steps with the optimizer. Rounds
are interleaved, the best round counts, ratios are what is compared: time of the peer ÷ ours.

Results go to `benchmarks/results.json` and, as tables, to `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PEERS = ("ours", "ours_parts", "eager", "compiled", "old")


class Contestant:
    """A worker process and what it answered."""

    def __init__(self, peer: str, python: str, folder: Path) -> None:
        self.peer, self.error, self.times = peer, "", list[float]()
        self.answer: dict[str, float] = {}
        self.first_step = math.nan
        self.log = (folder / f"{peer}.log").open("w+")
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), peer, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        self._read()
        self.first_step = self.answer.get("first_step", math.nan)

    def _read(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            self.answer = json.loads(line)
            return
        self.process.wait()
        self.log.seek(0)
        lines = [x for x in self.log.read().splitlines() if x.strip()]
        self.error = lines[-1][:200] if lines else f"exit code {self.process.returncode}"

    def run(self, steps: int) -> None:
        """One round."""
        if self.error:
            return
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self._read()
        if not self.error:
            self.times.append(self.answer["seconds"] / steps)

    def close(self) -> dict[str, Any]:
        """End the process; what it showed."""
        if not self.error and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
        self.log.close()
        return {
            "ms": min(self.times) * 1e3 if self.times else None,
            "first_step_s": self.first_step,
            "rss_mb": self.answer.get("rss"),
            "loss": self.answer.get("loss"),
            "error": self.error,
        }


def measure(name: str, peers: list[str], pythons: dict[str, str], rounds: int) -> dict[str, Any]:
    """All contestants on one workload."""
    with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-") as folder:
        prepared = [sys.executable, "-m", "benchmarks.prepare", name, folder]
        subprocess.run(prepared, check=True, cwd=HERE.parent)
        steps = json.loads((Path(folder) / "spec.json").read_text())["steps"]
        contestants = [Contestant(p, pythons[p], Path(folder)) for p in peers]
        for contestant in contestants:  # not measured: caches, compilation of other shapes
            contestant.run(max(1, steps // 5))
            contestant.times.clear()
        for _ in range(rounds):
            for contestant in contestants:
                contestant.run(steps)
        return {c.peer: c.close() for c in contestants}


def main() -> None:
    from .report import page, table
    from .workloads import WORKLOADS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--old-python", default=os.environ.get("ONNXTRAIN_OLD_PYTHON", ""))
    parser.add_argument(
        "--make-old", action="store_true", help="make the predecessor's environment"
    )
    options = parser.parse_args()
    old_python = make_old() if options.make_old else options.old_python
    peers = [p for p in options.peers.split(",") if p != "old" or old_python]
    pythons = {p: old_python if p == "old" else sys.executable for p in peers}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.workloads:
        start = time.time()
        results[name] = {
            "title": WORKLOADS[name].title,
            "peers": measure(name, peers, pythons, options.rounds),
        }
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"{name}: {time.time() - start:.0f} s", flush=True)
    print(table(results))
    command = " ".join(["python -m benchmarks.run", *options.workloads])
    (HERE.parent / "docs" / "performance.md").write_text(page(results, command, options.rounds))


def make_old() -> str:
    """An environment with the predecessor (Python 3.11 at most), beside the repository's own."""
    folder = HERE.parent / ".venv-old"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = ["onnxruntime-training-cpu==1.19.2", "onnx==1.16.2", "numpy<2", "torch==2.13.0"]
        extras = ["cerberus", "h5py", "setuptools"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages, *extras], check=True)
    return str(python)


def machine() -> dict[str, Any]:
    """Cores and instruction set, so that the numbers can be placed."""
    flags = ""
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text()
        flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    wanted = [f for f in ("avx2", "fma", "avx512f", "amx_tile") if f in flags.split()]
    import onnxruntime
    import torch

    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "instructions": wanted,
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
