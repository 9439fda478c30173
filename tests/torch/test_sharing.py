"""ORTModule and ORTTrainer that threads and processes share."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from onnxtrain.compat.ort.orttrainer import optim
from onnxtrain.errors import SharingError
from onnxtrain.torch import ORTModule, ORTTrainer, _ortmodule_cache
from tests.sharing import ChildError, in_child, needs_fork, repeat, together

from .models import Net, batches

DESC = {
    "inputs": [("x", ["batch", 5]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("out", ["batch", 3])],
}


def trainer():
    torch.manual_seed(0)
    config, options = optim.AdamConfig(lr=0.01), {"exporter": "torchscript"}
    return ORTTrainer(Net(), DESC, config, nn.functional.cross_entropy, options)


def test_the_graphs_of_a_module_are_made_once_and_used_by_all_threads(monkeypatch):
    torch.manual_seed(0)
    model = Net()
    shared, exports, trace = ORTModule(model, exporter="torchscript"), [], _ortmodule_cache.trace

    def counted(*arguments, **options):
        exports.append(arguments)
        return trace(*arguments, **options)

    monkeypatch.setattr(_ortmodule_cache, "trace", counted)
    inputs = [torch.randn(4 + i, 5) for i in range(4)]

    def passes(module, x):
        weights = list(model.parameters())
        out = module(x)
        return [out, *torch.autograd.grad(out.square().sum(), weights)]

    expected = [passes(model, x) for x in inputs]

    def compare(i):
        for found, right in zip(passes(shared, inputs[i]), expected[i]):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)

    together(*(repeat(25, lambda i=i: compare(i)) for i in range(4)))
    assert len(exports) == 1


def test_a_module_in_eval_mode_makes_its_backward_graphs_once():
    torch.manual_seed(0)
    model = Net().eval()
    shared = ORTModule(model, exporter="torchscript")
    x = torch.randn(6, 5)
    expected = torch.autograd.grad(model(x).square().sum(), model.fc1.weight)[0]

    def compare():
        found = torch.autograd.grad(shared(x).square().sum(), model.fc1.weight)[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    together(*[repeat(10, compare)] * 4)


def test_a_trainer_is_asked_while_it_trains():
    (batch,), (other,) = batches(1, 64), batches(1, 48, seed=2)
    alone, shared = trainer(), trainer()
    for _ in range(120):
        alone.train_step(*batch)
    shared.eval_step(*batch)

    def train():
        assert len(shared.train_step(*batch)[1]) == 64

    def ask():
        assert len(shared.eval_step(*other)[1]) == 48
        state = shared.state_dict()
        counts = {int(entry["Update_Count"][0]) for entry in state["optimizer"].values()}
        assert counts == {state["train_step_info"]["optimization_step"] + 1}

    together(repeat(60, train), repeat(60, train), repeat(30, ask), repeat(30, ask))
    for name, value in alone.state_dict(pytorch_format=True).items():
        np.testing.assert_array_equal(shared.state_dict(pytorch_format=True)[name], value)


def test_a_trainer_cannot_be_pickled_and_says_what_can():
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(SharingError, match=r"cannot be pickled.*state_dict"):
            attempt(trainer())


@needs_fork
def test_a_trainer_refuses_to_work_after_a_fork():
    made, (batch,) = trainer(), batches(1)
    made.train_step(*batch)
    with pytest.raises(ChildError, match=r"was made before the process was forked.*state_dict"):
        in_child(lambda: made.train_step(*batch))
    made.train_step(*batch)


@needs_fork
def test_a_module_makes_new_graphs_after_a_fork():
    torch.manual_seed(0)
    model = ORTModule(Net().eval(), exporter="torchscript")
    x = torch.randn(4, 5)
    with torch.no_grad():
        expected = model(x).numpy()

    def again():
        torch.set_num_threads(1)  # torch's own threads have stayed behind as well
        with torch.no_grad():
            return model(x).numpy(), len(model._graphs._kinds)

    found, kinds = in_child(again)
    np.testing.assert_array_equal(found, expected)
    assert kinds == 1
