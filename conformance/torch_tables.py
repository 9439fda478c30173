"""What torch's exporter gathers anew at every export: its operators that are made of others.

The answer is the same as long as no operator is registered. Of a list of operators, gathering it
takes longer than the rest of the export.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._export import utils
from torch.export import decomp_utils, exported_program

GATHERS_ALL = "_collect_all_valid_cia_ops"
GATHERS_ATEN = "_collect_all_valid_cia_ops_for_aten_namespace"
LOADS = "_materialize_cpp_cia_ops"


@functools.cache
def remember() -> None:
    """Gather once in this process; a torch without these functions is left alone."""
    for name in (LOADS, GATHERS_ATEN, GATHERS_ALL):
        original = getattr(utils, name, None)
        if original is None:
            continue
        remembered = functools.cache(original)
        for module in (utils, decomp_utils, exported_program):
            if getattr(module, name, None) is original:
                setattr(module, name, _copies(remembered))


def _copies(remembered: Any) -> Any:
    def gather() -> Any:
        answer = remembered()
        return set(answer) if answer is not None else None

    return gather
