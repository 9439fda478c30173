"""PyTorch's own table of operators (OpInfo): every one that has a gradient, some calls of each."""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from ..cases import TorchCase

PACKAGES = ["expecttest", "hypothesis", "scipy"]
BATCH = 60
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
    calls = {name: _chosen(_count(name)) for name in _operators()}
    return [f"{n}#{c[i]}" for i in range(CALLS) for n, c in calls.items() if i < len(c)]


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
    """Those with elements, if there are any: of an empty tensor there is little to compare."""
    torch.manual_seed(0)
    samples = list(islice(info.sample_inputs("cpu", torch.float32, requires_grad=True), LOOKED_AT))
    full = [s for s in samples if not _is_empty((s.input, s.args, s.kwargs))]
    return full or samples


def _is_empty(values: Any) -> bool:
    leaves = pytree.tree_leaves(values)
    return any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in leaves)


@cache
def _count(name: str) -> int:
    return len(_samples(_operators()[name]))


def _chosen(count: int) -> list[int]:
    return sorted({count * (2 * i + 1) // (2 * CALLS) for i in range(CALLS)} & set(range(count)))
