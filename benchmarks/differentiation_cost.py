"""What it costs to differentiate: time and node counts against the model's size.

    python -m benchmarks.differentiation_cost [--nodes 1250 2500 5000 10000 20000] [--json FILE]

For a transformer-like chain of residual blocks with the given numbers of nodes, prints the time of
`differentiate` (load, normalize, differentiate, optimize), the time onnxruntime takes to create the
session of the result, and the growth from one size to the next. One parameter per six nodes is
trained, as in exported transformers: onnxruntime searches the list of outputs for every node, so
its time grows with nodes × gradients, and a chain of small layers would show little else.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

LARGE = 10_000
"""From here on one round is exact enough."""
SIZES = [1250, 2500, 5000, 10000, 20000]


def model_with(nodes: int, width: int = 16) -> onnx.ModelProto:
    """Residual blocks of attention-like and feed-forward-like operators."""
    rng = np.random.default_rng(0)
    body: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        data = rng.normal(0, 0.05, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(data, name))
        return name

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        output = f"v{len(body)}"
        body.append(helper.make_node(kind, inputs, [output], name=f"n{len(body)}", **attributes))
        return output

    x = "x"
    while len(body) < nodes:
        h = op("LayerNormalization", x, weight(width), weight(width))
        q, k, v = (op("Add", op("MatMul", h, weight(width, width)), weight(width)) for _ in "qkv")
        scores = op("Mul", op("MatMul", q, op("Transpose", k, perm=[0, 2, 1])), weight())
        mixed = op("MatMul", op("Softmax", scores), v)
        x = op("Add", x, op("MatMul", mixed, weight(width, width)))
        h = op("Tanh", op("Add", op("MatMul", x, weight(width, width)), weight(width)))
        x = op("Add", x, op("MatMul", h, weight(width, width)))
    body.append(helper.make_node("ReduceMean", [x], ["loss"], keepdims=0, name="loss"))
    graph = helper.make_graph(
        body,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, width])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def measure(nodes: int, rounds: int) -> tuple[int, int, float, float]:
    """Nodes before and after, best time to differentiate, best time to create the session."""
    model = model_with(nodes)
    trained = [w.name for w in model.graph.initializer][::4]
    differentiate, create = [], []
    for _ in range(rounds if nodes < LARGE else 1):
        start = time.perf_counter()
        result = onnxtrain.differentiate(model, wrt=trained)
        differentiate.append(time.perf_counter() - start)
        data = result.SerializeToString()
        start = time.perf_counter()
        ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        create.append(time.perf_counter() - start)
    return len(model.graph.node), len(result.graph.node), min(differentiate), min(create)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers into this file")
    options = parser.parse_args()
    found = []
    measure(200, 1)  # imports and caches
    print("| nodes | nodes with gradient | differentiate | create session | ratio | growth |")
    print("|---|---|---|---|---|---|")
    last = 0.0
    for nodes in options.nodes:
        before, after, ours, theirs = measure(nodes, options.rounds)
        growth = f"{ours / last:.2f}×" if last else ""
        print(
            f"| {before} | {after} | {ours:.2f} s | {theirs:.2f} s | {ours / theirs:.2f} "
            f"| {growth} |",
            flush=True,
        )
        last = ours
        found.append({
            "nodes": before, "nodes_with_gradient": after,
            "differentiate_s": ours, "session_s": theirs,
        })  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
