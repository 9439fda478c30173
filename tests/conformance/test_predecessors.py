"""The predecessors' own tests, out of clones of their repositories: no score may fall.

    ONNXTRAIN_SUITES=…/suites ORT_MIRROR=…/onnxruntime/.git ONNXCUSTOM_MIRROR=…/onnxcustom/.git \
        python -m pytest tests/conformance -m conformance -o faulthandler_timeout=0

ONNXTRAIN_SUITES is the folder with the five scripts. SUITE_PY names another python to run them
with, one that has the packages that they need, and ONNXTRAIN_WIKITEXT a folder with text for
ORTTrainer's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {p.stem: json.loads(p.read_text("utf-8"))
           for p in sorted((ROOT / "conformance" / "predecessors").glob("*.json"))}  # fmt: skip
MIRRORS = {"onnxcustom": "ONNXCUSTOM_MIRROR", "gallery": "ONNXCUSTOM_MIRROR"}
"""Which clone a suite needs, if not onnxruntime's."""
SETTINGS = {"orttrainer": {"SUITE_ARGS": "-p orttrainer_machine"}}
"""More variables for a script."""
STAND_INS = Path(__file__).parent / "stand_ins"
HOURS = 6 * 3600


def place(variable: str) -> Path:
    """The folder that an environment variable names; skips where there is none."""
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"set ONNXTRAIN_SUITES and the clones' variables: {variable} names no folder")
    return Path(value)


def score(output: str) -> int:
    """How many passed: the last that a script says, as pytest's summary or as "n of m"."""
    said = re.findall(r"\b(\d+) passed\b|^(\d+) of \d+\b", output, re.MULTILINE)
    assert said, f"the script gave no score:\n{output[-2000:]}"
    return int(next(filter(None, said[-1])))


@pytest.mark.conformance
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", RECORDS)
def test_no_score_falls(name: str) -> None:
    suites, record = place("ONNXTRAIN_SUITES"), RECORDS[name]
    place(MIRRORS.get(name, "ORT_MIRROR"))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(STAND_INS)]),
        "SUITE_PY": os.environ.get("SUITE_PY", sys.executable),
        **SETTINGS.get(name, {}),
    }
    done = subprocess.run(
        ["bash", str(suites / Path(record["script"]).name)],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=HOURS,
    )  # fmt: skip
    passed = score(done.stdout)
    said = f"{passed} of {record['total']} passed, {record['passed']} are recorded\n{done.stdout}"
    assert passed >= record["passed"], said


def test_scores_are_read() -> None:
    assert score("FAILED a\n2 failed, 140 passed, 7 warnings in 3.2s\ndetails: x") == 140
    assert score("3 failed, 82 passed in 1s\n82 of 84 of the tests passed\n") == 82
    assert score("ok  plot_a\n11 of 11 gallery scripts run\n") == 11
