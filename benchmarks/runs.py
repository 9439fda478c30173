"""The stored runs: a file for each under `benchmarks/results/runs`, none of them left out.

A file has the facts (version, commit, machine, packages, load at the start) and the results by
workload; it is written after every workload, so that a run that was cut goes on where it was. The
runs of one state of the sources belong together: the tables are made of the newest such group, the
plot over versions of all. Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .products import processor
from .race import load_average
from .workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results" / "runs"
INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_vnni", "amx_tile")
Entry = dict[str, Any]


@dataclass
class Run:
    """One run.

    Attributes:
        path: its file.
        facts: what holds for all of it; `source` names the state of the sources, `asked` the
            workloads that there were.
        workloads: results by workload, see `benchmarks.race.race`.
    """

    path: Path
    facts: dict[str, Any]
    workloads: dict[str, Entry]

    @property
    def missing(self) -> list[str]:
        """Workloads that it has not measured."""
        return [name for name in self.facts["asked"] if name not in self.workloads]

    @property
    def name(self) -> str:
        """Version, date and number."""
        return self.path.stem

    def add(self, name: str, entry: Entry) -> None:
        """Store a workload; never half a file."""
        self.facts.setdefault("packages", entry.get("packages", {}))
        self.workloads[name] = {k: v for k, v in entry.items() if k != "packages"}
        ordered = {name: self.workloads[name] for name in WORKLOADS if name in self.workloads}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_suffix(".new")
        scratch.write_text(_text({**self.facts, "workloads": ordered}))
        os.replace(scratch, self.path)


def _text(value: dict[str, Any]) -> str:
    """JSON with a line per fact: lists of numbers stay on one."""
    text = json.dumps(value, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def stored(folder: Path = FOLDER) -> list[Run]:
    """All of them, the oldest first."""
    runs = []
    for path in folder.glob("*.json"):
        facts = json.loads(path.read_text())
        runs.append(Run(path, facts, facts.pop("workloads")))
    return sorted(runs, key=lambda run: (run.facts["date"], run.name))


def begin(facts: dict[str, Any], folder: Path = FOLDER) -> Run:
    """A new one, which has a file as soon as it has a workload."""
    start = f"{facts['version']}-{facts['date'][:10]}"
    number = 1
    while (folder / f"{start}-{number}.json").exists():
        number += 1
    return Run(folder / f"{start}-{number}.json", facts, {})


def unfinished(facts: dict[str, Any], folder: Path = FOLDER) -> Run | None:
    """The newest run of these sources that has workloads left, if there is one."""
    same = [run for run in stored(folder) if run.facts["source"] == facts["source"] and run.missing]
    return same[-1] if same else None


def by_state(runs: Iterable[Run]) -> list[list[Run]]:
    """Runs of the same version and sources together; the oldest first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.facts["version"], run.facts["source"]), []).append(run)
    return list(groups.values())


def newest(runs: Iterable[Run]) -> list[Run]:
    """The last group of which one run at least is complete, its cut runs included."""
    groups = by_state(runs)
    whole = [group for group in groups if any(not run.missing for run in group)]
    return (whole or groups or [[]])[-1]


def facts_now(rounds: int) -> dict[str, Any]:
    """Of a run that begins now."""
    text = (ROOT / "src" / "onnxtrain" / "__init__.py").read_text()
    match = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    return {
        "version": match[1] if match else "unknown",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "source": _git("rev-parse", "--short", "HEAD:src"),
        "changed": _git("status", "--porcelain", "--", "src", "benchmarks/*.py"),
        "machine": machine(),
        "load": load_average(),
        "rounds": rounds,
        "asked": list(WORKLOADS),
    }


def _git(*arguments: str) -> str:
    """What git says, "" without git or outside of a clone."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True,
                              check=False)  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def machine() -> dict[str, Any]:
    """Cores, instruction set and processor, so that the numbers can be placed."""
    flags = ""
    if Path("/proc/cpuinfo").exists():
        text = Path("/proc/cpuinfo").read_text()
        flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "instructions": [f for f in INSTRUCTIONS if f in flags.split()],
        "processor": processor(),
    }
