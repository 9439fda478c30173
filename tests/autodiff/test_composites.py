"""Gelu spelled with five operators, SiLU with two and norms with six are one function each."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain import differentiate

SPELLINGS = {
    "half last": "s = Div(x, root) e = Erf(s) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)",
    "half first": "s = Mul(x, inverse) e = Erf(s) a = Add(one, e) h = Mul(half, x) y = Mul(h, a)",
    "half inside": "s = Div(x, root) e = Erf(s) a = Add(e, one) h = Mul(half, a) y = Mul(x, h)",
    "silu": "s = Sigmoid(x) y = Mul(s, x)",
    "sigmoid read": "s = Sigmoid(x) m = Mul(x, s) y = Add(m, s)",
    "no gelu": "s = Div(x, root) e = Erf(s) a = Add(e, half) m = Mul(x, a) y = Mul(m, half)",
    "rms": "s = Mul(x, x) m = ReduceMean(s, last) a = Add(m, tiny) t = Sqrt(a) i = Reciprocal(t) "
    "n = Mul(x, i) y = Mul(n, weights)",
    "rms, one over": "s = Pow(x, two) m = ReduceMean(s, last) a = Add(tiny, m) t = Sqrt(a) "
    "i = Div(one, t) n = Mul(i, x) y = Mul(n, weights)",
    "rms, divided": "s = Mul(x, x) m = ReduceMean(s, last) a = Add(m, tiny) t = Sqrt(a) "
    "n = Div(x, t) y = Mul(n, weights)",
    "layer norm": "c = ReduceMean(x, last) d = Sub(x, c) s = Mul(d, d) m = ReduceMean(s, last) "
    "a = Add(m, tiny) t = Sqrt(a) n = Div(d, t) y = Mul(n, weights)",
    "rms, root read": "s = Mul(x, x) m = ReduceMean(s, last) a = Add(m, tiny) t = Sqrt(a) "
    "n = Div(x, t) o = Mul(n, weights) y = Add(o, t)",
    "no rms": "s = Mul(x, x) m = ReduceMean(s, last) a = Add(m, tiny) t = Sqrt(a) n = Div(t, x) "
    "y = Mul(n, tiny)",
    "inner value read": "s = Div(x, root) e = Erf(s) a = Add(e, one) m = Mul(x, a) "
    "z = Mul(m, half) y = Add(z, e)",
}


def gradient_of(body: str, names=("x",)):
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[2,5] x) => (float loss)
        <float root = {{1.4142135}}, float inverse = {{0.70710678}}, float one = {{1.0}},
         float half = {{0.5}}, float two = {{2.0}}, float tiny = {{0.01}}, int64[1] last = {{-1}},
         float[5] weights = {{1, 2, -1, 0.5, 3}}>
        {{ {body} q = Mul(y, y) loss = ReduceSum <keepdims=0> (q) }}""")
    return model, differentiate(model, wrt=list(names))


def run(model: onnx.ModelProto, x, *names):
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(list(names), {"x": x})


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_gradient_of_every_spelling(spelling):
    model, graded = gradient_of(SPELLINGS[spelling])
    x = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    (found,) = run(graded, x, "x_grad")
    step = 1e-2
    for index in np.ndindex(x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        ahead, back = (run(model, m, "loss")[0] for m in moved)
        assert np.isclose(found[index], (ahead - back) / (2 * step), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("spelling", "whole"),
    [
        ("half last", True),
        ("half first", True),
        ("half inside", True),
        ("inner value read", False),
    ],
)
def test_only_the_input_is_kept(spelling, whole):
    _, graded = gradient_of(SPELLINGS[spelling])
    backward = [n for n in graded.graph.node if "_grad" in n.name]
    inner = {"s", "e", "a", "m", "h"}
    assert inner.isdisjoint(i for n in backward for i in n.input) == whole


@pytest.mark.parametrize(
    ("spelling", "count"), [("rms", 5), ("rms, one over", 5), ("rms, divided", 5)]
)
def test_a_norm_has_a_gradient_of_five_nodes(spelling, count):
    _, graded = gradient_of(SPELLINGS[spelling])
    last = next(n.name for n in graded.graph.node if n.output[0] == "n")
    assert sum(n.name.startswith(f"{last}_grad") for n in graded.graph.node) == count


def test_a_gradient_in_the_middle_can_be_asked_for():
    _, graded = gradient_of(SPELLINGS["half last"], names=("x", "e"))
    x = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
    of_x, of_e, *_ = run(graded, x, "x_grad", "e_grad")
    _, alone = gradient_of(SPELLINGS["half last"])
    assert np.allclose(of_x, run(alone, x, "x_grad")[0], atol=1e-5)
    assert of_e.any()
