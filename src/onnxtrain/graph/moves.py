"""Weights that were written to a data file, so that no bytes are written twice.

Two tensors may be of the same bytes (a table that is looked up and multiplied with), one may be a
part of another, and two models that are written together mostly have the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Region:
    """Some bytes of a file or of a tensor in memory."""

    source: Any
    start: int
    end: int

    def has(self, other: Region) -> bool:
        """Whether another region lies inside."""
        return self.source == other.source and self.start <= other.start and other.end <= self.end


def region_of(tensor: ir.TensorProtocol) -> Region:
    """Where the bytes of a tensor are."""
    if isinstance(tensor, ir.ExternalTensor):
        start = tensor.offset or 0
        return Region(str(tensor.path), start, start + tensor.nbytes)
    return Region(id(tensor), 0, tensor.nbytes)


@dataclass
class Moves:
    """Which bytes are where now.

    Attributes:
        places: from regions to a file and an offset in it, in the order in which they were written.
    """

    places: dict[Region, tuple[str, int]] = field(default_factory=dict)
    _alive: list[ir.TensorProtocol] = field(default_factory=list, repr=False)
    _by_source: dict[Any, list[Region]] = field(default_factory=dict, repr=False)

    def find(self, tensor: ir.TensorProtocol) -> tuple[str, int] | None:
        """File and offset of a tensor's bytes, if they were written."""
        region = region_of(tensor)
        for whole in self._by_source.get(region.source, ()):
            if whole.has(region):
                file, offset = self.places[whole]
                return file, offset + region.start - whole.start
        return None

    def note(self, tensor: ir.TensorProtocol, file: str, offset: int) -> None:
        """Remember where the bytes of a tensor are written."""
        region = region_of(tensor)
        self.places[region] = file, offset
        self._by_source.setdefault(region.source, []).append(region)
        self._alive.append(tensor)  # its identity must not be given to another one
