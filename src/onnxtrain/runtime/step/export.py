"""From the eval model and a checkpoint to an inference model, without the `onnx` package."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from ...errors import ModelFileError, UnknownNameError
from ..files import external
from ..files.atomic import write_atomically
from ..files.onnxfile import ModelFile, Node, Source, captures, tensor_type
from ..files.wire import Chunk, Later, Message
from ..session.binding import HOST
from ..session.devices import session_options
from ..session.feeds import ORT_TYPES
from ..state.training_state import TrainingState
from .artifact import KEY

LIMIT = 2**31 - 2**20
"""A protobuf message ends at 2 GiB; leave room for the graph."""


def export(
    source: Source,
    state: TrainingState,
    target: str | os.PathLike[str],
    outputs: Sequence[str],
    external_data: bool | None = None,
) -> None:
    """Write the inference model; see `Module.export_model_for_inferencing`."""
    if isinstance(outputs, str):
        outputs = [outputs]
    if not outputs:
        raise ValueError("graph_output_names is empty: name at least one output.")
    model = ModelFile.load(source)
    try:
        model.set_outputs(list(outputs))
    except UnknownNameError as error:
        error.args = (
            f"Output {error.name!r} could not be found. Please regenerate the eval graph. {error}",
        )
        raise
    to_inference(model)
    model.prune()
    model.set_metadata({k: v for k, v in model.metadata.items() if k != KEY})
    used = model.used_names()
    trainable, frozen = state.names()
    parameters = [v.name for v in model.inputs if v.name in {*trainable, *frozen}]
    parameters = [n for n in parameters if n in used]
    keep_inputs = model.message.integer(1) < 4  # before IR 4 every initializer is an input too
    model.keep_inputs(lambda n: n in used)
    constants = model.embed_external()
    add_output_types(model)
    model.keep_inputs(lambda n: keep_inputs or n not in parameters)
    specs = {n: state.store_of(n).specs[n] for n in parameters}
    total = sum(s.nbytes for s in specs.values()) + model.message.size()
    if external_data is None:
        external_data = total > LIMIT
    if external_data:
        _write_external(model, state, parameters, Path(target), constants)
        return
    if total > LIMIT:
        raise ModelFileError(
            f"The model has {total} bytes; above 2 GB the weights need a file of their own: leave "
            "external_data at None or set it to True."
        )
    for name in parameters:
        values = np.ascontiguousarray(state.store_of(name).view(name)).reshape(-1)
        raw = values.view(np.uint8).data if values.size else b""
        model.add_initializer(name, specs[name].type.onnx, specs[name].shape, raw)
    model.write(target)


def to_inference(model: ModelFile) -> None:
    """Take Dropout out and put BatchNormalization into inference mode."""
    outputs = {v.name for v in model.outputs}
    captured = {n for node in model.nodes for g in node.subgraphs() for n in captures(g)}
    used = model.used_names()
    identities: set[int] = set()
    for node in model.all_nodes():
        if node.domain not in {"", "ai.onnx"}:
            continue
        if node.op_type == "BatchNormalization" and node.integer("training_mode", 0):
            node.set_attribute("training_mode", 0)
            node.outputs = node.outputs[:1]
        elif node.op_type == "Dropout" and _to_identity(node, used):
            identities.add(id(node.message))
    instead: dict[str, str] = {}
    for node in model.nodes:
        out = node.outputs[0] if node.outputs else ""
        if id(node.message) in identities and out not in outputs and out not in captured:
            instead[out] = node.inputs[0]
    model.drop_nodes(lambda n: bool(n.outputs) and n.outputs[0] in instead)
    model.rename_uses(instead)


def _to_identity(node: Node, used: set[str]) -> bool:
    """Make a Dropout an Identity; not if someone reads its mask, then it only stops dropping."""
    outputs = node.outputs
    if len(outputs) > 1 and outputs[1] in used:
        node.inputs = node.inputs[:2]
        return False
    node.message.replace(4, ["Identity"])
    node.message.drop(5)
    node.inputs, node.outputs = node.inputs[:1], outputs[:1]
    return True


def add_output_types(model: ModelFile) -> None:
    """Give outputs that the file says nothing about the type that onnxruntime infers."""
    bare = [m for m in model.graph.messages(12) if not m.has(2)]
    if not bare:
        return
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with _large_constants_as_inputs(model):  # asked for types only: computes no constants
        session = HOST.session(model.encode(), options)
    inferred = {o.name: o for o in session.get_outputs()}
    for message in bare:
        output = inferred[message.string(1)]
        number = ORT_TYPES.get(output.type)
        if number is not None:
            message.add(2, tensor_type(number, output.shape))


@contextlib.contextmanager
def _large_constants_as_inputs(model: ModelFile) -> Iterator[None]:
    """Constants that have not been read yet are inputs of their types and shapes meanwhile."""
    fields = model.graph.fields
    later = [t for t in model.graph.messages(5) if any(isinstance(f[2], Later) for f in t.fields)]
    gone = {id(tensor) for tensor in later}
    model.graph.fields = [f for f in model.graph.fields if id(f[2]) not in gone]
    for tensor in later:
        kind = tensor_type(tensor.integer(2), tensor.integers(1))
        model.graph.add(11, Message().add(1, tensor.string(8)).add(2, kind))
    try:
        yield
    finally:
        model.graph.fields = fields


def _write_external(
    model: ModelFile,
    state: TrainingState,
    parameters: Sequence[str],
    target: Path,
    constants: Sequence[tuple[Message, Chunk | Later]],
) -> None:
    """Weights to ``<file>.data``, first; the model that names them, second."""
    file = f"{target.name}.data"
    chunks: list[tuple[int, Chunk | Later]] = []
    end = 0

    def place(data: Chunk | Later) -> int:
        nonlocal end
        start = end + -end % (4096 if len(data) >= 2**20 else 64)
        chunks.append((start - end, data))
        end = start + len(data)
        return start

    for tensor, data in constants:
        external.refer(tensor, file, place(data), len(data))
    for name in parameters:
        spec = state.store_of(name).specs[name]
        values = state.store_of(name).view(name).reshape(-1)
        if not values.size:
            model.add_initializer(name, spec.type.onnx, spec.shape, b"")
            continue
        start = place(values.view(np.uint8).data)
        model.add_external_initializer(name, spec.type.onnx, spec.shape, file, start, spec.nbytes)

    def padded() -> Iterator[bytes | memoryview]:
        for padding, data in chunks:
            yield bytes(padding)
            yield data if isinstance(data, bytes | memoryview) else data.read()

    write_atomically(target.with_name(file), padded())
    model.write(target)
