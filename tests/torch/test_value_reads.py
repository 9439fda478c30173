"""What Python decides while a module is exported: told where it is wrong, exported again if not."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxtrain.compat.ort.orttrainer import optim
from onnxtrain.compat.ort.orttrainer.options import OptionsError
from onnxtrain.torch import (
    DebugOptions,
    FixedValueWarning,
    IODescription,
    ModelDescription,
    ORTModule,
    ORTTrainer,
    ORTTrainerOptions,
)
from onnxtrain.torch.export import ExportError
from onnxtrain.torch.fallback import ORTModuleTorchModelException
from onnxtrain.torch.value_reads import FIXED_VALUES_VARIABLE, FixedValuesError

EXPORTERS = [None, "torchscript"]
DESCRIPTION = {
    "inputs": [("x", ["batch", 3]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("output", ["batch", 3])],
}


class Gate(nn.Module):
    """Another branch for negative sums."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


class Net(nn.Module):
    def __init__(self, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(3, 3), gate or Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.first(x))


def place(module: type, text: str) -> str:
    """File and line of a line of a class."""
    lines, start = inspect.getsourcelines(module)
    number = next(start + i for i, line in enumerate(lines) if text in line)
    return rf"test_value_reads\.py:{number}: {text}"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FIXED_VALUES_VARIABLE, raising=False)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_branch_by_value_is_told_with_its_place(exporter: str | None) -> None:
    ours = ORTModule(Net(), exporter=exporter)
    pattern = r"Net reads values.*\n  gate \(Gate\), " + place(Gate, r"if x.sum")
    with pytest.warns(FixedValueWarning, match=pattern) as caught:
        ours(torch.ones(2, 3))
    (told,) = [w for w in caught if w.category is FixedValueWarning]
    assert told.filename == __file__
    ours(torch.ones(4, 3))  # once per export


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_an_error_on_request(exporter: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    options = DebugOptions(fixed_values="error")
    with pytest.raises(ORTModuleTorchModelException, match=place(Gate, r"if x.sum")):
        ORTModule(Net(), options, exporter=exporter)(torch.ones(2, 3))
    monkeypatch.setenv(FIXED_VALUES_VARIABLE, "error")
    with pytest.raises(ORTModuleTorchModelException, match=r"torch\.where or torch\.cond"):
        ORTModule(Net(), exporter=exporter)(torch.ones(2, 3))
    # what is said in the program goes first
    ORTModule(Net(), DebugOptions(fixed_values="ignore"), exporter=exporter)(torch.ones(2, 3))


@pytest.mark.parametrize("given", [{"fallback": True}, {"fallback": "UNSUPPORTED_TORCH_MODEL"}])
def test_torch_takes_over_where_it_may(given: dict[str, Any]) -> None:
    theirs = Net()
    ours = ORTModule(copy.deepcopy(theirs), **given)
    for x in (torch.ones(2, 3) * 5, torch.ones(2, 3) * -5):
        torch.testing.assert_close(ours(x), theirs(x))
    assert "reads values" in str(ours.fallback_reason)


def trainer(model: nn.Module, options: dict[str, Any]) -> Any:
    loss_fn = nn.CrossEntropyLoss()
    given = ORTTrainerOptions({"utils": {"grad_norm_clip": False}, **options})
    return ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=1.0), loss_fn=loss_fn, options=given)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_trainer(exporter: str | None) -> None:
    x, y = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.warns(FixedValueWarning, match=place(Gate, r"if x.sum")):
        trainer(Net(), {"exporter": exporter}).train_step(x, y)
    strict = {"exporter": exporter, "debug": {"fixed_values": "error"}}
    with pytest.raises(ExportError, match=place(Gate, r"if x.sum")):
        trainer(Net(), strict).train_step(x, y)
    trainer(Net(), {"debug": {"fixed_values": "ignore"}}).train_step(x, y)
    with pytest.raises(OptionsError, match="unallowed value shout"):
        trainer(Net(), {"debug": {"fixed_values": "shout"}})


def test_trainer_of_the_first_generation() -> None:
    description = ModelDescription(
        [IODescription("x", ["batch", 3]), IODescription("label", ["batch"])],
        [IODescription("loss", []), IODescription("output", ["batch", 3])],
    )
    rate = IODescription("lr", [1])

    def make(**options: Any) -> Any:
        loss_fn = nn.CrossEntropyLoss()
        return ORTTrainer(Net(), loss_fn, description, "SGDOptimizer", None, rate, **options)

    batch = torch.ones(2, 3), torch.tensor([0, 1]), torch.tensor([0.1])
    with pytest.warns(FixedValueWarning, match="gate"):
        make().train_step(*batch)
    with pytest.raises(ExportError, match="gate"):
        make(fixed_values="error").train_step(*batch)
    with pytest.raises(FixedValuesError, match="warn, error, ignore"):
        make(fixed_values="shout")


def test_a_loss_function_is_watched_too() -> None:
    def loss_fn(output: Tensor, label: Tensor) -> Tensor:
        return output.mean() if label.max() > 1 else output.sum()

    model = Net(nn.Identity())
    ours = ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.1), loss_fn=loss_fn)
    with pytest.warns(FixedValueWarning, match=r"loss function, test_value_reads.*label\.max"):
        ours.train_step(torch.ones(2, 3), torch.tensor([0, 1]))


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FixedValuesError, match="fixed_values is one of warn, error, ignore"):
        DebugOptions(fixed_values="shout")  # type: ignore[arg-type]
    monkeypatch.setenv(FIXED_VALUES_VARIABLE, "shout")
    with pytest.raises(ValueError, match=FIXED_VALUES_VARIABLE):
        DebugOptions()


class Harmless(nn.Module):
    """Reads constants, checks its input, and prints."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.isfinite().all()
        if x.isnan().any():
            raise ValueError("no number")
        steps = torch.linspace(0, 1, 3)
        if steps[1].item() > 0.4:
            x = x * 2
        f"{x.sum()}"
        return x


class Counts(nn.Module):
    """A number that the values decide."""

    def forward(self, x: Tensor) -> Tensor:
        return x * int((x > 0).sum())


class Draws(nn.Module):
    """Drops itself now and then."""

    def forward(self, x: Tensor) -> Tensor:
        return x if torch.rand(()) < 0.5 else x * 2


class Writes(nn.Module):
    """A value that passes through a slice of a fresh tensor."""

    def forward(self, x: Tensor) -> Tensor:
        fresh = torch.zeros(3)
        fresh[0] = x.sum()
        return x if fresh.max() > 1 else x * 2


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_is_a_read_and_what_is_none(exporter: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ORTModule(Net(Harmless()), exporter=exporter)(torch.ones(2, 3))
    with warnings.catch_warnings():  # dynamo follows a number, tracing fixes it
        warnings.simplefilter("ignore" if exporter else "error")
        ours = ORTModule(Net(Counts()), exporter=exporter)
        for x in (torch.ones(2, 3), -torch.ones(2, 3)):
            assert exporter or torch.equal(ours(x), ours.module(x))
    for model in (Draws(), Writes()):
        with pytest.warns(FixedValueWarning, match=type(model).__name__):
            ORTModule(Net(model), exporter=exporter)(torch.ones(2, 3))


# --- sizes ----------------------------------------------------------------------------------------


class Sizes(nn.Module):
    """Branches by a threshold, by a relation of two sizes, and by an odd number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] > 3:
            x = x * 2
        if x.shape[0] > y.shape[0]:
            x = x + y.sum()
        if y.shape[0] % 2 == 1:
            x = x * 3
        return self.layer(x)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_other_sizes_get_their_own_branch(exporter: str) -> None:
    theirs = Sizes()
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    for rows, others in [(5, 4), (7, 6), (3, 4), (7, 5), (2, 4), (5, 8), (9, 4)]:
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        torch.testing.assert_close(ours(x, y), theirs(x, y))
    if exporter == "dynamo":  # which knows the sizes that one export holds for
        assert sum(map(len, ours._graphs._traced.values())) == 4


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != 3:
            raise ValueError("three columns")
        assert x.shape[0] > 0
        return self.layer(x) / math.sqrt(3) if x.shape[0] > 3 else self.layer(x)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_trainer_exports_again(exporter: str) -> None:
    model = Scaled()
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    ours = trainer(model, {"exporter": exporter})
    for rows in (5, 2, 5, 6):
        x, y = torch.randn(rows, 3), torch.randint(0, 3, (rows,))
        loss = nn.functional.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(ours.train_step(x, y)[0], loss.detach())


class Checked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        if x.shape[0] == 0:
            raise ValueError("no rows")
        return self.layer(x)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_checks_of_sizes_cost_no_export(exporter: str) -> None:
    ours = ORTModule(Checked(), exporter=exporter)
    for rows in (5, 2, 7):
        ours(torch.randn(rows, 3))
    assert sum(map(len, ours._graphs._traced.values())) == 1
