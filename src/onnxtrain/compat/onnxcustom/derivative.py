"""The gradient of a model as a graph, in the forms that onnxcustom offered."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntFlag
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir

from ...compile import differentiate
from ...errors import InputError, ModelError, OnnxTrainError, UnknownNameError
from ...graph import FLOATS, ModelLike, OpBuilder, load, to_proto
from ..ort import OrtModuleGraphBuilder, OrtModuleGraphBuilderConfiguration
from .onnx_helper import as_proto, get_train_initializer


class OptionsError(OnnxTrainError, TypeError):
    """Options of `onnx_derivative` that are none."""


class DerivativeOptions(IntFlag):
    """What `onnx_derivative` gives.

    Attributes:
        Zero: gradients only; the gradient of each output is an input.
        KeepYieldOp: the graph with the node YieldOp between its halves.
        KeepOutputs: the outputs of the model too.
        FillGrad: the gradients of the outputs are ones instead of inputs; with `KeepOutputs`.
        Loss: the gradients of a loss, which is appended first.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 8


def onnx_derivative(
    onx: ModelLike,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | None = None,
    path_name: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """The graph of a model's gradients.

    Args:
        onx: the model.
        weights: initializers to differentiate with respect to; all float ones by default.
        inputs: inputs to differentiate with respect to; all float ones by default. An empty list
            means none.
        options: see `DerivativeOptions`; they may be combined.
        loss: with `Loss`: the output to differentiate, or the text of a graph of a loss from
            prediction and label, ``"(float[N,1] z, float[N,1] y) => (float loss) { … }"``. By
            default the squared error, summed.
        label: with `Loss`: name of the label input; or the output to differentiate if the model has
            one of that name and none of the name `loss`.
        path_name: also write the graph to this file.

    Returns:
        A model that takes the inputs, the weights and the gradients of the outputs, and returns
        ``<name>_grad`` for inputs and weights. The weights keep their values as initializers.

    Example:
        >>> model = onnx.parser.parse_model('''
        ...     <ir_version: 8, opset_import: ["": 18]>
        ...     g (float[N] X) => (float[N] Y) { Y = Mul(X, X) }
        ... ''')
        >>> ones = DerivativeOptions.FillGrad | DerivativeOptions.KeepOutputs
        >>> gradient = onnx_derivative(model, options=ones)
        >>> [i.name for i in gradient.graph.input], [o.name for o in gradient.graph.output]
        (['X'], ['Y', 'X_grad'])
    """
    if not isinstance(options, DerivativeOptions):
        raise OptionsError(f"options are DerivativeOptions, not {type(options).__name__}.")
    if options & DerivativeOptions.KeepYieldOp and options != DerivativeOptions.KeepYieldOp:
        raise ModelError("KeepYieldOp keeps the node in place of the other forms: use it alone.")
    if options & DerivativeOptions.FillGrad and not options & DerivativeOptions.KeepOutputs:
        raise ModelError("FillGrad takes the shapes of the outputs: add KeepOutputs to it.")
    proto = as_proto(onx)
    if options & DerivativeOptions.Loss:
        model = _of_loss(proto, weights, inputs, options, loss, label)
    else:
        wrt = _wrt(proto, weights, inputs)
        if options & DerivativeOptions.KeepYieldOp:
            model = _with_yield(proto, *wrt)
        else:
            model = _vjp(proto, *wrt, options)
    if path_name is not None:
        onnx.save(model, str(path_name))
    return model


def _wrt(
    model: onnx.ModelProto, weights: Sequence[str] | None, inputs: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The names to differentiate with respect to: inputs and weights."""
    known = list(get_train_initializer(model))
    constants = {i.name for i in model.graph.initializer}
    floats = [
        i.name
        for i in model.graph.input
        if i.name not in constants and ir.DataType(i.type.tensor_type.elem_type) in FLOATS
    ]
    for name in weights or ():
        if name in constants and name not in known:
            raise InputError(
                f"The weight {name!r} holds integers, which have no gradient. Leave zero points "
                "out of the weights and train the scales."
            )
    for kind, asked, there in (("weight", weights, known), ("float input", inputs, floats)):
        for name in asked or ():
            if name not in there:
                raise UnknownNameError(kind, name, there)
    chosen = list(floats if inputs is None else inputs), list(known if weights is None else weights)
    if not any(chosen):
        raise ModelError("There is nothing to differentiate: no weight and no input was chosen.")
    return chosen


def _vjp(
    model: onnx.ModelProto, inputs: list[str], weights: list[str], options: DerivativeOptions
) -> onnx.ModelProto:
    outputs = [o.name for o in model.graph.output]
    before = {i.name for i in model.graph.input}
    derivative = differentiate(model, wrt=[*inputs, *weights], vjp=True, allow_unused=True)
    if options & DerivativeOptions.FillGrad:
        derivative = _filled(derivative, before, outputs)
    if not options & DerivativeOptions.KeepOutputs:
        gradients = [o for o in derivative.graph.output if o.name not in outputs]
        del derivative.graph.output[:]
        derivative.graph.output.extend(gradients)
    return derivative


def _filled(derivative: onnx.ModelProto, before: set[str], outputs: list[str]) -> onnx.ModelProto:
    """Ones in place of the gradients of the outputs."""
    model = load(derivative)
    graph = model.graph
    op: OpBuilder = OpBuilder.on(model)
    op.scope = "ones"
    by_name = {o.name: o for o in graph.outputs}
    seeds = [v for v in graph.inputs if v.name not in before and v.name not in graph.initializers]
    anchors = []
    for seed in seeds:
        output = by_name[(seed.name or "").removesuffix("_grad")]
        tensor = op.tensor(output)
        ones = op.full(op.shape_of(tensor), 1, tensor.dtype)
        seed.replace_all_uses_with(ones.value)
        graph.inputs.remove(seed)
        anchors.append(output)
    op.attach(graph, mark=True)
    graph.sort()
    return to_proto(model)


def _with_yield(model: onnx.ModelProto, inputs: list[str], weights: list[str]) -> onnx.ModelProto:
    config = OrtModuleGraphBuilderConfiguration()
    config.initializer_names = weights
    config.initializer_names_to_train = weights
    config.input_names_require_grad = inputs
    builder = OrtModuleGraphBuilder()
    builder.initialize(model.SerializeToString(), config)
    builder.build()
    return onnx.load_from_string(builder.get_gradient_model())


def _of_loss(
    model: onnx.ModelProto,
    weights: Sequence[str] | None,
    inputs: Sequence[str] | None,
    options: DerivativeOptions,
    loss: str | None,
    label: str | None,
) -> onnx.ModelProto:
    outputs = [o.name for o in model.graph.output]
    inputs_, weights_ = _wrt(model, weights, inputs)
    if label in outputs and loss not in outputs:
        return _vjp(model, inputs_, weights_, options)
    if loss is not None and loss in outputs:
        name, whole = loss, model
    else:
        name = "loss"
        whole = _append(model, loss, label or "label")
    wrt = [*inputs_, *weights_]
    derivative = differentiate(whole, wrt=wrt, of=name, allow_unused=True)
    if not options & DerivativeOptions.KeepOutputs:
        results = [o for o in derivative.graph.output if o.name == name or o.name not in outputs]
        del derivative.graph.output[:]
        derivative.graph.output.extend(results)
    return derivative


def _append(model: onnx.ModelProto, text: str | None, label: str) -> onnx.ModelProto:
    """The model with a loss on its first output."""
    if text is None:
        from .loss_output import add_loss_output

        return add_loss_output(model, label_name=label, output_index=0)
    try:
        version = next(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"})
        sub: Any = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": {version}]> loss {text}'
        )
    except onnx.parser.ParseError as error:
        outputs = ", ".join(o.name for o in model.graph.output)
        raise ModelError(
            f"{text!r} is neither an output of the model ({outputs}) nor the text of a graph: "
            f"{error}"
        ) from error
    if len(sub.graph.input) != 2 or len(sub.graph.output) != 1:
        raise ModelError("The graph of a loss takes a prediction and a label, and gives a scalar.")
    prefixed = onnx.compose.add_prefix(sub, "loss/")
    prediction, expected = prefixed.graph.input
    whole = as_proto(model)
    renamed = {
        prediction.name: model.graph.output[0].name,
        expected.name: label,
        prefixed.graph.output[0].name: "loss",
    }
    for node in prefixed.graph.node:
        for field in (node.input, node.output):
            names = [renamed.get(n, n) for n in field]
            del field[:]
            field.extend(names)
    whole.graph.node.extend(prefixed.graph.node)
    whole.graph.initializer.extend(prefixed.graph.initializer)
    whole.graph.input.append(expected)
    whole.graph.input[-1].name = label
    whole.graph.output.append(prefixed.graph.output[0])
    whole.graph.output[-1].name = "loss"
    return whole
