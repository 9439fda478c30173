"""A teacher beside a student: a second model that answers the same batch in the same run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from .errors import ModelError, UnknownNameError, model_errors
from .graph import ModelLike, load
from .graph.edit import become
from .graph.io import deliver
from .graph.parameters import mark_constant
from .normalize import normalize
from .normalize.raise_opset import raise_opset

PREFIX = "teacher."


@model_errors("Adding the teacher")
def with_teacher(
    student: ModelLike,
    teacher: ModelLike,
    outputs: Sequence[str] | None = None,
    *,
    inputs: Mapping[str, str] | None = None,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """A student with a teacher inside, for `losses.DistillationLoss`.

    Every value of the teacher is called ``teacher.<name>`` and is no output of the model: a loss
    is given ``loss_input_names=["logits", "teacher.logits"]``, what is exported after the training
    has no teacher, and its weights are never trained. It runs once per batch, in the same step.

    Args:
        student: path, bytes, ModelProto or `onnx_ir.Model`; it is not changed.
        teacher: likewise; its inputs are the student's of the same names.
        outputs: of the teacher, that are needed; by default all.
        inputs: names of the student's inputs for inputs of the teacher that are called otherwise.
        output: also write the model to this path.

    Raises:
        ModelError: the teacher takes something that the student does not have.
    """
    pupil, master = _one_opset(load(student), load(teacher))
    graph = pupil.graph
    _without_training(master)
    available = {v.name: v for v in graph.inputs}
    for value in [v for v in master.graph.inputs if not v.is_initializer()]:
        _feed(value, available, (inputs or {}).get(value.name or "", value.name or ""))
    known = [o.name or "" for o in master.graph.outputs]
    for name in outputs or known:
        if name not in known:
            raise UnknownNameError("output of the teacher", name, known)
    initializers = list(master.graph.initializers.values())
    nodes = list(master.graph)
    _rename(master, initializers)
    master.graph.outputs.clear()
    master.graph.initializers.clear()
    master.graph.remove(nodes)
    for value in initializers:
        mark_constant(value)
        graph.register_initializer(value)
    graph.extend(nodes)
    for domain, version in master.opset_imports.items():
        pupil.opset_imports.setdefault(domain, version)
    return deliver(pupil, output)


def _one_opset(student: ir.Model, teacher: ir.Model) -> tuple[ir.Model, ir.Model]:
    """Both at the same opset: as they are, or in the form that training gives them anyway."""
    if student.opset_imports.get("") == teacher.opset_imports.get("") and not teacher.functions:
        return student, teacher
    models = [normalize(student), normalize(teacher)]
    highest = max(m.opset_imports[""] for m in models)
    models = [raise_opset(m, highest) if m.opset_imports[""] < highest else m for m in models]
    return models[0], models[1]


def _without_training(teacher: ir.Model) -> None:
    """A teacher answers as in use: nothing is dropped, statistics are those it has learned."""
    for node in teacher.graph.all_nodes():
        if node.domain in {"", "ai.onnx"} and node.op_type == "Dropout":
            source = node.inputs[0]
            if source is not None and not any(mask.uses() for mask in node.outputs[1:]):
                become(node, "Identity", source)
        elif node.op_type == "BatchNormalization" and "training_mode" in node.attributes:
            del node.attributes["training_mode"]


def _feed(value: ir.Value, available: Mapping[str | None, ir.Value], name: str) -> None:
    source = available.get(name)
    if source is None:
        raise ModelError(
            f"The teacher takes {value.name!r}, and the student has no input {name!r}: it has "
            f"{', '.join(map(str, available))}. Say which it is: inputs={{{value.name!r}: …}}."
        )
    if source.dtype is not None and value.dtype is not None and source.dtype != value.dtype:
        raise ModelError(
            f"The teacher takes {value.name!r} as {value.dtype.name}, and the student's "
            f"{name!r} is {source.dtype.name}."
        )
    value.replace_all_uses_with(source, replace_graph_outputs=True)


def _rename(teacher: ir.Model, initializers: Sequence[ir.Value]) -> None:
    for value in initializers:
        value.name = f"{PREFIX}{value.name}"
    for node in teacher.graph.all_nodes():
        node.name = f"{PREFIX}{node.name}" if node.name else node.name
        for result in node.outputs:
            if result.name:
                result.name = f"{PREFIX}{result.name}"
