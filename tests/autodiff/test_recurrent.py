"""Recurrent layers: the reference against onnxruntime's kernels, gradients against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxtrain
from onnxtrain.passes.recurrent import columns
from tests.rules.cases_recurrent import CASES, layer
from tests.rules.harness import Case, arrays_of, feeds_of, forward_model, run_ort, run_reference

from .loop_models import check, check_twice, parse

torch = pytest.importorskip("torch")

ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}  # torch's gates in ONNX's order
T, N, F, H = 7, 3, 4, 6


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_the_oracle_agrees_with_onnxruntime(case: Case) -> None:
    if case.attrs.get("layout"):
        pytest.skip("onnxruntime has no batch-first layout")
    arrays = arrays_of(case)
    model = forward_model(case, arrays, np.float32, None, False)
    feeds = feeds_of(case, arrays, np.float32)
    for ours, theirs in zip(run_reference(model, feeds), run_ort(model, feeds)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_outputs_stay_the_same(case: Case) -> None:
    """The layer is rewritten for its gradient; what it computes must not change."""
    arrays = arrays_of(case)
    model = forward_model(case, arrays, np.float32, None, False)
    feeds = feeds_of(case, arrays, np.float32)
    expected = run_reference(model, feeds)
    kinds = [helper.make_tensor_value_info(o.name, TensorProto.FLOAT, None)
             for o in model.graph.output]  # fmt: skip
    del model.graph.output[:]
    model.graph.output.extend(kinds)
    graph = onnxtrain.differentiate(model, wrt=["x1"], vjp=True)
    seeds = {f"{o.name}_grad": np.ones_like(e) for o, e in zip(kinds, expected)}
    for ours, theirs in zip(run_ort(graph, {**feeds, **seeds}), expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def stacked(module: Any, kind: str, name: str, which: str) -> np.ndarray:
    """A weight of all directions in ONNX's layout."""
    found = []
    for suffix in ["", "_reverse"][: 2 if module.bidirectional else 1]:
        value = getattr(module, f"{name}_{which}_l0{suffix}")
        value = value.grad if value.grad is not None else value
        parts = np.split(value.detach().numpy(), len(ORDER[kind]))
        found.append(np.concatenate([parts[i] for i in ORDER[kind]]))
    return np.stack(found)


def onnx_layer(kind: str, both: bool, lengths: bool) -> onnx.ModelProto:
    real = TensorProto.FLOAT
    d, gates = 1 + both, len(ORDER[kind])
    shapes = {
        "x": ["T", "N", F], "W": [d, gates * H, F], "R": [d, gates * H, H],
        "B": [d, 2 * gates * H], "h0": [d, "N", H], "c0": [d, "N", H],
        "ry": ["T", d, "N", H], "rh": [d, "N", H], "rc": [d, "N", H],
    }  # fmt: skip
    lstm = kind == "LSTM"
    inputs = ["x", "W", "R", "B", "lens" if lengths else "", "h0", *["c0"] * lstm]
    outputs = ["y", "h", *["c"] * lstm]
    attributes: dict[str, Any] = {"hidden_size": H}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    if both:
        attributes["direction"] = "bidirectional"
    nodes = [helper.make_node(kind, inputs, outputs, **attributes)]
    for o in outputs:
        nodes.append(helper.make_node("Mul", [o, f"r{o}"], [f"p{o}"]))
        nodes.append(helper.make_node("ReduceSum", [f"p{o}"], [f"s{o}"], keepdims=0))
    nodes.append(helper.make_node("Sum", [f"s{o}" for o in outputs], ["loss"]))
    graph = helper.make_graph(
        nodes,
        "layer",
        [
            helper.make_tensor_value_info(n, real, s)
            for n, s in shapes.items()
            if lstm or n not in ("c0", "rc")
        ]
        + [helper.make_tensor_value_info("lens", TensorProto.INT32, ["N"])] * lengths,
        [helper.make_tensor_value_info("loss", real, [])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("lengths", [False, True], ids=["full", "packed"])
@pytest.mark.parametrize("both", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_gradients_are_those_of_torch(kind: str, both: bool, lengths: bool) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    module = getattr(torch.nn, kind)(F, H, bidirectional=both)
    weights = {
        "W": stacked(module, kind, "weight", "ih"),
        "R": stacked(module, kind, "weight", "hh"),
        "B": np.concatenate(
            [stacked(module, kind, "bias", "ih"), stacked(module, kind, "bias", "hh")], axis=1
        ),
    }
    d, spans = 1 + both, np.array([7, 4, 2], np.int32)
    names = {"x": (T, N, F), "h0": (d, N, H), "c0": (d, N, H)}
    names |= {"ry": (T, d, N, H), "rh": (d, N, H), "rc": (d, N, H)}
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in names.items()}
    if kind != "LSTM":
        del feeds["c0"], feeds["rc"]
    wrt = ["x", "W", "R", "B", "h0", *["c0"] * (kind == "LSTM")]
    graph = onnxtrain.differentiate(onnx_layer(kind, both, lengths), wrt=wrt)
    ours = run_ort(graph, {**feeds, **weights, **({"lens": spans} if lengths else {})})

    given = {n: torch.tensor(feeds[n], requires_grad=True) for n in ("x", "h0", "c0") if n in feeds}
    states = (given["h0"], given["c0"]) if kind == "LSTM" else given["h0"]
    if lengths:
        packed = torch.nn.utils.rnn.pack_padded_sequence(given["x"], spans.astype(np.int64))
        y, last = module(packed, states)
        y = torch.nn.utils.rnn.pad_packed_sequence(y)[0]
    else:
        y, last = module(given["x"], states)
    last = last if kind == "LSTM" else (last,)
    y = y.reshape(T, N, d, H).transpose(1, 2)
    loss = (y * torch.tensor(feeds["ry"])).sum()
    for value, r in zip(last, ("rh", "rc")):
        loss = loss + (value * torch.tensor(feeds[r])).sum()
    loss.backward()
    expected = {n: v.grad.numpy() for n, v in given.items()}
    expected["W"] = stacked(module, kind, "weight", "ih")
    expected["R"] = stacked(module, kind, "weight", "hh")
    expected["B"] = np.concatenate(
        [stacked(module, kind, "bias", "ih"), stacked(module, kind, "bias", "hh")], axis=1
    )
    np.testing.assert_allclose(ours[0], loss.item(), rtol=1e-5)
    for name, got in zip(wrt, ours[1:]):
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(got / scale, expected[name] / scale, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "case",
    [
        layer("RNN", b=True, h=True),
        layer("GRU", b=True, lens=True),
        layer("GRU", b=True, linear_before_reset=1, direction="reverse"),
        layer("LSTM", b=True, h=True, c=True, p=True),
        layer("LSTM", n=16, b=True, h=True, c=True),
        layer("LSTM", n=16, b=True, lens=True, p=True),
        layer("GRU", n=16, size=5, b=True, h=True),
        layer("GRU", n=16, size=5, b=True, lens=True, linear_before_reset=1),
        layer("RNN", n=16, size=5, b=True, h=True),
    ],
    ids=lambda c: c.id,
)
def test_second_derivative(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "NARROWEST", dict.fromkeys(columns.NARROWEST, 1))
    arrays = arrays_of(case)
    rng = np.random.default_rng(3)
    plain = run_reference(
        forward_model(case, arrays, np.float64, None, False), feeds_of(case, arrays, np.float64)
    )
    weights = [rng.uniform(-1, 1, o.shape) for o in plain]
    wrt = ["x0", "x1", "x2", "x3"]
    pair = [
        onnxtrain.differentiate(forward_model(case, arrays, dtype, weights, True), wrt=wrt)
        for dtype in (np.float64, np.float32)
    ]
    check_twice(*pair, feeds_of(case, arrays, np.float64), wrt)


def test_a_layer_inside_a_loop() -> None:
    text = """
g (REAL[T,N,3] x, REAL[1,15,3] w, REAL[1,15,5] r, REAL[5,3] back, int64 n) => (REAL loss) {
  yes = Constant<value=bool{1}>()
  one = Constant<value=int64[1]{1}>()
  y = Loop(n, yes, x)<body = step (int64 i, bool c, REAL[T,N,3] v) => (c2, v2) {
    c2 = Identity(c) h4 = GRU<hidden_size=5>(v, w, r) h = Squeeze(h4, one) v2 = MatMul(h, back)
  }>
  e = Exp(y) loss = ReduceSum<keepdims=0>(e)
}"""
    rng = np.random.default_rng(4)
    shapes = {"x": (3, 2, 3), "w": (1, 15, 3), "r": (1, 15, 5), "back": (5, 3)}
    feeds: dict[str, Any] = {n: rng.uniform(-1, 1, s) for n, s in shapes.items()}
    check(text, {**feeds, "n": np.array(2)}, list(shapes))


@pytest.mark.parametrize("batch", [2, 16], ids=["rows", "columns"])
def test_operators_without_gradient_are_those_of_the_model(batch: int) -> None:
    """A layer is written with Scan, Concat and Tanh; who stops at these means other nodes."""
    text = f"""
g (REAL[4,{batch},3] x, REAL[1,20,3] w, REAL[1,20,5] r) => (REAL loss) {{
  y = LSTM<hidden_size=5>(x, w, r) loss = ReduceSum<keepdims=0>(y)
}}"""
    rng = np.random.default_rng(5)
    shapes = {"x": (4, batch, 3), "w": (1, 20, 3), "r": (1, 20, 5)}
    feeds = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    stops = ["Scan", "Concat", "Tanh", "Gemm", "Squeeze"]
    graphs = [
        onnxtrain.differentiate(parse(text, "float"), wrt=["w", "r"], no_gradient=no_gradient)
        for no_gradient in ([], stops)
    ]
    for found, expected in zip(*(run_ort(graph, feeds) for graph in graphs)):
        np.testing.assert_array_equal(found, expected)
    stopped = onnxtrain.differentiate(
        parse(text, "float"), wrt=["w"], no_gradient=["LSTM"], allow_unused=True
    )
    assert [n.op_type for n in stopped.graph.node].count("LSTM") == 1
    assert not run_ort(stopped, feeds)[1].any()
