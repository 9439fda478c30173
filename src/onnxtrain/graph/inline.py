"""Put function bodies in the place of calls: model-local functions and those of the schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import ModelError
from .nodes import identity

BODY_DOMAIN = "onnxtrain.body"
"""Domain under which a schema's function body waits to be inlined."""


def schema_body(node: ir.Node, opset: int, limit: int) -> ir.Function | None:
    """The function body that the ONNX schema gives for a node, None where it has none.

    Args:
        node: a node of ai.onnx; its inputs must be typed when the body depends on types.
        opset: version of ai.onnx that the node belongs to.
        limit: version that the body's operators must be valid in.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain or not onnx.defs.has(node.op_type, opset, ""):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")  # the stubs lag behind
    for version in sorted(schema.function_opset_versions, reverse=True):
        proto = _parsed(schema.get_function_with_opset_version(version))
        if _fits(proto, limit):
            return _named(proto, node, schema, limit)
    call, types = ir.to_proto(node), []
    for value in node.inputs:
        proto_type = onnx.TypeProto()
        if value is not None and value.type is not None:
            ir.serde.serialize_type_into(proto_type, value.type)
            if value.shape is not None:
                ir.serde.serialize_shape_into(proto_type, value.shape)
        types.append(proto_type.SerializeToString())
    for version in sorted(schema.context_dependent_function_opset_versions, reverse=True):
        if any(v is not None and v.type is None for v in node.inputs):
            return None
        body = schema.get_context_dependent_function_with_opset_version(
            version, call.SerializeToString(), types
        )
        proto = _parsed(body)
        if proto.node and _fits(proto, limit):
            return _named(proto, node, schema, limit)
    return None


def _parsed(body: bytes | onnx.FunctionProto) -> onnx.FunctionProto:
    if isinstance(body, onnx.FunctionProto):
        return body
    proto = onnx.FunctionProto()
    proto.ParseFromString(body)
    return proto


def _fits(proto: onnx.FunctionProto, limit: int) -> bool:
    """Whether every operator of the body exists, in a form of the same arity, at `limit`."""
    if any(o.domain not in ("", "ai.onnx") for o in proto.opset_import):
        return False
    version = max((o.version for o in proto.opset_import), default=limit)
    for node in proto.node:
        if not onnx.defs.has(node.op_type, version, ""):
            return False
        if not onnx.defs.has(node.op_type, limit, ""):
            if onnx.defs.get_schema(node.op_type, version, "").since_version <= limit:
                return False
            continue  # a newer operator, to be replaced in its turn
        here = onnx.defs.get_schema(node.op_type, limit, "")
        if len(node.input) > here.max_input or len(node.input) < here.min_input:
            return False
        if any(a.name not in here.attributes for a in node.attribute):
            return False
    return True


def _named(proto: onnx.FunctionProto, node: ir.Node, schema: Any, limit: int) -> ir.Function:
    """The body as a function of its own, defaults filled in from the schema."""
    _complete(proto)
    function = ir.from_proto(proto)
    assert isinstance(function, ir.Function)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name and name not in node.attributes:
            node.attributes.add(ir.from_proto(attribute.default_value))
    function.opset_imports.clear()
    function.opset_imports[""] = limit
    return function


def _complete(proto: onnx.FunctionProto) -> None:
    """A body that depends on its call leaves out what makes the outputs nobody asked for."""
    defined = {*proto.input, *(o for n in proto.node for o in n.output)}
    while proto.output and proto.output[-1] not in defined:
        proto.output.pop()
    for name in proto.output:
        if name not in defined:
            proto.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))


def inline_bodies(model: ir.Model, bodies: Iterable[tuple[ir.Node, ir.Function]]) -> ir.Model:
    """Replace each node by the function that is given for it."""
    for number, (node, function) in enumerate(bodies):
        prefix = node.name or node.op_type
        call = f"{node.op_type}_{number}"
        for inner in function:
            inner.name = f"{prefix}/{inner.name or inner.op_type}"
            for output in inner.outputs:
                output.name = f"{prefix}/{output.name}"
        function.domain, function.name = BODY_DOMAIN, call
        node.domain, node.op_type, node.overload = BODY_DOMAIN, call, ""
        model.functions[function.identifier()] = function
    if model.functions:
        inline_calls(model, lambda f: f.domain == BODY_DOMAIN)
    model.opset_imports.pop(BODY_DOMAIN, None)
    return model


def inline_calls(model: ir.Model, criteria: Callable[[ir.Function], bool]) -> None:
    """Inline the calls of the functions that meet the criteria; their opsets must agree."""
    for function in model.functions.values():
        if criteria(function):
            _separate_outputs(function)
    try:
        common.InlinePass(criteria)(model)
    except Exception as error:
        cause = error.__cause__ or error
        raise ModelError(f"The functions of the model cannot be inlined: {cause}") from error
    for identifier in [i for i, f in model.functions.items() if criteria(f)]:
        del model.functions[identifier]


def _separate_outputs(function: ir.Function) -> None:
    """An output that is an input, or another output, needs a node of its own."""
    seen: set[ir.Value] = set(function.inputs)
    for i, value in enumerate(function.outputs):
        if value in seen:
            copy = identity(value, f"copy_{value.name}", f"{value.name}_copy{i}")
            function.append(copy)
            function.outputs[i] = copy.outputs[0]
        seen.add(function.outputs[i])
