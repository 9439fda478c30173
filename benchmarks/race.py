"""Contestants as processes, and one workload run by all of them in turns. Standard library only."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OURS = ("ours", "ours_parts")
PEERS = (*OURS, "eager", "compiled", "old", "jax", "onnxsim", "sklearn")
THREAD_SETTINGS = (
    "BENCHMARK_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
PAUSE = 0.3
"""Seconds between turns: threads of the one before spin for a while after their work."""

TOLERANCE, TOLERANCE_RANDOM = 2e-3, 5e-2
"""How far the first five losses may be from torch's: |a − b| ≤ tolerance·|b| + 1e-4."""


class Contestant:
    """A worker process and what it answered.

    Args:
        peer: who.
        python: the interpreter that runs it.
        folder: what `benchmarks.prepare` wrote.
        source: folder of the package to import instead of the installed one.
        threads: how many it may use.

    Attributes:
        times: seconds of a step, by round.
        processor_times: the same of the processor, of all threads together.
    """

    def __init__(
        self,
        peer: str,
        python: str,
        folder: Path,
        source: Path | None = None,
        threads: int = 2,
    ) -> None:
        self.peer, self.error = peer, ""
        self.times, self.processor_times = list[float](), list[float]()
        self.answer: dict[str, Any] = {}
        self.log = (folder / f"{peer.replace(':', '_')}.log").open("w+")
        limits = dict.fromkeys(THREAD_SETTINGS, str(threads))
        path = {} if source is None else {"PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), peer, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **limits, **path, "PYTHONWARNINGS": "ignore"},
            start_new_session=True,  # Ctrl-C is for the driver, which ends the others
        )  # fmt: skip
        try:
            self._read()
        except BaseException:  # interrupted while it gets ready: nobody else knows it yet
            self.kill()
            raise
        self.first = self.answer

    def _read(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            self.answer = json.loads(line)
            return
        self.process.wait()
        self.log.seek(0)
        lines = [x for x in self.log.read().splitlines() if x.strip()]
        said = lines[-1].partition(";")[0][:160] if lines else ""
        self.error = said or f"exit code {self.process.returncode}"

    def run(self, steps: int) -> None:
        """One round."""
        if self.error:
            return
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self._read()
        if not self.error:
            self.times.append(self.answer["seconds"] / self.answer["steps"])
            self.processor_times.append(self.answer["processor"] / self.answer["steps"])

    def kill(self) -> None:
        """End it and what it has started, whatever it is doing."""
        if self.process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None and not stream.closed:
                stream.close()

    def result(self, folder: Path) -> dict[str, Any]:
        """What it showed."""
        parts = self.first.get("parts", {})
        found = {
            "ms": min(self.times) * 1e3 if self.times else None,
            "median_ms": sorted(self.times)[len(self.times) // 2] * 1e3 if self.times else None,
            "first_step_s": sum(parts.values()) if parts else None,
            "first_step_parts_s": parts,
            "rss_mb": self.answer.get("rss"),
            "losses": self.first.get("losses", []),
            "remark": self.first.get("remark", ""),
            "error": self.error,
        }
        cost = folder / f"artifacts_{'one' if self.peer == 'ours' else 'parts'}" / "cost.json"
        if self.peer in OURS and cost.exists():
            found["artifacts_rss_mb"] = json.loads(cost.read_text())["rss"]
        return found


def race(
    name: str, pythons: dict[str, str], rounds: int, *, quick: bool = False, profile: bool = True
) -> dict[str, Any]:
    """All contestants on one workload, as it is stored.

    Args:
        name: of the workload.
        pythons: by contestant, the interpreter that runs it.
        rounds: how often each has its turn; the best counts.
        quick: fewer steps, for trying out.
        profile: also find the time per operator type, after the rounds.
    """
    began = time.time()
    python = next((python for peer, python in pythons.items() if peer != "old"), "")
    if not python:
        raise SystemExit("The predecessor cannot run alone: name another peer too.")
    contestants: list[Contestant] = []
    with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        command = [python, "-m", "benchmarks.prepare", name, text, *pythons]
        subprocess.run(command, check=True, cwd=HERE.parent)
        spec = json.loads((folder / "spec.json").read_text())
        steps = max(1, spec["steps"] // 5) if quick else spec["steps"]
        try:
            for peer, its_python in pythons.items():
                contestants.append(Contestant(peer, its_python, folder))
            run_rounds(contestants, steps, rounds)
            peers = {c.peer: c.result(folder) for c in contestants}
        finally:
            for contestant in contestants:
                contestant.kill()
        mine = [p for p in OURS if p in pythons and not peers[p]["error"]]
        operators = {p: _operators(p, pythons[p], folder) for p in mine if profile}
    return {
        "title": spec["title"],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "rounds": rounds,
        "seconds": time.time() - began,
        "machine": {**machine(), **spec["versions"]},
        "tolerance": TOLERANCE_RANDOM if spec["random"] else TOLERANCE,
        "peers": peers,
        "operators": operators,
    }


def run_rounds(contestants: Sequence[Contestant], steps: int, rounds: int) -> None:
    """All in turns, the order reversed every other time."""
    for contestant in contestants:  # not measured: caches, compilation of other shapes
        contestant.run(max(1, steps // 5))
        contestant.times.clear()
        contestant.processor_times.clear()
    for number in range(rounds):
        order = contestants if number % 2 == 0 else contestants[::-1]
        for contestant in order:
            time.sleep(PAUSE)
            contestant.run(steps)


def _operators(peer: str, python: str, folder: Path) -> dict[str, float]:
    profiled = Contestant(f"profile:{peer}", python, folder)
    profiled.kill()
    found: dict[str, float] = profiled.answer.get("operators", {})
    return found


def disagreements(entry: dict[str, Any]) -> dict[str, float]:
    """Contestants whose first losses are not torch's: by how much, relatively, at most."""
    return {p: d for p, d in differences(entry).items() if not d <= entry["tolerance"]}


def differences(entry: dict[str, Any]) -> dict[str, float]:
    """Largest difference of the first losses from torch's (eager), relative, by contestant."""
    reference = entry["peers"].get("eager", {}).get("losses")
    if not reference:
        return {}
    found = {}
    for peer, result in entry["peers"].items():
        pairs = list(zip(result.get("losses", []), reference))
        if peer != "eager" and pairs:
            gaps = [max(0.0, abs(a - b) - 1e-4) / abs(b) for a, b in pairs]
            odd = any(not math.isfinite(a) for a, _ in pairs)
            found[peer] = math.inf if odd else max(gaps)
    return found


def machine() -> dict[str, Any]:
    """Cores and instruction set, so that the numbers can be placed."""
    flags = ""
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text()
        flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    known = ("avx2", "fma", "avx512f", "avx512_vnni", "amx_tile")
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "instructions": [f for f in known if f in flags.split()],
    }
