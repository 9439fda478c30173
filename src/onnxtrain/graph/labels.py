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

from ..errors import ModelError
from ..operators import LABEL_LOSSES, REARRANGING
from .builder import Constants, Names, OpBuilder
from .tensor import Tensor

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
        skip: how many labels at the beginning of each row are not compared with anything.
    """

    input: str
    classes: int | None
    ignore_index: int | None
    skip: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As an artifact's metadata have it."""
        return {k: v for k, v in asdict(self).items() if k != "skip" or v}


def class_labels(model: ir.Model) -> list[ClassLabels]:
    """The inputs of the graph that hold class labels as they are."""
    labels: dict[ClassLabels, None] = {}
    for node in _losses(model.graph):
        name = _source(model, node.inputs[1])
        if name is not None:
            labels[ClassLabels(name, _classes(node), _ignored(node))] = None
    values = {v.name: v for v in model.graph.inputs}
    values |= {o.name: o for node in model.graph for o in node.outputs}
    for entry in declared(model.metadata_props.get(DECLARED)):
        name = _source(model, values.get(entry["value"]))
        if name is not None:
            skip = entry.get("skip", 0)
            labels[ClassLabels(name, entry["classes"], entry["ignore_index"], skip)] = None
    return list(labels)


def declare(
    metadata: MutableMapping[str, str],
    value: str,
    classes: int | None,
    ignore_index: int | None,
    skip: int = 0,
) -> None:
    """Say in a model's metadata what a loss that is built from primitives expects of a value."""
    entry: dict[str, Any] = {"value": value, "classes": classes, "ignore_index": ignore_index}
    if skip:
        entry["skip"] = skip
    metadata[DECLARED] = json.dumps([*declared(metadata.get(DECLARED)), entry])


def declared(text: str | None) -> list[dict[str, Any]]:
    """What the losses of a model have said about the labels that they read.

    Raises:
        ModelError: the metadata hold something else.
    """
    try:
        entries = json.loads(text) if text else []
    except (ValueError, RecursionError):
        entries = None
    if isinstance(entries, list) and all(map(_is_declaration, entries)):
        return entries
    raise ModelError(
        f"The model's metadata {DECLARED!r} do not say which labels a loss reads. Remove them: "
        "onnxtrain writes them when it adds a loss."
    )


def _is_declaration(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("value"), str):
        return False
    numbers = (entry.get("classes", ""), entry.get("ignore_index", ""), entry.get("skip", 0))
    return all(n is None or type(n) is int for n in numbers)


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
            _Guard(node, OpBuilder.on(model), is_in_function=False).put()
    for function in model.functions.values():
        for node in _losses(function.graph):
            names = Names(v.name for v in function.inputs if v.name)
            for name in (o.name for n in function.graph.all_nodes() for o in n.outputs):
                names.reserve(name or "")
            op = OpBuilder(names, Constants(names), function.opset_imports.get("", opset))
            _Guard(node, op, is_in_function=True).put()
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

    def __init__(self, loss: ir.Node, op: OpBuilder, *, is_in_function: bool) -> None:
        self.loss, self.op, self.is_in_function = loss, op, is_in_function
        graph = loss.graph
        assert graph is not None
        self.graph = graph
        self.op.scope = f"{loss.outputs[0].name}/labels"

    def put(self) -> None:
        """Insert the nodes."""
        raw = self.loss.inputs[1]
        assert raw is not None
        labels = self.op.tensor(raw)
        if raw.dtype not in (ir.DataType.INT32, ir.DataType.INT64):  # it is not known
            labels = self.op.Cast(labels, to=ir.DataType.INT64)
        largest = int(np.iinfo(labels.dtype.numpy()).max)
        ignored = _ignored(self.loss)
        if ignored is not None and ignored < 0:
            self.loss.attributes["ignore_index"] = ir.AttrInt64("ignore_index", ignored & largest)
        guarded = self._without_sign(labels, largest)
        for node in self.op.place(self.graph, before=self.loss):
            node.outputs[0].shape = None if raw.shape is None else raw.shape.copy()
        self._place_constants()
        self.loss.replace_input_with(1, guarded.value)

    def _without_sign(self, labels: Tensor, largest: int) -> Tensor:
        op = self.op
        # within these bounds no number becomes one that means something else: the smallest of all,
        # which NaN turns into, has no bit but its sign and would be class 0
        bounded = op.Clip(labels, -(largest // 2), largest // 2)
        if op.opset >= 18:
            return op.BitwiseAnd(bounded, largest)
        return op.Where(op.Less(labels, 0), bounded + 1 + largest, bounded)

    def _place_constants(self) -> None:
        if not self.is_in_function:
            assert isinstance(self.graph, ir.Graph)
            self.op.register_constants(self.graph)
            return
        for constant in self.op.constants.values():  # a function has no initializers
            tensor = constant.const_value
            assert tensor is not None
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
            node.name = node.outputs[0].name = constant.name
            node.outputs[0].type = constant.type
            constant.replace_all_uses_with(node.outputs[0])
            self.graph.insert_before(self.graph[0], node)
