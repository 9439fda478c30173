"""PyTorch's own table of modules (ModuleInfo), a few calls of each."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

from ..cases import TorchCase

PACKAGES = ["expecttest", "numpy"]
BATCH = 40
CALLS = 3
"""How many of a module's sample calls are tried."""


def names() -> list[str]:
    """One per module and call."""
    return [f"{name}#{i}" for name in _modules() for i in range(CALLS)]


def case(name: str) -> TorchCase:
    """The module made and called as the table says."""
    module_name, _, number = name.rpartition("#")
    info = _modules()[module_name]
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=False
    )
    sample = samples[int(number)] if int(number) < len(samples) else samples[-1]
    made = sample.constructor_input
    module = info.module_cls(*made.args, **made.kwargs).eval()
    call = sample.forward_input
    return TorchCase(
        module, tuple(call.args), dict(call.kwargs), family="module", second_order=True,
        timing=False,
    )  # fmt: skip


def _modules() -> dict[str, ModuleInfo]:
    table: dict[str, Any] = {}
    for info in module_db:
        table.setdefault(info.name, info)
    return table
