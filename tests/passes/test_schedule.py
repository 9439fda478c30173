"""The order of nodes that makes onnxruntime run weight gradients as soon as they can run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from onnxtrain import differentiate

LAYERS = 4


def deep_network() -> onnx.ModelProto:
    layers = " ".join(f"p{i} = Gemm(h{i}, w{i}) h{i + 1} = Sigmoid(p{i})" for i in range(LAYERS))
    weights = ", ".join(f"float[8,8] w{i}" for i in range(LAYERS))
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[4,8] h0, {weights}) => (float loss)
        {{ {layers} loss = ReduceSum <keepdims=0> (h{LAYERS}) }}""")


def executed(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Names of the nodes in the order in which onnxruntime ran them."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(0)
    shapes = {i.name: i.shape for i in session.get_inputs()}
    session.run(None, {n: rng.random(s, np.float32) for n, s in shapes.items()})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [e["name"] for e in events if e["name"].endswith("_kernel_time")]
    return [name.removesuffix("_kernel_time") for name in ran]


def test_weight_gradients_run_from_the_loss_down(tmp_path):
    names = [f"w{i}" for i in range(LAYERS)]
    model = differentiate(deep_network(), wrt=names)
    onnx.checker.check_model(model, full_check=True)
    producer = {o: n.name for n in model.graph.node for o in n.output}
    order = executed(model, tmp_path)
    places = [order.index(producer[f"{name}_grad"]) for name in names]
    assert places == sorted(places, reverse=True)
    chain = max(i for i, name in enumerate(order) if "_grad" in name)
    assert places[-1] < chain - LAYERS  # the last layer's does not wait for the first layer's


def test_nothing_is_lost_and_the_order_is_topological():
    model = differentiate(deep_network(), wrt=["w0", "w3"])
    known = {i.name for i in model.graph.input} | {t.name for t in model.graph.initializer}
    for node in model.graph.node:
        assert set(node.input) <= known | {""}
        known.update(node.output)
    assert {o.name for o in model.graph.output} <= known
