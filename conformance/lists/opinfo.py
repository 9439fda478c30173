"""PyTorch's own table of operators (OpInfo): every one that has a gradient, some calls of each."""

from __future__ import annotations

from functools import cache
from itertools import islice, tee
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from ..cases import TorchCase

PACKAGES = ["expecttest", "hypothesis", "scipy"]
BATCH = 600
CALLS = 2
"""How many of an operator's sample calls are tried: evenly spread, neither first nor last."""
LOOKED_AT = 60
"""Among how many they are chosen; some operators have more than a thousand."""


class Call(torch.nn.Module):
    """An operator as a module, with what the table does to its result before differentiating."""

    def __init__(self, operator: Any, finish: Any) -> None:
        super().__init__()
        self.operator, self.finish = operator, finish

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result."""
        return self.finish(self.operator(*args, **kwargs))


def names() -> list[str]:
    """One per operator and call, the first calls of all operators first."""
    return [f"{name}#{i}" for i in range(CALLS) for name in _operators()]


def case(name: str) -> TorchCase | None:
    """The operator called as the table says; None if it has fewer calls."""
    operator_name, _, number = name.rpartition("#")
    info = _operators()[operator_name]
    samples = _samples(info)
    chosen = _chosen(len(samples))
    if int(number) >= len(chosen):
        return None
    sample = samples[chosen[int(number)]]
    return TorchCase(
        Call(info.op, sample.output_process_fn_grad).eval(),
        (sample.input, *sample.args),
        dict(sample.kwargs),
        family="second order" if info.supports_gradgrad else "first order",
        exporters=("dynamo", "torchscript"),
        first_that_exports=True,
        second_order=info.supports_gradgrad,
        timing=False,
    )


@cache
def _operators() -> dict[str, Any]:
    return {
        f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name: info
        for info in op_db
        if info.supports_autograd and torch.float32 in info.dtypes
    }


def _samples(info: Any) -> list[Any]:
    """Those with elements, if there are any: of an empty tensor there is little to compare."""
    torch.manual_seed(0)
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=True)
    first, samples = tee(samples)
    full = (s for s in samples if not _is_empty((s.input, s.args, s.kwargs)))
    return list(islice(full, LOOKED_AT)) or list(islice(first, LOOKED_AT))


def _is_empty(values: Any) -> bool:
    leaves = pytree.tree_leaves(values)
    return any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in leaves)


def _chosen(count: int) -> list[int]:
    return sorted({count * (2 * i + 1) // (2 * CALLS) for i in range(CALLS)} & set(range(count)))
