"""A model with one constant, ``c``, that can be put in every place where ONNX allows a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import artifacts, losses, training_info

VALUES = np.array([1, 2, 3, 4], np.float32)
"""The constant. External data of another content would change every result."""
RNG = np.random.default_rng(3)
W = RNG.standard_normal((4, 3)).astype(np.float32)
Entries = Iterable[tuple[str, str]]


def forward(node_name: str = "scale") -> onnx.ModelProto:
    """y = (x · c) @ w, and its sum."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "c"], ["scaled"], name=node_name),
            helper.make_node("MatMul", ["scaled", "w"], ["y"], name="product"),
            helper.make_node("ReduceSum", ["y"], ["loss"], name="sum", keepdims=0),
        ],
        "g",
        [info("x", 1, ["n", 4])],
        [info("loss", 1, []), info("y", 1, ["n", 3])],
        [numpy_helper.from_array(VALUES, "c"), numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def external(entries: Entries, name: str = "c", shape: Iterable[int] = (4,)) -> TensorProto:
    """A float tensor that has its data in another file."""
    tensor = TensorProto(name=name, data_type=1, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return tensor


def _without_constant(model: onnx.ModelProto) -> onnx.GraphProto:
    kept = [t for t in model.graph.initializer if t.name != "c"]
    assert len(kept) < len(model.graph.initializer), "the model has no constant c"
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model.graph


def as_initializer(model: onnx.ModelProto, tensor: TensorProto) -> None:
    _without_constant(model).initializer.append(tensor)


def as_attribute(model: onnx.ModelProto, tensor: TensorProto) -> None:
    node = helper.make_node("Constant", [], ["c"], name="constant", value=tensor)
    _without_constant(model).node.insert(0, node)


def as_subgraph(model: onnx.ModelProto, tensor: TensorProto) -> None:
    tensor.name = "inner"
    branches = {}
    for name, value in (
        ("then_branch", tensor), ("else_branch", numpy_helper.from_array(VALUES, "inner")),
    ):  # fmt: skip
        value.name = f"inner_{name}"
        branches[name] = helper.make_graph(
            [helper.make_node("Identity", [value.name], [f"out_{name}"])], name, [],
            [helper.make_tensor_value_info(f"out_{name}", 1, [4])], [value],
        )  # fmt: skip
    graph = _without_constant(model)
    graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graph.node.insert(0, helper.make_node("If", ["yes"], ["c"], name="if", **branches))


def as_function(model: onnx.ModelProto, tensor: TensorProto) -> None:
    model.functions.append(
        helper.make_function(
            "local", "Constants", [], ["out"],
            [helper.make_node("Constant", [], ["out"], value=tensor)],
            [helper.make_opsetid("", 18)],
        )
    )  # fmt: skip
    model.opset_import.append(helper.make_opsetid("local", 1))
    node = helper.make_node("Constants", [], ["c"], domain="local", name="call")
    _without_constant(model).node.insert(0, node)


def as_sparse(model: onnx.ModelProto, tensor: TensorProto) -> None:
    indices = numpy_helper.from_array(np.arange(4), "")
    sparse = helper.make_sparse_tensor(tensor, indices, [4])
    _without_constant(model).sparse_initializer.append(sparse)


CARRIERS: dict[str, Callable[[onnx.ModelProto, TensorProto], None]] = {
    "initializer": as_initializer,
    "attribute": as_attribute,
    "subgraph": as_subgraph,
    "function": as_function,
    "sparse": as_sparse,
}
"""The places where ONNX allows a tensor."""


def write(folder: Path, entries: Entries, carrier: str = "initializer") -> None:
    """Let the constant of every model in a folder be external data."""
    for path in folder.glob("*.onnx"):
        if path.name == "optimizer_model.onnx":
            continue
        model = onnx.load(path, load_external_data=False)
        CARRIERS[carrier](model, external(entries))
        path.write_bytes(model.SerializeToString())


def sound_folder(folder: Path, node_name: str = "scale") -> Path:
    """A model, its artifacts and data, all well."""
    folder.mkdir(parents=True)
    onnx.save(forward(), folder / "model.onnx")
    predicts = forward()
    del predicts.graph.output[0], predicts.graph.node[2]
    onnx.save(predicts, folder / "predict.onnx")
    described = training_info.add(folder / "predict.onnx", losses.MSELoss(), trainable=["w"])
    onnx.save(described, folder / "info.onnx")
    np.savez(folder / "data.npz", x=np.ones((8, 4), np.float32), target=np.ones((8, 3), np.float32))
    artifacts.generate_artifacts(
        forward(node_name), requires_grad=["w"], artifact_directory=folder,
        optimizer=artifacts.OptimType.AdamW, browser=True,
    )  # fmt: skip
    return folder
