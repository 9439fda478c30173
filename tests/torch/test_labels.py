"""Labels in ORTModule and ORTTrainer: ignored as in PyTorch, refused where PyTorch refuses them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from onnxtrain.compat.ort.orttrainer import optim
from onnxtrain.errors import LabelError
from onnxtrain.torch import ORTModule, ORTTrainer

GOOD = torch.tensor([0, 2, 1, 2])
SOME = torch.tensor([0, -100, 2, -100])
X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


class Classifier(nn.Module):
    def __init__(self, loss="cross_entropy"):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.loss = nn.Linear(5, 3), loss

    def forward(self, x, labels=None):
        scores = self.layer(x)
        if self.loss == "nll_loss":
            scores = torch.log_softmax(scores, 1)
        return getattr(nn.functional, self.loss)(scores, labels), scores


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_ortmodule(loss, exporter, monkeypatch):
    model = Classifier(loss)
    twin, wrapped = copy.deepcopy(model), ORTModule(model, exporter=exporter)
    for labels in (GOOD, SOME, torch.full((4,), -100), GOOD):
        for module in (wrapped, twin):
            module.zero_grad()
            value, _ = module(X, labels=labels)
            value.backward()
        assert value.isnan() == (labels < 0).all()
        torch.testing.assert_close(model.layer.weight.grad, twin.layer.weight.grad)
    for mode in (True, False):
        wrapped.train(mode)
        wrapped(X, labels=GOOD)
        for bad in (-1, 3, -(2**63)):
            labels = GOOD.clone()
            labels[2] = bad
            with pytest.raises(LabelError, match=f"'labels' has the label {bad} in row 2,"):
                wrapped(X, labels=labels)
            with torch.no_grad(), pytest.raises(LabelError, match="classes 0 to 2, or -100"):
                wrapped(X, labels=labels)
    with pytest.raises(IndexError, match="Target -1 is out of bounds"):  # torch's, when it traces
        ORTModule(Classifier(loss))(X, torch.tensor([0, 1, -1, 2]))


def test_ortmodule_names_the_place_of_an_argument():
    wrapped = ORTModule(Classifier())
    wrapped(X, GOOD)
    with pytest.raises(LabelError, match="'argument 1' has the label 7 in row 0,"):
        wrapped(X, torch.tensor([7, 0, 0, 0]))


def test_ortmodule_with_shifted_labels():
    """A language model's labels are cut before the loss sees them: the run fails instead."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(5, 3)

        def forward(self, x, labels):
            scores = self.layer(x)[:, :-1].reshape(-1, 3)
            return nn.functional.cross_entropy(scores, labels[:, 1:].reshape(-1))

    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(2))
    labels = torch.tensor([[-7, 1, -100, 2], [-7, 0, 2, -100]])  # the first is never looked at
    model = Shifted()
    wrapped = ORTModule(model)
    torch.testing.assert_close(wrapped(x, labels), copy.deepcopy(model)(x, labels))
    labels[1, 2] = -1
    with pytest.raises(Exception, match="Out of range"):
        wrapped(x, labels)


@pytest.mark.parametrize("steps", [1, 2])
def test_orttrainer(steps):
    description = {
        "inputs": [("x", ["batch", 5]), ("label", ["batch"])],
        "outputs": [("loss", [], True), ("out", ["batch", 3])],
    }

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(x)

    twin = Scores()
    trainer = ORTTrainer(
        Scores(), description, optim.SGDConfig(lr=0.1), nn.CrossEntropyLoss(),
        {"exporter": "torchscript", "batch": {"gradient_accumulation_steps": steps}},
    )  # fmt: skip
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for count, labels in enumerate((GOOD, SOME, SOME, GOOD), 1):
        loss = nn.functional.cross_entropy(twin(X), labels)
        torch.testing.assert_close(trainer.train_step(X, labels)[0], loss.detach())
        (loss / steps).backward()
        if count % steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    wrong = GOOD.clone()
    wrong[3] = -1
    for step in (trainer.train_step, trainer.eval_step):
        with pytest.raises(LabelError, match="'label' has the label -1 in row 3,"):
            step(X, wrong)
