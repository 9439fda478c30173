"""The graphs that a device runs besides the artifacts' own: updates of all parameters at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ..graph import Constants, Names, OpBuilder, Tensor
from ..optim.clipping import norm_ratio, sum_of_squares
from ..runtime.step.update import OptimizerFile

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64
OPSET, IR_VERSION = 18, 8

StateModel: TypeAlias = "tuple[bytes, dict[str, str], dict[str, str]]"
"""A model, which inputs come from the state (by key), and which outputs go there."""


def copy() -> StateModel:
    """y = a: brings a tensor into the device's memory."""
    graph = _Graph(OPSET)
    graph.output("y", graph.op.Identity(graph.input("a")))
    return graph.encoded(), {}, {}


def accumulation(trainable: Sequence[str]) -> StateModel:
    """Add the gradients so far to those of the newest step."""
    graph = _Graph(OPSET)
    feeds: dict[str, str] = {}
    updated: dict[str, str] = {}
    for i, name in enumerate(trainable):
        graph.output(f"y/{i}", graph.input(f"a/{i}") + graph.input(f"b/{i}"))
        feeds |= {f"a/{i}": f"grad/{name}", f"b/{i}": f"fresh/{name}"}
        updated[f"y/{i}"] = f"fresh/{name}"
    return graph.encoded(), feeds, updated


def update(
    optimizer: OptimizerFile, trainable: Mapping[str, Sequence[int]], *, doubles: bool = True
) -> StateModel:
    """Global-norm clipping, then the flat update of each parameter.

    Inputs besides the tensors: ``learning_rate``, ``step``, ``scale`` (of the gradients) and
    ``clip_norm`` (infinite: no clipping).

    Args:
        optimizer: whose flat update is called.
        trainable: the parameters' shapes by name.
        doubles: whether a device has double; onnxruntime's WebGPU build has no kernels for it.
    """
    function = _function(optimizer, doubles=doubles)
    functions = {
        number: _function(rule, f"Update{number}", doubles=doubles)
        for number, rule in optimizer.rules.items()
    }
    graph = _Graph(next(o.version for o in function.opset_import if not o.domain))
    op = graph.op
    rate, scale, clip_norm = (
        graph.input(n, shape=[1]) for n in ("learning_rate", "scale", "clip_norm")
    )
    gradients = [graph.input(f"gradients/{i}", shape=s) for i, s in enumerate(trainable.values())]
    ratio = norm_ratio(
        op, lambda factor: sum_of_squares(op, gradients, factor), clip_norm,
        scale=scale, branches=doubles,
    )  # fmt: skip
    shared = {"grad_scale": op.Min(ratio, 1.0) * scale}
    groups = {
        name: (group, functions.get(number, function))
        for number, group in enumerate(optimizer.groups)
        for name in group["params"]
    }
    rest = ({"lr_scale": 1.0, "weight_decay": optimizer.weight_decay}, function)
    feeds: dict[str, str] = {}
    updated: dict[str, str] = {}
    for i, name in enumerate(trainable):
        group, called = groups.get(name, rest)
        own = {
            "learning_rate": rate * _number(op, group["lr_scale"]),
            "weight_decay": _number(op, group["weight_decay"]),
            "gradients": gradients[i],
        }
        feeds[f"gradients/{i}"] = f"grad/{name}"
        keys = {"params": f"param/{name}", **{s: f"optim/{s}/{name}" for s in optimizer.states}}
        for kind, key in keys.items():
            feeds[f"{kind}/{i}"] = updated[f"{kind}.updated/{i}"] = key
            own[kind] = graph.input(f"{kind}/{i}")
        graph.call(called, {**shared, **own}, f"/{i}")
    return graph.encoded(function, *functions.values()), feeds, updated


def _number(op: OpBuilder, value: float) -> Tensor:
    return op.const(np.array([value], np.float32))


class _Graph:
    """A model in the making, over float tensors of any shape."""

    def __init__(self, opset: int) -> None:
        names = Names()
        self.op = OpBuilder(names, Constants(names), opset)
        self.inputs: dict[str, Tensor] = {}
        self.outputs: list[Tensor] = []

    def input(
        self, name: str, dtype: ir.DataType = FLOAT, shape: Sequence[int] | None = None
    ) -> Tensor:
        """An input; the same one for the same name."""
        if name not in self.inputs:
            self.inputs[name] = self.op.graph_input(name, dtype, shape)
        return self.inputs[name]

    def output(self, name: str, tensor: Tensor) -> None:
        """Give a value out, under a name."""
        tensor.value.name, tensor.value.type = name, ir.TensorType(FLOAT)
        self.outputs.append(tensor)

    def call(
        self, function: onnx.FunctionProto, operands: Mapping[str, Tensor], ending: str
    ) -> None:
        """Call a function; its outputs are outputs of the model, with an ending to their names."""
        step = self.input("step", INT64, [1])
        arguments = [operands.get(n, step if n == "step" else None) for n in function.input]
        results = self.op.emit(
            function.name, arguments, len(function.output), domain=function.domain
        )
        for name, result in zip(function.output, results):
            self.output(f"{name}{ending}", result)

    def encoded(self, *functions: onnx.FunctionProto) -> bytes:
        """The bytes of the model; without the types of values inside, to be small."""
        imports = {"": self.op.opset}
        for function in functions:
            imports |= {o.domain: o.version for o in function.opset_import}
            imports[function.domain] = 1
        values = [[t.value for t in ts] for ts in (self.inputs.values(), self.outputs)]
        graph = ir.Graph(*values, nodes=[], opset_imports=imports, name="update")
        self.op.attach(graph)
        proto = ir.to_proto(ir.Model(graph, ir_version=IR_VERSION))
        del proto.graph.value_info[:]
        proto.functions.extend(functions)
        encoded: bytes = proto.SerializeToString()
        return encoded


def _function(
    optimizer: OptimizerFile, name: str = "Update", *, doubles: bool
) -> onnx.FunctionProto:
    """The flat update as a function, so that a file has its nodes once for all parameters."""
    flat = onnx.load_from_string(optimizer.model)
    graph = flat.graph
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    function = helper.make_function(
        "onnxtrain", name, [i.name for i in graph.input], [o.name for o in graph.output],
        [*constants, *graph.node], flat.opset_import,
    )  # fmt: skip
    if not doubles:
        _drop_doubles(function)
    return function


def _drop_doubles(function: onnx.FunctionProto) -> None:
    """Compute in float32 what is double."""
    for attribute in (a for node in function.node for a in node.attribute):
        if attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
            attribute.i = TensorProto.FLOAT
        if attribute.t.data_type == TensorProto.DOUBLE:
            value = numpy_helper.to_array(attribute.t).astype("float32")
            attribute.t.CopyFrom(numpy_helper.from_array(value, attribute.t.name))
