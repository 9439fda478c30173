"""Random graphs of the list of that name: a few seeds, and that a seed is a graph."""

from __future__ import annotations

import pytest

from conformance.check import check
from conformance.lists import random_graphs

NOTED = ("graph-216", "graph-474", "graph-717", "graph-946")
"""Grew into a fault each, when the list was first run."""


@pytest.mark.parametrize("name", [*random_graphs.names()[:8], *NOTED])
def test_random_graph(name: str) -> None:
    """Every gradient agrees with differences."""
    (row,) = check(name, random_graphs.case(name))
    assert row["outcome"] == "right", row


def test_a_seed_is_a_graph() -> None:
    one, other = (random_graphs.case("graph-5") for _ in range(2))
    assert one.model.SerializeToString() == other.model.SerializeToString()
    assert one.wrt == other.wrt
