"""Selections move towards the inputs where they can, and every number stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxtrain
from onnxtrain import passes

HEAD = '<ir_version: 8, opset_import: ["": 18]>\n'
VALUES = (
    "<int64 first = {0}, int64 last = {-1}, int64[1] one = {1}, int64[1] two = {2}, "
    "int64[1] end = {9223372036854775807}, int64[1] minus = {-1}, "
    "int64[3] flat = {0, 5, 6}, int64[2] rows = {-1, 6}, int64[4] heads = {0, 5, 2, 3}, "
    "float rate = {0.5}, float half = {0.5}, float unit = {1}, float r2pi = {0.7978845608}, "
    "float cubic = {0.044715}>"
)
INPUTS = "(float[B,5,6] x, float[6,6] w, float[6,4] v, float[6] s, float[1,5,6] p, float[B,5,5] a)"
FEEDS = {"x": (2, 5, 6), "w": (6, 6), "v": (6, 4), "s": (6,), "p": (1, 5, 6), "a": (2, 5, 5)}

# what is computed, and the operators through which `y` is selected before, not after, them
MOVES = {
    "product": ("h = MatMul(x, w) y = Gather<axis=1>(h, first)", ["h"]),
    "last position": ("h = MatMul(x, w) g = Relu(h) y = Gather<axis=1>(g, last)", ["h", "g"]),
    "slice": ("h = MatMul(x, w) z = Slice(h, one, two, one) y = Squeeze(z, one)", ["h"]),
    "last slice": ("h = MatMul(x, w) z = Slice(h, minus, end, one) y = Squeeze(z, one)", ["h"]),
    "broadcast": (
        "k = Add(x, p) m = Mul(k, s) h = MatMul(m, w) y = Gather<axis=1>(h, first)",
        ["k", "m", "h"],
    ),
    "normalization": (
        "n = LayerNormalization(x, s) h = MatMul(n, w) y = Gather<axis=1>(h, first)",
        ["n", "h"],
    ),
    "residual": (
        "n = LayerNormalization(x, s) h = MatMul(n, w) r = Add(n, h) y = Gather<axis=1>(r, first)",
        ["n", "h", "r"],
    ),
    "attention": (
        (
            "q = MatMul(x, w) k = Transpose<perm=[0,2,1]>(x) c = MatMul(q, k) t = Softmax(c) "
            "h = MatMul(t, x) y = Gather<axis=1>(h, first)"
        ),
        ["q", "c", "t", "h"],
    ),
    "heads": (
        (
            "q = MatMul(x, w) r = Reshape(q, heads) t = Transpose<perm=[0,2,1,3]>(r) e = Exp(t) "
            "b = Transpose<perm=[0,2,1,3]>(e) h = Reshape(b, flat) y = Gather<axis=1>(h, first)"
        ),
        ["q", "r", "e", "b", "h"],
    ),
    "gelu by tanh": (
        (
            "k = MatMul(x, w) ka = Mul(k, half) b = Mul(k, r2pi) c = Mul(k, cubic) d = Mul(c, k) "
            "e = Add(d, unit) q = Mul(b, e) t = Tanh(q) u0 = Add(t, unit) h = Mul(ka, u0) "
            "y = Gather<axis=1>(h, first)"
        ),
        ["k", "h"],
    ),
    "softplus": ("k = MatMul(x, w) h = Softplus(k) y = Gather<axis=1>(h, first)", ["k", "h"]),
    "mish": ("k = MatMul(x, w) h = Mish(k) y = Gather<axis=1>(h, first)", ["k", "h"]),
    "case of a batch": ("h = MatMul(a, x) y = Gather<axis=0>(h, last)", ["h"]),
    "dropout": ("d = Dropout(x, rate) h = MatMul(d, w) y = Gather<axis=1>(h, first)", ["d", "h"]),
}
STAYS = {
    "two positions": (
        "h = MatMul(x, w) g = Gather<axis=1>(h, first) k = Gather<axis=1>(h, last) y = Add(g, k)"
    ),
    "another reader": (
        "h = MatMul(x, w) g = Gather<axis=1>(h, first) m = ReduceMean<keepdims=0>(h, one) "
        "y = Add(g, m)"
    ),
    "columns": "h = MatMul(x, v) y = Gather<axis=2>(h, first)",
    "normalized axis": "h = LayerNormalization<axis=1>(x, p) y = Gather<axis=1>(h, first)",
    "softmax along it": "h = Softmax<axis=1>(x) y = Gather<axis=1>(h, first)",
    "merged front": "k = MatMul(x, w) h = Reshape(k, rows) y = Gather(h, first)",
}


def model_of(body: str) -> onnx.ModelProto:
    text = f"{HEAD} g {INPUTS} => (float loss) {VALUES} {{ {body} u = Mul(y, y) "
    return onnx.parser.parse_model(text + "loss = ReduceSum<keepdims=0>(u) }")


def results(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=shape).astype(np.float32) for n, shape in FEEDS.items()}
    session = ort.InferenceSession(model.SerializeToString())
    used = {i.name for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {n: v for n, v in feeds.items() if n in used})))


def shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    infos = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in infos}


def with_and_without(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    def gradient() -> onnx.ModelProto:
        return onnxtrain.differentiate(model_of(body), wrt=["x"])

    moved = gradient()
    monkeypatch.setattr(passes, "select_early", lambda model, **__: model)
    return moved, gradient()


@pytest.mark.parametrize("name", MOVES)
def test_it_moves_and_nothing_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, smaller = MOVES[name]
    moved, plain = with_and_without(body, monkeypatch)
    less, more = shapes(moved), shapes(plain)
    for value in smaller:
        sizes = [(a, b) for a, b in zip(less[value], more[value]) if a != b]
        assert [a for a, _ in sizes] == [1], (value, less[value], more[value])
    expected = results(plain)
    for key, found in results(moved).items():
        np.testing.assert_allclose(found, expected[key], rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", STAYS)
def test_it_stays_where_it_cannot_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, plain = with_and_without(STAYS[name], monkeypatch)
    assert shapes(moved)["h"] == shapes(plain)["h"]
    expected = results(plain)
    for key, found in results(moved).items():
        np.testing.assert_allclose(found, expected[key], rtol=1e-5, atol=1e-5, err_msg=key)


def test_an_output_of_the_model_stays_whole() -> None:
    model = model_of("h = MatMul(x, w) y = Gather<axis=1>(h, first)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", 1, ["B", 5, 6]))
    found = results(onnxtrain.differentiate(model, wrt=["x"], of="loss"))
    assert found["h"].shape == (2, 5, 6)


def test_a_value_that_is_differentiated_for_stays_whole() -> None:
    model = model_of("h = MatMul(x, w) y = Gather<axis=1>(h, first)")
    found = results(onnxtrain.differentiate(model, wrt=["h"]))
    assert found["h_grad"].shape == (2, 5, 6)
    assert not found["h_grad"][:, 1:].any()


def test_equal_selections_that_stop_are_one() -> None:
    body = "h = MatMul(x, w) r = Add(x, h) k = Exp(x) y0 = Gather<axis=1>(r, first) "
    body += "m = ReduceMean<keepdims=0>(k, one) y = Add(y0, m)"
    result = onnxtrain.differentiate(model_of(body), wrt=["w"])
    assert sum(n.op_type == "Gather" for n in result.graph.node) == 1
