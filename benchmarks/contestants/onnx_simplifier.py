"""onnxsim 0.8's `compile_training_loop`: a step graph of standard operators, static shapes only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .base import Cannot, Clock, Loop, limit_threads


def start(folder: Path, spec: dict[str, Any], clock: Clock) -> Loop:
    options = spec["optimizer"]
    if options.get("clip"):
        raise Cannot("its training loop cannot clip gradients")
    import onnx
    import onnxsim

    limit_threads()
    clock.lap("import")
    model = onnx.load(folder / "model_static.onnx")
    _flatten_by_reshape(model.graph)
    add_loss(model, spec)
    remark, optimizer = "", _sgd(model.opset_import[0].version)
    if options.get("momentum"):
        optimizer = "sgd_momentum"
    elif options["name"] != "sgd":
        optimizer = "adam"
        remark = "Adam without weight decay" if options["name"] == "adamw" else ""
    loop = onnxsim.compile_training_loop(model, "loss", spec["trainable"], optimizer)
    _ = loop.step_graph  # differentiates and creates the session
    clock.lap("artifacts")
    rate = float(options["lr"])

    def step(x: Any, y: Any) -> float:
        return loop({"x": x, "y": y}, rate)

    return Loop(step, remark)


def _flatten_by_reshape(graph: Any) -> None:
    """It has no gradient for Flatten, but one for the Reshape that is the same here."""
    import numpy as np
    from onnx import helper, numpy_helper

    shape = numpy_helper.from_array(np.array([0, -1], np.int64), "flat")
    graph.initializer.append(shape)
    for node in graph.node:
        if node.op_type == "Flatten" and helper.get_node_attr_value(node, "axis") == 1:
            node.op_type = "Reshape"
            node.input.append("flat")
            del node.attribute[:]


def _sgd(opset: int) -> Any:
    import onnx.parser
    from onnxsim.compile_training import CustomOptimizer

    text = f"""<ir_version: 9, opset_import: ["": {opset}]>
    sgd (float[1] param, float[1] grad, float lr) => (float[1] new) {{
        scaled = Mul(grad, lr)
        new = Sub(param, scaled)
    }}"""
    return CustomOptimizer(onnx.parser.parse_model(text), num_state=0)


def add_loss(model: Any, spec: dict[str, Any]) -> None:
    """Mean squared error, or cross-entropy by one-hot rows, out of operators that it knows."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    shape = [d.dim_value for d in graph.output[0].type.tensor_type.shape.dim]
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    if spec["loss"] == "mse":
        graph.input.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, shape))
        graph.node.extend([
            helper.make_node("Sub", ["output", "y"], ["difference"]),
            helper.make_node("Mul", ["difference", "difference"], ["square"]),
            helper.make_node("ReduceMean", ["square"], ["loss"], keepdims=0),
        ])  # fmt: skip
        return
    if len(shape) != 2 or shape[1] > 1000:
        raise Cannot("cross-entropy over such an output needs operators it cannot differentiate")
    graph.input.append(helper.make_tensor_value_info("y", TensorProto.INT64, shape[:1]))
    graph.initializer.append(numpy_helper.from_array(np.eye(shape[1], dtype=np.float32), "rows"))
    graph.initializer.append(numpy_helper.from_array(np.float32(-shape[1]).reshape(()), "minus"))
    graph.node.extend([
        helper.make_node("Gather", ["rows", "y"], ["wanted"]),
        helper.make_node("Softmax", ["output"], ["chances"], axis=1),
        helper.make_node("Log", ["chances"], ["logarithms"]),
        helper.make_node("Mul", ["logarithms", "wanted"], ["picked"]),
        helper.make_node("ReduceMean", ["picked"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "minus"], ["loss"]),
    ])  # fmt: skip
