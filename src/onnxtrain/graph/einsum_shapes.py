"""The shape of an Einsum whose operands share dots, which onnx takes for the first operand's.

``Einsum("...ij,...jk->...ik")`` of [1, 2, 3] and [N, 3, 4] is [N, 2, 4]; onnx 1.23 says [1, 2, 4],
and [N, 2, 4] for [N, 2, 3] and [M, 3, 4], although N may be 1. What follows from such a shape is
wrong in silence. So these nodes are hidden from onnx under another domain, and what is sure about
their results is written down before it goes on with what they lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import onnx

HIDDEN = "onnxtrain.hidden"
"""The domain under which onnx has nothing to say about a node."""

T = TypeVar("T", bound=Hashable)
Dim: TypeAlias = "int | str | None"
Infer: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]


def has_einsum_with_dots(graph: onnx.GraphProto) -> bool:
    """Whether onnx may say something wrong about a node of this graph."""
    return any(_broadcasts(node) for node in graph.node)


def infer_einsums(proto: onnx.ModelProto, infer: Infer) -> onnx.ModelProto:
    """Infer shapes, these nodes aside; each time their results tell onnx more about the next."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    hidden = [node for node in model.graph.node if _broadcasts(node)]
    for node in hidden:
        node.domain = HIDDEN
    model.opset_import.append(onnx.helper.make_opsetid(HIDDEN, 1))
    while True:
        model = infer(model)
        if not _describe(model.graph):
            break
    for node in model.graph.node:
        if node.domain == HIDDEN:
            node.domain = ""
    del model.opset_import[-1]
    return model


def _broadcasts(node: onnx.NodeProto) -> bool:
    if node.op_type != "Einsum" or node.domain:
        return False
    return sum("..." in term for term in _terms(node)) > 1


def _terms(node: onnx.NodeProto) -> list[str]:
    """What the equation says of each operand."""
    return _equation(node).partition("->")[0].split(",")


def _equation(node: onnx.NodeProto) -> str:
    text = next((a.s for a in node.attribute if a.name == "equation"), b"")
    return text.decode("utf-8", "replace").replace(" ", "")


def _describe(graph: onnx.GraphProto) -> bool:
    """Write down the results of hidden nodes whose operands are known by now; whether any was."""
    known = {value.name: value.type for value in _values(graph)}
    known.update(
        (t.name, onnx.helper.make_tensor_type_proto(t.data_type, t.dims)) for t in graph.initializer
    )
    described = {v.name for v in graph.value_info}
    outputs = {v.name: v for v in graph.output}
    progress = False
    for node in graph.node:
        if node.domain != HIDDEN or not all(_has_shape(known.get(n)) for n in node.input):
            continue
        (name,) = node.output
        dims = _result(node, [_dims(known[n]) for n in node.input])
        if dims is None or name in described or _has_shape(known.get(name)):
            continue
        kind = known[node.input[0]].tensor_type.elem_type
        info = onnx.helper.make_tensor_value_info(name, kind, dims)
        if name in outputs:
            outputs[name].type.CopyFrom(info.type)
        else:
            graph.value_info.append(info)
        progress = True
    return progress


def _values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from graph.input
    yield from graph.value_info
    yield from graph.output


def _has_shape(value: onnx.TypeProto | None) -> bool:
    return value is not None and value.tensor_type.HasField("shape")


def _dims(value: onnx.TypeProto) -> list[Dim]:
    return [
        d.dim_value if d.HasField("dim_value") else d.dim_param or None
        for d in value.tensor_type.shape.dim
    ]


def _result(node: onnx.NodeProto, shapes: list[list[Dim]]) -> list[Dim] | None:
    """What is sure about the result; None where equation and operands do not fit."""
    letters: dict[str, list[Dim]] = {}
    dots: list[list[Dim]] = []
    terms = _terms(node)
    if len(terms) != len(shapes):
        return None
    for term, shape in zip(terms, shapes):
        before, has_dots, after = term.partition("...")
        covered = len(shape) - len(before) - len(after)
        if covered < 0 or (covered and not has_dots):
            return None
        end = len(before) + covered
        for letter, dim in zip(before + after, [*shape[: len(before)], *shape[end:]]):
            letters.setdefault(letter, []).append(dim)
        if has_dots:
            dots.append(shape[len(before) : end])
    _, arrow, output = _equation(node).partition("->")
    if not arrow:
        once = sorted(x for x, dims in letters.items() if len(dims) == 1)
        output = "..." + "".join(once)
    before, has_dots, after = output.partition("...")
    if not set(before + after) <= letters.keys():
        return None
    return [
        *(broadcast_dim(letters[x]) for x in before),
        *(broadcast_dims(dots) if has_dots else ()),
        *(broadcast_dim(letters[x]) for x in after),
    ]


def broadcast_dims(shapes: Sequence[Sequence[T | int | None]]) -> list[T | int | None]:
    """Dimensions of operands put together by the broadcasting rules."""
    rank = max(map(len, shapes))
    columns = [[s[axis] for s in shapes if len(s) >= -axis] for axis in range(-rank, 0)]
    return [broadcast_dim(column) for column in columns]


def broadcast_dim(dims: Sequence[T | int | None]) -> T | int | None:
    """The size that dimensions have together, as far as it is sure.

    Example:
        >>> broadcast_dim([1, "N"]), broadcast_dim(["N", 4]), broadcast_dim(["N", "M"])
        ('N', 4, None)
    """
    distinct = {d for d in dims if d != 1}
    fixed = [d for d in distinct if isinstance(d, int)]
    if fixed:
        return fixed[0]
    return distinct.pop() if len(distinct) == 1 else (None if distinct else 1)
