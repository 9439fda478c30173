"""Gradients that torch withholds are withheld in the graph too: through every door, as in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onnxtrain.compat.ort.orttrainer import experimental, optim
from onnxtrain.torch import ORTModule, ORTTrainer, ORTTrainerOptions
from onnxtrain.torch.fallback import ORTModuleTorchModelException

EXPORTERS = ["dynamo", "torchscript"]
WORDS, WIDTH, PADDING = 11, 4, 3
TOKENS = torch.tensor([[1, 3, 3, 5], [3, 0, 10, 1]])


class Classifier(nn.Module):
    """An embedding somewhere inside, and two classes per position."""

    def __init__(self, padding: int | None = PADDING, **options: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(WORDS, WIDTH, padding, **options), nn.Tanh())
        with torch.no_grad():  # torch starts with zeros there, where a mistake would not show
            self.body[0].weight.normal_()
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(tokens))


class Functional(nn.Module):
    """The function instead of the layer, its padding counted from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        rows = functional.embedding(tokens, self.weight, padding_idx=PADDING - WORDS)
        return rows[..., :2] * rows[..., 2:]


class LowLevel(Functional):
    """The operator that the function calls."""

    def forward(self, tokens: Tensor) -> Tensor:
        rows = torch.embedding(self.weight, tokens, PADDING)
        return rows[..., :2] * rows[..., 2:]


class Tied(nn.Module):
    """The embedding's weight is that of the output layer too: its gradient there stays whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH, PADDING)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.hidden(self.embed(tokens)).tanh())


class Twice(nn.Module):
    """One weight read with padding and without."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 2, PADDING)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) * functional.embedding(tokens, self.embed.weight)


class Detached(nn.Module):
    """One factor of a product is a constant to torch, and so is what no_grad computes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.a = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.a(self.embed(tokens))
        with torch.no_grad():
            scale = y.abs().mean()
        return y * y.detach() / (scale + 1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layer": Classifier,
    "first row": lambda: Classifier(0),
    "last row": lambda: Classifier(-1),
    "no padding": lambda: Classifier(None),
    "by frequency": lambda: Classifier(scale_grad_by_freq=True),
    "by frequency only": lambda: Classifier(None, scale_grad_by_freq=True),
    "function": Functional,
    "operator": LowLevel,
    "tied": Tied,
    "twice": Twice,
    "detached": Detached,
}


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def labels() -> Tensor:
    return torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]])


def trained_by_torch(model: nn.Module) -> dict[str, Tensor]:
    """Weights after one step of plain gradient descent."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss_of(model(TOKENS), labels()).backward()
    optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_ortmodule(name: str, exporter: str) -> None:
    theirs = MODELS[name]()
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    for tokens in (TOKENS, TOKENS[:, :3], TOKENS):  # with its own sizes, and with any
        for model in (ours, theirs):
            model.zero_grad()
            loss_of(model(tokens), labels()[:, : tokens.shape[1]]).backward()
        torch.testing.assert_close(ours(tokens), theirs(tokens))
        expected = {n: p.grad for n, p in theirs.named_parameters()}
        torch.testing.assert_close({n: p.grad for n, p in ours.named_parameters()}, expected)
    if name == "layer":
        assert not expected["body.0.weight"][PADDING].any()
    if name == "tied":
        assert expected["embed.weight"][PADDING].any()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_trainer(name: str, exporter: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    expected = trained_by_torch(model)
    classes = model(TOKENS).shape[-1]
    trainer = ORTTrainer(
        model,
        {
            "inputs": [("tokens", ["batch", "length"]), ("label", ["batch", "length"])],
            "outputs": [("loss", [], True), ("output", ["batch", "length", classes])],
        },
        optim.SGDConfig(lr=1.0),
        loss_fn=loss_of,
        options=ORTTrainerOptions({"exporter": exporter, "utils": {"grad_norm_clip": False}}),
    )
    trainer.train_step(TOKENS, labels())
    state = trainer.state_dict(pytorch_format=True)
    assert list(state) == list(expected)
    torch.testing.assert_close({n: torch.as_tensor(v) for n, v in state.items()}, expected)
    after = copy.deepcopy(model)
    after.load_state_dict(expected)
    torch.testing.assert_close(trainer.eval_step(TOKENS, labels())[1], after(TOKENS).detach())
    trainer.save_as_onnx(tmp_path / "saved.onnx")
    saved = onnx.load(tmp_path / "saved.onnx")
    assert not [n for n in saved.graph.node if any("barrier" in i for i in n.input)]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_accumulated_batches_and_a_scaled_loss(exporter: str) -> None:
    model = Classifier()
    before = model.body[0].weight.detach().clone()
    options = {
        "exporter": exporter,
        "batch": {"gradient_accumulation_steps": 2},
        "mixed_precision": {"enabled": True},
    }
    trainer = ORTTrainer(
        model,
        {
            "inputs": [("tokens", ["batch", 4]), ("label", ["batch", 4])],
            "outputs": [("loss", [], True), ("output", ["batch", 4, 2])],
        },
        optim.SGDConfig(lr=1.0),
        loss_fn=loss_of,
        options=ORTTrainerOptions(options),
    )
    for _ in range(2):
        trainer.train_step(TOKENS, labels())
    after = torch.as_tensor(trainer.state_dict(pytorch_format=True)["body.0.weight"])
    assert torch.equal(before[PADDING], after[PADDING])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_gradient_graph(exporter: str, tmp_path: Path) -> None:
    model, path = Classifier(), tmp_path / "gradient.onnx"
    experimental.export_gradient_graph(model, loss_of, TOKENS, labels(), path, exporter=exporter)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {"input": TOKENS.numpy(), "labels": labels().numpy()}
    feeds.update({n: p.detach().numpy() for n, p in model.named_parameters()})
    (found,) = session.run(["body.0.weight_grad"], feeds)
    loss_of(model(TOKENS), labels()).backward()
    np.testing.assert_allclose(found, model.body[0].weight.grad, atol=1e-6)


def test_the_forward_graph_has_no_trace_of_it() -> None:
    """What tells padded positions apart is needed in the backward half only."""
    ours = ORTModule(Classifier(), exporter="dynamo")
    ours(TOKENS).sum().backward()
    (kind,) = ours._graphs._kinds.values()
    forward = [n.op_type for n in kind.graphs.halves.forward.graph.node]
    assert "Where" not in forward
    assert [n.op_type for n in kind.graphs.halves.backward.graph.node].count("Where") <= 1


# --- bags -----------------------------------------------------------------------------------------

FLAT, OFFSETS = TOKENS.flatten(), torch.tensor([0, 3, 3, 5])


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("padding", [None, PADDING, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_equal_length(mode: str, padding: int | None, exporter: str) -> None:
    _compare_bags(exporter, TOKENS, mode=mode, padding_idx=padding)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_by_offset(mode: str, padding: int | None, exporter: str) -> None:
    _compare_bags(exporter, FLAT, OFFSETS, mode=mode, padding_idx=padding)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_bags_with_weights_and_a_last_offset(exporter: str) -> None:
    weights = torch.randn(8, requires_grad=True)
    ends = torch.tensor([0, 3, 3, 8])
    options = {"mode": "sum", "padding_idx": PADDING, "include_last_offset": True}
    _compare_bags(exporter, FLAT, ends, weights, **options)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_that_are_empty(mode: str, exporter: str) -> None:
    """At the beginning, and behind the last index."""
    _compare_bags(exporter, FLAT, torch.tensor([0, 0, 3, 8, 8]), mode=mode)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_bag_outside_of_the_indices_is_an_error(exporter: str) -> None:
    ours = ORTModule(nn.EmbeddingBag(WORDS, WIDTH, mode="sum"), exporter=exporter)
    ours(FLAT, torch.tensor([0, 3, 5]))
    with pytest.raises(Exception, match="out of"):
        ours(FLAT, torch.tensor([0, 3, 9]))
    with pytest.raises(Exception, match="out of"):
        ours(FLAT.masked_fill(FLAT == 0, WORDS), torch.tensor([0, 3, 5]))


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_large_bags(exporter: str) -> None:
    """Of which a session has its own kernel, also where sizes change."""
    theirs = nn.EmbeddingBag(500, 64, mode="sum")
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    for tokens, bags in ((400, 7), (900, 300), (900, 1)):
        indices = torch.randint(0, 500, (tokens,))
        offsets = torch.cat([torch.zeros(1), torch.randint(0, tokens, (bags - 1,)).sort()[0]])
        weights = torch.randn(tokens, requires_grad=True)
        again = weights.detach().clone().requires_grad_()
        mine = ours(indices, offsets.long(), weights)
        expected = theirs(indices, offsets.long(), again)
        torch.testing.assert_close(mine, expected)
        for model in (ours, theirs):
            model.zero_grad()
        seed = torch.randn_like(expected)
        mine.backward(seed)
        expected.backward(seed)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(weights.grad, again.grad)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_bags_by_frequency(exporter: str) -> None:
    """One for each word that occurs; torch's kernel divides by the counts of other words."""
    ours = ORTModule(
        nn.EmbeddingBag(WORDS, 2, mode="sum", scale_grad_by_freq=True), exporter=exporter
    )
    ours(TOKENS).sum().backward()
    occurs = torch.bincount(FLAT, minlength=WORDS) > 0
    torch.testing.assert_close(ours.weight.grad, occurs.float().unsqueeze(1).expand(-1, 2))


def _compare_bags(exporter: str, *args: Tensor, **options: Any) -> None:
    theirs = nn.EmbeddingBag(WORDS, WIDTH, **options)
    with torch.no_grad():
        theirs.weight.normal_()
    ours = ORTModule(copy.deepcopy(theirs), exporter=exporter)
    found = []
    for model in (ours, theirs):
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        result = model(*given)
        (result * torch.arange(1.0, 1 + result.numel()).reshape(result.shape)).sum().backward()
        found.append((result.detach(), model.weight.grad, given[-1].grad))
    torch.testing.assert_close(found[0], found[1])


# --- what no graph can do -------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_weights_that_change_while_they_are_read(exporter: str) -> None:
    model = nn.Embedding(WORDS, WIDTH, max_norm=0.5)
    before = model.weight.detach().clone()
    with pytest.raises(ORTModuleTorchModelException, match="max_norm"):
        ORTModule(model, exporter=exporter)(TOKENS)
    assert torch.equal(before, model.weight)

    class Normalizes(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight /= self.weight.norm()
            return super().forward(x)

    with pytest.raises(ORTModuleTorchModelException, match="'weight' in place"):
        ORTModule(Normalizes(3, 3), exporter=exporter)(torch.ones(2, 3))
