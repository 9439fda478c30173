"""Rows of a softmax that are NaN and replaced: their gradient is zero, not NaN."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxtrain
from conformance.verdicts import judge_alone

X = np.random.default_rng(0).uniform(-1, 1, (3, 4))
MASKED = np.array([[0, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]], bool)

ENDINGS = {
    "IsNaN": "n = IsNaN(s) z = Where(n, zero, s)",
    "a whole row": "z = Where(row, zero, s)",
    "not a whole row": "not = Not(row) z = Where(not, s, zero)",
    "behind a Cast": "c = Cast<to = 1>(s) z = Where(row, zero, c)",
    "two Casts": "d = Cast<to = 11>(s) c = Cast<to = 1>(d) z = Where(row, zero, c)",
}


def gradient(ending: str, x: np.ndarray) -> tuple[np.ndarray, float]:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[n,m] x, bool[n,m] masked, bool[n,1] row, float[m] w) => (float loss)
        <float zero = {{0}}, float inf = {{-inf}}> {{
            a = Where(masked, inf, x) s = Softmax(a) {ending} q = Mul(z, z) p = Mul(q, w)
            loss = ReduceSum<keepdims = 0>(p) }}
    """)
    proto = onnxtrain.differentiate(model, wrt=["x"])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        "x": x.astype(np.float32), "masked": MASKED, "row": MASKED.all(1, keepdims=True),
        "w": np.arange(1, 5, dtype=np.float32),
    }  # fmt: skip
    loss, dx = session.run(["loss", "x_grad"], feeds)
    return dx, float(loss)


def exact(x: np.ndarray) -> float:
    """The same in float64."""
    weights = np.where(MASKED, 0.0, np.exp(x))
    total = weights.sum(1, keepdims=True)
    rows = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return float((rows**2 * np.arange(1, 5)).sum())


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_replaced_row_has_no_gradient(ending: str) -> None:
    dx, loss = gradient(ENDINGS[ending], X)
    assert loss == pytest.approx(exact(X), rel=1e-5)
    assert not dx[1].any()
    assert judge_alone(dx, exact, X, largest=1.0).word == "right"


OTHERS = {
    "the other way round": "n = IsNaN(s) b = Log(s) z = Where(n, s, b)",
    "beside it": "z = Where(row, zero, s) b = Mul(s, w)",
    "beside it, behind a Cast": "c = Cast<to = 11>(s) e = Cast<to = 1>(c) b = Mul(e, w) "
    "z = Where(row, zero, s)",
    "another choice": "z = Where(row, zero, s) b = Where(row, s, zero)",
}


@pytest.mark.parametrize("ending", list(OTHERS))
def test_rows_that_somebody_else_reads_keep_their_gradient(ending: str) -> None:
    """The Where that puts something in their place does not speak for others."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[n,m] x, bool[n,1] row, float[m] w) => (float loss) <float zero = {{0}}> {{
            s = Softmax(x) {OTHERS[ending]} q = Mul(z, z) p = Mul(q, w) t = Add(p, b)
            loss = ReduceSum<keepdims = 0>(t) }}
    """)
    proto = onnxtrain.differentiate(model, wrt=["x"])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    w, row = np.arange(1, 5, dtype=np.float32), np.array([[False], [True], [False]])
    (dx,) = session.run(["x_grad"], {"x": X.astype(np.float32), "row": row, "w": w})

    def function(x: np.ndarray) -> float:
        s = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        z, b = {
            "the other way round": (np.log(s), np.log(s)),
            "another choice": (np.where(row, 0.0, s), np.where(row, s, 0.0)),
        }.get(ending, (np.where(row, 0.0, s), s * w))
        return float((z**2 * w + b).sum())

    assert judge_alone(dx, function, X, largest=1.0).word == "right"


def test_a_result_of_the_graph_keeps_its_gradient() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[n,m] x, bool[n,1] row) => (float[n,m] z, float[n,m] s) <float zero = {0}> {
            s = Softmax(x) z = Where(row, zero, s) }
    """)
    proto = onnxtrain.differentiate(model, wrt=["x"], of=["z", "s"], vjp=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    row = np.array([[False], [True], [False]])
    seeds = {name: MASKED.astype(np.float32) * n for n, name in ((1, "z_grad"), (2, "s_grad"))}
    needed = {i.name for i in session.get_inputs()}
    seeds = {name: value for name, value in seeds.items() if name in needed}
    assert len(seeds) == 2
    (dx,) = session.run(["x_grad"], {"x": X.astype(np.float32), "row": row, **seeds})

    def function(x: np.ndarray) -> float:
        s = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return float((np.where(row, 0.0, s) * MASKED + s * MASKED * 2).sum())

    assert judge_alone(dx, function, X, largest=1.0).word == "right"


def test_elements_that_are_replaced_one_by_one_still_have_one() -> None:
    """The softmax of the others depends on them."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[n,m] x, bool[n,m] masked) => (float loss) <float zero = {0}> {
            s = Softmax(x) z = Where(masked, zero, s) q = Mul(z, z)
            loss = ReduceSum<keepdims = 0>(q) }
    """)
    proto = onnxtrain.differentiate(model, wrt=["x"])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (dx,) = session.run(["x_grad"], {"x": X.astype(np.float32), "masked": MASKED})

    def function(x: np.ndarray) -> float:
        rows = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return float((np.where(MASKED, 0.0, rows) ** 2).sum())

    assert dx[0, 2] != 0
    assert judge_alone(dx, function, X, largest=1.0).word == "right"


@pytest.mark.parametrize("pole", ["p = Log(x)", "p = Sqrt(x)", "p = Pow(x, w)"])
def test_what_is_no_number_and_replaced_has_no_gradient(pole: str) -> None:
    """In a product in between, too: the other factor's gradient is zero there, not NaN."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4] x, float[4] w) => (float loss) <float zero = {{0}}> {{
            {pole} m = Mul(p, w) n = IsNaN(m) y = Where(n, zero, m)
            loss = ReduceSum<keepdims = 0>(y) }}
    """)
    proto = onnxtrain.differentiate(model, wrt=["x", "w"])
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": [-1.0, 2.0, -3.0, 0.5], "w": [0.3, 0.4, 0.5, 0.6]}
    arrays = {name: np.array(values, np.float32) for name, values in feeds.items()}
    for gradient_of_one in session.run(["x_grad", "w_grad"], arrays):
        assert np.isfinite(gradient_of_one).all()
        assert not gradient_of_one[[0, 2]].any()
        assert gradient_of_one[[1, 3]].all()
