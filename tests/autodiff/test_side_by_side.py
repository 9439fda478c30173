"""Gradients of slices that lie side by side: joined where they fill an axis, added up elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxtrain import differentiate

# what is cut out of [N, 6, 4] (axis, begin, end), and the operators that join the gradients
CASES = [
    ([(1, 0, 2), (1, 2, 6)], {"Concat"}),
    ([(1, 4, 6), (1, 0, 1), (1, 1, 4)], {"Concat"}),
    ([(2, 0, 2), (2, 2, 4)], {"Concat"}),
    ([(1, 0, 0), (1, 0, 6)], set()),
    ([(1, 0, 2), (1, 2, 6), (2, 1, 3)], {"Concat", "Pad", "Add"}),
    ([(1, 0, 2), (1, 3, 6)], {"Pad", "Add"}),  # a gap
    ([(1, 0, 3), (1, 2, 6)], {"Pad", "Add"}),  # one over the other
    ([(1, 0, 3), (2, 0, 2)], {"Pad", "Add"}),
    ([(1, 0, 2), (1, 2, 4)], {"Pad", "Add"}),  # the end is missing
    ([(1, 0, 3), (1, 3, 6), (1, 0, 3), (1, 3, 6)], {"Pad", "Add"}),
]


def model_of(slices: list[tuple[int, int, int]]) -> onnx.ModelProto:
    """Σ (k + 1)·exp(slice k)"""
    lines = []
    for k, (axis, begin, end) in enumerate(slices):
        numbers = "".join(
            f"{name}{k} = Constant<value = int64[1] {{{number}}}>()\n"
            for name, number in (("a", axis), ("b", begin), ("e", end))
        )
        lines.append(
            f"{numbers} f{k} = Constant<value = float {{{k + 1}}}>() s{k} = Slice(x, b{k}, e{k}, "
            f"a{k}) c{k} = Exp(s{k}) w{k} = Mul(c{k}, f{k}) "
            f"t{k} = ReduceSum<keepdims = 0>(w{k})"
        )
    total = ", ".join(f"t{k}" for k in range(len(slices)))
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N,6,4] x) => (float loss) '
        f"{{ {' '.join(lines)} loss = Sum({total}) }}"
    )


@pytest.mark.parametrize(("slices", "operators"), CASES)
def test_gradients_of_slices(slices: list[tuple[int, int, int]], operators: set[str]) -> None:
    graded = differentiate(model_of(slices), wrt=["x"], of="loss")
    joins = {"Concat", "Pad", "Add"}
    assert {n.op_type for n in graded.graph.node} & joins == operators
    x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    expected = np.zeros_like(x)
    for k, (axis, begin, end) in enumerate(slices):
        where = (slice(None),) * axis + (slice(begin, end),)
        expected[where] += (k + 1) * np.exp(x[where])
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    np.testing.assert_allclose(session.run(["x_grad"], {"x": x})[0], expected, rtol=1e-5)


def test_infinities_stay_where_they_are() -> None:
    graded = differentiate(model_of([(1, 0, 2), (1, 2, 6)]), wrt=["x"], of="loss")
    x = np.ones((1, 6, 4), np.float32)
    x[0, 1, 1], x[0, 4, 2] = np.nan, np.inf
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    gradient = session.run(["x_grad"], {"x": x})[0]
    assert np.isnan(gradient).sum() == 1
    assert np.isinf(gradient).sum() == 1
