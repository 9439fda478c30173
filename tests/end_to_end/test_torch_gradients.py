"""Gradients of whole exported models equal torch's autograd."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import torch

import onnxtrain

from .torch_models import MODELS, WithLoss, export


@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
@pytest.mark.parametrize("name", list(MODELS))
def test_equals_autograd(name: str, dynamo: bool) -> None:
    torch.manual_seed(0)
    build, sample = MODELS[name]
    model = WithLoss(build()).eval()
    make_weights_differ(model)
    x = sample()
    target = torch.randn_like(model.model(x))
    proto = export(model, (x, target), ["x", "target"], dynamo=dynamo, training=False)
    expected = torch_gradients(model, x, target)
    got = run(onnxtrain.differentiate(proto, wrt=list(expected)), x, target)
    for key, value in expected.items():
        compare(got[f"{key}_grad"], value, key)


def make_weights_differ(model: torch.nn.Module) -> None:
    """The TorchScript exporter ties parameters that happen to be equal, like fresh scales of 1."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.2)


def torch_gradients(model, x, target) -> dict[str, np.ndarray]:
    model.zero_grad()
    model(x, target).backward()
    return {n: p.grad.numpy().copy() for n, p in model.named_parameters() if p.grad is not None}


def run(model, x, target) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": x.numpy(), "target": target.numpy()})))


def compare(got: np.ndarray, expected: np.ndarray, name: str) -> None:
    scale = float(np.abs(expected).max()) or 1.0
    np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=1e-4, err_msg=name)
