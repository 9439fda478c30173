"""What is known of a model's values and nodes, as short texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

LONGEST = 200
"""Letters of a text; what is longer is cut."""


def value_texts(graph: onnx.GraphProto) -> dict[str, str]:
    """Shapes of all values that have one, with their type where it is not float."""
    texts = {t.name: tensor_text(t) for t in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        text = _value_text(value)
        if text:
            texts[value.name] = text
    return texts


def _value_text(value: onnx.ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "").removesuffix("_type")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return _type_name(tensor.elem_type)
    dims = [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in
            tensor.shape.dim]  # fmt: skip
    return _joined(tensor.elem_type, dims)


def tensor_text(tensor: onnx.TensorProto) -> str:
    """Shape and type of a tensor."""
    return _joined(tensor.data_type, [str(d) for d in tensor.dims])


def _joined(element: int, dims: list[str]) -> str:
    shape = "×".join(dims) or "scalar"
    return cut(shape if element == onnx.TensorProto.FLOAT else f"{_type_name(element)} {shape}")


def _type_name(element: int) -> str:
    names: dict[int, str] = {number: name for name, number in onnx.TensorProto.DataType.items()}
    return names.get(element, f"type {element}").lower()


def node_facts(node: onnx.NodeProto, kind: str, texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Name, operator, operands, results and attributes of a node."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    facts = [("operator", operator), ("name", node.name), ("half", kind)]
    facts += [("input", _with_shape(name, texts)) for name in node.input if name]
    facts += [("output", _with_shape(name, texts)) for name in node.output if name]
    facts += [(f"attribute {a.name}", _attribute_text(a)) for a in node.attribute]
    return [(name, cut(text)) for name, text in facts if text]


def _with_shape(name: str, texts: Mapping[str, str]) -> str:
    return f"{name}  {texts[name]}" if name in texts else name


def _attribute_text(attribute: onnx.AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return f"a tensor, {tensor_text(value)}"
    if isinstance(value, onnx.GraphProto):
        return f"a graph with {len(value.node)} nodes"
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:LONGEST].decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (str, int)):
        return str(value)
    if hasattr(value, "__len__") and hasattr(value, "__getitem__"):
        shown = [_plain(v) for v in value[:32]]
        return ", ".join(shown) + (f", … {len(value)} in all" if len(value) > 32 else "")
    return type(value).__name__


def cut(text: str) -> str:
    """A text of bounded length."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
