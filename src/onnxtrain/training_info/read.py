"""From ``TrainingInfoProto`` to a model that does one step.

The step is the network and the algorithm's graph, put one after the other as the standard says.
What the algorithm replaces (weights, moments, a count of steps) becomes inputs.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..errors import ModelError, model_errors
from ..graph import load, set_outputs, to_proto
from ..graph import parameters as params
from ..graph.external import resolved
from ..graph.io import read_proto
from ..graph.labels import class_labels
from ..runtime.session.labels import ClassLabels
from .expand import expanded

LIMIT = 2**31
"""Bytes that a model can have as one message."""
Arrays = dict[str, npt.NDArray[np.generic]]


class TrainingInfoError(ModelError):
    """The training information of a model is missing or does not fit it."""


@dataclass(frozen=True)
class Algorithm:
    """How a model says it is trained, with standard operators.

    Attributes:
        step: a step as a model: user inputs and the state in, outputs and the new state out.
        inputs: what a user feeds.
        outputs: what a user gets: the network's outputs, then the algorithm's.
        updates: which output of `step` replaces which part of the state.
        initialization: a model that gives fresh values, if the file has one.
        resets: which output of `initialization` replaces which part of the state.
        state: the values in the file.
        labels: which inputs hold class labels, and what these may be.
        targets: the inputs that the network alone does not take.
    """

    step: onnx.ModelProto
    inputs: list[str]
    outputs: list[str]
    updates: dict[str, str]
    initialization: onnx.ModelProto | None
    resets: dict[str, str]
    state: Arrays
    labels: list[ClassLabels]
    targets: list[str]


@model_errors("Reading the training information")
def read(model: onnx.ModelProto | str | os.PathLike[str], index: int = 0) -> Algorithm:
    """Read how a model is trained.

    Args:
        model: the model or its file; it is not changed.
        index: which of its algorithms, if it has several.

    Raises:
        TrainingInfoError: the model has no such algorithm, or one that does not fit it.
    """
    proto = whole_proto(model)
    count = len(proto.training_info)
    if not 0 <= index < count:
        raise TrainingInfoError(
            f"The model has {count or 'no'} training_info; number {index} was asked for. "
            "onnxtrain.training_info.add writes one, and so does onnxtrain artifacts with "
            "--training-info."
        )
    info = proto.training_info[index]
    updates = _bindings(info.update_binding, "update_binding")
    resets = _bindings(info.initialization_binding, "initialization_binding")
    whole = _combined(proto, info.algorithm)
    loaded = load(whole)
    _check_bindings(loaded, [*updates, *resets], list(updates.values()))
    user = [v.name or "" for v in loaded.graph.inputs if v.name not in loaded.graph.initializers]
    replaced = [*updates, *(n for n in resets if n not in updates)]
    state = {n: _value(loaded, n) for n in replaced}
    labels = [ClassLabels(**asdict(one)) for one in class_labels(loaded)]
    params.to_inputs(loaded, replaced)
    outputs = [o.name or "" for o in loaded.graph.outputs]
    outputs = [n for n in dict.fromkeys(outputs) if n not in updates.values()]
    set_outputs(loaded, [*outputs, *dict.fromkeys(updates.values())])
    step = expanded(loaded)
    initialization = None
    if resets:
        initialization = to_proto(expanded(_alone(proto, info.initialization)))
    taken = {value.name for value in proto.graph.input}
    targets = [name for name in user if name not in taken]
    return Algorithm(
        to_proto(step), user, outputs, updates, initialization, resets, state, labels, targets
    )


def whole_proto(model: onnx.ModelProto | str | os.PathLike[str]) -> onnx.ModelProto:
    """The model as one message: external data are checked and read."""
    if isinstance(model, onnx.ModelProto):
        return model
    folder = os.path.dirname(os.path.abspath(model))
    return resolved(read_proto(model), folder, repr(os.fspath(model)), embed_up_to=LIMIT)[0]


def _bindings(entries: list[onnx.StringStringEntryProto], field: str) -> dict[str, str]:
    bindings: dict[str, str] = {}
    for entry in entries:
        if entry.key in bindings:
            raise TrainingInfoError(f"{field} replaces {entry.key!r} more than once.")
        bindings[entry.key] = entry.value
    return bindings


def _combined(proto: onnx.ModelProto, algorithm: onnx.GraphProto) -> onnx.ModelProto:
    """The network, then the algorithm, as one graph."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    del whole.training_info[:]
    for field in ("node", "initializer", "sparse_initializer", "input", "output", "value_info",
                  "quantization_annotation"):  # fmt: skip
        getattr(whole.graph, field).extend(getattr(algorithm, field))
    return whole


def _alone(proto: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.training_info[:]
    model.graph.CopyFrom(graph)
    return model


def _check_bindings(model: ir.Model, state: list[str], results: list[str]) -> None:
    known = model.graph.initializers
    wrong = [n for n in state if n not in known]
    if wrong:
        raise TrainingInfoError(
            f"A binding replaces {wrong[0]!r}, which is no initializer of the model or of the "
            f"algorithm. There are {sorted(known)[:10]}."
        )
    outputs = {o.name for o in model.graph.outputs}
    missing = [n for n in results if n not in outputs]
    if missing:
        raise TrainingInfoError(
            f"update_binding takes {missing[0]!r}, which is no output of the algorithm."
        )


def _value(model: ir.Model, name: str) -> npt.NDArray[np.generic]:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return np.array(tensor.numpy())
