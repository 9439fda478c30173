"""Whether an exported graph computes what the module does: looked at once, at the first call.

Exporters write some functions otherwise than torch has them, and say nothing. Before a module is
exported it is called once, for real; what that gave is compared with the graph's first results.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from ..errors import outside_level

LOOSE, LOOSER = 0.02, 0.2
"""How far a result may be from torch's, relative to its length as a vector: in 32 bits, and where
anything is computed in fewer. Rounding gives a millionth; choices that rounding decides more."""
SAMPLED = 2**16
"""Elements of a result that are compared at most."""
SMALL_TYPES = (torch.float16, torch.bfloat16)


class ExportDifferenceWarning(UserWarning):
    """An exported graph computes something else than the module."""


def sample(results: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Some elements of each result that has a gradient, or could."""
    return [_sampled(r) if r.is_floating_point() and r.numel() else None for r in results]


def _sampled(result: torch.Tensor) -> torch.Tensor:
    flat = result.detach().reshape(-1)
    return flat[:: -(-flat.numel() // SAMPLED)].double().cpu()


def warn_if_different(
    name: str, exporter: str, expected: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor]
) -> None:
    """Compare with what `sample` gave."""
    is_small = torch.is_autocast_enabled("cpu") or any(r.dtype in SMALL_TYPES for r in got)
    for number, (sampled, result) in enumerate(zip(expected, got)):
        if sampled is None or not result.is_floating_point():
            continue
        off = _distance(sampled, _sampled(result))
        if not off <= (LOOSER if is_small else LOOSE):
            warnings.warn(
                f"{name} as the exporter ({exporter}) wrote it does not compute what torch does: "
                f"result {number} of this first call is off by {off:.0%}. What is trained with it "
                "would be something else. Choose the other exporter (ORTModule(..., "
                'exporter="dynamo" or "torchscript")), or let torch run the module.',
                ExportDifferenceWarning,
                stacklevel=outside_level("torch"),
            )
            return


def _distance(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Length of the difference ÷ length, where torch has numbers; ÷ that of ones if all are 0."""
    if expected.shape != got.shape:
        return 1.0
    known = expected.isfinite()
    length = float(expected[known].norm())
    apart = float((expected[known] - got[known]).norm())
    scale = length if length else float(known.sum()) ** 0.5
    return apart / scale if scale else 0.0
