"""Ranks that follow from what reads a value: the gradient exists wherever onnxruntime runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.graph import load
from onnxtrain.graph.infer import infer_shapes

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def model(inputs: str, nodes: str, constants: str = "", opset: int = 18) -> onnx.ModelProto:
    """The sum of squares of `y`, which the nodes compute."""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": {opset}]>
        g ({inputs}) => (float loss) <float[1] v = {{2}}{constants}> {{
            p = Mul(x, v) {nodes} s = Mul(y, y) loss = ReduceSum<keepdims = 0>(s) }}
    """)


WEIGHT = ", float[2, 1, 3] w = {1, 2, 3, 4, 5, 6}, int64[1] one = {1}"
UNSQUEEZE = "t () => (float[n, l, m] tq) { tq = Unsqueeze(p, one) }"
AS_IT_IS = "e () => (float[n, m] eq) { th = Tanh(p) eq = Identity(th) }"
SQUEEZE = "t () => (float[n, m] tq) { tq = Squeeze(p, one) }"
AS_IT_IS_3D = "e () => (float[n, l, m] eq) { eq = Identity(p) }"
INNER = (
    "q0 = If(k) <then_branch = u () => (float[n, l, m] uq) { uq = Unsqueeze(p, one) }, "
    "else_branch = w () => (float[n, m] wq) { wq = Tanh(p) }>"
)

CASES = {
    "Squeeze without axes, Concat": (
        model("float[a, b, c] x, float[d, e] z", "q = Squeeze(p) y = Concat<axis = 0>(q, z)"),
        {"x": random(3, 1, 4), "z": random(2, 4)},
    ),
    "Squeeze without axes, Concat from the back": (
        model("float[a, b, c] x, float[d, e] z", "q = Squeeze(p) y = Concat<axis = -1>(z, q)"),
        {"x": random(3, 1, 4), "z": random(3, 2)},
    ),
    "Squeeze without axes, unknown to the end": (
        model("float[a, b, c] x", "q = Squeeze(p) y = Concat<axis = 0>(q, q)"),
        {"x": random(3, 1, 4)},
    ),
    "Squeeze without axes, Unsqueeze, MatMul whose result is known": (
        model(
            "float[a, b, c] x, float[d, e] z",
            "q = Squeeze(p) u = Unsqueeze(q, one) m = MatMul(u, z) "
            "y = Transpose<perm = [2, 0, 1]>(m)",
            ", int64[1] one = {1}",
        ),
        {"x": random(3, 1, 4), "z": random(4, 2)},
    ),
    "Range of vectors with one element": (
        model(
            "float[a] x, int64[1] z",
            "n = Add(z, one) r = Range(nought, n, one) f = Cast<to = 1>(r) u = Unsqueeze(f, one) "
            "y = Mul(u, p)",
            ", int64[1] one = {1}, int64 nought = {0}",
        ),
        {"x": random(3), "z": np.array([2])},
    ),
    "If, the branch with fewer dimensions is not taken": (
        model(
            "float[a, b, c] x, bool k",
            f"q = If(k) <then_branch = {SQUEEZE}, else_branch = {AS_IT_IS_3D}> y = Conv(q, w)",
            WEIGHT,
        ),
        {"x": random(3, 1, 4), "k": np.array(False)},
    ),
    "If, the branch with more dimensions is taken": (
        model(
            "float[a, b] x, bool k",
            f"q = If(k) <then_branch = {UNSQUEEZE}, else_branch = {AS_IT_IS}> "
            "r = Relu(q) y = Conv(r, w)",
            WEIGHT,
        ),
        {"x": random(3, 4), "k": np.array(True)},
    ),
    "If inside an If": (
        model(
            "float[a, b] x, bool k, bool j",
            f"y = If(j) <then_branch = t () => (float[n, l, m] ty) {{ {INNER} ty = Conv(q0, w) }}, "
            "else_branch = e () => (float[n, l, m] ey) { ee = Unsqueeze(p, one) "
            "ey = Expand(ee, shape) }>",
            WEIGHT + ", int64[3] shape = {1, 2, 1}",
        ),
        {"x": random(3, 4), "k": np.array(True), "j": np.array(True)},
    ),
    "a pool says how many dimensions there are": (
        model("float[a, b, c, d] x", "q = Squeeze(p) y = MaxPool<kernel_shape = [2]>(q)"),
        {"x": random(3, 2, 1, 4)},
    ),
    "AffineGrid of a size given at run time": (
        model("float[n, 2, 3] x, int64[4] size", "y = AffineGrid(p, size)", opset=20),
        {"x": random(2, 2, 3), "size": np.array([2, 3, 4, 5])},
    ),
    "AffineGrid of any number of dimensions": (
        model("float[n, k, l] x, int64[m] size", "y = AffineGrid(p, size)", opset=20),
        {"x": random(2, 3, 4), "size": np.array([2, 3, 4, 5, 2])},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_where_onnxruntime_runs(name: str) -> None:
    given, feeds = CASES[name]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    onnxruntime.InferenceSession(given.SerializeToString(), options).run(None, feeds)
    wrt = ["v", "x", *(["w"] if any(i.name == "w" for i in given.graph.initializer) else [])]
    onnxtrain.check_gradient(given, wrt=wrt, inputs=feeds).raise_if_wrong()


def test_a_subgraph_tells_nothing_of_what_is_outside() -> None:
    """A branch that is not taken may read a value in a way in which it cannot be read."""
    given = model(
        "float[a, b, c] x, bool k",
        "q = Squeeze(p) y = If(k) <then_branch = t () => (ty) { ty = Conv(q, w) }, "
        "else_branch = e () => (ey) { ey = Tanh(q) }>",
        WEIGHT,
    )
    inferred = infer_shapes(load(given))
    (squeezed,) = [n.outputs[0] for n in inferred.graph if n.op_type == "Squeeze"]
    assert squeezed.shape is None
    feeds = {"x": random(3, 1, 4), "k": np.array(False)}
    onnxtrain.check_gradient(given, wrt=["v", "x"], inputs=feeds).raise_if_wrong()
