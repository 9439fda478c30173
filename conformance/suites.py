"""The predecessors' own tests, out of clones of their repositories: run, compared, recorded.

    export ONNXTRAIN_SUITES=…/suites
    export ORT_MIRROR=…/onnxruntime/.git ONNXCUSTOM_MIRROR=…/onnxcustom/.git
    python3 -m conformance.suites run onnxcustom          # and say what is worse than recorded
    python3 -m conformance.suites record onnxcustom out.txt

ONNXTRAIN_SUITES is the folder with the scripts. Each suite gets an environment of its own, made the
first time; SUITE_PY (for the one with an old scikit-learn SUITE_PY_OLD_SKLEARN) names one that
exists. ONNXTRAIN_WIKITEXT is a folder with text for ORTTrainer's tests.

`record` takes what pytest has written (the file that a script calls details; several for a suite
that was run in parts, the last one counts) and puts scores and failing tests into
`conformance/predecessors`. Reasons stay; tests that have none yet are told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.environments import environment

ROOT = Path(__file__).resolve().parent.parent
RECORDS = Path(__file__).parent / "predecessors"
STAND_INS = ROOT / "tests" / "conformance" / "stand_ins"
HOURS = 6 * 3600
CUT = 100
"""Scripts cut the lines about failing tests; a name that is longer is compared up to here."""
COMMON = [
    "-e", ".[torch]", "onnxruntime==1.31.1", "torch==2.13.0", "pytest", "pytest-timeout", "pandas",
    "matplotlib", "skl2onnx==1.20.0", "transformers", "h5py", "cerberus", "accelerate", "tqdm",
]  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """How a suite is run.

    Attributes:
        script: the file in the folder of scripts.
        clone: the variable that names the clone's git directory.
        python: the variable that names a Python to run it with.
        packages: what its environment has.
        settings: more variables for the script.
    """

    script: str
    clone: str = "ORT_MIRROR"
    python: str = "SUITE_PY"
    packages: tuple[str, ...] = (*COMMON, "scikit-learn==1.9.1")
    settings: Mapping[str, str] = field(default_factory=dict)


NOTHING_FILLED_IN = {"ONNXCUSTOM_STRICT": "1"}
SUITES = {
    # its own limit of 180 s for a script is too short where others compute too
    "gallery": Suite("gallery.sh", "ONNXCUSTOM_MIRROR", settings={"SECONDS_EACH": "900"}),
    "onnxcustom": Suite("onnxcustom.sh", "ONNXCUSTOM_MIRROR", settings=NOTHING_FILLED_IN),
    "onnxcustom_old_sklearn": Suite(
        "onnxcustom.sh",
        "ONNXCUSTOM_MIRROR",
        "SUITE_PY_OLD_SKLEARN",
        (*COMMON, "scikit-learn==1.2.2", "numpy==1.26.4", "scipy==1.11.4", "pandas==2.1.4"),
        NOTHING_FILLED_IN,
    ),
    "ort_api": Suite("ort_api.sh"),
    "ortmodule": Suite("ortmodule.sh"),
    "orttrainer": Suite("orttrainer.sh", settings={"SUITE_ARGS": "-p orttrainer_machine"}),
}


# --- running --------------------------------------------------------------------------------------


def missing(suite: Suite) -> str:
    """The first variable that names no folder, which the suite needs; "" where all do."""
    for variable in ("ONNXTRAIN_SUITES", suite.clone):
        folder = os.environ.get(variable)
        if not folder or not Path(folder).is_dir():
            return variable
    return ""


def run(suite: Suite, python: str, more: Mapping[str, str] | None = None) -> str:
    """What the script prints."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(STAND_INS)]),
        "SUITE_PY": python,
        **suite.settings,
        **(more or {}),
    }
    script = Path(os.environ["ONNXTRAIN_SUITES"]) / suite.script
    done = subprocess.run(
        ["bash", str(script)],
        env=variables, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HOURS,
    )  # fmt: skip
    return done.stdout


# --- comparing ------------------------------------------------------------------------------------


def score(output: str) -> int:
    """How many passed: the last that a script says, as pytest's summary or as "n of m"."""
    said = re.findall(r"\b(\d+) passed\b|^(\d+) of \d+\b", output, re.MULTILINE)
    if not said:
        raise ValueError(f"the script gave no score:\n{output[-2000:]}")
    return int(next(filter(None, said[-1])))


def failing(output: str) -> list[str]:
    """Names of the tests, or of the gallery's scripts, that a script says failed; maybe cut."""
    return [
        re.split(r" - | \(\d+\): ", line.split(maxsplit=1)[1].strip())[0]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]


def worse(output: str, record: Mapping[str, Any], *, whole: bool = True) -> list[str]:
    """What got worse than the record says, a sentence each.

    Args:
        output: what the script printed.
        record: what was recorded.
        whole: whether all tests were run; for a part only the failing ones are compared.
    """
    known = {entry["test"][:CUT] for entry in record["failing"]}
    sentences = [f"{n} fails and did not" for n in failing(output) if n[:CUT] not in known]
    passed = score(output)
    if whole and passed < record["passed"]:
        sentences.append(f"{passed} passed, {record['passed']} are recorded")
    return sentences


# --- recording ------------------------------------------------------------------------------------

OUTCOMES = {"PASSED": "passed", "SKIPPED": "skipped", "FAILED": "failing", "ERROR": "failing"}
_WORD = "|".join(OUTCOMES)
_LINE = re.compile(
    rf"^(?:\[gw\d+\] \[ *\d+%\] (?P<word>{_WORD}) (?P<test>\S+::.+?)"
    rf"|(?P<test_first>\S+::.+?) (?P<word_last>{_WORD})(?: \(.*\))?(?: +\[ *\d+%\])?)\s*$",
    re.MULTILINE,
)


def outcomes(text: str) -> dict[str, str]:
    """Outcome of each test in what `pytest -v` has written, with or without workers."""
    return {
        match["test"] or match["test_first"]: OUTCOMES[match["word"] or match["word_last"]]
        for match in _LINE.finditer(text)
    }


def counted(text: str) -> tuple[Counter[str], list[str]]:
    """Numbers and failing tests in what `pytest -q` or a script has written."""
    tests = failing(text)
    skipped = re.findall(r"\b(\d+) skipped\b", text)
    numbers = {"passed": score(text), "skipped": int(skipped[-1]) if skipped else 0}
    return Counter(numbers), tests


def updated(record: Mapping[str, Any], texts: Sequence[str], day: str) -> dict[str, Any]:
    """The record with new scores; a failing test without a known reason has an empty one."""
    single: dict[str, str] = {}
    for text in texts:
        single.update(outcomes(text))
    if single:
        numbers = Counter(single.values())
        tests = [test for test, outcome in single.items() if outcome == "failing"]
    else:
        numbers, tests = counted(texts[-1])
    reasons = Reasons(record["failing"])
    entries = [{"test": test, "reason": reasons.of(test)} for test in tests]
    return {
        **record,
        "date": day,
        "passed": numbers["passed"],
        "skipped": numbers["skipped"],
        "total": numbers["passed"] + numbers["skipped"] + len(entries),
        "failing": entries,
    }


class Reasons:
    """Why tests fail: as recorded for the test, else for other parameter sets of its function."""

    def __init__(self, entries: Iterable[Mapping[str, str]]) -> None:
        self.by_test = {entry["test"]: entry["reason"] for entry in entries}
        self.by_function: dict[str, set[str]] = {}
        for test, reason in self.by_test.items():
            self.by_function.setdefault(test.partition("[")[0], set()).add(reason)

    def of(self, test: str) -> str:
        """The reason; "" where none, or more than one, is known."""
        if test in self.by_test:
            return self.by_test[test]
        known = self.by_function.get(test.partition("[")[0], set())
        return next(iter(known)) if len(known) == 1 else ""


def read(name: str) -> dict[str, Any]:
    """The record of a suite."""
    record: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text("utf-8"))
    return record


def main() -> int:
    """Run a suite, or record what a run has written."""
    parser = argparse.ArgumentParser(prog="conformance.suites", description=__doc__)
    parser.add_argument("action", choices=["run", "record"])
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("files", nargs="*", type=Path, help="what pytest has written, to record")
    options = parser.parse_args()
    if options.action == "run":
        return _run(options.suite)
    texts = [path.read_text("utf-8", "replace") for path in options.files]
    record = updated(read(options.suite), texts, datetime.now(timezone.utc).date().isoformat())
    path = RECORDS / f"{options.suite}.json"
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
    without = [entry["test"] for entry in record["failing"] if not entry["reason"]]
    print(f"{record['passed']} of {record['total']} passed, {len(record['failing'])} fail")
    print("".join(f"needs a reason: {test}\n" for test in without), end="")
    return bool(without)


def _run(name: str) -> int:
    suite = SUITES[name]
    variable = missing(suite)
    if variable:
        print(f"{variable} names no folder; see the top of {__file__}")
        return 2
    python = os.environ.get(suite.python)
    python = python or environment(f"suite-{name}", sys.executable, list(suite.packages))
    output = run(suite, python)
    print(output, end="")
    sentences = worse(output, read(name))
    print("".join(f"worse: {sentence}\n" for sentence in sentences), end="")
    return bool(sentences)


if __name__ == "__main__":
    sys.exit(main())
