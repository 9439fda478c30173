"""The cut between forward and backward: right for every model, and small."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.errors import ModelError, UnknownNameError
from onnxtrain.passes.partition import Partition, partition

RNG = np.random.default_rng(11)


def built(text: str, wrt: list[str]) -> tuple[onnx.ModelProto, Partition]:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    whole = onnxtrain.differentiate(model, wrt=wrt, vjp=True)
    outputs = [o.name for o in model.graph.output]
    seeds = [f"{o}_grad" for o in outputs]
    return whole, partition(whole, seeds, [f"{n}_grad" for n in wrt])


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    results = session.run(None, {n: feeds[n] for n in names})
    return {o.name: r for o, r in zip(session.get_outputs(), results)}


CASES: list[tuple[str, str, list[str], list[str]]] = [
    ("tanh keeps its answer, which is an output", "g (float[N] x) => (float[N] y) { y = Tanh(x) }",
     ["x"], ["y"]),
    ("a product keeps nothing but its inputs",
     "g (float[N] x, float[N] w) => (float[N] y) { y = Mul(x, w) }", ["x", "w"], []),
    ("relu: the activation, not what went in",
     """g (float[N,4] x, float[4,3] w, float[3,2] v) => (float[N,2] y)
        { z = MatMul(x, w) a = Relu(z) y = MatMul(a, v) }""", ["w", "v"], ["a"]),
    ("a view is taken again from what it looks at",
     """g (float[N,4] x, float[4,6] w, float[6] v) => (float[M] y)
        <int64[2] s = {-1, 6}>
        { z = MatMul(x, w) e = Exp(z) r = Reshape(e, s) y = MatMul(r, v) }""",
     ["w", "v"], ["e"]),
    ("a boolean mask is smaller than the numbers it came from",
     """g (float[N,4] x, float[4,6] w) => (float[N,6] y)
        <float c = {0}> { z = MatMul(x, w) m = Greater(z, c) y = Where(m, z, c) }""",
     ["w"], ["m"]),
    ("dropout keeps its mask",
     """g (float[N,4] x) => (float[N,4] y) <float r = {0.5}, bool t = {1}>
        { z = Exp(x) d, mask = Dropout(z, r, t) y = Mul(d, d) }""", ["x"], ["z", "d", "mask"]),
    ("values that a body captures",
     """g (float[N] x, bool b) => (float[N] y) {
          z = Exp(x)
          y = If (b) <then_branch = t () => (float[N] p) { p = Mul(z, z) },
                      else_branch = e () => (float[N] q) { q = Neg(z) }>
        }""", ["x"], ["z"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wrt", "saved"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_halves_compute_what_the_whole_does(text: str, wrt: list[str], saved: list[str]) -> None:
    whole, parts = built(text, wrt)
    assert sorted(parts.saved) == sorted(saved)
    sizes = {"N": 3, "M": 3}
    feeds: dict[str, Any] = {}
    for value in whole.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in kind.shape.dim]
        if kind.elem_type == onnx.TensorProto.BOOL:
            feeds[value.name] = np.ones(shape, bool)
        else:
            feeds[value.name] = RNG.normal(size=shape).astype(np.float32)
    forward = run(parts.forward, feeds)
    assert list(forward)[: len(parts.outputs)] == parts.outputs
    backward = run(parts.backward, {**feeds, **forward})
    assert list(backward) == [f"{n}_grad" for n in wrt]
    if "Dropout" in text:  # another draw in another session: the relation must hold
        expected = 2 * forward["d"] * feeds["y_grad"] * forward["mask"] * 2 * forward["z"]
        np.testing.assert_allclose(backward["x_grad"], expected, rtol=1e-5)
        return
    expected_all = run(whole, feeds)
    for name, value in {**forward, **backward}.items():
        if name in expected_all:
            np.testing.assert_allclose(value, expected_all[name], rtol=1e-5, atol=1e-6)


def test_constants_go_where_they_are_read() -> None:
    _, parts = built(
        "g (float[N] x) => (float[N] y) <float[1] c = {3}> { s = Sin(x) y = Mul(s, c) }", ["x"]
    )
    assert [i.name for i in parts.backward.graph.input] == ["x", "y_grad"]
    assert "c" in [i.name for i in parts.backward.graph.initializer]


def test_wrong_names() -> None:
    whole, _ = built("g (float[N] x) => (float[N] y) { y = Tanh(x) }", ["x"])
    with pytest.raises(UnknownNameError, match="'z_grad'"):
        partition(whole, ["z_grad"], ["x_grad"])
    with pytest.raises(ModelError, match="depends on a gradient"):
        partition(whole, ["y_grad"], [])
