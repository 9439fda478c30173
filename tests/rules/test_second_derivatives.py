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


@pytest.mark.parametrize(
    "x",
    [
        [[2.0, 3, 4, 5], [1, -2, 3, 7]],
        [[0.0, 3, 4, 5], [1, -2, 0, 7]],  # one zero: its row and its column of the Hessian
        [[0.0, 3, 0, 5], [0, 0, 2, 7]],  # two: what they have in common
        [[0.0, 0, 0, 5], [0, 0, 0, 0]],  # more: nothing is left
    ],
)
@pytest.mark.parametrize("axes", [[1], [0], None])
def test_products_with_zeros(x: list[list[float]], axes: list[int] | None) -> None:
    torch = pytest.importorskip("torch")
    operand, constant = (", a", f"<int64[1] a = {{{axes[0]}}}>") if axes else ("", "")
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2, 4] x, float[2, 4] v) => (float loss) {constant} {{
            p = ReduceProd(x{operand}) q = Sin(p) loss = ReduceSum<keepdims = 0>(q) }}
    """)
    once = onnxtrain.differentiate(model, wrt=["x"])
    once.graph.node.extend(
        [
            helper.make_node("Mul", ["x_grad", "v"], ["vg"], name="vg"),
            helper.make_node("ReduceSum", ["vg"], ["dot"], name="dot", keepdims=0),
        ]
    )
    del once.graph.output[:]
    once.graph.output.append(helper.make_tensor_value_info("dot", TensorProto.FLOAT, []))
    twice = onnxtrain.differentiate(once, wrt=["x"])
    values, vector = np.array(x, np.float32), RNG.uniform(-1, 1, (2, 4)).astype(np.float32)
    _, found = run(twice, {"x": values, "v": vector})

    def loss(t: Any) -> Any:
        products = t.prod() if axes is None else t.prod(axes[0])
        return torch.sin(products).sum()

    hessian = torch.autograd.functional.hessian(loss, torch.tensor(values, dtype=torch.float64))
    expected = torch.einsum("ijkl,ij->kl", hessian, torch.tensor(vector, dtype=torch.float64))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-3)
