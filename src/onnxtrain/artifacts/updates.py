"""The graphs that a device runs besides the artifacts' own: updates of all parameters at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, helper, numpy_helper

from ..hyper import LARGEST
from ..runtime.step.update import OptimizerFile

FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
OPSET, IR_VERSION = 18, 8

Made: TypeAlias = "tuple[bytes, dict[str, str], dict[str, str]]"
"""A model, which inputs come from the state (by key), and which outputs go there."""


def copy() -> Made:
    """y = a: brings a tensor into the device's memory."""
    return _encoded([helper.make_node("Identity", ["a"], ["y"])], ["a"], ["y"]), {}, {}


def accumulation(trainable: Sequence[str]) -> Made:
    """Add the gradients so far to those of the newest step."""
    nodes: list[onnx.NodeProto] = []
    feeds: dict[str, str] = {}
    updated: dict[str, str] = {}
    for i, name in enumerate(trainable):
        nodes.append(helper.make_node("Add", [f"a/{i}", f"b/{i}"], [f"y/{i}"]))
        feeds |= {f"a/{i}": f"grad/{name}", f"b/{i}": f"fresh/{name}"}
        updated[f"y/{i}"] = f"fresh/{name}"
    return _encoded(nodes, [*feeds], [*updated]), feeds, updated


def update(optimizer: OptimizerFile, trainable: Sequence[str], *, doubles: bool = True) -> Made:
    """Global-norm clipping, then the flat update of each parameter.

    Inputs besides the tensors: ``learning_rate``, ``step``, ``scale`` (of the gradients) and
    ``clip_norm`` (infinite: no clipping).

    Args:
        optimizer: whose flat update is called.
        trainable: the parameters.
        doubles: whether a device has double; onnxruntime's WebGPU build has no kernels for it.
    """
    flat = onnx.load_from_string(optimizer.model)
    function = _function(flat)
    if not doubles:
        _drop_doubles(function)
    b = _Nodes()
    ratio = _clip_ratio(b, [f"gradients/{i}" for i in range(len(trainable))], branch=doubles)
    grad_scale = b.node("Mul", b.node("Min", ratio, b.constant(1.0)), "scale")
    groups = {name: group for group in optimizer.groups for name in group["params"]}
    feeds: dict[str, str] = {}
    updated: dict[str, str] = {}
    for i, name in enumerate(trainable):
        group = groups.get(name, {"lr_scale": 1.0, "weight_decay": optimizer.weight_decay})
        rate = b.node("Mul", "learning_rate", b.constant(group["lr_scale"]))
        shared = {"learning_rate": rate, "grad_scale": grad_scale, "step": "step"}
        if "weight_decay" in function.input:
            shared["weight_decay"] = b.constant(group["weight_decay"])
        feeds[f"gradients/{i}"] = f"grad/{name}"
        keys = {"params": f"param/{name}", **{s: f"optim/{s}/{name}" for s in optimizer.states}}
        for kind, key in keys.items():
            feeds[f"{kind}/{i}"] = updated[f"{kind}.updated/{i}"] = key
        inputs = [shared.get(n, f"{n}/{i}") for n in function.input]
        outputs = [f"{n}/{i}" for n in function.output]
        b.nodes.append(helper.make_node(function.name, inputs, outputs, domain=function.domain))
    numbers = ["learning_rate", "scale", "clip_norm"]
    encoded = _encoded(b.nodes, [*feeds], [*updated], numbers, [*b.constants.values()], function)
    return encoded, feeds, updated


SHRINK = 2.0**-80
"""With this factor 10⁹ squares of the largest float32 add up to a finite number."""


def _clip_ratio(b: _Nodes, gradients: Sequence[str], *, branch: bool) -> str:
    """``clip_norm`` over the norm of all gradients times ``scale``.

    Squares overflow from 1.8e19 on; the ratio then comes from gradients made smaller. With `branch`
    that is computed only then, by an If. On a GPU its condition would have to come to the host, so
    that both are computed there.
    """
    total = b.squares(gradients)
    norm = b.node("Mul", b.node("Sqrt", total), "scale")
    usual = b.node("Div", "clip_norm", b.node("Add", norm, b.constant(1e-6)))
    is_huge = b.node("Greater", total, b.constant(LARGEST))
    if not branch:
        return b.node("Where", is_huge, _ratio_of_smaller(b, gradients), usual)
    rare = _Nodes("rare/")
    result = _ratio_of_smaller(rare, gradients)
    b.constants |= rare.constants
    branches = {
        "then_branch": _branch("rare", rare.nodes, result),
        "else_branch": _branch("usual", [helper.make_node("Identity", [usual], ["same"])], "same"),
    }
    return b.node("If", b.node("Squeeze", is_huge), **branches)


def _ratio_of_smaller(b: _Nodes, gradients: Sequence[str]) -> str:
    small = b.constant(SHRINK)
    total = b.squares([b.node("Mul", gradient, small) for gradient in gradients])
    norm = b.node("Mul", b.node("Sqrt", total), "scale")
    return b.node("Div", b.node("Mul", "clip_norm", small), norm)


def _branch(name: str, nodes: Sequence[onnx.NodeProto], result: str) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(result, FLOAT, [1])
    return helper.make_graph(nodes, name, [], [output])


class _Nodes:
    """Nodes with names made up; the same constant or node is made once."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._known: dict[tuple[str, ...], str] = {}

    def squares(self, tensors: Sequence[str]) -> str:
        """The sum of the squares of all elements."""
        return self.node("Sum", *(self.node("ReduceSumSquare", x, keepdims=0) for x in tensors))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        key = (operator, *inputs)
        if key not in self._known:
            self._known[key] = f"{self.prefix}v{len(self._known)}"
            self.nodes.append(helper.make_node(operator, inputs, [self._known[key]], **attributes))
        return self._known[key]

    def constant(self, value: float) -> str:
        name = f"c{value!r}"
        self.constants[name] = helper.make_tensor(name, FLOAT, [1], [value])
        return name


def _function(flat: onnx.ModelProto) -> onnx.FunctionProto:
    """The flat update as a function, so that a file has its nodes once for all parameters."""
    graph = flat.graph
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    return helper.make_function(
        "onnxtrain", "Update", [i.name for i in graph.input], [o.name for o in graph.output],
        [*constants, *graph.node], flat.opset_import,
    )  # fmt: skip


def _drop_doubles(function: onnx.FunctionProto) -> None:
    """Compute in float32 what is double."""
    for attribute in (a for node in function.node for a in node.attribute):
        if attribute.name == "to" and attribute.i == DOUBLE:
            attribute.i = FLOAT
        if attribute.t.data_type == DOUBLE:
            value = numpy_helper.to_array(attribute.t).astype("float32")
            attribute.t.CopyFrom(numpy_helper.from_array(value, attribute.t.name))


def _encoded(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    numbers: Sequence[str] = (),
    constants: Sequence[onnx.TensorProto] = (),
    function: onnx.FunctionProto | None = None,
) -> bytes:
    """A model over float tensors of any shape; with a function also the step's numbers."""
    value = helper.make_tensor_value_info
    declared = [value(n, FLOAT, [1]) for n in numbers] + [value(n, FLOAT, None) for n in inputs]
    opsets = [helper.make_opsetid("", OPSET)]
    if function is not None:
        declared.append(value("step", INT64, [1]))
        opsets = [*function.opset_import, helper.make_opsetid(function.domain, 1)]
    graph = helper.make_graph(
        nodes, "update", declared, [value(n, FLOAT, None) for n in outputs], constants
    )
    model = helper.make_model(
        graph, functions=[function] if function is not None else [], opset_imports=opsets,
        ir_version=IR_VERSION,
    )  # fmt: skip
    encoded: bytes = model.SerializeToString()
    return encoded
