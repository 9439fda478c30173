"""Second derivatives that one random direction of the first case does not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onnxtrain

RNG = np.random.default_rng(0)


def gradient_norm(model: onnx.ModelProto, wrt: str) -> onnx.ModelProto:
    """A model of ‖∂loss/∂wrt‖², with its own gradient."""
    once = onnxtrain.differentiate(model, wrt=[wrt])
    node = helper.make_node("ReduceSumSquare", [f"{wrt}_grad"], ["norm"], name="norm", keepdims=0)
    once.graph.node.append(node)
    del once.graph.output[:]
    once.graph.output.append(helper.make_tensor_value_info("norm", TensorProto.FLOAT, []))
    return onnxtrain.differentiate(once, wrt=[wrt])


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, feeds))


@pytest.mark.parametrize("length", [8, 6, 4])
def test_dft_of_a_length_given_at_run_time(length: int) -> None:
    torch = pytest.importorskip("torch")
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[2, 6, 1] x, int64 n) => (float loss) {
            y = DFT(x, n) z = Mul(y, y) q = Mul(z, y) loss = ReduceSum<keepdims = 0>(q) }
    """)
    x = RNG.random((2, 6, 1), dtype=np.float32)
    _, found = run(gradient_norm(model, "x"), {"x": x, "n": np.array(length)})
    t = torch.tensor(x[..., 0], dtype=torch.float64, requires_grad=True)
    y = torch.view_as_real(torch.fft.fft(t, n=length, dim=1))
    (first,) = torch.autograd.grad((y**3).sum(), t, create_graph=True)
    (first**2).sum().backward()
    np.testing.assert_allclose(found[..., 0], t.grad.numpy(), rtol=1e-4, atol=1e-2)
