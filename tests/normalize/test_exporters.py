"""Models as torch's two exporters and onnxruntime's optimizer write them."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest

import onnxtrain
from onnxtrain.graph import load
from onnxtrain.graph.parameters import float_initializers
from onnxtrain.normalize import normalize

from .compare import assert_same, normalized, operators

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):  # type: ignore[misc,name-defined]
    """A transformer block with everything that optimizers like to fuse."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        n, t, d = x.shape
        q, k, v = (f(x).reshape(n, t, 2, 8).transpose(1, 2) for f in (self.q, self.k, self.v))
        w = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1)
        x = self.first(x + self.o((w @ v).transpose(1, 2).reshape(n, t, d)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Convolutions(nn.Module):  # type: ignore[misc,name-defined]
    """A small image network: BatchNorm, residual, pooling, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.norm(self.a(x)))
        h = nn.functional.max_pool2d(h + torch.sigmoid(self.b(h)), 2)
        h = nn.functional.interpolate(self.up(h), scale_factor=2.0)
        return self.head(h.mean((2, 3)))


class Recurrent(nn.Module):  # type: ignore[misc,name-defined]
    """Embedding, LSTM, head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(11, 8), nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.table(x))[0][:, -1])


class Branches(nn.Module):  # type: ignore[misc,name-defined]
    """Shape arithmetic, padding, slicing, clipping, stacking."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6))

    def forward(self, x: Any) -> Any:
        y = nn.functional.pad(x * self.w, (1, 1))[:, 1:-1]
        y = torch.clamp(y, -0.5, 0.5).reshape(x.shape[0], 2, 3)
        return torch.stack([y.sum(-1), y.amax(-1), y.std(-1)], -1)


MODULES: dict[str, tuple[Any, Any]] = {
    "transformer": (Block, lambda: torch.randn(2, 5, 16)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randint(0, 11, (2, 7))),
    "branches": (Branches, lambda: torch.randn(4, 6)),
}


def export(name: str, *, dynamo: bool, opset: int) -> tuple[onnx.ModelProto, dict, Any]:
    torch.manual_seed(0)
    build, sample = MODULES[name]
    module, x = build().eval(), sample()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(
                module, (x,), dynamo=True, opset_version=opset, verbose=False,
                input_names=["x"], dynamic_shapes=({0: torch.export.Dim("batch")},),
            )  # fmt: skip
            return program.model_proto, {"x": x.numpy()}, module
        buffer = io.BytesIO()
        torch.onnx.export(
            module, (x,), buffer, dynamo=False, opset_version=opset, input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue()), {"x": x.numpy()}, module


@pytest.mark.parametrize(("dynamo", "opset"), [(False, 11), (False, 13), (False, 17), (True, 18)])
@pytest.mark.parametrize("name", list(MODULES))
def test_torch_exports(name: str, dynamo: bool, opset: int) -> None:
    model, feeds, module = export(name, dynamo=dynamo, opset=opset)
    after = normalized(model)
    assert_same(model, after, feeds, rtol=1e-4, atol=1e-5)
    assert all(not n.domain for n in after.graph.node)
    ranks = [v for n in normalize(load(model)).graph for v in n.outputs if v.shape is None]
    assert not ranks
    kept = {t.name for t in after.graph.initializer}
    before = {t.name for t in model.graph.initializer}
    assert before <= kept | {t for t in before if t.startswith("val_")}, before - kept
    named = {n for n, _ in module.named_parameters()}
    assert named & before <= set(float_initializers(normalize(load(model))))


@pytest.mark.parametrize("name", ["transformer", "convolutions"])
def test_models_that_onnxruntime_optimised(name: str, tmp_path: Path) -> None:
    model, feeds, _ = export(name, dynamo=False, opset=17)
    path = tmp_path / "optimised.onnx"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(path)
    fused = {n.op_type for n in optimised.graph.node if n.domain == "com.microsoft"}
    assert fused, "nothing was fused: the test tests nothing"
    after = normalized(optimised)
    assert not any("." in o for o in operators(after))
    assert_same(optimised, after, feeds, rtol=1e-4, atol=1e-5)
    onnxtrain.differentiate(optimised, vjp=True)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dynamo", [True, False])
def test_embedding_bags(mode: str, dynamo: bool) -> None:
    """A Loop that appends to a sequence (dynamo), decided branches in its body; or a plain Loop."""
    torch.manual_seed(0)
    module = nn.EmbeddingBag(10, 5, mode=mode)
    words, offsets = torch.randint(0, 10, (12,)), torch.tensor([0, 3, 7])
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (words, offsets), buffer, dynamo=dynamo, verbose=False,
            input_names=["words", "offsets"], output_names=["y"],
        )  # fmt: skip
    model = onnx.load_from_string(buffer.getvalue())
    gradient = onnxtrain.differentiate(model, wrt=["weight"], vjp=True)
    seed = torch.randn(3, 5)
    (module(words, offsets) * seed).sum().backward()
    feeds = {"words": words.numpy(), "offsets": offsets.numpy(), "y_grad": seed.numpy()}
    session = ort.InferenceSession(gradient.SerializeToString())
    (found,) = session.run(["weight_grad"], feeds)
    torch.testing.assert_close(torch.tensor(found), module.weight.grad)
