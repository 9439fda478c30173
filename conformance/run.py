"""Starts workers, hands them cases, and writes what they say; a worker that dies is a row."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from . import results
from .results import Row

ROOT = Path(__file__).resolve().parent.parent
NAMES_SECONDS = 600.0
PATIENCE = 4.0
"""How many times its seconds of the processor a case may take by the clock: on a busy machine it
gets a part of the processor, and a row must not depend on what else runs."""
STOPPED_IN = {"export": "not exported", "case": "not exported", "forward": "not run forward"}
"""What a crash or a hang means in the stages before onnxtrain has its turn."""


@dataclass(frozen=True)
class Limits:
    """Of a case: seconds of the processor and gigabytes; of the whole run: seconds, 0 for none.

    With an `exporter` only that one is tried, of the modules that have several.
    """

    seconds: float = 300.0
    memory: float = 8.0
    total: float = 0.0
    exporter: str = ""


def run(
    name: str, python: str, path: Path, limits: Limits, *, only: str = "*", again: bool = False
) -> int:
    """Try the cases of a list that have no row yet (or all of them `again`).

    A list may have names of calls that its table turns out not to have: they leave no row, and a
    run to the end does not count them.
    """
    done = set() if again else _done(results.read(path), limits.exporter)
    worker = Worker(name, python, limits, tells_names=True)
    try:
        wanted, batch = worker.names()
        if only == "*" and not limits.exporter:
            results.note_total(path, len(wanted))
        todo = [n for n in wanted if fnmatch.fnmatchcase(n, only) and n not in done]
        print(f"{name}: {len(todo)} of {len(wanted)} cases", flush=True)
        started, absent = time.monotonic(), 0
        for number, case in enumerate(todo):
            if limits.total and time.monotonic() - started > limits.total:
                print(f"{len(todo) - number} cases are left for the next run", flush=True)
                break
            if not worker.alive or worker.cases >= batch:
                worker.end()
                worker = Worker(name, python, limits)
            rows = worker.attempt(case)
            absent += not rows
            for row in rows:
                results.append(path, row)
                label = f"{row['name']} [{row.get('exporter', '')}]"
                print(f"{label:60} {row['outcome']:16} {row.get('reason', '')[:80]}", flush=True)
        else:
            if only == "*" and not limits.exporter:
                results.note_total(path, len(wanted) - absent)
    finally:
        worker.end()
    results.compact(path)
    return 0


def _done(rows: list[Row], exporter: str) -> set[str]:
    """Cases that need not be tried again; one that could not be made has no exporter."""
    tried = {exporter, ""}
    return {r["name"] for r in rows if not exporter or r.get("exporter", "") in tried}


def _command(python: str, name: str, *more: str) -> list[str]:
    return [python, "-m", "conformance.worker", name, *more]


class Worker:
    """A process that tries cases, one after the other, and says which stage it is in.

    Args:
        name: of the list.
        python: of its environment.
        limits: of a case.
        tells_names: whether it begins with the names of all cases.
    """

    def __init__(
        self, name: str, python: str, limits: Limits, *, tells_names: bool = False
    ) -> None:
        self.limits = limits
        self.cases = 0
        more = ["--names"] if tells_names else []
        more += ["--exporter", limits.exporter] if limits.exporter else []
        self._process = subprocess.Popen(
            _command(python, name, "--memory", str(limits.memory), *more), cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._said: queue.Queue[Row | None] = queue.Queue()
        self._listener = threading.Thread(
            target=_listen, args=(self._process.stdout, self._said), daemon=True
        )
        self._listener.start()

    @property
    def alive(self) -> bool:
        """Whether it can take another case."""
        return self._process.poll() is None

    def names(self) -> tuple[list[str], int]:
        """The cases of the list, and how many of them may share a process."""
        said = self._said.get(timeout=NAMES_SECONDS)
        if said is None:
            raise RuntimeError(f"The list cannot be loaded: {self._how_it_ended()}, see above.")
        return list(said["names"]), int(said["batch"])

    def attempt(self, case: str) -> list[Row]:
        """The rows of a case, one of a crash or a hang included."""
        self.cases += 1
        rows: list[Row] = []
        stage: Row = {"stage": "case"}
        seconds = self.limits.seconds
        ends, used = time.monotonic() + PATIENCE * seconds, self._processor_seconds()
        with contextlib.suppress(BrokenPipeError):  # the queue says that it ended
            self._orders.write(f"{case}\n".encode())
            self._orders.flush()
        while True:
            try:
                said = self._said.get(timeout=min(seconds, 1.0))
            except queue.Empty:
                waited = time.monotonic() > ends
                if not waited and self._processor_seconds() - used <= seconds:
                    continue
                self.end()
                clock = f"{PATIENCE * seconds:g} s by the clock"
                how = clock if waited else f"{seconds:g} s of the processor"
                return [*rows, _stopped(case, stage, "timeout", how)]
            if said is None:
                return [*rows, _stopped(case, stage, "crash", self._how_it_ended())]
            if "stage" in said:
                stage = said
            elif "row" in said:
                rows.append(said["row"])
            else:
                return rows

    def end(self) -> None:
        """End the process and all that it started."""
        if self.alive:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._process.kill()
        self._process.wait()
        self._listener.join()
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()

    def _processor_seconds(self) -> float:
        """What its threads have used so far; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rpartition(")")[2]
        except OSError:
            return 0.0
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _listen(stream: IO[bytes], said: queue.Queue[Row | None]) -> None:
    with stream:
        for line in stream:
            if line.startswith(b"{"):
                said.put(json.loads(line))
    said.put(None)


def _stopped(case: str, stage: Row, outcome: str, how: str) -> Row:
    where = stage["stage"]
    return {
        "name": case, "family": stage.get("family", ""), "exporter": stage.get("exporter", ""),
        "outcome": STOPPED_IN.get(where, outcome), "reason": f"{outcome} in {where}: {how}",
    }  # fmt: skip
