"""What it costs to differentiate: time and node counts against the model's size.

    python -m benchmarks.differentiation_cost [--nodes 1250 2500 5000 10000 20000] [--json FILE]

For a transformer-like chain of residual blocks with the given numbers of nodes, prints the time of
`differentiate` (load, normalize, differentiate, optimize), the time onnxruntime takes to create one
session of the result, the time until a `Module` is ready (it cuts long models into pieces, each a
session), and the growth from one size to the next. One parameter per six nodes is
trained, as in exported transformers: onnxruntime searches the list of outputs for every node, so
its time grows with nodes × gradients, and a chain of small layers would show little else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module

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


def measure(nodes: int, rounds: int) -> dict[str, float]:
    """Nodes before and after, and the best times to differentiate and to be ready to run."""
    model = model_with(nodes)
    names = [w.name for w in model.graph.initializer]
    trained = names[::4]
    differentiate, create, ready = [], [], []
    for _ in range(rounds if nodes < LARGE else 1):
        start = time.perf_counter()
        result = onnxtrain.differentiate(model, wrt=trained)
        differentiate.append(time.perf_counter() - start)
        data = result.SerializeToString()
        start = time.perf_counter()
        ort.InferenceSession(data, providers=["CPUExecutionProvider"])
        create.append(time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        frozen = [n for i, n in enumerate(names) if i % 4]
        artifacts.generate_artifacts(
            model, requires_grad=trained, frozen_params=frozen, artifact_directory=folder
        )
        for _ in range(rounds if nodes < LARGE else 1):
            state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
            start = time.perf_counter()
            Module(f"{folder}/training_model.onnx", state)
            ready.append(time.perf_counter() - start)
    return {
        "nodes": len(model.graph.node), "nodes_with_gradient": len(result.graph.node),
        "differentiate_s": min(differentiate), "session_s": min(create), "module_s": min(ready),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers into this file")
    options = parser.parse_args()
    found: list[dict[str, float]] = []
    measure(200, 1)  # imports and caches
    print("| nodes | with gradient | differentiate | one session | Module | growth of the three |")
    print("|---|---|---|---|---|---|")
    for nodes in options.nodes:
        point = measure(nodes, options.rounds)
        times = [point[f"{kind}_s"] for kind in ("differentiate", "session", "module")]
        growth = [b / found[-1][k] for k, b in point.items() if k[-2:] == "_s"] if found else []
        cells = [f"{t:.2f} s" for t in times] + [", ".join(f"{g:.2f}×" for g in growth)]
        print("|", " | ".join(map(str, [*list(point.values())[:2], *cells])), "|", flush=True)
        found.append(point)
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
