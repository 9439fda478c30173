"""Contestants in processes, and one workload run by all of them in turns. Standard library only.

A turn begins after seconds in which its process did nothing, and the first steps after that are
slow: 2.9 ms instead of 1.9 for an MLP in PyTorch eager, 1.55 instead of 1.35 in `Trainer`. After 50
to 100 ms that was over (two cores of EPYC under KVM, steps timed one by one), so a turn begins with
`WAKE` seconds of steps that are not counted, for all alike; steps of twice that and more have none.

What kept ORTModule at 20 to 50 ms for up to a second was another thing: the system started its
threads on the core of the one that waited for them (`onnxtrain.runtime.session.cores`). Processes
of lowest priority that keep both cores awake helped as much, but made our steps of ResNet-18 two or
three percent longer and, where a third process ran, those of PyTorch eager a hundred times: the
system then sees no idle core to move a thread to. So there are none.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .handover import handover

HERE = Path(__file__).resolve().parent
OURS = ("ours", "ours_parts", "ortmodule", "orttrainer")
TORCH = ("eager", "compiled")
PEERS = (*OURS, *TORCH, "old", "jax", "onnxsim", "sklearn")
BESIDE = ("ortmodule", *TORCH, "ours", "ours_parts", "orttrainer")
"""Who shares a process in the second table, in the order in which they get ready: torch is there
first, as in a program that loads its data with torch. The process is ORTModule's, which has both:
the others come in when its turns alone are over."""

THREAD_SETTINGS = (
    "BENCHMARK_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip
QUIET = {"PYTHONWARNINGS": "ignore", "ONNXTRAIN_QUIET": "1"}
PAUSE = 0.05
"""Seconds between turns of two processes: threads of the one before spin after their work."""

CHECKED, LATER = 5, 2
"""First steps, whose losses are compared; of one that comes in later they have been."""

UNTIMED = ("onnxsim", "sklearn")
"""Those whose time to the first step is not published: they get ready at the same time."""

WAKE = 0.08
"""Seconds of steps at the beginning of a turn that are not counted."""

TURN = 0.15
"""Seconds that are counted of a turn; it has one step at least."""

ENOUGH, LONG = 3, 30.0
"""Rounds end after so many when they have taken so many seconds: steps of seconds spread little."""

TOLERANCE, TOLERANCE_RANDOM = 2e-3, 5e-2
"""How far the first five losses may be from torch's: |a − b| ≤ tolerance·|b| + 1e-4."""


class Host:
    """A worker process with one contestant or several; it starts, and waits for `get_ready`.

    Args:
        peers: who.
        python: the interpreter that runs them.
        folder: what `benchmarks.prepare` wrote.
        source: folder of the package to import instead of the installed one.
        threads: how many may be used.

    Attributes:
        peers: who.
        contestants: those that it has got ready, or that answered with an error.
    """

    def __init__(
        self,
        peers: Sequence[str],
        python: str,
        folder: Path,
        source: Path | None = None,
        threads: int = 2,
    ) -> None:
        name = ",".join(peers)
        self._log = (folder / f"{name.replace(':', '_')}.log").open("w+")
        limits = dict.fromkeys(THREAD_SETTINGS, str(threads))
        path = {} if source is None else {"PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [python, str(HERE / "worker.py"), name, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **limits, **path, **QUIET},
            start_new_session=True,  # Ctrl-C is for the driver, which ends the others
        )  # fmt: skip
        self.peers = list(peers)
        self.contestants: list[Contestant] = []

    def get_ready(self) -> None:
        """Have its contestants make their first steps, one after the other."""
        for peer in self.peers:
            self.add(peer, CHECKED)

    def add(self, peer: str, steps: int) -> None:
        """Get one more ready in this process."""
        self.contestants.append(Contestant(peer, self, self.ask(f"ready {peer} {steps}")))

    def ask(self, question: str = "") -> dict[str, Any]:
        """The next answer; one with an `error` when the process has ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if question:
                print(question, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        self._log.seek(0)
        lines = [x for x in self._log.read().splitlines() if x.strip()]
        return {"error": lines[-1][:160] if lines else f"exit code {self._process.returncode}"}

    def kill(self) -> None:
        """End it and what it has started, whatever it is doing."""
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None and not stream.closed:
                stream.close()


class Contestant:
    """One who takes turns.

    Attributes:
        first: what it answered when it was ready.
        times: seconds of a step, by turn.
        processor_times: the same of the processor, of all threads together.
        steps: how many of a turn are counted.
        before: how many come first and are not.
        error: why it cannot go on, "" while it can.
    """

    def __init__(self, peer: str, host: Host, first: dict[str, Any]) -> None:
        self.peer, self._host, self.steps, self.before = peer, host, 1, 0
        self.first = self._last = first
        self.error: str = self.first.get("error", "")
        self.times, self.processor_times = list[float](), list[float]()

    def run(self) -> None:
        """One turn."""
        if self.error:
            return
        self._last = self._host.ask(f"{self.peer} {self.before} {self.steps}")
        self.error = self._last.get("error", "")
        if not self.error:
            self.times.append(self._last["seconds"] / self._last["steps"])
            self.processor_times.append(self._last["processor"] / self._last["steps"])

    def warm_up(self, seconds: float) -> None:
        """Find how many steps take that long, by turns that are not counted if steps are short."""
        if self.error:
            return
        step = self.first["step"]
        for _ in range(2 if step < seconds else 0):
            self.steps = max(1, round(WAKE / step))
            self.run()
            if self.error:
                return
            step = self.times[-1]
        self.steps, self.before = max(1, round(seconds / step)), round(WAKE / step)
        self.forget()

    def forget(self) -> None:
        """Begin again: what was timed so far does not count."""
        self.times, self.processor_times = [], []

    def result(self, folder: Path) -> dict[str, Any]:
        """What it showed."""
        shown = {
            "times_ms": [_rounded(t * 1e3) for t in self.times],
            "steps": self.steps,
            "first_step_parts_s": {k: round(v, 3) for k, v in self.first.get("parts", {}).items()},
            "rss_mb": _rounded(self._last["rss"]) if "rss" in self._last else None,
            "losses": [_rounded(x, 7) for x in self.first.get("losses", [])],
            "remark": self.first.get("remark", ""),
            "error": self.error,
        }
        cost = folder / f"artifacts_{'one' if self.peer == 'ours' else 'parts'}" / "cost.json"
        if self.peer in ("ours", "ours_parts") and cost.exists():
            shown["artifacts_rss_mb"] = _rounded(json.loads(cost.read_text())["rss"])
        return shown


def _rounded(value: float, digits: int = 5) -> float:
    return float(f"{value:.{digits}g}")


def race(
    name: str,
    pythons: dict[str, str],
    rounds: int,
    *,
    kept: Path | None = None,
    beside: bool = False,
    profile: bool = False,
) -> dict[str, Any]:
    """All contestants on one workload, as it is stored.

    Args:
        name: of the workload.
        pythons: by contestant, the interpreter that runs it.
        rounds: how often each has its turn, at most.
        kept: folder for what `benchmarks.prepare` writes, so that the next run has it.
        beside: once more, ours and torch in one process.
        profile: also find the time per operator type, after the rounds.
    """
    began, load, microseconds = time.time(), load_average(), handover()
    python = next((python for peer, python in pythons.items() if peer != "old"), "")
    if not python:
        raise SystemExit("The predecessor cannot run alone: name another peer too.")
    spent = Stopwatch()
    with tempfile.TemporaryDirectory(prefix="onnxtrain-bench-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        prepare(name, python, tuple(pythons), folder, kept)
        spec = json.loads((folder / "spec.json").read_text())
        spent.lap("prepare")
        peers, shared = compete(
            [([p], its) for p, its in pythons.items()],
            folder,
            rounds,
            PAUSE,
            beside=[p for p in BESIDE if p in pythons] if beside else (),
            spent=spent,
        )
        mine = [p for p in ("ours", "ours_parts") if p in pythons and not peers[p]["error"]]
        operators = {p: _operators(p, pythons[p], folder) for p in mine if profile}
    return {
        "title": spec["title"],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "load": load,
        "handover_us": microseconds,
        "rounds": rounds,
        "seconds": round(time.time() - began, 1),
        "spent": {part: round(seconds, 1) for part, seconds in spent.parts.items()},
        "tolerance": TOLERANCE_RANDOM if spec["random"] else TOLERANCE,
        "packages": spec["packages"],
        "peers": peers,
        "beside": {p: {k: r[k] for k in ("times_ms", "steps", "error")} for p, r in shared.items()},
        "operators": operators,
    }


class Stopwatch:
    """Seconds by part of a race."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, part: str) -> None:
        """What has been spent since the last call belongs to this part."""
        now = time.monotonic()
        self.parts[part] = self.parts.get(part, 0.0) + now - self._last
        self._last = now


def prepare(
    name: str, python: str, peers: Sequence[str], folder: Path, kept: Path | None = None
) -> None:
    """Have `benchmarks.prepare` fill a folder, or link to what it wrote for an earlier run."""
    source = folder if kept is None else kept / name.replace(":", "_")
    if not (source / "spec.json").exists():  # which is written last
        source.mkdir(parents=True, exist_ok=True)
        command = [python, "-m", "benchmarks.prepare", name, str(source), *peers]
        subprocess.run(command, check=True, cwd=HERE.parent, env={**os.environ, **QUIET})
    if source != folder:
        for path in source.iterdir():
            os.link(path, folder / path.name)


Results = dict[str, dict[str, Any]]


def compete(
    processes: Sequence[tuple[Sequence[str], str]],
    folder: Path,
    rounds: int,
    pause: float = 0.0,
    *,
    beside: Sequence[str] = (),
    spent: Stopwatch | None = None,
) -> tuple[Results, Results]:
    """Get everybody ready, have the rounds, end everybody; what each showed.

    Args:
        processes: who shares a process, and the interpreter.
        folder: what `benchmarks.prepare` wrote.
        rounds: how often each has its turn, at most.
        pause: seconds between turns.
        beside: who then has the same turns in one process, that of the first of them.
        spent: is told what took how long.

    Returns:
        Results by contestant, and those of the second part.
    """
    spent = spent or Stopwatch()
    hosts: list[Host] = []
    try:
        for peers, python in processes:
            hosts.append(Host(peers, python, folder))
        get_ready(hosts)
        spent.lap("get ready")
        contestants = [c for host in hosts for c in host.contestants]
        run_rounds(contestants, rounds, pause=pause)
        alone = {c.peer: c.result(folder) for c in contestants}
        spent.lap("rounds")
        together = [p for p in beside if not alone[p]["error"]]
        if not together:
            return alone, {}
        host = next(h for h in hosts if any(c.peer == together[0] for c in h.contestants))
        for other in hosts:
            if other is not host:
                other.kill()
        for peer in together[1:]:
            host.add(peer, LATER)
        spent.lap("get ready beside")
        host.contestants[0].forget()
        run_rounds(host.contestants, rounds, pause=0.0)
        spent.lap("rounds beside")
        return alone, {c.peer: c.result(folder) for c in host.contestants}
    finally:
        for host in hosts:
            host.kill()


def get_ready(hosts: Sequence[Host]) -> None:
    """One after the other where the time is published, the others together at the end."""
    together = [host for host in hosts if set(host.peers) <= set(UNTIMED)]
    for host in hosts:
        if host not in together:
            host.get_ready()
    threads = [threading.Thread(target=host.get_ready, daemon=True) for host in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_rounds(
    contestants: Sequence[Contestant], rounds: int, turn: float = TURN, pause: float = PAUSE
) -> None:
    """All in turns, the order reversed every other time."""
    for contestant in contestants:
        contestant.warm_up(turn)
    began = time.monotonic()
    for number in range(rounds):
        if number >= ENOUGH and time.monotonic() - began > LONG:
            break
        order = contestants if number % 2 == 0 else contestants[::-1]
        for contestant in order:
            time.sleep(pause if not contestant.error else 0.0)
            contestant.run()


def _operators(peer: str, python: str, folder: Path) -> dict[str, float]:
    host = Host([f"profile:{peer}"], python, folder)
    try:
        shares = host.ask().get("operators", {})
    finally:
        host.kill()
    return {name: round(share, 4) for name, share in shares.items()}


def disagreements(entry: dict[str, Any]) -> dict[str, float]:
    """Contestants whose first losses are not torch's: by how much, relatively, at most."""
    return {p: d for p, d in differences(entry).items() if not d <= entry["tolerance"]}


def differences(entry: dict[str, Any]) -> dict[str, float]:
    """Largest difference of the first losses from torch's (eager), relative, by contestant."""
    reference = entry["peers"].get("eager", {}).get("losses")
    if not reference:
        return {}
    largest = {}
    for peer, result in entry["peers"].items():
        pairs = list(zip(result.get("losses", []), reference))
        if peer != "eager" and pairs:
            gaps = [max(0.0, abs(a - b) - 1e-4) / abs(b) for a, b in pairs]
            odd = any(not math.isfinite(a) for a, _ in pairs)
            largest[peer] = math.inf if odd else max(gaps)
    return largest


def load_average() -> float | None:
    """How many processes wanted a core in the last minute, where the system tells."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
