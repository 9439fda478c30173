"""PyTorch's own table of modules (ModuleInfo), a few calls of each."""

from __future__ import annotations

from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

from ..cases import TorchCase

PACKAGES = ["expecttest", "numpy"]
BATCH = 400
CALLS = 3
"""How many of a module's sample calls are tried."""

TRAINING = ".train"


def names() -> list[str]:
    """One per module and call, the first calls of all modules first.

    Modules that do something else while they train are tried in that mode too.
    """
    known = _modules()
    modes = [*known, *(f"{n}{TRAINING}" for n, info in known.items() if info.train_and_eval_differ)]
    return [f"{name}#{i}" for i in range(CALLS) for name in modes]


def case(name: str) -> TorchCase | None:
    """The module made and called as the table says; None if it has fewer calls."""
    module_name, _, number = name.rpartition("#")
    training = module_name.endswith(TRAINING)
    info = _modules()[module_name.removesuffix(TRAINING)]
    torch.manual_seed(0)
    samples = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    if int(number) >= len(samples):
        return None
    sample = samples[int(number)]
    made = sample.constructor_input
    # Some have float64 in them whatever is asked for.
    module = info.module_cls(*made.args, **made.kwargs).train(training).float()
    call = sample.forward_input
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        module(*call.args, **call.kwargs)  # gives the parameters their shapes
    args, kwargs = tuple(call.args), dict(call.kwargs)
    family = "training" if training else "eval"
    return TorchCase(
        module, args, kwargs, family=family, exporters=("dynamo", "torchscript"),
        first_that_exports=True, second_order=True, timing=False,
    )  # fmt: skip


def _modules() -> dict[str, ModuleInfo]:
    table: dict[str, Any] = {}
    for info in module_db:
        table.setdefault(info.name, info)
    return table
