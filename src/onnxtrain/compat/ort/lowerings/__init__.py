"""The predecessor's private operators, written with standard ones: one file per family."""

from ....normalize.contrib import CONTRIB, MS
from ....normalize.rewrite import Lowering
from . import activations, indexing, losses, normalization, recurrent, spatial

FIRST: dict[tuple[str, str], Lowering] = {(MS, n): f for n, f in recurrent.FIRST.items()}
"""Gradient operators that need to see the forward operator as it is in the file."""

TABLE: dict[tuple[str, str], Lowering] = dict(CONTRIB)
"""All others."""
for _family in (activations, indexing, losses, normalization, recurrent, spatial):
    TABLE.update(((MS, name), lowering) for name, lowering in _family.TABLE.items())

PRIVATE = frozenset(name for _, name in {**TABLE, **FIRST}.keys() - CONTRIB.keys())
"""Names of the operators that only the training builds had."""
