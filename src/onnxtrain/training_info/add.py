"""Writes how a model is to be trained into the model: loss, Gradient and update."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from .. import onnxblock, optim
from ..compile import weights_of
from ..errors import UnknownNameError, model_errors
from ..graph import load, to_proto
from ..graph.block import Block
from ..normalize.normalize import one_opset
from ..normalize.preview_training import DOMAIN
from .read import whole_proto

LOSS, RATE, COUNT = "loss", "learning_rate", "step"
NEXT, ONE = "step.updated", "step.one"


@model_errors("Adding the training information")
def add(
    model: onnx.ModelProto | str | os.PathLike[str],
    loss: Block,
    optimizer: optim.Optimizer | None = None,
    *,
    learning_rate: float = 1e-3,
    trainable: Sequence[str] | None = None,
    loss_input_names: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Add one algorithm to a model's training information.

    The network stays as it is, but for its opset, which is brought to 18 to 21. The algorithm's
    graph has the loss, a Gradient node and the update in standard operators; its state (moments,
    the count of steps, the learning rate) are initializers of its own.

    Args:
        model: the model or its file; it is not changed.
        loss: a loss of `onnxtrain.losses`.
        optimizer: an optimizer of `onnxtrain.optim`, by default Adam.
        learning_rate: the rate, which stays the same; it is the initializer ``learning_rate``.
        trainable: names of the weights; by default those that `differentiate` would train.
        loss_input_names: values that the loss is called with, by default all outputs.

    Example:
        >>> from onnxtrain import losses, training_info             # doctest: +SKIP
        >>> trained = training_info.add("model.onnx", losses.MSELoss())  # doctest: +SKIP
    """
    whole = whole_proto(model)
    base = to_proto(one_opset(load(whole)))
    base.training_info.extend(whole.training_info)
    extended, loss_name = _with_loss(base, loss, loss_input_names)
    names = _trained(extended, loss_name, trainable)
    algorithm = _new_part(base.graph, extended.graph)
    algorithm.name = "training"
    update = optimizer or optim.adam()
    shapes = {t.name: list(t.dims) for t in base.graph.initializer}
    _append_gradient(algorithm, extended.graph, names, loss_name)
    states = _append_update(algorithm, update, {n: shapes[n] for n in names}, base, learning_rate)
    algorithm.node.append(helper.make_node("Identity", [loss_name], [LOSS], LOSS))
    algorithm.output.insert(0, helper.make_tensor_value_info(LOSS, TensorProto.FLOAT, []))
    info = base.training_info.add()
    info.algorithm.CopyFrom(algorithm)
    for name in (*names, *states, COUNT):
        info.update_binding.add(key=name, value=f"{name}.updated")
    _append_initialization(info, algorithm, [*states, COUNT])
    _import_domain(base)
    return base


def _with_loss(
    model: onnx.ModelProto, loss: Block, names: Sequence[str] | None
) -> tuple[onnx.ModelProto, str]:
    with onnxblock.base(model) as accessor:
        name = str(loss(*(names or [o.name for o in model.graph.output])))
        return accessor.model, name


def _trained(model: onnx.ModelProto, loss: str, names: Sequence[str] | None) -> list[str]:
    known = [t.name for t in model.graph.initializer]
    for name in names or ():
        if name not in known:
            raise UnknownNameError("initializer", name, known)
    return list(names) if names is not None else weights_of(model, [loss])


def _new_part(old: onnx.GraphProto, new: onnx.GraphProto) -> onnx.GraphProto:
    """What a block added to a graph."""
    part = onnx.GraphProto()
    before = {name for node in old.node for name in node.output}
    part.node.extend(n for n in new.node if not before.intersection(n.output))
    for field in ("initializer", "input"):
        present = {each.name for each in getattr(old, field)}
        getattr(part, field).extend(e for e in getattr(new, field) if e.name not in present)
    return part


def _append_gradient(
    algorithm: onnx.GraphProto, whole: onnx.GraphProto, names: Sequence[str], loss: str
) -> None:
    initializers = {t.name for t in whole.initializer}
    others = [v.name for v in whole.input if v.name not in initializers]
    algorithm.node.append(
        helper.make_node(
            "Gradient",
            [*names, *others],
            [f"{n}_grad" for n in names],
            "Gradient",
            domain=DOMAIN,
            xs=list(names),
            zs=others,
            y=loss,
        )
    )


def _append_update(
    algorithm: onnx.GraphProto,
    optimizer: optim.Optimizer,
    shapes: dict[str, list[int]],
    base: onnx.ModelProto,
    learning_rate: float,
) -> list[str]:
    """Append the update; gives the names of the optimizer's state."""
    opset = next(i.version for i in base.opset_import if i.domain in {"", "ai.onnx"})
    built = optim.tensor_model(optimizer, list(shapes.items()), opset)
    _rename_inside(built, base.graph, algorithm)
    _append_count(algorithm, built)
    update = to_proto(built).graph
    states = [v.name for v in update.input if v.name not in {RATE, NEXT, *shapes}]
    states = [n for n in states if n.removesuffix("_grad") not in shapes]
    algorithm.node.extend(update.node)
    algorithm.initializer.extend(update.initializer)
    algorithm.initializer.append(
        numpy_helper.from_array(np.array([learning_rate], np.float32), RATE)
    )
    inputs = {v.name: v for v in update.input}
    for name in states:
        dims = [d.dim_value for d in inputs[name].type.tensor_type.shape.dim]
        algorithm.initializer.append(numpy_helper.from_array(np.zeros(dims, np.float32), name))
    algorithm.output.extend(update.output)
    return states


def _rename_inside(update: ir.Model, *others: onnx.GraphProto) -> None:
    """Give the values inside the update names that the network and its loss do not have."""
    used = {n for g in others for node in g.node for n in (*node.input, *node.output)}
    graph = update.graph
    outside = {*graph.inputs, *graph.outputs}
    values = [*graph.initializers.values(), *(o for n in graph.all_nodes() for o in n.outputs)]
    inside = [v for v in values if v not in outside and v.name]
    prefix = "update/"
    while any(f"{prefix}{v.name}" in used for v in inside):
        prefix += "_"
    constants = list(graph.initializers.values())
    graph.initializers.clear()
    for value in inside:
        value.name = f"{prefix}{value.name}"
    for constant in constants:
        graph.register_initializer(constant)
    for node in graph.all_nodes():
        node.name = f"{prefix}{node.name}"


def _append_count(algorithm: onnx.GraphProto, update: ir.Model) -> None:
    """The update is told its number, from one on; the state has the number of those before."""
    algorithm.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), COUNT))
    algorithm.initializer.append(numpy_helper.from_array(np.ones(1, np.int64), ONE))
    algorithm.node.append(helper.make_node("Add", [COUNT, ONE], [NEXT], NEXT))
    next(v for v in update.graph.inputs if v.name == COUNT).name = NEXT
    algorithm.output.append(helper.make_tensor_value_info(NEXT, TensorProto.INT64, [1]))


def _append_initialization(
    info: onnx.TrainingInfoProto, algorithm: onnx.GraphProto, names: Sequence[str]
) -> None:
    """Zero is what moments and counts begin with; weights begin with what the file has."""
    graph = info.initialization
    graph.name = "initialization"
    tensors = {t.name: t for t in algorithm.initializer}
    for name in names:
        tensor = tensors[name]
        shape = numpy_helper.from_array(np.array(tensor.dims, np.int64), f"{name}.shape")
        zero: Any = helper.make_tensor(f"{name}.zero", tensor.data_type, [1], [0])
        graph.initializer.append(shape)
        graph.node.append(
            helper.make_node("ConstantOfShape", [shape.name], [f"{name}.initial"], value=zero)
        )
        described = helper.make_tensor_value_info(
            f"{name}.initial", tensor.data_type, list(tensor.dims)
        )
        graph.output.append(described)
        info.initialization_binding.add(key=name, value=f"{name}.initial")


def _import_domain(model: onnx.ModelProto) -> None:
    if all(i.domain != DOMAIN for i in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
