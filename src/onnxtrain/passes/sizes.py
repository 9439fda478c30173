"""How large values are, as far as a graph says: what passes weigh against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable

SYMBOLIC = 64
"""What a dimension of unknown size counts for."""


def elements_of(shape: Iterable[object]) -> int:
    """How many elements a shape has, or some of its axes; open dimensions count `SYMBOLIC`."""
    return math.prod(d if isinstance(d, int) else SYMBOLIC for d in shape)
