"""From one optimizer to its graphs: over flat vectors, over sequences, or inside a step."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import Constants, Inputs, Names, OpBuilder, Tensor
from ..passes import clean_up
from .clipping import norm_coefficient
from .linear import Scalar, times
from .optimizer import ClipNorm, ClipValue, Optimizer, OptimizerError, Segment
from .packed import (
    Packing,
    check_packed,
    described,
    packed,
    stored_shape,
    stored_states,
    stored_types,
    unpacked,
)

FLOAT, INT64, BOOL = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.BOOL
METADATA = "onnxtrain.optimizer"
MIN_SEQUENCE_OPSET = 12
"""Sequence operators came with opset 11, Clip and Min for all float types with 12."""


class _Graph:
    """A graph in the making."""

    def __init__(self, opset: int) -> None:
        self.names = Names()
        self.op = OpBuilder(self.names, Constants(self.names), opset)
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str] | None) -> Tensor:
        tensor = self.op.graph_input(name, dtype, shape)
        self.inputs.append(tensor.value)
        return tensor

    def sequence(self, name: str) -> Tensor:
        self.names.reserve(name)
        value = ir.Value(name=name, type=ir.SequenceType(ir.TensorType(FLOAT)))
        self.inputs.append(value)
        return self.op.tensor(value)

    def scalar(self, x: Tensor) -> Tensor:
        """A tensor of one element without its dimension: it never adds one to what it meets."""
        return self.op.Reshape(x, self.op.const(np.zeros(0, np.int64)))

    def output(self, x: Tensor, name: str, like: ir.Value | None = None) -> None:
        value = x.value
        if value.producer() is None or value in self.outputs:
            value = self.op.Identity(x).value
            value.type = x.value.type
        self.names.reserve(name)
        value.name = name
        if like is not None:
            value.type, value.shape = like.type, like.shape.copy() if like.shape else None
        self.outputs.append(value)

    def model(self, name: str, ir_version: int = 8) -> ir.Model:
        constants = [c for c in self.op.constants.values() if c.uses()]
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self.op.nodes,
            initializers=constants,
            opset_imports={"": self.op.opset},
            name=name,
        )
        model = ir.Model(graph, ir_version=ir_version, producer_name="onnxtrain")
        return clean_up(model)


def flat_model(
    optimizer: Optimizer, opset: int = 18, params: Sequence[tuple[str, Sequence[int]]] = ()
) -> ir.Model:
    """The update over flat vectors: one graph, whatever the number of parameters.

    Groups may have another learning rate and decay, which are fed; a group with a chain of its own
    has a graph of its own, in the description.

    Inputs: ``learning_rate`` FLOAT[1], ``step`` INT64[1], ``grad_scale`` FLOAT[1],
    ``weight_decay`` FLOAT[1] if the optimizer decays, ``params``, ``gradients`` and the states.
    Outputs: ``params.updated`` and ``<state>.updated``. With layout "elementwise" the vectors have
    any common length and may be updated in place; with layout "tensor" one parameter is passed
    at a time, in its own shape (so no shape is declared: the rank differs).

    Args:
        optimizer: what to build.
        opset: ai.onnx version to emit.
        params: name and shape of each trainable parameter, for the description in the metadata.
    """
    check_packed(optimizer)
    about = describe(optimizer, params)
    g = _Graph(opset)
    shape = ["n"] if optimizer.layout == "elementwise" else None
    learning_rate = g.input("learning_rate", FLOAT, [1])
    step = g.input("step", INT64, [1])
    grad_scale = g.input("grad_scale", FLOAT, [1])
    decay = g.input("weight_decay", FLOAT, [1]) if optimizer.decays else None
    weights, gradients = g.input("params", FLOAT, shape), g.input("gradients", FLOAT, shape)
    types = stored_types(optimizer)
    names = stored_states(optimizer)
    states = {name: g.input(name, types.get(name, FLOAT), shape) for name in names}
    number = g.scalar if shape is None else _as_it_is  # one element and n elements are n elements
    count = number(step)
    packing = Packing(g.op, gradients, count) if types else None
    updated, new = optimizer.update(
        g.op,
        weights,
        gradients,
        states if packing is None else unpacked(packing, states),
        step=count,
        learning_rate=number(learning_rate),
        weight_decay=0.0 if decay is None else number(decay),
        grad_scale=number(grad_scale),
    )
    if packing is not None:
        new = packed(packing, new, types)
    g.output(updated, "params.updated", weights.value)
    for name in names:
        g.output(new[name], f"{name}.updated", states[name].value)
    model = g.model(f"{optimizer.name} flat")
    model.metadata_props[METADATA] = json.dumps(about)
    return model


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _refuse_packed(optimizer: Optimizer, form: str) -> None:
    if optimizer.moments != "float32":
        raise OptimizerError(
            f"An update {form} keeps its moments in float32, and {optimizer.name} was asked for "
            f"moments={optimizer.moments!r}. Train with the artifacts of generate_artifacts "
            "(Module and Optimizer, or Trainer), or leave `moments` out."
        )


def sequence_model(
    optimizer: Optimizer,
    params: Sequence[tuple[str, Sequence[int]]],
    opset: int = 18,
    *,
    flag: str = "update_completed",
) -> ir.Model:
    """The update over sequences of tensors, the signature that existing scripts feed.

    Inputs: ``learning_rate`` FLOAT[1], ``step`` INT64[1], sequences ``params``, ``gradients`` and
    one per state. Outputs: a BOOL[1] flag, then ``params.updated`` and ``<state>.updated``.

    Args:
        optimizer: what to build.
        params: name and shape of each trainable parameter, in the order of the sequences.
        opset: ai.onnx version to emit, at least 12.
        flag: name of the first output.
    """
    if opset < MIN_SEQUENCE_OPSET:
        raise ModelError(
            f"An optimizer over sequences needs opset {MIN_SEQUENCE_OPSET} or later, not {opset}."
        )
    if not params:
        raise OptimizerError("An optimizer needs at least one trainable parameter.")
    _refuse_packed(optimizer, "over sequences of tensors")
    g = _Graph(opset)
    g.names.reserve(flag)
    op = g.op
    rate = g.scalar(g.input("learning_rate", FLOAT, [1]))
    step_input = g.input("step", INT64, [1])
    declared = optimizer.states or ("first_order_moments",)
    sequences = {name: g.sequence(name) for name in ("params", "gradients", *declared)}
    items = {
        name: [_at(op, sequences[name], i, shape) for i, (_, shape) in enumerate(params)]
        for name in ("params", "gradients")
    }
    for state in optimizer.states:
        shapes = [optimizer.state_shape(state, shape) for _, shape in params]
        items[state] = [_at(op, sequences[state], i, shape) for i, shape in enumerate(shapes)]
    done = op.GreaterOrEqual(step_input, op.const(np.array([0], np.int64)))
    done.value.shape = ir.Shape([1])
    g.output(done, flag)
    results = update_all(
        optimizer,
        op,
        [name for name, _ in params],
        items,
        step=g.scalar(step_input),
        learning_rate=rate,
    )
    for name in ("params", *declared):
        tensors = results.get(name)
        new = sequences[name] if tensors is None else op.SequenceConstruct(*tensors)
        new.value.type = ir.SequenceType(ir.TensorType(FLOAT))
        g.output(new, f"{name}.updated")
    model = g.model(f"{optimizer.name} Optimizer Model")
    model.metadata_props[METADATA] = json.dumps(describe(optimizer, params, flat=True))
    return model


def tensor_model(
    optimizer: Optimizer, params: Sequence[tuple[str, Sequence[int]]], opset: int = 18
) -> ir.Model:
    """The update over named tensors, with clipping and groups inside; may be run in place.

    Inputs: ``learning_rate`` FLOAT[1], ``step`` INT64[1], and per parameter ``<p>``,
    ``<p>_grad`` and ``<p>.<state>``. Outputs: ``<p>.updated`` and ``<p>.<state>.updated``.
    """
    g = _Graph(opset)
    rate = g.scalar(g.input("learning_rate", FLOAT, [1]))
    step = g.scalar(g.input("step", INT64, [1]))
    items = {
        "params": [g.input(name, FLOAT, shape) for name, shape in params],
        "gradients": [g.input(f"{name}_grad", FLOAT, shape) for name, shape in params],
    }
    for state in optimizer.states:
        items[state] = [
            g.input(f"{name}.{state}", FLOAT, optimizer.state_shape(state, shape))
            for name, shape in params
        ]
    names = [name for name, _ in params]
    results = update_all(optimizer, g.op, names, items, step=step, learning_rate=rate)
    for kind in ("params", *optimizer.states):
        for name, old, new in zip(names, items[kind], results[kind]):
            stem = name if kind == "params" else f"{name}.{kind}"
            g.output(new, f"{stem}.updated", old.value)
    return g.model(f"{optimizer.name} update")


def update_all(
    optimizer: Optimizer,
    op: OpBuilder,
    names: Sequence[str],
    items: Mapping[str, Sequence[Tensor]],
    *,
    step: Tensor,
    learning_rate: Tensor,
) -> dict[str, list[Tensor]]:
    """Emit the updates of several parameters: their groups, and clipping over all of them.

    Args:
        optimizer: what to build.
        op: the builder.
        names: the parameters.
        items: under "params", "gradients" and each state's name, one tensor per parameter.
        step: number of the update, without dimensions.
        learning_rate: likewise.

    Returns:
        Under "params" and each state's name, the new tensors.
    """
    _refuse_packed(optimizer, "inside of a larger graph")
    scale: Tensor | None = None
    if isinstance(optimizer.clip, ClipNorm):
        scale = norm_coefficient(op, items["gradients"], optimizer.clip.max_norm)
    group_of = {name: s for s in optimizer.resolve(names) for name in s.params}
    results: dict[str, list[Tensor]] = {k: [] for k in ("params", *optimizer.states)}
    for i, name in enumerate(names):
        op.scope = f"update/{name}"
        param, segment = items["params"][i], group_of[name]
        rate = _typed(op, times(learning_rate, segment.lr_scale), param)
        new_param, new = optimizer.for_segment(segment).update(
            op,
            param,
            items["gradients"][i],
            {s: items[s][i] for s in optimizer.states},
            step=step,
            learning_rate=rate,
            weight_decay=segment.weight_decay,
            grad_scale=1.0 if scale is None else _typed(op, scale, param),
        )
        results["params"].append(new_param)
        for state in optimizer.states:
            results[state].append(new[state])
    op.scope = ""
    return results


def append_update(
    model: ir.Model, optimizer: Optimizer, trainable: Sequence[str], gradients: Mapping[str, str]
) -> tuple[list[str], list[ir.Value], dict[str, Any]]:
    """Append the update of every parameter to a model with gradients.

    Args:
        model: has parameters as inputs and gradients as outputs; is changed.
        optimizer: what to build.
        trainable: the parameters.
        gradients: from parameters to the outputs that are their gradients.

    Returns:
        Names of the inputs that were added (``<p>.<state>``, ``learning_rate``, ``step``), the
        new values (``<p>.updated``, then ``<p>.<state>.updated``), and the optimizer's
        description.
    """
    op = OpBuilder.on(model)
    values = {v.name: op.tensor(v) for v in (*model.graph.inputs, *model.graph.outputs)}
    inputs = Inputs(model)
    rate = inputs.add("learning_rate", ir.TensorType(FLOAT), [1])
    step = inputs.add("step", ir.TensorType(INT64), [1])
    op.scope = "update"
    scalar = op.const(np.zeros(0, np.int64))
    shapes = [(n, inputs.dims(n)) for n in trainable]
    items: dict[str, list[Tensor]] = {
        "params": [values[n] for n in trainable],
        "gradients": [values[gradients[n]] for n in trainable],
    }
    for state in optimizer.states:
        items[state] = [
            op.tensor(
                inputs.add(
                    f"{name}.{state}",
                    values[name].value.type,
                    optimizer.state_shape(state, shape),
                )
            )
            for name, shape in shapes
        ]
    results = update_all(
        optimizer,
        op,
        trainable,
        items,
        step=op.Reshape(op.tensor(step), scalar),
        learning_rate=op.Reshape(op.tensor(rate), scalar),
    )
    for key in ("params", *optimizer.states):
        for name, old, new in zip(trainable, items[key], results[key]):
            value = new.value
            value.name = f"{name}.updated" if key == "params" else f"{name}.{key}.updated"
            value.type, value.shape = old.value.type, old.value.shape
    op.attach(model.graph)
    added = [f"{n}.{state}" for n in trainable for state in optimizer.states]
    updated = [new.value for new in results["params"]]
    for i in range(len(trainable)):
        updated += [results[state][i].value for state in optimizer.states]
    return [*added, "learning_rate", "step"], updated, describe(optimizer, shapes)


def _typed(op: OpBuilder, scalar: Scalar, like: Tensor) -> Scalar:
    return op.as_type_of(scalar, like) if isinstance(scalar, Tensor) else scalar


def _at(op: OpBuilder, sequence: Tensor, index: int, shape: Sequence[int]) -> Tensor:
    item = op.SequenceAt(sequence, op.const(np.array(index, np.int64)))
    item.value.type, item.value.shape = ir.TensorType(FLOAT), ir.Shape(list(shape))
    return item


def describe(
    optimizer: Optimizer, params: Sequence[tuple[str, Sequence[int]]] = (), *, flat: bool = False
) -> dict[str, Any]:
    """What the runtime has to know about an optimizer, as JSON-ready data."""
    clip: dict[str, float] | None = None
    if isinstance(optimizer.clip, ClipNorm):
        clip = {"norm": optimizer.clip.max_norm}
    elif isinstance(optimizer.clip, ClipValue):
        clip = {"value": optimizer.clip.limit}
    names = [name for name, _ in params]
    about: dict[str, Any] = {
        "version": 1,
        "name": optimizer.name,
        "states": stored_states(optimizer),
        "layout": optimizer.layout,
        "hyper": {"weight_decay": optimizer.weight_decay, **optimizer.hyper},
        "clip": clip,
        "groups": [_group(optimizer, s) for s in optimizer.resolve(names)]
        if optimizer.groups and names
        else [],
        **described(optimizer),
    }
    shapes = {
        state: {
            name: stored_shape(optimizer, state, shape)
            for name, shape in params
            if stored_shape(optimizer, state, shape) != list(shape)
        }
        for state in stored_states(optimizer)
    }
    shapes = {state: shape for state, shape in shapes.items() if shape}
    if shapes:
        about["state_shapes"] = shapes
    if flat:
        about["flat"] = _encoded(flat_model(optimizer))
    return about


def _encoded(model: ir.Model) -> str:
    return base64.b64encode(ir.to_proto(model).SerializeToString()).decode("ascii")


def _group(optimizer: Optimizer, segment: Segment) -> dict[str, Any]:
    about: dict[str, Any] = {
        "params": list(segment.params),
        "lr_scale": segment.lr_scale,
        "weight_decay": segment.weight_decay,
    }
    if segment.transforms is not None:
        own = optimizer.for_segment(segment).replace(weight_decay=segment.weight_decay, groups=())
        about["flat"] = _encoded(flat_model(own))
    return about
