"""Damaged files by the thousand, in processes of their own: ``python3 dev.py fuzz``.

    python3 dev.py fuzz --inputs 1000000                 all doors, until so many inputs are read
    python3 dev.py fuzz --seconds 3600 --door module     one door for an hour
    python3 dev.py fuzz --jobs 1                         one process at a time
    python3 dev.py fuzz --state fuzz.json                goes on where a run with this file ended
    python3 dev.py fuzz --door csv --only 4711           one input again, with its traceback

Every input follows from the name of its door and its number. An input may be read or be refused
with an error of onnxtrain; anything else is a finding. A run with ``--state`` can be ended at any
time: what was read is counted in the file, for as long as the sources are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from .limits import HANGS, Outcome, answers, limit_memory, outcome_of
from .mutate import mutate
from .parsers import PARSERS, prepare

MEMORY = 4096
"""Megabytes that a process may have; one input may take 500, and much is never given back."""
CHUNK = 20_000
"""Inputs per process, of the cheapest kind; those that cost more are fewer."""
LEAST = 1000
"""Inputs per process at least: to start one takes as long as some hundred inputs."""
PRELOADED = (
    "tests.hostile.parsers", "tests.hostile.mutate", "onnxtrain.normalize", "onnxtrain.artifacts",
    "onnxtrain.summary", "onnxtrain.cli.sources", "onnxtrain.cli.settings", "onnxtrain.cli.match",
    "onnxtrain.runtime.loop.trainer", "onnxtrain.runtime.step.export", "torch", "pyarrow.parquet",
    "onnxtrain.data",
    "onnxtrain.compat.ort.old_artifacts", "onnxtrain.compat.ort.orttrainer.checkpoint",
)  # fmt: skip
"""Imported once, by the process that all others are forked from."""
MEMORY_DISK = Path("/dev/shm")
BATCH = 0.1
"""Seconds of work that are told at once: to tell every outcome costs as much as a cheap input."""
ROOT = Path(__file__).parents[2]


def content_of(door: str, number: int, seeds: Sequence[bytes]) -> bytes:
    """The input of a door with a number."""
    rng = random.Random(f"{door}/{number}")
    return mutate(rng.choice(seeds), PARSERS[door].form, rng)


class Inputs:
    """Makes and reads the inputs of one door, in a folder that is left behind."""

    def __init__(self, door: str, folder: Path) -> None:
        self.door, self.parser, self.folder = door, PARSERS[door], folder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare(folder)
            self.seeds = self.parser.seeds(folder)

    def read(self, number: int) -> Outcome:
        """Read one input; a sound one if the number is negative."""
        content = content_of(self.door, number, self.seeds) if number >= 0 else self.seeds[0]
        path = self.folder / self.parser.name
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return outcome_of(lambda: self.parser.read(path))


def _work(answer: Connection, door: str, first: int, count: int, batch: float) -> None:
    """Read inputs and tell their outcomes, so many seconds of work at once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # onnxruntime's log, and that of libraries
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    with working_folder() as folder:
        try:
            inputs = Inputs(door, Path(folder))
            limit_memory(MEMORY)
        except Exception:
            answer.send(Outcome("raw", "not ready", place=traceback.format_exc()))
            return
        outcomes: list[Outcome] = []
        told = time.process_time()
        for number in range(first, first + count):
            outcomes.append(inputs.read(number))
            if time.process_time() - told >= batch or number == first + count - 1:
                answer.send(outcomes)
                outcomes, told = [], time.process_time()


def working_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the files, in memory where there is such a disk."""
    place = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="onnxtrain-fuzz-", dir=place)


@dataclass
class Report:
    """What came of the inputs, by door."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[tuple[str, int, Outcome]] = field(default_factory=list)

    def add(self, door: str, number: int, outcome: Outcome) -> None:
        """Count one; each door has one writer at a time."""
        self.counts.setdefault(door, Counter())[outcome.kind] += 1
        if outcome.kind not in ("ok", "refused"):
            self.findings.append((door, number, outcome))

    def count(self, door: str) -> int:
        """How many inputs of a door were read."""
        return sum(self.counts.get(door, Counter[str]()).values())

    @property
    def total(self) -> int:
        return sum(sum(c.values()) for c in list(self.counts.values()))

    def table(self) -> str:
        kinds = ("ok", "refused", "raw", "crash", "hangs")
        lines = [f"{'door':24}" + "".join(f"{k:>10}" for k in kinds)]
        lines += [
            f"{door:24}" + "".join(f"{counts[k]:>10}" for k in kinds)
            for door, counts in self.counts.items()
        ]
        sums = Counter[str]()
        for counts in self.counts.values():
            sums.update(counts)
        lines.append(f"{'all':24}" + "".join(f"{sums[k]:>10}" for k in kinds))
        return "\n".join(lines)


def run(door: str, first: int, count: int, report: Report, until: float = math.inf) -> None:
    """Read the inputs of a door from a number on; goes on behind one that ends the process.

    Args:
        door: its name.
        first: number of the first input.
        count: how many.
        report: gets the outcomes.
        until: when to end, by the monotonic clock.
    """
    end = first + count
    while first < end and time.monotonic() < until:
        first, lost = _run_process(door, first, end, report, BATCH, until)
        if lost is not None:  # which input of the batch it was shows when each is told
            first = _find(door, first, min(first + CHUNK, end), report, lost)


def _find(door: str, first: int, end: int, report: Report, lost: Outcome) -> int:
    """Read inputs one by one up to the one that ends the process; returns the next number."""
    number, again = _run_process(door, first, end, report, 0.0, math.inf)
    if again is None:
        lost = Outcome(lost.kind, f"{lost.message}, but not again for {first} to {end - 1}")
        report.findings.append((door, first, lost))
        return number
    report.add(door, number, again)
    return number + 1


def _run_process(
    door: str, first: int, end: int, report: Report, batch: float, until: float
) -> tuple[int, Outcome | None]:
    """Read inputs in one process: the next number, and how it ended if not well."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    mine, yours = context.Pipe(duplex=False)
    arguments = (yours, door, first, end - first, batch)
    process = context.Process(target=_work, args=arguments, daemon=True)
    process.start()
    yours.close()
    try:
        while first < end and time.monotonic() < until:
            if not answers(mine, process):
                return first, Outcome("hangs", f"no answer after {HANGS} s of work")
            outcomes = mine.recv()
            if isinstance(outcomes, Outcome):
                raise RuntimeError(f"The door {door!r} cannot be tried:\n{outcomes.place}")
            for outcome in outcomes:
                report.add(door, first, outcome)
                first += 1
    except EOFError:
        process.join(5)
        return first, Outcome("crash", f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        mine.close()
    return first, None


# --- runs that go on ------------------------------------------------------------------------------


def sources() -> str:
    """What a run is about: a digest of all sources, and of what makes the inputs."""
    here = [Path(__file__).parent / f"{name}.py" for name in ("models", "mutate", "parsers")]
    digest = hashlib.sha256()
    for path in [*sorted((ROOT / "src").rglob("*.[jp][sy]")), *here]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def load_state(path: Path) -> Report:
    """What earlier runs with the same sources have read."""
    if not path.exists():
        return Report()
    state = json.loads(path.read_text())
    if state["sources"] != sources():
        raise SystemExit(f"{path} is of other sources: remove it, or choose another file.")
    counts = {door: Counter(kinds) for door, kinds in state["counts"].items()}
    return Report(counts, [(d, n, Outcome(**o)) for d, n, o in state["findings"]])


def save_state(path: Path, report: Report) -> None:
    """Keep what was read, whole at any time."""
    findings = [(door, number, asdict(outcome)) for door, number, outcome in report.findings]
    counts = {door: dict(kinds) for door, kinds in list(report.counts.items())}
    state = {"sources": sources(), "counts": counts, "findings": findings}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(path)


def _round(doors: Sequence[str], report: Report, limit: int) -> Iterator[tuple[str, int]]:
    """How many inputs each door gets next; those that had fewest of their share come first."""
    shares = {door: max(CHUNK // PARSERS[door].cost, LEAST) for door in doors}
    for door in sorted(doors, key=lambda d: report.count(d) / shares[d]):
        count = min(shares[door], limit)
        if count > 0:
            yield door, count
        limit -= count


def repeat(door: str, number: int) -> int:
    """Read one input here and now, and show what comes of it."""
    with working_folder() as folder:
        outcome = Inputs(door, Path(folder)).read(number)
    print(outcome.kind, outcome.message, outcome.place, sep="\n")
    return outcome.kind not in ("ok", "refused")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description="Read damaged files.")
    parser.add_argument("--inputs", type=int, default=0, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long")
    parser.add_argument(
        "--door", choices=sorted(PARSERS), action="append", help="this one only; may be repeated"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--state", type=Path, help="a file with what was read, to go on later")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, help=f"processes at a time ({jobs})")
    parser.add_argument("--only", type=int, help="one input, with its traceback; needs --door")
    options = parser.parse_args(arguments)
    if options.only is not None:
        (door,) = options.door or parser.error("--only needs --door")
        return repeat(door, options.only)
    report = load_state(options.state) if options.state else Report()
    doors = options.door or [door for door, parser in PARSERS.items() if parser.can_be_tried]
    limit = options.inputs or (sys.maxsize if options.seconds else 100_000)
    try:
        _run_rounds(doors, limit, report, options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    _show(report)
    return bool(report.findings)


def _run_rounds(
    doors: Sequence[str], limit: int, report: Report, options: argparse.Namespace
) -> None:
    """All doors again and again, until there were enough inputs or the time has come."""
    end = time.monotonic() + (options.seconds or math.inf)
    pool = ThreadPoolExecutor(options.jobs)
    try:
        while report.total < limit and time.monotonic() < end:
            parts = [
                pool.submit(run, door, options.first + report.count(door), count, report, end)
                for door, count in _round(doors, report, limit - report.total)
            ]
            for part in parts:
                part.result()
                if options.state:
                    save_state(options.state, report)
            findings = len(report.findings)
            print(f"{report.total} inputs, {findings} findings", file=sys.stderr, flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if options.state:
            save_state(options.state, report)


def _show(report: Report) -> None:
    print(report.table())
    for door, number, outcome in report.findings[:50]:
        print(f"\n{door} --only {number}: {outcome.kind}: {outcome.message[:300]}")
        print("\n".join(outcome.place.strip().splitlines()[-4:]))


if __name__ == "__main__":
    sys.exit(main())
