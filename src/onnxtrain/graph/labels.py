"""Class labels in a graph: where losses read them, where they come from, and a guard for them.

A loss uses labels as indices, and a negative index of ONNX counts from the end: −1 would be the
last class in the loss, and no class at all in the gradient. So labels are checked where they enter
(`class_labels` says what the runtime has to check), and those that nobody can check there, because
the graph computes them or because another program runs it, pass a guard (`guard_labels`): it
clears the sign of a label, and one that is too large is refused by onnxruntime.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ..operators import LABEL_LOSSES, REARRANGING
from .nodes import initializer

INTEGERS = frozenset(
    {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64,
     ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
)  # fmt: skip
DECLARED = "onnxtrain.labels"
"""Key of the model's metadata under which losses that are built from primitives say what they read:
a list of ``{"value", "classes", "ignore_index"}``."""

_CHECKED = "onnxtrain.labels_are_checked"


@dataclass(frozen=True)
class ClassLabels:
    """What a loss expects of a graph input.

    Attributes:
        input: name of the input.
        classes: the labels are below this number; None when only a run can tell.
        ignore_index: the label that is allowed besides, and leaves an element out.
    """

    input: str
    classes: int | None
    ignore_index: int | None

    def to_dict(self) -> dict[str, Any]:
        """As an artifact's metadata have it."""
        return asdict(self)


def class_labels(model: ir.Model) -> list[ClassLabels]:
    """The inputs of the graph that hold class labels as they are."""
    found: dict[ClassLabels, None] = {}
    for node in _losses(model.graph):
        name = _source(model, node.inputs[1])
        if name is not None:
            found[ClassLabels(name, _classes(node), _ignored(node))] = None
    values = {v.name: v for v in model.graph.inputs}
    values |= {o.name: o for node in model.graph for o in node.outputs}
    for entry in declared(model.metadata_props.get(DECLARED)):
        name = _source(model, values.get(entry["value"]))
        if name is not None:
            found[ClassLabels(name, entry["classes"], entry["ignore_index"])] = None
    return list(found)


def declare(
    metadata: MutableMapping[str, str], value: str, classes: int | None, ignore_index: int | None
) -> None:
    """Say in a model's metadata what a loss that is built from primitives expects of a value."""
    entry = {"value": value, "classes": classes, "ignore_index": ignore_index}
    metadata[DECLARED] = json.dumps([*declared(metadata.get(DECLARED)), entry])


def declared(text: str | None) -> list[dict[str, Any]]:
    """What the losses of a model have said about the labels that they read."""
    return list(json.loads(text)) if text else []


def guard_labels(model: ir.Model, checked: Collection[str] = ()) -> ir.Model:
    """Put a guard in front of every loss operator, in place.

    Args:
        model: the model.
        checked: inputs whose labels are checked before they are fed; they need no guard, and a
            gradient may take a form that trusts them (see `are_checked`).
    """
    opset = model.opset_imports.get("", 1)
    for node in _losses(model.graph):
        if _source(model, node.inputs[1]) in checked:
            node.meta[_CHECKED] = True
        elif not _has_guard(node):
            _Guard(node, opset, is_in_function=False).put()
    for function in model.functions.values():
        for node in _losses(function.graph):
            _Guard(node, function.opset_imports.get("", opset), is_in_function=True).put()
    return model


def _has_guard(loss: ir.Node) -> bool:
    """Whether a guard was put here before: a gradient may be differentiated again."""
    labels = loss.inputs[1]
    maker = labels.producer() if labels is not None else None
    stem = f"{loss.outputs[0].name}/labels/"
    return maker is not None and (maker.name or "") in {f"{stem}BitwiseAnd", f"{stem}Where"}


def are_checked(node: ir.Node | None) -> bool:
    """Whether the labels that a loss operator reads are known to be classes, or ignored."""
    return node is not None and bool(node.meta.get(_CHECKED))


def _losses(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in list(graph.all_nodes()):
        if node.op_type in LABEL_LOSSES and node.domain in {"", "ai.onnx"} and len(node.inputs) > 1:
            yield node


def _source(model: ir.Model, value: ir.Value | None) -> str | None:
    """The input of integers that a value is a rearrangement of, if it is one."""
    while value is not None:
        node = value.producer()
        if node is None:
            is_fed = value in model.graph.inputs and value.const_value is None
            return value.name if is_fed and value.dtype in INTEGERS else None
        if node.op_type not in REARRANGING or node.domain not in {"", "ai.onnx"}:
            return None
        value = node.inputs[0]
    return None


def _classes(node: ir.Node) -> int | None:
    scores = node.inputs[0]
    if scores is None or scores.shape is None or len(scores.shape) < 2:
        return None
    size = scores.shape[1]
    return size if isinstance(size, int) else None


def _ignored(node: ir.Node) -> int | None:
    attribute = node.attributes.get("ignore_index")
    return None if attribute is None else int(attribute.as_int())


class _Guard:
    """Makes the negative labels of a loss too large; the one that is ignored stays ignored.

    With the sign bit cleared, −1 is 2⁶³ − 1, and the label to ignore is the number that it becomes.
    """

    def __init__(self, loss: ir.Node, opset: int, *, is_in_function: bool) -> None:
        self.loss, self.opset, self.is_in_function = loss, opset, is_in_function
        self.stem = f"{loss.outputs[0].name}/labels"

    def put(self) -> None:
        """Insert the nodes."""
        labels = self.loss.inputs[1]
        assert labels is not None
        kind = labels.dtype
        if kind not in (ir.DataType.INT32, ir.DataType.INT64):  # it is not known
            kind = ir.DataType.INT64
            labels = self._node("Cast", kind, labels, to=kind)
        assert kind is not None
        largest = int(np.iinfo(kind.numpy()).max)
        ignored = _ignored(self.loss)
        if ignored is not None and ignored < 0:
            self.loss.attributes["ignore_index"] = ir.AttrInt64("ignore_index", ignored & largest)
        self.loss.replace_input_with(1, self._without_sign(labels, kind, largest))

    def _without_sign(self, labels: ir.Value, kind: ir.DataType, largest: int) -> ir.Value:
        # within these bounds no number becomes one that means something else: the smallest of all,
        # which NaN turns into, has no bit but its sign and would be class 0
        low, high = (self._number(n, kind) for n in (-(largest // 2), largest // 2))
        bounded = self._node("Clip", kind, labels, low, high)
        if self.opset >= 18:
            return self._node("BitwiseAnd", kind, bounded, self._number(largest, kind))
        negative = self._node("Less", ir.DataType.BOOL, labels, self._number(0, kind))
        one_more = self._node("Add", kind, bounded, self._number(1, kind))
        positive = self._node("Add", kind, one_more, self._number(largest, kind))
        return self._node("Where", kind, negative, positive, bounded)

    def _node(
        self, op_type: str, kind: ir.DataType, *inputs: ir.Value, **attributes: Any
    ) -> ir.Value:
        made = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
        return self._insert(ir.Node("", op_type, list(inputs), made), op_type, kind, inputs[0])

    def _insert(
        self, node: ir.Node, suffix: str, kind: ir.DataType, like: ir.Value | None = None
    ) -> ir.Value:
        graph, result = self.loss.graph, node.outputs[0]
        assert graph is not None
        taken = {o.name for n in graph for o in n.outputs}
        name = f"{self.stem}/{suffix}"
        while name in taken:
            name += "_"
        node.name = result.name = name
        result.type = ir.TensorType(kind)
        result.shape = None if like is None or like.shape is None else like.shape.copy()
        graph.insert_before(self.loss, node)
        return result

    def _number(self, number: int, kind: ir.DataType) -> ir.Value:
        array = np.array(number, kind.numpy())
        graph = self.loss.graph
        assert isinstance(graph, ir.Graph)
        if not self.is_in_function:
            name = f"{self.stem}/{number}"
            return graph.initializers.get(name) or initializer(graph, name, array)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))])
        return self._insert(node, str(number), kind)
