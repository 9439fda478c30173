"""Fourier transforms as products: values and gradients of float64, and which stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain

CASES = {
    "real": ((3, 10, 1), "", None),
    "complex": ((3, 10, 2), "", None),
    "inverse": ((3, 9, 2), "inverse=1", None),
    "half": ((3, 12, 1), "onesided=1", None),
    "half, odd": ((3, 7, 1), "onesided=1", None),
    "back from half": ((3, 6, 2), "inverse=1, onesided=1", None),
    "back from half, odd": ((3, 6, 2), "inverse=1, onesided=1", 11),
    "back from half, cut": ((3, 9, 2), "inverse=1, onesided=1", 6),
    "back from half, filled": ((3, 3, 2), "inverse=1, onesided=1", 10),
    "cut": ((3, 10, 2), "", 7),
    "filled": ((3, 5, 2), "inverse=1", 12),
    "one point": ((3, 1, 2), "", None),
    "two points": ((3, 2, 2), "inverse=1, onesided=1", None),
    "wide": ((3, 10, 40, 2), "", None),
    "wide and real": ((2, 6, 5, 8, 2), "inverse=1, onesided=1", 10),
    "first axis": ((7, 3, 4, 2), "axis=0", None),
    "other axes": ((2, 3, 6, 4, 2), "axis=2", 9),
    "many points": ((2, 300, 2), "", None),
    "power of two": ((2, 256, 1), "onesided=1", None),
    "no rows": ((0, 6, 2), "", None),
}


def model_of(shape, attributes, points, *, batch=None, opset=18):
    sizes = ",".join(map(str, (batch or shape[0], *shape[1:])))
    length = "" if points is None else ", n"
    constants = "" if points is None else f"<int64 n = {{{points}}}>"
    said = f"<{attributes}>" * bool(attributes)
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[{sizes}] x) => (y) {constants} {{ y = DFT{said}(x{length}) }}""")


def results(model, x, dy):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(["y", "x_grad"], {"x": x, "y_grad": dy})


def exact(x, attributes, points):
    """By numpy, in double precision."""
    axis = int(attributes.partition("axis=")[2][:1] or 1)
    signal = x[..., 0].astype(np.float64) + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if "inverse=1, onesided=1" in attributes:
        return np.fft.irfft(signal, points, axis)[..., None]
    if "onesided=1" in attributes:
        y = np.fft.rfft(signal.real, points, axis)
    else:
        y = (np.fft.ifft if "inverse" in attributes else np.fft.fft)(signal, points, axis)
    return np.stack([y.real, y.imag], -1)


@pytest.mark.parametrize("batch", [None, "N"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, batch: str | None) -> None:
    shape, attributes, points = CASES[name]
    if batch and "axis=0" in attributes:
        pytest.skip("the number of points is not known then")
    model, rng = model_of(shape, attributes, points, batch=batch), np.random.default_rng(0)
    ours = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert not any(n.op_type == "DFT" for n in ours.graph.node)
    x = rng.standard_normal(shape).astype(np.float32)
    expected = exact(x, attributes, points) if x.size else None
    if expected is None:
        y, dx = results(ours, x, np.zeros(shape, np.float32))
        assert y.shape == dx.shape == shape
        return
    dy = rng.standard_normal(expected.shape).astype(np.float32)
    y, dx = results(ours, x, dy)
    np.testing.assert_allclose(y, expected, atol=3e-6 * max(1, np.abs(expected).max()))
    for _ in range(8):  # a transform is linear: its gradient along a direction is exact, too
        direction = rng.standard_normal(shape)
        change = (dy * exact(direction, attributes, points)).sum()
        assert abs((dx * direction).sum() - change) < 1e-5 * np.linalg.norm(dy) * np.linalg.norm(
            expected
        )


REAL = """<ir_version: 8, opset_import: ["": {opset}]>
    g (float[N,12,5] x) => (float[N,M,5,2] y)
    <float zero = {{{zero}}}, int64[1] last = {{-1}}, int64[1] from = {{0}}, int64[1] to = {{7}},
     int64[1] ten = {{10}}, int64[1] axis = {{1}}, int64 where = {{1}}, int64 fifteen = {{15}}> {{
    one = Unsqueeze(x, last)
    shape = Shape(one)
    zeros = Expand(zero, shape)
    pair = Concat<axis = -1>(one, zeros)
    most = Slice(pair, from, ten, axis)
    cut = Slice(most, from, to, axis)
    y = {dft}
}}"""


@pytest.mark.parametrize(("opset", "dft"), [(18, "DFT(cut)"), (20, "DFT(cut, fifteen, where)")])
@pytest.mark.parametrize("zero", ["0.0", "0.5"])
def test_a_signal_made_complex(opset: int, dft: str, zero: str) -> None:
    """Zeros are not multiplied; other imaginary parts are."""
    model = onnx.parser.parse_model(REAL.format(opset=opset, dft=dft, zero=zero))
    ours = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    types = [n.op_type for n in ours.graph.node]
    assert "DFT" not in types
    assert ("Concat" in types) == (zero != "0.0")
    rng, points = np.random.default_rng(0), 15 if "fifteen" in dft else 7
    x = rng.standard_normal((3, 12, 5)).astype(np.float32)
    signal = x[:, :7].astype(np.float64) + 1j * float(zero)
    expected = np.fft.fft(signal, points, 1)
    dy = rng.standard_normal((*expected.shape, 2)).astype(np.float32)
    y, dx = results(ours, x, dy)
    np.testing.assert_allclose(y, np.stack([expected.real, expected.imag], -1), atol=1e-5)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(7), np.arange(points)) / points)
    wanted = np.zeros(x.shape)
    wanted[:, :7] = np.einsum("kt,ntb->nkb", waves.conj(), dy[..., 0] + 1j * dy[..., 1]).real
    np.testing.assert_allclose(dx, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("shape", "points"), [((2, 512, 2), None), ((2, 513, 2), None), ((2, "N", 2), None)]
)
def test_what_stays(shape, points) -> None:
    """Where the operator is as fast, or how many points there are is not known."""
    model = model_of(shape, "", points)
    ours = onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)
    assert any(n.op_type == "DFT" for n in ours.graph.node)


def test_a_signal_that_somebody_asks_for() -> None:
    """Its gradient is of both parts."""
    model = onnx.parser.parse_model(REAL.format(opset=18, dft="DFT(cut)", zero="0.0"))
    ours = onnxtrain.differentiate(model, wrt=["pair"], of="y", vjp=True)
    assert any(n.op_type == "DFT" for n in ours.graph.node)
