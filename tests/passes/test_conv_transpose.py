"""Transposed convolutions as convolutions: same values and gradients, and which ones stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.passes import fast_forms

CASES = {
    "volumes": ((3, 2, 3, 4, 2), (2, 4, 3, 2, 3), ""),
    "padded volumes": ((2, 2, 4, 3, 4), (2, 3, 3, 3, 3), "pads=[1,0,2,1,1,0]"),
    "dilated volumes": ((2, 3, 4, 3, 4), (3, 3, 2, 2, 2), "dilations=[2,1,2], pads=[1,1,0,2,0,1]"),
    "volumes of points": ((2, 2, 3, 2, 3), (2, 2, 1, 1, 1), ""),
}
FEW = {
    "signals": ((500, 2, 6), (2, 4, 3), ""),
    "padded signals": ((500, 2, 6), (2, 3, 4), "pads=[1,2], dilations=[2]"),
    "strides": ((500, 2, 5), (2, 3, 4), "strides=[2], pads=[1,0], output_padding=[1]"),
    "images": ((900, 2, 3, 2), (2, 2, 3, 2), "strides=[1,2], pads=[1,0,0,1]"),
    "dilated images": ((900, 2, 2, 3), (2, 2, 3, 3), "dilations=[1,2], strides=[2,1]"),
    "tiny volumes": ((1500, 2, 2, 1, 2), (2, 2, 2, 2, 3), "pads=[0,0,1,0,0,0], strides=[1,2,1]"),
    "padding beyond the kernel": ((500, 2, 7), (2, 2, 2), "pads=[2,3]"),
}
STAY = {
    "fewer channels": ((2, 4, 3, 3, 3), (4, 2, 2, 2, 2), ""),
    "strides": ((2, 2, 3, 3, 3), (2, 4, 2, 2, 2), "strides=[1,2,1]"),
    "groups": ((2, 4, 3, 3, 3), (4, 4, 2, 2, 2), "group=2"),
    "output padding": ((2, 2, 6), (2, 2, 3), "strides=[2], output_padding=[1]"),
    "more padding than kernel": ((2, 2, 6), (2, 2, 2), "pads=[2,2]"),
    "images": ((2, 2, 4, 4), (2, 4, 3, 3), ""),
    "signals, few of them": ((63, 2, 6), (2, 4, 3), ""),
    "signals, more weights": ((100, 4, 6), (4, 8, 3), ""),
    "long signals": ((9000, 2, 17), (2, 4, 3), ""),
}


def model_of(shape, kernel, attributes, *, bias=True, batch=None):
    """y = sin(x⋆ᵀw + b) and its sum of squares."""
    x, w = (",".join(map(str, sizes)) for sizes in ((batch or shape[0], *shape[1:]), kernel))
    inputs = f"float[{x}] x, float[{w}] w" + (f", float[{kernel[1]}] b" if bias else "")
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g ({inputs}) => (float loss) {{
        y = ConvTranspose{f"<{attributes}>" * bool(attributes)}(x, w{", b" * bias}) s = Sin(y)
        loss = ReduceSumSquare<keepdims=0>(s) }}""")


def results(content, feeds):
    session = onnxruntime.InferenceSession(content)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


@pytest.mark.parametrize(
    ("name", "batch"), [*((n, b) for n in CASES for b in (None, "N")), *((n, None) for n in FEW)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str, bias: bool, batch: str | None
) -> None:
    shape, kernel, attributes = CASES[name] if name in CASES else FEW[name]
    model = model_of(shape, kernel, attributes, bias=bias, batch=batch)
    names = ["x", "w", "b"][: 2 + bias]
    ours = onnxtrain.differentiate(model, wrt=names, of="loss")
    assert not any(n.op_type == "ConvTranspose" for n in ours.graph.node)
    assert any(n.op_type == "Conv" for n in ours.graph.node) == (name in CASES)
    monkeypatch.delitem(fast_forms.FORMS, "ConvTranspose")
    plain = onnxtrain.differentiate(model, wrt=names, of="loss")
    assert any(n.op_type == "ConvTranspose" for n in plain.graph.node)
    rng = np.random.default_rng(0)
    sizes = {"x": shape, "w": kernel, "b": kernel[1:2]}
    feeds = {n: rng.standard_normal(sizes[n]).astype(np.float32) for n in names}
    values, expected = (results(m.SerializeToString(), feeds) for m in (ours, plain))
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, rtol=1e-4, atol=1e-3, err_msg=key)


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name: str) -> None:
    graded = onnxtrain.differentiate(model_of(*STAY[name]), wrt=["w"], of="loss")
    assert any(n.op_type == "ConvTranspose" for n in graded.graph.node)
