"""The cost model in the guide: its table is what the model gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.distributed_scaling import NETWORKS, predict

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cluster.md"
COMPUTE, NBYTES = 0.121, 8.43e6
HERE = "as measured here"
LARGE = {
    f"{name}, {way}": (name, buckets)
    for name in NETWORKS
    for way, buckets in (("plain", 1), ("overlapped", 16))
}
"""Rows of the table for 100 M parameters → network and number of buckets."""


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
    assert set(rows) == {*networks, *LARGE}
    for name, (bandwidth, latency) in networks.items():
        for ranks, told in zip((8, 64, 512), rows[name], strict=True):
            found = 1e3 * predict(ranks, COMPUTE, 0.0, NBYTES, bandwidth, latency)
            assert told == pytest.approx(found, abs=1.0), (name, ranks)


@pytest.mark.parametrize("name", LARGE)
def test_the_table_of_a_large_model_too(name):
    network, buckets = LARGE[name]
    for ranks, told in zip((8, 64, 512), dict(table())[name], strict=True):
        backward = COMPUTE * 2 / 3
        found = predict(ranks, COMPUTE, 0.0, 400e6, *NETWORKS[network], buckets, backward)
        assert told == pytest.approx(1e3 * found, abs=1.0), (name, ranks)


def test_overlap_in_the_model():
    def shown(buckets, backward, nbytes=1e9):
        return predict(2**20, 3.0, 0.0, nbytes, 1e9, 0.0, buckets, backward) - 3.0

    assert shown(1, 2.0) == pytest.approx(2.0, rel=1e-5), "one bucket hides nothing"
    assert shown(4, 2.0) == pytest.approx(0.5, rel=1e-5), "the last of four always shows"
    assert shown(4, 0.4) == pytest.approx(2.0 - 0.3, rel=1e-5), "little to compute, little hidden"
    late = predict(2, 1.0, 0, 0, 1, 1e-3, 8, 0.5)
    assert late == pytest.approx(1.002), "every bucket has its latency, that of the last shows"


def test_the_model_has_the_right_limits():
    assert predict(1, 2.0, 0.5, 1e9, 1e9, 1.0) == 2.5, "alone there is nothing to exchange"
    many = predict(2**20, 0.0, 0.0, 1e9, 1e9, 0.0)
    assert many == pytest.approx(2.0, rel=1e-5), "every byte goes out and comes in once"
    assert predict(512, 0, 0, 0, 1, 1e-6) == pytest.approx(18e-6), "messages grow with log2(P)"
