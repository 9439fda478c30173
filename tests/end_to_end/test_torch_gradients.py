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
    x = sample()
    target = torch.randn_like(model.model(x))
    proto = export(model, (x, target), ["x", "target"], dynamo=dynamo, training=False)
    expected = torch_gradients(model, x, target)
    initializers = [i.name for i in proto.graph.initializer]
    wrt = [n for n in expected if n in initializers]
    if name in ("transformer", "resnet", "unet"):
        assert len(wrt) >= 0.6 * len(expected), "the exporter kept the parameters' names"
    got = run(onnxtrain.differentiate(proto, wrt=wrt or None), x, target)
    assert len(got) > 1
    for key in wrt:
        compare(got[f"{key}_grad"], expected[key], key)
    if not wrt or name in ("lstm", "gru"):  # recurrent weights are re-packed under other names
        packed = sum(float(np.sum(v.astype(np.float64) ** 2)) for k, v in got_all(proto, x, target))
        exact = sum(float(np.sum(v.astype(np.float64) ** 2)) for v in expected.values())
        np.testing.assert_allclose(packed, exact, rtol=2e-3)


def got_all(proto, x, target):
    got = run(onnxtrain.differentiate(proto), x, target)
    return [(k, v) for k, v in got.items() if k.endswith("_grad")]


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
