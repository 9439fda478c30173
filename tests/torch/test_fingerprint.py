"""Whatever changes the graph of a module changes its fingerprint; its weights do not."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import fingerprint as under_test  # noqa: E402
from onnxtrain.torch.fingerprint import NoFingerprintError, fingerprint  # noqa: E402

FACTOR = 2.0
helpers = types.ModuleType("helpers_of_a_user")


class Way(Enum):
    UP = 1
    DOWN = 2


@dataclass
class Config:
    width: int = 3
    names: frozenset[str] = frozenset({"a", "b", "c"})


class Net(nn.Module):
    scale = 1.0

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * FACTOR + helpers.shift(x)  # type: ignore[attr-defined]


class OtherScale(Net):
    scale = 2.0


def shifted(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + by


def local(chunks: int) -> nn.Module:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.chunk(chunks)

    return Local()


@pytest.fixture(autouse=True)
def a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "shift", shifted(1.0), raising=False)


def hooked(by: float) -> nn.Module:
    net = Net()
    net.register_forward_hook(lambda module, given, result: result + by)
    return net


def tied(*, shared: bool) -> nn.Module:
    net = Net(other=nn.Linear(3, 3))
    if shared:
        net.other.weight = net.layer.weight
    return net


def frozen(*, flag: bool) -> nn.Module:
    net = Net()
    net.layer.weight.requires_grad_(flag)
    return net


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "number": (lambda: Net(a=1), lambda: Net(a=2)),
    "type of a number": (lambda: Net(a=1), lambda: Net(a=1.0)),
    "truth": (lambda: Net(a=1), lambda: Net(a=True)),
    "text": (lambda: Net(a="x"), lambda: Net(a="y")),
    "list": (lambda: Net(a=[1, 2]), lambda: Net(a=[2, 1])),
    "boundaries of texts": (lambda: Net(a=["ab", "c"]), lambda: Net(a=["a", "bc"])),
    "dictionary": (lambda: Net(a={"x": 1}), lambda: Net(a={"x": 2})),
    "set": (lambda: Net(a={"x", "y"}), lambda: Net(a={"x", "z"})),
    "enum": (lambda: Net(a=Way.UP), lambda: Net(a=Way.DOWN)),
    "object": (lambda: Net(a=Config(3)), lambda: Net(a=Config(4))),
    "array": (lambda: Net(a=np.zeros(2)), lambda: Net(a=np.ones(2))),
    "constant tensor": (lambda: Net(a=[torch.zeros(2)]), lambda: Net(a=[torch.ones(2)])),
    "partial": (
        lambda: Net(a=functools.partial(max, 1)),
        lambda: Net(a=functools.partial(max, 2)),
    ),
    "closure": (lambda: local(2), lambda: local(3)),
    "function": (lambda: Net(a=shifted(1)), lambda: Net(a=shifted(2))),
    "function with a cache": (
        lambda: Net(a=functools.lru_cache(shifted(1))),
        lambda: Net(a=functools.lru_cache(shifted(2))),
    ),
    "function of torch": (
        lambda: Net(a=nn.functional.gelu),
        lambda: Net(a=nn.functional.relu),
    ),
    "compiled functions of torch": (lambda: Net(a=torch.exp), lambda: Net(a=torch.tanh)),
    "method of a list": (lambda: Net(a=[1].index), lambda: Net(a=[2].index)),
    "attribute of the class": (Net, OtherScale),
    "hook": (lambda: hooked(1.0), lambda: hooked(2.0)),
    "activation": (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.GELU())),
    "option of a layer": (lambda: nn.GELU("tanh"), lambda: nn.GELU("none")),
    "size": (lambda: nn.Linear(3, 4), lambda: nn.Linear(4, 3)),
    "precision": (lambda: nn.Linear(3, 4), lambda: nn.Linear(3, 4).double()),
    "bias": (lambda: nn.Linear(3, 4), lambda: nn.Linear(3, 4, bias=False)),
    "mode": (lambda: nn.Dropout(0.1), lambda: nn.Dropout(0.1).eval()),
    "tied weights": (lambda: tied(shared=False), lambda: tied(shared=True)),
    "frozen weights": (lambda: frozen(flag=False), lambda: frozen(flag=True)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_modules_differ_and_equal_ones_do_not(what: str) -> None:
    one, other = DIFFERENT[what]
    assert fingerprint(one()) == fingerprint(one())
    assert fingerprint(other()) == fingerprint(other())
    assert fingerprint(one()) != fingerprint(other())


def test_code_and_values_that_the_module_calls_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Net())
    monkeypatch.setattr(helpers, "shift", shifted(1.0))
    assert fingerprint(Net()) == before
    monkeypatch.setattr(helpers, "shift", shifted(2.0))
    assert fingerprint(Net()) != before
    monkeypatch.undo()
    monkeypatch.setattr(helpers, "shift", shifted(1.0), raising=False)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert fingerprint(Net()) != before


def test_code_in_a_module_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("package_of_a_user")
    package.helpers = helpers  # type: ignore[attr-defined]
    helpers.package = package  # type: ignore[attr-defined]

    by_global = types.FunctionType(
        compile("package.helpers.shift", "x", "eval"), {"package": package}
    )
    before = fingerprint(Net(a=by_global))
    monkeypatch.setattr(helpers, "shift", shifted(2.0))
    assert fingerprint(Net(a=by_global)) != before


def test_what_else_is_given_counts() -> None:
    assert fingerprint(nn.ReLU(), "dynamo", 18) != fingerprint(nn.ReLU(), "dynamo", 20)


def test_a_variable_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * float(os.environ.get("A_FACTOR", "1"))

    module = Net(a=reads)
    before = fingerprint(module)
    monkeypatch.setenv("A_FACTOR", "2")
    assert fingerprint(module) != before


def test_recurrent_layers_whose_weights_are_listed_twice() -> None:
    assert fingerprint(nn.LSTM(3, 4, 2)) == fingerprint(nn.LSTM(3, 4, 2))


def evaluates(x: Any) -> Any:
    return eval("x + 1")


def imports(x: Any) -> Any:
    from . import sharing_of_a_user  # type: ignore[attr-defined]

    return sharing_of_a_user(x)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (threading.Lock(), r"Net\.a cannot be read"),
        ((i for i in (1, 2)), r"Net\.a cannot be read"),
        (evaluates, "evaluates uses eval"),
        (imports, "imports imports while it runs"),
        (np.array([object()]), "array of objects"),
        (torch.eye(2).to_sparse(), "whose values cannot be read"),
    ],
    ids=["lock", "generator", "eval", "import", "objects", "sparse"],
)
def test_what_cannot_be_told_apart_has_no_fingerprint(value: Any, told: str) -> None:
    with pytest.raises(NoFingerprintError, match=told):
        fingerprint(Net(a=[value]))


def test_what_is_too_large_or_too_deep_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "LIMIT", 1000)
    with pytest.raises(NoFingerprintError, match="too much"):
        fingerprint(Net(a=list(range(2000))))
    deep: list[Any] = []
    for _ in range(20000):
        deep = [deep]
    monkeypatch.setattr(under_test, "LIMIT", 10**6)
    with pytest.raises(NoFingerprintError, match="too deeply"):
        fingerprint(Net(a=deep))
