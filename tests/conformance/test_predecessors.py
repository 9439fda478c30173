"""The predecessors' own tests, out of clones of their repositories: no score may fall.

    ONNXTRAIN_SUITES=…/suites ORT_MIRROR=…/onnxruntime/.git ONNXCUSTOM_MIRROR=…/onnxcustom/.git \
        python -m pytest tests/conformance -m conformance -o faulthandler_timeout=0

SUITE_PY names another python to run them with, one that has the packages that they need, and
SUITE_PY_OLD_SKLEARN one with scikit-learn 1.2.2: `python3 -m conformance.suites run` makes them.
ORTModule's tests are 1,630; one parameter set of each function is run here, and no test may fail
that is not on the record. ORTMODULE_SUITE_EACH=0 runs all, which takes hours.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from conformance.suites import (
    RECORDS,
    SUITES,
    Reasons,
    failing,
    missing,
    outcomes,
    read,
    run,
    score,
    updated,
    worse,
)

EACH = "ORTMODULE_SUITE_EACH"


@pytest.mark.conformance
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SUITES)
def test_no_score_falls(name: str) -> None:
    suite = SUITES[name]
    if missing(suite):
        pytest.skip(
            f"set ONNXTRAIN_SUITES and the clones' variables: {missing(suite)} names no folder"
        )
    python = os.environ.get(suite.python, sys.executable if suite.python == "SUITE_PY" else "")
    if not python:
        pytest.skip(f"{suite.python} names no python with scikit-learn 1.2.2")
    each = os.environ.get(EACH, "1") if name == "ortmodule" else "0"
    output = run(suite, python, {EACH: each})
    sentences = worse(output, read(name), whole=each == "0")
    assert not sentences, "\n".join([*sentences, output])


def test_every_suite_has_a_record() -> None:
    assert {path.stem for path in RECORDS.glob("*.json")} == set(SUITES)
    assert all(read(name)["script"] == suite.script for name, suite in SUITES.items())


# --- what is read out of a run --------------------------------------------------------------------

RECORD: dict[str, Any] = {
    "suite": "A suite", "script": "a.sh", "revision": "v1", "date": "2026-11-17", "passed": 2,
    "skipped": 0, "total": 4,
    "failing": [{"test": "a.py::f[1]", "reason": "one"}, {"test": "a.py::g", "reason": "two"}],
}  # fmt: skip
GOOD = "FAILED a.py::f[1] - AssertionError: 1 - 2\nFAILED a.py::g\n2 failed, 2 passed in 1s\n"


def test_scores_are_read() -> None:
    assert score("FAILED a\n2 failed, 140 passed, 7 warnings in 3.2s\ndetails: x") == 140
    assert score("3 failed, 82 passed in 1s\n82 of 84 of the tests passed\n") == 82
    assert score("ok  plot_a\n11 of 11 gallery scripts run\n") == 11
    with pytest.raises(ValueError, match="no score"):
        score("Segmentation fault\n")


def test_failing_tests_are_read() -> None:
    assert failing(GOOD) == ["a.py::f[1]", "a.py::g"]
    assert failing("ok      plot_a\nFAILED  plot_b (1): KeyError: 3\n") == ["plot_b"]


def test_what_got_worse_is_told() -> None:
    assert worse(GOOD, RECORD) == []
    renamed = GOOD.replace("a.py::g", "a.py::h")
    assert worse(renamed, RECORD) == ["a.py::h fails and did not"]
    fewer = GOOD.replace("2 passed", "1 passed")
    assert worse(fewer, RECORD) == ["1 passed, 2 are recorded"]
    assert worse(fewer, RECORD, whole=False) == []
    assert worse("ERROR a.py - ImportError\n0 passed", RECORD, whole=False) == [
        "a.py fails and did not"
    ]


def test_names_that_a_script_has_cut_are_known() -> None:
    long = "a.py::" + "f" * 200
    record = {**RECORD, "failing": [{"test": long, "reason": "one"}]}
    assert worse(f"FAILED {long[:140]}\n2 passed", record) == []


def test_a_record_is_made_of_a_run() -> None:
    first = (
        "a.py::f[1] PASSED [ 10%]\na.py::f[x y] SKIPPED (no GPU) [ 20%]\n"
        "[gw0] [ 30%] PASSED a.py::h \n[gw1] [ 40%] FAILED a.py::f[2] \na.py::g FAILED\n"
    )
    assert outcomes(first) == {
        "a.py::f[1]": "passed", "a.py::f[x y]": "skipped", "a.py::h": "passed",
        "a.py::f[2]": "failing", "a.py::g": "failing",
    }  # fmt: skip
    new = updated(RECORD, [first, "a.py::g PASSED [100%]\n"], "2026-11-18")
    assert (new["passed"], new["skipped"], new["total"]) == (3, 1, 5)
    assert new["failing"] == [{"test": "a.py::f[2]", "reason": "one"}]
    quiet = updated(RECORD, [GOOD], "2026-11-18")
    assert {**quiet, "date": RECORD["date"]} == RECORD


def test_reasons_are_taken_over_where_there_is_one() -> None:
    reasons = Reasons(
        [*RECORD["failing"], {"test": "a.py::k[1]", "reason": "x"},
         {"test": "a.py::k[2]", "reason": "y"}]
    )  # fmt: skip
    assert [reasons.of(t) for t in ("a.py::g", "a.py::f[9]", "a.py::k[3]", "a.py::z")] == [
        "two", "one", "", "",
    ]  # fmt: skip
