"""From a model with a loss to its training, eval and one-graph step models."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ..autodiff import differentiate_model
from ..errors import ModelError, UnknownNameError
from ..graph import OpBuilder, Tensor
from ..graph import parameters as params
from ..graph.infer import infer_shapes
from ..graph.schema import RANDOM
from ..normalize import MAX_IR, MAX_OPSET, normalize
from ..optim import Optimizer, describe, update_all
from ..passes import (
    Recompute,
    check_recompute,
    copies_by_all_threads,
    kept_by_name,
    layers_in_columns,
    optimize,
    recompute_activations,
    small_maps_as_products,
)
from . import modes

METADATA = "onnxtrain.artifact"
ACCUMULATION = "onnxtrain.accumulate/"
RESET = "lazy_reset_grad"


@dataclass
class Plan:
    """What is to be trained, and how.

    Attributes:
        base: the model with its loss, at its own opset, weights as initializers.
        base_dir: folder of its external data.
        outputs: names of the outputs to keep, the loss first.
        differentiate: those of the outputs whose gradients are taken, by default the first.
        trainable, frozen: parameters, in initializer order.
        inputs: graph inputs whose gradients are wanted too.
        model_outputs: outputs of the model before the loss was added.
        everything_is_input: turn all initializers into inputs and train none.
        training_mode: see `modes.apply_training_mode`.
        no_gradient: nodes or operators that count as constants.
        unbiased: see `modes.expose_statistics`.
        recompute: what the backward half computes again, see `autodiff.recompute`.
    """

    base: onnx.ModelProto
    base_dir: str
    outputs: Sequence[str]
    trainable: Sequence[str] = ()
    frozen: Sequence[str] = ()
    inputs: Sequence[str] = ()
    model_outputs: Sequence[str] = ()
    differentiate: Sequence[str] = ()
    everything_is_input: bool = False
    training_mode: str = "preserve"
    no_gradient: Collection[str] = ()
    unbiased: bool = False
    recompute: Recompute = None
    user_inputs: list[str] = field(init=False)
    states: list[str] = field(init=False)
    parameters: list[str] = field(init=False)
    _gradients: Gradients | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        check_recompute(self.recompute)
        model = self.load()
        known = list(model.graph.initializers)
        for name in (*self.trainable, *self.frozen):
            if name not in known:
                raise UnknownNameError("initializer", name, known)
        self.states = [n for n in modes.running_statistics(model) if n not in self.trainable]
        chosen = {*self.trainable, *self.frozen, *self.states}
        if self.everything_is_input:
            chosen.update(known)
        self.parameters = [n for n in known if n in chosen]
        self.trainable = [n for n in self.parameters if n in set(self.trainable)]
        self.frozen = [n for n in self.parameters if n not in self.trainable]
        self.differentiate = list(self.differentiate or self.outputs[:1])
        initializers = set(known)
        self.user_inputs = [
            i.name for i in model.graph.inputs if i.name and i.name not in initializers
        ]
        if self.everything_is_input:
            self.user_inputs += self.frozen
            self.frozen = []

    def load(self) -> ir.Model:
        """The base as a fresh model, with BatchNormalization and Dropout in the modes wanted."""
        model = ir.from_proto(self.base)
        if self.base_dir:
            ir.external_data.set_base_dir(model.graph, self.base_dir)
        modes.apply_training_mode(model, self.training_mode, set(self.trainable))
        return model


def eval_model(plan: Plan) -> ir.Model:
    """The forward half with the loss, Dropout and BatchNormalization in inference mode.

    It keeps the opset of the base, because models for inference are made from it again, unless
    that is newer than every onnxruntime from 1.20 on runs, or has operators outside the standard.
    """
    model = plan.load()
    modes.switch_off_training(model)
    params.to_inputs(model, plan.parameters)
    if model.opset_imports.get("", 0) > MAX_OPSET or not _is_standard(model):
        model = normalize(model)
    model.ir_version = min(model.ir_version, MAX_IR)
    _set_outputs(model, plan.outputs)
    _order_inputs(model, plan)
    _describe(model, plan, "eval", model_outputs=list(plan.model_outputs))
    return model


def _is_standard(model: ir.Model) -> bool:
    known = {"", "ai.onnx", "ai.onnx.ml"}.union(key[0] for key in model.functions)
    return all(node.domain in known for node in model.graph.all_nodes())


@dataclass
class Gradients:
    """A model with gradients as its last outputs, and where they are."""

    model: ir.Model
    gradients: dict[str, str]
    states: dict[str, str]


def gradient_model(plan: Plan) -> Gradients:
    """A copy of the differentiated model; it is built once per plan."""
    if plan._gradients is None:
        plan._gradients = _build_gradients(plan)
    built = plan._gradients
    return Gradients(built.model.clone(), dict(built.gradients), dict(built.states))


def _build_gradients(plan: Plan) -> Gradients:
    """Normalize, differentiate and optimize: outputs of the plan, gradients, then states."""
    model = plan.load()
    params.to_inputs(model, plan.parameters)
    model = normalize(model)
    _set_outputs(model, plan.outputs)
    _drop_unread_log_prob(model)
    states = modes.expose_statistics(model, plan.states, unbiased=plan.unbiased)
    model = layers_in_columns(model, keep=kept_by_name(plan.recompute))
    wrt = [*plan.trainable, *plan.inputs]
    gradients: dict[str, str] = {}
    if wrt:
        target = _one_loss(model, plan.differentiate)
        if target not in plan.outputs or states:
            model = infer_shapes(model)  # of the nodes that were just added
        model, gradients = differentiate_model(model, wrt, [target], no_gradient=plan.no_gradient)
    model = optimize(model)
    modes.protect_dropouts(model)
    wanted = [*plan.outputs, *(gradients[n] for n in wrt), *states.values()]
    _set_outputs(model, wanted)
    model = recompute_activations(model, plan.recompute, gradients.values())
    model = copies_by_all_threads(small_maps_as_products(model))
    for name, gradient in gradients.items():
        if gradient != f"{name}_grad":
            raise ModelError(
                f"The name {name + '_grad'!r} is taken in the model, and the gradient of {name!r} "
                "must have it. Rename the value."
            )
    return Gradients(model, gradients, states)


def _drop_unread_log_prob(model: ir.Model) -> None:
    """Without its second output the gradient of the cross entropy takes a faster form."""
    for node in modes.nodes_of(model, "SoftmaxCrossEntropyLoss"):
        if len(node.outputs) > 1:
            log_prob = node.outputs[1]
            if not log_prob.uses() and not log_prob.is_graph_output():
                node.resize_outputs(1)


def _one_loss(model: ir.Model, names: Sequence[str]) -> str:
    """The scalar to differentiate; several outputs are added up."""
    if len(names) == 1:
        return names[0]
    values = {o.name: o for node in model.graph for o in node.outputs}
    sums = []
    for name in names:
        node = ir.Node(
            "", "ReduceSum", [values[name]], [ir.AttrInt64("keepdims", 0)], name=f"{name}/sum"
        )
        node.outputs[0].name = f"{name}/sum_out"
        sums.append(node)
    total = ir.Node("", "Sum", [n.outputs[0] for n in sums], name="onnxtrain.total_loss")
    total.outputs[0].name = "onnxtrain.total_loss_out"
    model.graph.extend([*sums, total])
    return total.outputs[0].name


def training_model(plan: Plan) -> ir.Model:
    """The model that `Module` trains with: gradients, and their accumulation over batches."""
    built = gradient_model(plan)
    model = built.model
    outputs = {o.name: o for o in model.graph.outputs}
    extra, accumulated = accumulate(model, built.gradients, plan.trainable)
    keep = [outputs[n] for n in plan.outputs]
    of_inputs = [outputs[built.gradients[n]] for n in plan.inputs]
    updated = [outputs[n] for n in built.states.values()]
    _replace_outputs(model, [*keep, *accumulated, *updated, *of_inputs])
    _order_inputs(model, plan, extra)
    _describe(
        model,
        plan,
        "training",
        gradients={n: built.gradients[n] for n in plan.trainable},
        states=built.states,
        random_nodes=_random_nodes(model),
    )
    return model


def accumulate(
    model: ir.Model, gradients: Mapping[str, str], trainable: Sequence[str]
) -> tuple[list[str], list[ir.Value]]:
    """Append the accumulation of gradients, which are outputs of the model, over batches.

    Returns:
        The names of the inputs that were added, and the accumulated gradients.
    """
    op = modes.builder_for(model)
    inputs = _Inputs(model)
    reset = inputs.add(RESET, ir.TensorType(ir.DataType.BOOL), [1])
    op.scope = f"{ACCUMULATION}{RESET}"
    flag = op.Reshape(op.tensor(reset), op.const(np.zeros(0, np.int64)))
    outputs = {o.name: o for o in model.graph.outputs}
    accumulated = []
    buffers = []
    for name in trainable:
        gradient = outputs[gradients[name]]
        dims = _dims(inputs.values[name])
        buffer = inputs.add(f"{name}_grad.accumulation.buffer", gradient.type, dims)
        buffers.append(buffer)
        op.scope = f"{ACCUMULATION}{name}"
        added = op.tensor(buffer) + op.tensor(gradient)
        result = op.Where(flag, op.tensor(gradient), added).value
        result.name = f"{name}_grad.accumulation.out"
        result.type, result.shape = buffer.type, buffer.shape
        accumulated.append(result)
    _attach(model, op)
    return [*(b.name or "" for b in buffers), RESET], accumulated


def step_model(plan: Plan, optimizer: Optimizer) -> ir.Model:
    """Loss, gradients and update in one graph.

    Inputs: user inputs and targets, parameters, ``<p>.<state>`` per trainable parameter and state,
    ``learning_rate``, ``step``. Outputs: those of the plan, ``<p>.updated``,
    ``<p>.<state>.updated``, then ``<s>.updated`` for running statistics.
    """
    if not plan.trainable:
        raise ModelError("A step model needs at least one trainable parameter.")
    built = gradient_model(plan)
    model = built.model
    op = modes.builder_for(model)
    values = {v.name: op.tensor(v) for v in (*model.graph.inputs, *model.graph.outputs)}
    inputs = _Inputs(model)
    rate = inputs.add("learning_rate", ir.TensorType(ir.DataType.FLOAT), [1])
    step = inputs.add("step", ir.TensorType(ir.DataType.INT64), [1])
    op.scope = "update"
    scalar = op.const(np.zeros(0, np.int64))
    items: dict[str, list[Tensor]] = {
        "params": [values[n] for n in plan.trainable],
        "gradients": [values[built.gradients[n]] for n in plan.trainable],
    }
    extra: list[str] = []
    for state in optimizer.states:
        items[state] = []
        for name in plan.trainable:
            shape = optimizer.state_shape(state, _dims(inputs.values[name]))
            value = inputs.add(f"{name}.{state}", values[name].value.type, shape)
            items[state].append(op.tensor(value))
    for name in plan.trainable:
        extra += [f"{name}.{state}" for state in optimizer.states]
    updated = update_all(
        optimizer,
        op,
        plan.trainable,
        items,
        step=op.Reshape(op.tensor(step), scalar),
        learning_rate=op.Reshape(op.tensor(rate), scalar),
    )
    results = []
    for key in ("params", *optimizer.states):
        for name, old, new in zip(plan.trainable, items[key], updated[key]):
            value = new.value
            value.name = f"{name}.updated" if key == "params" else f"{name}.{key}.updated"
            value.type, value.shape = old.value.type, old.value.shape
            results.append(value)
    count, order = len(plan.trainable), []
    for i in range(count):
        order += [results[i + count * k] for k in range(1, 1 + len(optimizer.states))]
    results = results[:count] + order
    _attach(model, op)
    by_name = {o.name: o for o in model.graph.outputs}
    keep = [by_name[n] for n in plan.outputs]
    states = [by_name[n] for n in built.states.values()]
    _replace_outputs(model, [*keep, *results, *states])
    model = optimize(model)
    _order_inputs(model, plan, [*extra, "learning_rate", "step"])
    present = _Inputs(model).values
    shapes = [(n, _dims(present[n])) for n in plan.trainable]
    _describe(
        model,
        plan,
        "step",
        states=built.states,
        random_nodes=_random_nodes(model),
        optimizer=describe(optimizer, shapes),
    )
    return model


# -- small pieces --------------------------------------------------------------------------------


def _dims(parameter: ir.Value) -> list[int]:
    assert parameter.shape is not None
    return [int(d) for d in parameter.shape.numpy()]


def _attach(model: ir.Model, op: OpBuilder) -> None:
    model.graph.extend(op.nodes)
    for constant in op.constants.values():
        if constant.uses():
            model.graph.register_initializer(constant)


class _Inputs:
    """Adds inputs to a model; a name that is taken is an error."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.values = {v.name: v for v in model.graph.inputs}

    def add(self, name: str, type_: ir.TypeProtocol | None, shape: Sequence[int]) -> ir.Value:
        if name in self.values:
            raise ModelError(f"The model has an input named {name!r} already; rename it.")
        value = ir.Value(name=name, type=type_, shape=ir.Shape(list(shape)))
        self.graph.inputs.append(value)
        self.values[name] = value
        return value


def _set_outputs(model: ir.Model, names: Sequence[str]) -> None:
    graph = model.graph
    values: dict[str | None, ir.Value] = {v.name: v for v in graph.inputs}
    values.update(graph.initializers)
    values.update((o.name, o) for node in graph for o in node.outputs)
    missing = [n for n in names if n not in values]
    if missing:
        raise UnknownNameError("output", missing[0], [str(n) for n in values])
    _replace_outputs(model, [values[n] for n in names])


def _replace_outputs(model: ir.Model, values: Sequence[ir.Value]) -> None:
    outputs = model.graph.outputs
    while outputs:
        outputs.pop()
    outputs.extend(values)


def _order_inputs(model: ir.Model, plan: Plan, extra: Sequence[str] = ()) -> None:
    """User inputs and targets, parameters in initializer order, then what was added."""
    inputs = model.graph.inputs
    values = {v.name: v for v in inputs}
    users = [n for n in plan.user_inputs if n not in plan.parameters]
    order = [*users, *plan.parameters, *extra]
    while inputs:
        inputs.pop()
    inputs.extend(values[n] for n in order)
    for name in (*plan.parameters, *extra):
        values[name].const_value = None  # the values live in the checkpoint


def _random_nodes(model: ir.Model) -> list[str]:
    return [n.name or "" for n in model.graph.all_nodes() if n.op_type in RANDOM and not n.domain]


def _describe(model: ir.Model, plan: Plan, kind: str, **more: Any) -> None:
    described = {
        "version": 1,
        "kind": kind,
        "user_inputs": list(plan.user_inputs),
        "user_outputs": list(plan.outputs),
        "trainable": list(plan.trainable),
        "frozen": list(plan.frozen),
        **more,
    }
    model.metadata_props[METADATA] = json.dumps(described)
