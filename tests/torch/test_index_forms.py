"""What is added or read by number: as torch does it, through both exporters."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from onnxtrain.torch import ORTModule  # noqa: E402
from onnxtrain.torch.fallback import ORTModuleTorchModelException  # noqa: E402
from tests.torch.test_ortmodule import TS  # noqa: E402

TWICE = torch.tensor([0, 2, 0, 2, 2])
PLACES = torch.tensor([[0, 2, 0, 2, 2], [1, 1, 1, 0, 0], [3, 3, 0, 0, 1], [2, 2, 2, 2, 2]])
BEHIND, BEFORE = torch.tensor([-1, 0, -2, 1, -1]), torch.tensor([1, -1, 0, 0, 2])

FORMS: dict[str, Any] = {
    "index_add": lambda x, s: torch.index_add(x, 1, TWICE, s),
    "index_add, times a number": lambda x, s: torch.index_add(x, 1, TWICE, s, alpha=2.5),
    "index_add of a tensor": lambda x, s: x.index_add(-1, TWICE, source=s),
    "index_add in place": lambda x, s: (x * 1).index_add_(1, TWICE.int(), s),
    "index_add of rows": lambda x, s: x.index_add(0, TWICE[:4], s) * s,
    "index_add of a vector": lambda x, s: x[0].index_add(0, TWICE, s[0]) * s,
    "scatter_add": lambda x, s: x.scatter_add(1, PLACES, s),
    "index_put, added": lambda x, s: x.index_put((TWICE, BEFORE), s[0], accumulate=True),
    **{
        f"scatter_reduce, {how}{', without itself' * (not own)}": (
            lambda x, s, how=how, own=own: x.scatter_reduce(1, PLACES, s, how, include_self=own)
        )
        for how in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
    },
    "scatter_reduce in place": lambda x, s: (x * 1).scatter_reduce_(1, PLACES, s, reduce="mean"),
    "two lists": lambda x, s: x[BEHIND, BEFORE] * s[0],
    "two lists in Python": lambda x, s: x[[-1, 0, 2], [0, -2, 1]] * s[0, :3],
    "a list and a mask": lambda x, s: (
        x[torch.tensor([True, False, True, True]), torch.tensor([0, -1, 2])] * s[0, :3]
    ),
    "lists behind others": lambda x, s: x[None, ..., BEHIND, BEFORE] * s[0],
    "lists around a slice": lambda x, s: (
        (x[:, None] * s[..., None, :])[BEHIND, :, BEFORE] * s[0, :, None]
    ),
    "one list": lambda x, s: x[:, BEHIND] * s,
    "softplus": lambda x, s: functional.softplus(x, 3.0, 1.0) * s,
}
REFUSED = {("a list and a mask", "dynamo")}


class Of(nn.Module):
    """A function of two arguments."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, s: torch.Tensor) -> Any:
        return self.function(x, s)


@pytest.mark.parametrize("exporter", [TS, "dynamo"])
@pytest.mark.parametrize("name", FORMS)
def test_by_number(name: str, exporter: str) -> None:
    if (name, exporter) in REFUSED:
        with pytest.raises(ORTModuleTorchModelException, match="cannot be exported"):
            ORTModule(Of(FORMS[name]), exporter=exporter)(torch.ones(4, 5), torch.ones(4, 5))
        return
    torch.manual_seed(0)
    values = torch.randn(2, 4, 5)
    module, found = Of(FORMS[name]), []
    for call in (module, ORTModule(module, exporter=exporter)):
        x, s = (value.clone().requires_grad_() for value in values)
        result = call(x, s)
        (result * torch.arange(1.0, result.numel() + 1).reshape(result.shape)).sum().backward()
        found.append((result, x.grad, s.grad))
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
