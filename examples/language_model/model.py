"""A small GPT as an ONNX graph, with random weights: no framework is needed to write one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Writer:
    """Collects nodes and weights: ``w.MatMul(x, y)`` appends a node and gives its output's name."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def __getattr__(self, operator: str) -> Any:
        def append(*inputs: str, **attributes: Any) -> str:
            output = attributes.pop("output", f"{operator.lower()}_{len(self.nodes)}")
            self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
            return output

        return append

    def constant(self, name: str, value: Any) -> str:
        """A tensor that is part of the formula, and not trained."""
        self.nodes.append(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))
        )
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.02, mean: float = 0.0) -> str:
        """A tensor that is trained."""
        values = self.rng.normal(mean, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """x·W + b."""
        product = self.MatMul(x, self.weight(f"{name}.weight", inputs, outputs))
        return str(self.Add(product, self.weight(f"{name}.bias", outputs, scale=0.0)))

    def norm(self, x: str, name: str, size: int) -> str:
        """Layer normalization over the last axis."""
        scale = self.weight(f"{name}.weight", size, scale=0.0, mean=1.0)
        return str(
            self.LayerNormalization(x, scale, self.weight(f"{name}.bias", size, scale=0.0), axis=-1)
        )


def gpt(
    vocabulary: int,
    size: int = 96,
    layers: int = 2,
    heads: int = 4,
    context: int = 64,
    seed: int = 0,
) -> onnx.ModelProto:
    """``input_ids`` [batch, length] to ``logits`` [batch, length, vocabulary].

    Args:
        vocabulary: number of tokens.
        size: of the hidden states.
        layers: of attention and feed-forward.
        heads: of the attention.
        context: the longest text.
        seed: of the weights.
    """
    w = Writer(seed)
    zero, one = w.constant("zero", [0]), w.constant("one", [1])
    two = w.constant("two", [2])
    length = w.Slice(w.Shape("input_ids"), one, two)
    places = w.Slice(w.weight("position.weight", context, size), zero, length, zero)
    h = w.Add(w.Gather(w.weight("embedding.weight", vocabulary, size), "input_ids"), places)
    square = w.Concat(length, length, axis=0)
    ones = w.ConstantOfShape(square, value=numpy_helper.from_array(np.ones(1, np.float32)))
    future = w.Sub(ones, w.Trilu(ones, upper=0))
    mask = w.Mul(future, w.constant("far_below", np.float32(-1e9)))
    split = w.constant("split", [0, 0, heads, size // heads])
    joined = w.constant("joined", [0, 0, size])
    scale = w.constant("scale", np.float32((size // heads) ** -0.5))
    for i in range(layers):
        name = f"layers.{i}"
        x = w.norm(h, f"{name}.norm1", size)
        q, k, v = (w.Reshape(w.linear(x, f"{name}.{p}_proj", size, size), split) for p in "qkv")
        q, v = (w.Transpose(t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = w.MatMul(w.Mul(q, scale), w.Transpose(k, perm=[0, 2, 3, 1]))
        y = w.MatMul(w.Softmax(w.Add(scores, mask), axis=-1), v)
        y = w.Reshape(w.Transpose(y, perm=[0, 2, 1, 3]), joined)
        h = w.Add(h, w.linear(y, f"{name}.o_proj", size, size))
        x = w.linear(w.norm(h, f"{name}.norm2", size), f"{name}.up_proj", size, 4 * size)
        h = w.Add(h, w.linear(w.Mul(x, w.Sigmoid(x)), f"{name}.down_proj", 4 * size, size))
    w.MatMul(w.norm(h, "norm", size), w.weight("lm_head.weight", size, vocabulary), output="logits")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        w.nodes,
        "gpt",
        [value("input_ids", TensorProto.INT64, ["batch", "length"])],
        [value("logits", TensorProto.FLOAT, ["batch", "length", vocabulary])],
        w.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model
