"""An adapter into the weights: the same inputs and outputs, nothing beside the layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..errors import UnknownNameError
from ..graph.edit import take_over
from ..graph.nodes import initializer
from .adapter import Adapter
from .layers import MS, Layer, find_layers
from .values import Array, fingerprint, weight_of


def merge_into(model: ir.Model, adapter: Adapter) -> ir.Model:
    """The base model with adapted weights; it may be changed.

    A layer whose weight is quantised gets one of floats: rounding it again would undo what was
    learned.
    """
    layers = adapter.matched(find_layers(model))
    adapter.check_base(fingerprint(layers))
    for layer in layers:
        weight = adapter.layers[layer.name].adapted(weight_of(layer), adapter.config.scale)
        _replace(model, layer, weight)
    for name, array in adapter.saved.items():
        value = model.graph.initializers.get(name)
        if value is None:
            raise UnknownNameError("parameter", name, list(model.graph.initializers))
        value.const_value = ir.tensor(array, name=name)
    _remove_unused(model)
    return model


def _replace(model: ir.Model, layer: Layer, weight: Array) -> None:
    """Let a layer multiply with another weight."""
    value = layer.weight
    if layer.is_plain and _is_read_only_by(layer):
        stored = weight if layer.kernel or not layer.transposed else weight.T
        value.const_value = ir.tensor(np.ascontiguousarray(stored), name=value.name)
        return
    new = initializer(model.graph, f"{layer.name}.merged_weight", weight)
    for node in layer.nodes:
        if node.domain == MS:
            _become_product(node, new)
            continue
        node.replace_input_with(1, new)
        node.attributes.pop("transB", None)


def _is_read_only_by(layer: Layer) -> bool:
    """Whether nothing else reads the weight: not an embedding, not another layer."""
    readers = {node for node, _ in layer.weight.uses()}
    steps = {n for n in readers if n.op_type in {"Transpose", "Identity"}}
    behind = {node for step in steps for node, _ in step.outputs[0].uses()}
    own = set(layer.nodes)
    is_output = any(v.is_graph_output() for v in (layer.weight, *(s.outputs[0] for s in steps)))
    return not is_output and readers - steps <= own and behind <= own


def _become_product(node: ir.Node, weight: ir.Value) -> None:
    """MatMulNBits as MatMul, and Add where it has a bias."""
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    graph, result = node.graph, node.outputs[0]
    assert graph is not None
    product = ir.Node("", "MatMul", [node.inputs[0], weight], name=f"{node.name}/merged")
    new, last = product.outputs[0], product
    graph.insert_after(node, product)
    if bias is not None:
        new.name = f"{result.name}/product"
        last = ir.Node("", "Add", [new, bias], name=f"{node.name}/bias")
        graph.insert_after(product, last)
    value = last.outputs[0]
    value.type, value.shape = result.type, result.shape
    take_over(result, value)
    graph.remove(node, safe=True)


def _remove_unused(model: ir.Model) -> None:
    """Take out what only the replaced weights needed."""
    graph = model.graph
    for node in reversed(list(graph)):
        outputs = node.outputs
        if node.op_type in {"DequantizeLinear", "Transpose", "Cast", "Identity"} and not any(
            o.uses() or o.is_graph_output() for o in outputs
        ):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
