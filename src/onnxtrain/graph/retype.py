"""Change the float type of a whole model: the float64 twin that finite differences need."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def to_float64(model: ir.Model) -> ir.Model:
    """Replace float32, float16 and bfloat16 by float64 in inputs, weights, casts and constants."""
    graph = model.graph
    for value in [*graph.inputs, *graph.outputs]:
        _retype(value)
    for value in graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype in _NARROW:
            value.const_value = _widen(value.const_value)
            value.type = ir.TensorType(ir.DataType.DOUBLE)
    inner = [n for function in model.functions.values() for n in function.all_nodes()]
    for node in [*graph.all_nodes(), *inner]:
        _retype_node(node)
    for node in [n for n in graph.all_nodes() if n.domain == "ai.onnx.ml"]:
        _cast_around(node)
    return model


def _cast_around(node: ir.Node) -> None:
    """Operators of ai.onnx.ml give float32 whatever they get: their results are widened."""
    assert node.graph is not None
    for output in [o for o in node.outputs if o.dtype == ir.DataType.DOUBLE]:
        cast = ir.node("Cast", [output], {"to": int(ir.DataType.DOUBLE)})
        output.replace_all_uses_with(cast.outputs[0], replace_graph_outputs=True)
        cast.replace_input_with(0, output)
        cast.outputs[0].type, cast.outputs[0].shape = output.type, output.shape
        cast.outputs[0].name, output.name = output.name, f"{output.name}.float32"
        output.type = ir.TensorType(ir.DataType.FLOAT)
        node.graph.insert_after(node, cast)
    for i, value in enumerate(node.inputs):
        if value is not None and value.dtype == ir.DataType.DOUBLE:
            cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)})
            cast.outputs[0].name = f"{node.outputs[0].name}.input{i}"
            node.graph.insert_before(node, cast)
            node.replace_input_with(i, cast.outputs[0])


def _retype_node(node: ir.Node) -> None:
    for output in node.outputs:
        _retype(output)
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():  # the caller of a function decides
            continue
        if name in {"to", "dtype"} and ir.DataType(attribute.as_int()) in _NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.DOUBLE))
        elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _NARROW:
            node.attributes[name] = ir.AttrTensor(name, _widen(attribute.value))
        elif node.op_type == "Constant" and name in {"value_float", "value_floats"}:
            del node.attributes[name]  # these forms are float32 by definition
            wide = ir.tensor(np.array(attribute.value, np.float64))
            node.attributes["value"] = ir.AttrTensor("value", wide)


def _retype(value: ir.Value) -> None:
    if isinstance(value.type, ir.TensorType) and value.type.dtype in _NARROW:
        value.type = ir.TensorType(ir.DataType.DOUBLE)


def _widen(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)
