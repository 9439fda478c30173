"""Small models to put blocks on, and runs on stock onnxruntime."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


def identity_model(opset=18, ir_version=8, dynamic=True, **arrays):
    """Outputs y0, y1, … equal inputs x0, x1, …; the first dimension is symbolic."""
    nodes, inputs, outputs = [], [], []
    for name, array in arrays.items():
        dims = list(array.shape)
        if dynamic and dims:
            dims[0] = "N"
        kind = KINDS[str(array.dtype)]
        inputs.append(helper.make_tensor_value_info(name, kind, dims))
        outputs.append(helper.make_tensor_value_info(f"{name}_out", kind, dims))
        nodes.append(helper.make_node("Identity", [name], [f"{name}_out"], name=f"id_{name}"))
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


def only_standard(model):
    return {n.domain for n in model.graph.node} <= {"", "ai.onnx"}


def run(model, feeds, outputs=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        model if isinstance(model, str) else model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    feeds = {k: np.asarray(v) for k, v in feeds.items()}
    return session.run(outputs, feeds)


def inputs_of(model):
    return [i.name for i in model.graph.input]


def outputs_of(model):
    return [o.name for o in model.graph.output]


def mlp(seed=0, opset=18, ir_version=8, extra_constant=True):
    """Gemm–Relu–Mul–Gemm with parameters W1, b1, W2, b2."""
    rng = np.random.default_rng(seed)
    f = onnx.numpy_helper.from_array
    tensors = [
        f(rng.normal(size=(4, 5)).astype(np.float32), "W1"),
        f(rng.normal(size=(5,)).astype(np.float32), "b1"),
        f(rng.normal(size=(5, 3)).astype(np.float32), "W2"),
        f(rng.normal(size=(3,)).astype(np.float32), "b2"),
        f(np.array([0.5], np.float32), "half"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["h"], name="gemm1"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Mul", ["r", "half"], ["m"], name="mul"),
        helper.make_node("Gemm", ["m", "W2", "b2"], ["out"], name="gemm2"),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 3])],
        tensors,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
