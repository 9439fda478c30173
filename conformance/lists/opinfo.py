"""PyTorch's own table of operators (OpInfo): every one that has a gradient, some calls of each."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from ..cases import TorchCase

PACKAGES = ["expecttest", "hypothesis", "scipy"]
BATCH = 60
CALLS = 2
"""How many of an operator's sample calls are tried: evenly spread, neither first nor last."""


class Call(torch.nn.Module):
    """An operator as a module, with what the table does to its result before differentiating."""

    def __init__(self, operator: Any, finish: Any) -> None:
        super().__init__()
        self.operator, self.finish = operator, finish

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result."""
        return self.finish(self.operator(*args, **kwargs))


def names() -> list[str]:
    """One per operator and call."""
    return [f"{name}#{i}" for name in _operators() for i in _chosen(_count(name))]


def case(name: str) -> TorchCase:
    """The operator called as the table says."""
    operator_name, _, number = name.rpartition("#")
    info = _operators()[operator_name]
    sample = _samples(info)[int(number)]
    return TorchCase(
        Call(info.op, sample.output_process_fn_grad).eval(),
        (sample.input, *sample.args),
        dict(sample.kwargs),
        family="second order" if info.supports_gradgrad else "first order",
        second_order=info.supports_gradgrad,
        timing=False,
    )


def _operators() -> dict[str, Any]:
    return {
        f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name: info
        for info in op_db
        if info.supports_autograd and torch.float32 in info.dtypes
    }


def _samples(info: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(info.sample_inputs("cpu", torch.float32, requires_grad=True))


@cache
def _count(name: str) -> int:
    return len(_samples(_operators()[name]))


def _chosen(count: int) -> list[int]:
    return sorted({count * (2 * i + 1) // (2 * CALLS) for i in range(CALLS)} & set(range(count)))
