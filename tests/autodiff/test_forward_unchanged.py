"""Differentiating changes nothing in the forward graph; passes do that, before and after.

The tests of rules, loops and whole models all run under the watch of `forward.forward_stays`. Here
is that it looks, and what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onnxtrain
from onnxtrain.autodiff import registry
from onnxtrain.errors import ModelError

from .loop_models import parse, runtime

PLAIN = """
g (REAL[N,3] x, REAL[3] w) => (REAL loss) {
  a = Mul(x, w) b = Abs(a) loss = ReduceSum<keepdims=0>(b)
}"""
LAYERS = """
g (REAL[T,N,3] x, REAL[1,20,3] w, REAL[1,20,5] r, REAL[1,15,5] u, REAL[1,15,5] v, REAL[5] s,
   REAL[5] m) => (REAL loss, REAL[5] m2) {
  one = Constant<value=int64[1]{1}>()
  h4 = LSTM<hidden_size=5>(x, w, r) h = Squeeze(h4, one)
  k4 = GRU<hidden_size=5>(h, u, v) k = Squeeze(k4, one) t = Transpose<perm=[1,2,0]>(k)
  y, m2, v2 = BatchNormalization<training_mode=1>(t, s, s, m, s)
  e = Dropout(y) loss = ReduceSum<keepdims=0>(e)
}"""
GROWING = """
g (REAL[3,3] x, REAL[3] w, int64 n) => (REAL loss, REAL[K] sums) {
  yes = Constant<value=bool{1}>()
  y, sums = Loop(n, yes, x)<body = step (int64 i, bool c, REAL[A,B] v) => (c2, v2, s) {
    c2 = Identity(c) d = Mul(v, w) f = Exp(d) v2 = Concat<axis=0>(f, v)
    s = ReduceMean<keepdims=0>(v2)
  }>
  a = ReduceMean<keepdims=0>(y) b = ReduceSum<keepdims=0>(sums) loss = Add(a, b)
}"""


@pytest.mark.parametrize("text", [PLAIN, LAYERS, GROWING], ids=["plain", "layers", "growing"])
def test_the_watch_looks(text: str, forward_stays: list[int]) -> None:
    model = parse(text, "float")
    onnxtrain.differentiate(model, wrt=["x"])
    assert len(forward_stays) == 1
    assert forward_stays[0] >= len(model.graph.node) - 1  # a constant is no node any more


def test_a_loop_that_carries_sequences_keeps_its_results() -> None:
    """Scan outputs come after what is carried, and keep their names and readers."""
    model = parse(GROWING, "float")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 3)), "w": rng.normal(size=3) / 9}
    feeds = {n: v.astype(np.float32) for n, v in feeds.items()}
    graph = onnxtrain.differentiate(model, wrt=["x", "w"])
    loop = next(n for n in graph.graph.node if n.op_type == "Loop")
    assert len(loop.input) > 3
    given = {**feeds, "n": np.array(3)}
    for found, expected in zip(runtime(graph, given), runtime(model, given)):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def rename(node: ir.Node) -> None:
    node.name = "other"


def another_operator(node: ir.Node) -> None:
    node.op_type = "Relu"


def another_operand(node: ir.Node) -> None:
    node.replace_input_with(0, node.graph.inputs[0])  # type: ignore[union-attr]


def in_front(node: ir.Node) -> None:
    new = ir.Node("", "Identity", [node.inputs[0]])
    node.graph.insert_before(node, new)  # type: ignore[union-attr]


def attribute(node: ir.Node) -> None:
    node.attributes["extra"] = ir.AttrInt64("extra", 1)


def replace(node: ir.Node) -> None:
    graph = node.graph
    assert graph is not None
    new = ir.Node("", "Abs", node.inputs, name=node.name)
    graph.insert_before(node, new)
    new.outputs[0].name, node.outputs[0].name = node.outputs[0].name, None
    node.outputs[0].replace_all_uses_with(new.outputs[0])
    graph.remove(node)


@pytest.fixture
def meddling() -> Iterator[Callable[[Callable[[ir.Node], None]], None]]:
    """Lets the rule of Abs also do something to its node."""
    known = registry.lookup("", "Abs")
    assert known is not None

    def use(meddle: Callable[[ir.Node], None]) -> None:
        def rule(op: Any, dy: Any, y: Any, x: Any) -> Any:
            meddle(op.node)
            return dy

        registry.register(["Abs"], rule, replace=True)

    yield use
    registry._RULES["", "Abs"] = known


@pytest.mark.parametrize(
    "meddle", [rename, another_operator, another_operand, in_front, attribute, replace]
)
def test_the_watch_sees(
    meddle: Callable[[ir.Node], None],
    meddling: Callable[[Callable[[ir.Node], None]], None],
) -> None:
    meddling(meddle)
    with pytest.raises((AssertionError, ModelError)):  # the second around the first
        onnxtrain.differentiate(parse(PLAIN, "float"), wrt=["x"])
