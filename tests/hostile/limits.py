"""Call a door in a process of its own, with limits of time and memory, and say what came of it."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS, MEGABYTES = 2.0, 500
"""What a file may cost before it is refused."""
HANGS, WAITS = 20.0, 600.0
"""Seconds of work, and of waiting (the machine may be busy), after which a process is ended."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: well, with an error of ours, with another one, or not at all."""

    kind: str
    message: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0
    place: str = ""


def outcome_of(call: Callable[[], object]) -> Outcome:
    """Call something and tell our errors from others."""
    from onnxtrain.errors import OnnxTrainError

    start, before = time.process_time(), _peak()
    kind, message, place = "ok", "", ""
    try:
        call()
    except OnnxTrainError as error:
        kind, message = "refused", f"{type(error).__name__}: {error}"
    except (FileNotFoundError, IsADirectoryError) as error:
        kind, message = "refused", f"{type(error).__name__}: {error}"
    except BaseException as error:
        kind, message = "raw", f"{type(error).__name__}: {error}"
        place = traceback.format_exc()
    spent = time.process_time() - start
    return Outcome(kind, message[:2000], spent, _peak() - before, place)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def limit_memory(megabytes: int) -> None:
    """Let this process have so much more address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


Call = tuple[Callable[..., object], tuple[Any, ...]]


def _child(answer: Connection, calls: Sequence[Call]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime's own log
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    warm_up()
    for function, arguments in calls:
        limit_memory(2 * MEGABYTES)  # address space; what counts is what is used of it
        answer.send(outcome_of(partial(function, *arguments)))


def warm_up() -> None:
    """Import, and run once, what every call needs: its cost is not the file's."""
    import tests.hostile.doors  # noqa: F401


def answers(connection: Connection, process: Any) -> bool:
    """Wait for a process; False if it works on without an answer."""
    end, before = time.monotonic() + WAITS, _worked(process.pid)
    while time.monotonic() < end and _worked(process.pid) - before < HANGS:
        if connection.poll(1.0):
            return True
    return False


def _worked(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def call_limited(function: Callable[..., object], *arguments: Any) -> Outcome:
    """Call a function of a module, in another process."""
    return call_all([(function, arguments)])[0]


def call_all(calls: Sequence[Call]) -> list[Outcome]:
    """Call functions of modules, in another process; behind one that ends it in a new one."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(calls):
        outcomes += _call_some(calls[len(outcomes) :])
    return outcomes


def _call_some(calls: Sequence[Call]) -> list[Outcome]:
    """The outcomes up to the first call that does not come back."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.hostile.doors"])
    mine, yours = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(yours, calls), daemon=True)
    process.start()
    yours.close()
    outcomes: list[Outcome] = []
    try:
        while len(outcomes) < len(calls):
            if not answers(mine, process):
                return [*outcomes, Outcome("hangs", f"no answer after {HANGS} s of work")]
            outcomes.append(mine.recv())
    except EOFError:
        process.join(5)
        outcomes.append(Outcome("crash", f"exit code {process.exitcode}"))
    finally:
        process.kill()
        process.join()
        mine.close()
    return outcomes
