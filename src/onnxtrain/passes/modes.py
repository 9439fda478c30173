"""Training and inference mode of the operators that have one: BatchNormalization and Dropout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ..errors import ModelError
from ..graph import FLOATS, OpBuilder, Tensor
from ..graph.dropout import never_drops
from ..graph.nodes import initializer
from .draws import draws

MODES = ("preserve", "train", "auto")


def nodes_of(model: ir.Model, op_type: str) -> Iterator[ir.Node]:
    """Nodes of one standard operator, in subgraphs and functions too."""
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    for graph in graphs:
        for node in list(graph.all_nodes()):
            if node.op_type == op_type and node.domain in {"", "ai.onnx"}:
                yield node


def is_training(node: ir.Node) -> bool:
    """Whether a BatchNormalization uses the batch's own statistics."""
    mode = node.attributes.get("training_mode")
    if mode is not None:
        return bool(mode.as_int())
    return len(node.outputs) > 1 and any(o.uses() or o.name for o in node.outputs[1:])


def switch_off_training(model: ir.Model) -> None:
    """Make every Dropout pass its input on and every BatchNormalization use its statistics."""
    for node in nodes_of(model, "Dropout"):
        if len(node.inputs) > 2:
            node.replace_input_with(2, None)  # absent; scripts look for the empty name
    for node in nodes_of(model, "BatchNormalization"):
        if "training_mode" in node.attributes:
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
        for result, statistic in zip(node.outputs[1:], node.inputs[3:5]):
            if statistic is not None:
                result.replace_all_uses_with(statistic)
        node.resize_outputs(1)


def apply_training_mode(model: ir.Model, mode: str, trainable: Collection[str]) -> None:
    """Decide which BatchNormalization and Dropout nodes train.

    Args:
        model: the model, changed in place.
        mode: "preserve" leaves every node as the model says. "train" switches every
            BatchNormalization to batch statistics and every Dropout on, as onnxruntime-training did
            to BatchNormalization. "auto" does so for each BatchNormalization whose scale or bias is
            trained, and leaves the others and Dropout alone.
        trainable: names of what is trained.
    """
    if mode not in MODES:
        raise ModelError(f"training_mode is one of {', '.join(MODES)}, not {mode!r}.")
    if mode == "preserve":
        return
    opset = model.opset_imports.get("", 1)
    for node in nodes_of(model, "BatchNormalization"):
        trained = any(v is not None and v.name in trainable for v in node.inputs[1:3])
        if mode == "train" or trained:
            if opset >= 14:
                node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            name_outputs(model, node, 3 if opset >= 14 else 5)
    if mode == "train" and opset >= 12:
        for node in nodes_of(model, "Dropout"):
            _activate_dropout(model, node)


def name_outputs(model: ir.Model, node: ir.Node, count: int) -> None:
    """Make sure that a node has `count` outputs, all of them named."""
    if len(node.outputs) < count:
        node.resize_outputs(count)
    taken = {o.name for n in model.graph.all_nodes() for o in n.outputs}
    for i, output in enumerate(node.outputs):
        if not output.name:
            stem = name = f"{node.outputs[0].name}_output{i}"
            while name in taken:
                name += "_"
            output.name = name or stem


def _activate_dropout(model: ir.Model, node: ir.Node) -> None:
    """Feed a constant `true` as training_mode (and keep the default ratio where none is given)."""
    name = "onnxtrain.training_mode"
    flag = model.graph.initializers.get(name)
    if flag is None:
        flag = initializer(model.graph, name, np.array(True))
    if len(node.inputs) < 3:
        node.resize_inputs(3)
    node.replace_input_with(2, flag)


def protect_dropouts(model: ir.Model) -> ir.Model:
    """Keep onnxruntime from removing training-mode Dropouts whose mask nobody reads.

    Its optimizer drops them as if they were in inference mode, unless `training_mode` is a value
    that it cannot know: here one that is computed from a float input and always true. Without this
    a Dropout between frozen layers and trained ones would silently do nothing.
    """
    exposed = [
        n
        for n in nodes_of(model, "Dropout")
        if _is_active(n) and not _reads_mask(n) and not never_drops(n)
    ]
    source = next((v for v in model.graph.inputs if v.dtype in FLOATS), None)
    if not exposed or source is None:
        return model
    op = OpBuilder.on(model)
    op.scope = "onnxtrain.always_true"
    flat = op.Reshape(op.tensor(source), op.const(np.array([-1], np.int64)))
    unknown = op.IsNaN(op.Slice(flat, [0], [1]))
    always = op.Or(unknown, op.Not(unknown))
    padded = op.Concat(always, op.const(np.array([True])), axis=0)  # the input may be empty
    flag = op.Reshape(op.Slice(padded, [0], [1]), op.const(np.zeros(0, np.int64)))
    op.attach(model.graph, before=next(iter(model.graph)))
    for node in exposed:
        constant = node.inputs[2]
        node.replace_input_with(2, flag.value)
        if constant is not None and constant.name and not constant.uses():
            model.graph.initializers.pop(constant.name, None)
    return model


def _is_active(node: ir.Node) -> bool:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    if mode is None or mode.const_value is None or mode.is_graph_input():
        return False
    return bool(mode.const_value.numpy().all())


def _reads_mask(node: ir.Node) -> bool:
    return any(o.uses() or o.is_graph_output() for o in node.outputs[1:])


def running_statistics(model: ir.Model) -> list[str]:
    """Initializers that training-mode BatchNormalization nodes update, in the model's order."""
    updated = _statistics(n for n in nodes_of(model, "BatchNormalization") if is_training(n))
    return [name for name in model.graph.initializers if name in updated]


def all_statistics(model: ir.Model) -> set[str]:
    """Means and variances of BatchNormalization, whether it trains or not."""
    return _statistics(nodes_of(model, "BatchNormalization"))


def _statistics(nodes: Iterable[ir.Node]) -> set[str]:
    return {v.name or "" for node in nodes for v in node.inputs[3:5] if v is not None}


def expose_statistics(
    model: ir.Model, states: Collection[str], *, unbiased: bool = False
) -> dict[str, str]:
    """Make the updated running statistics graph outputs ``<s>.updated``.

    A layer that is used twice updates its statistics twice, one after the other. onnxruntime's
    kernel overwrites its inputs when such nodes are chained, so these are written in primitives.

    Args:
        model: the model, changed in place.
        states: names of the running statistics.
        unbiased: keep variances as torch does, of the sample (n - 1), where ONNX divides by n.
    """
    nodes = [
        node
        for node in model.graph
        if node.op_type == "BatchNormalization" and not node.domain and is_training(node)
    ]
    users = Counter(v.name for node in nodes for v in node.inputs[3:5] if v is not None)
    latest: dict[str, ir.Value] = {}
    for node in nodes:
        statistics = [v.name or "" if v is not None else "" for v in node.inputs[3:5]]
        if not set(statistics) <= set(states):
            continue
        old = [latest.get(name) for name in statistics]
        if any(users[name] > 1 for name in statistics):
            new = _write_out(model, node, old, unbiased)
        else:
            name_outputs(model, node, 3)
            new = list(node.outputs[1:3])
            if unbiased:
                new[1] = _of_sample(model, node)
        for name, value, before in zip(statistics, new, node.inputs[3:5]):
            assert before is not None
            value.type, value.shape = before.type, before.shape
            latest[name] = value
    for node in nodes:
        is_read = any(o.uses() or o.is_graph_output() or o in latest.values() for o in node.outputs)
        if not is_read:
            model.graph.remove(node, safe=True)
    for name, value in latest.items():
        value.name = f"{name}.updated"
        model.graph.outputs.append(value)
    return {name: value.name or "" for name, value in latest.items()}


def _of_sample(model: ir.Model, node: ir.Node) -> ir.Value:
    """The new running variance of a BatchNormalization with the batch's part times n/(n - 1)."""
    op = OpBuilder.on(model)
    op.scope = f"{node.name or 'batch_norm'}/unbiased"
    x, var = node.inputs[0], node.inputs[4]
    assert x is not None
    assert var is not None
    old = op.tensor(var) * _float_attribute(node, "momentum", 0.9)
    node.outputs[2].type, node.outputs[2].shape = var.type, var.shape
    new = old + (op.tensor(node.outputs[2]) - old) * _of_population(op, op.tensor(x), old)
    op.attach(model.graph, after=node)
    return new.value


def _of_population(op: OpBuilder, x: Tensor, like: Tensor) -> Tensor:
    """n/(n - 1) for the n values that a channel of x has; as torch, infinite for one value."""
    count = op.Cast(op.Div(op.Size(x), op.Size(like)), to=like.dtype)
    return count / (count - 1.0)


def _write_out(
    model: ir.Model, node: ir.Node, old: Sequence[ir.Value | None], unbiased: bool
) -> list[ir.Value]:
    """Put primitives in the place of a training-mode BatchNormalization.

    Returns:
        The new running mean and variance, which follow `old` where it is given.
    """
    op = OpBuilder.on(model)
    op.scope = node.name or "batch_norm"
    x, scale, bias, mean, var = (op.tensor(v) for v in node.inputs if v is not None)
    momentum = _float_attribute(node, "momentum", 0.9)
    axes = [i for i in range(x.rank) if i != 1]
    batch_mean = op.ReduceMean(x, axes, keepdims=1)
    centered = x - batch_mean
    batch_var = op.ReduceMean(centered * centered, axes, keepdims=1)
    across = op.const(np.array([1, -1, *[1] * (x.rank - 2)], np.int64))
    factor = op.Reshape(scale, across) / op.Sqrt(
        batch_var + _float_attribute(node, "epsilon", 1e-5)
    )
    y = centered * factor + op.Reshape(bias, across)
    flat = op.const(np.array([-1], np.int64))
    updated = []
    seen = batch_var * _of_population(op, x, mean) if unbiased else batch_var
    for before, statistic, now in zip(old, (mean, var), (batch_mean, seen)):
        start = statistic if before is None else op.tensor(before)
        new = start * momentum + op.Reshape(now, flat) * (1.0 - momentum)
        updated.append(new.value)
    op.attach(model.graph, before=node)
    result = node.outputs[0]
    y.value.type, y.value.shape = result.type, result.shape
    name = result.name
    ir.convenience.replace_all_uses_with(result, y.value, replace_graph_outputs=True)
    result.name, y.value.name = op.names.fresh(f"{name}_old"), name
    return updated


def _float_attribute(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.as_float())


def random_nodes(model: ir.Model) -> list[str]:
    """Names of the nodes that draw from a generator of their kernel."""
    return [n.name or "" for n in model.graph.all_nodes() if draws(n)]
