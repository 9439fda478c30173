"""The cost model in the guide: its table is what the model gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.distributed_scaling import NETWORKS, predict

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
COMPUTE, NBYTES = 0.121, 8.43e6
HERE = "as measured here"


def table():
    """Network by network: milliseconds and percent of linear, by number of ranks."""
    text = GUIDE.read_text(encoding="utf-8").split("## On paper")[1]
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4 and re.match(r"\d+ ms, \d+ %", cells[1]):
            yield cells[0], [int(re.match(r"\d+", c)[0]) for c in cells[1:]]


def test_the_table_of_the_guide_is_what_the_model_gives():
    networks = {HERE: (33.6e6 / 0.042, 50e-6), **NETWORKS}
    rows = dict(table())
    assert set(rows) == set(networks)
    for name, (bandwidth, latency) in networks.items():
        for ranks, told in zip((8, 64, 512), rows[name], strict=True):
            found = 1e3 * predict(ranks, COMPUTE, 0.0, NBYTES, bandwidth, latency)
            assert told == pytest.approx(found, abs=1.0), (name, ranks)


def test_the_model_has_the_right_limits():
    assert predict(1, 2.0, 0.5, 1e9, 1e9, 1.0) == 2.5, "alone there is nothing to exchange"
    many = predict(2**20, 0.0, 0.0, 1e9, 1e9, 0.0)
    assert many == pytest.approx(2.0, rel=1e-5), "every byte goes out and comes in once"
    assert predict(512, 0, 0, 0, 1, 1e-6) == pytest.approx(18e-6), "messages grow with log2(P)"
