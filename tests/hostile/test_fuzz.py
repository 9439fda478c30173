"""A short run of the fuzzer, always the same inputs; ``python3 dev.py fuzz`` runs for hours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .fuzz import Inputs, Report, content_of, run
from .mutate import FORMS
from .parsers import PARSERS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
INPUTS = 400
"""Per door, of the cheapest kind."""


def missing(door: str) -> str:
    """The package that a door needs and that is not there."""
    needed = {
        "parquet": "pyarrow",
        "streamed parquet": "pyarrow",
        "parquet footer": "pyarrow",
        "streamed arrow": "pyarrow",
        "streamed tar": "PIL",
        "pictures": "PIL",
        "yaml": "yaml",
        "trainer checkpoint": "torch",
        "tokenizer.json": "tokenizers",
        "tokenizer_config.json": "tokenizers",
        "jsonl of pairs": "tokenizers",
        "parquet of text": "pyarrow",
    }
    return needed.get(door, "numpy")


@pytest.mark.parametrize("door", PARSERS)
def test_damaged_files_are_read_or_refused(door: str) -> None:
    pytest.importorskip(missing(door))
    if not PARSERS[door].can_be_tried:
        pytest.skip(f"{PARSERS[door].program} is not installed")
    report = Report()
    run(door, 0, max(INPUTS // PARSERS[door].cost, 15), report)
    problems = [f"--door {d!r} --only {n}: {o.message}\n{o.place}" for d, n, o in report.findings]
    assert not problems, "\n\n".join(problems[:5])


@pytest.mark.parametrize(
    "door",
    [
        "checkpoint",
        "old checkpoint",
        "module",
        "few bits",
        "blocks",
        "npz",
        "yaml",
        "csv",
        "new head",
        "csv of pairs",
        "gradient model",
        "serve",
        "labels of a loss",
        "streamed parquet",
        "parquet footer",
        "streamed arrow",
        "streamed tar",
        "streamed csv",
        *(door for door in PARSERS if door.startswith("JavaScript")),
    ],
)
def test_sound_files_are_read(door: str, tmp_path: Path) -> None:
    """Otherwise the fuzzer would only see refusals."""
    pytest.importorskip(missing(door))
    if not PARSERS[door].can_be_tried:
        pytest.skip(f"{PARSERS[door].program} is not installed")
    outcome = Inputs(door, tmp_path).read(-1)
    assert outcome.kind == "ok", outcome


def test_inputs_follow_from_their_number() -> None:
    seeds = [b'{"a": [1, 2, {"b": "c"}]}']
    first = [content_of("run.json", n, seeds) for n in range(50)]
    assert first == [content_of("run.json", n, seeds) for n in range(50)]
    assert len(set(first)) > 30
    assert {p.form for p in PARSERS.values()} <= {*FORMS, ""}
