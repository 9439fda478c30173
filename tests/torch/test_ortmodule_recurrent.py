"""Recurrent layers in ORTModule: values, gradients, states, lengths that change."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from onnxtrain.torch import ORTModule  # noqa: E402

TS = "torchscript"


class Tagger(nn.Module):
    """A recurrent layer whose outputs and final states all count."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(5, 8, **options)

    def forward(self, x: Any, *states: Any) -> Any:
        start = (states or None) if isinstance(self.layer, nn.LSTM) else (states or (None,))[0]
        y, last = self.layer(x, start)
        return y, (last if isinstance(last, tuple) else (last,))


class Padded(nn.Module):
    """Sequences of several lengths in one batch."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(5, 8, bidirectional=True)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths)
        return pad_packed_sequence(self.layer(packed)[0])[0]


def total(result: Any) -> Any:
    """One number that depends on every output, and differently on each element."""
    if isinstance(result, (tuple, list)):
        return sum(total(r) for r in result)
    weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
    return (result * weights).sum()


def assert_same(ours: nn.Module, theirs: nn.Module, *inputs: Any) -> None:
    """Equal values, and equal gradients of weights and inputs."""
    gradients = []
    for module in (ours, theirs):
        module.zero_grad()
        given = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
        value = total(module(*given))
        value.backward()
        found = [p.grad for p in module.parameters()]
        gradients.append((value.detach(), [*found, *(t.grad for t in given)]))
    torch.testing.assert_close(*(v for v, _ in gradients), rtol=1e-4, atol=1e-4)
    for a, b in zip(*(g for _, g in gradients)):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


KINDS = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"})]
FORMS = [{}, {"num_layers": 2}, {"bidirectional": True}, {"batch_first": True, "bias": False}]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_like_torch(kind: Any, options: dict[str, Any], form: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = Tagger(kind, **options, **form)
    ours = ORTModule(copy.deepcopy(module), exporter=TS)
    for time, batch in ((6, 3), (4, 5)):
        shape = (batch, time, 5) if form.get("batch_first") else (time, batch, 5)
        assert_same(ours, module, torch.randn(shape))


@pytest.mark.parametrize(("kind", "states"), [(nn.LSTM, 2), (nn.GRU, 1), (nn.RNN, 1)])
def test_initial_states_have_gradients(kind: Any, states: int) -> None:
    torch.manual_seed(0)
    module = Tagger(kind, num_layers=2, bidirectional=True)
    ours = ORTModule(copy.deepcopy(module), exporter=TS)
    for time, batch in ((6, 3), (4, 5)):
        starts = [torch.randn(4, batch, 8) for _ in range(states)]
        assert_same(ours, module, torch.randn(time, batch, 5), *starts)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_padded_sequences(kind: Any) -> None:
    torch.manual_seed(0)
    module = Padded(kind)
    ours = ORTModule(copy.deepcopy(module), exporter=TS)
    for lengths in ([6, 4, 1], [5, 5, 2]):
        x = torch.randn(lengths[0], 3, 5)
        assert_same(ours, module, x, torch.tensor(lengths))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_many_lengths_need_one_export_and_two_graphs(kind: Any) -> None:
    torch.manual_seed(0)
    module = Tagger(kind)
    ours = ORTModule(copy.deepcopy(module), exporter=TS)
    for time in (3, 9, 4, 7, 3, 12, 5):
        assert_same(ours, module, torch.randn(time, 2, 5))
    assert sum(map(len, ours._graphs._traced.values())) == 1
    assert len(ours._graphs._kinds) == 2  # the first length, and all others
