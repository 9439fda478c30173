"""device.json: everything that a runtime without a protobuf library has to know.

The JavaScript half trains with it: it says how the models that a device runs are put together from
the artifacts' bytes, what they are fed with and what their outputs are, and has the update of all
parameters as one graph. The work is done here, once, so that none of it is done there.

``python -m onnxtrain.artifacts.device DIR [PREFIX]`` writes it for artifacts that have none.
"""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ..errors import ExternalDataError, ModelFileError, OnnxTrainError
from ..graph.parameters import ADAPTERS
from ..runtime.files import external
from ..runtime.files.atomic import write_atomically
from ..runtime.files.dtypes import type_name
from ..runtime.files.onnxfile import ModelFile, Node, ValueInfo
from ..runtime.files.readfile import read_regular
from ..runtime.files.wire import FIXED32, VARINT
from ..runtime.session.labels import ClassLabels
from ..runtime.state.buffers import TensorSpec
from ..runtime.step.artifact import KEY, Artifact, drop_accumulation, load_artifact, specs_of
from ..runtime.step.export import add_output_types, to_inference
from ..runtime.step.loss_scale import LOSS_SCALE
from ..runtime.step.update import OptimizerFile, load_optimizer
from . import updates
from .choose import ArtifactError
from .spans import Hole, Span, spans_of

log = logging.getLogger(__name__)
FILE = "device.json"
TRAINING, EVAL, OPTIMIZER = "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"
VERSION = 1
SEED_SIZE = 4
ADAPTER_KEYS = {"config", "base", "places", "saved"}
"""What a device has to know of an adapter; `onnxtrain.lora` writes it."""


def device_file(folder: Path, prefix: str = "") -> bytes:
    """The content of device.json for the artifacts in a folder."""
    source = _content(folder / f"{prefix}{TRAINING}")
    training = load_artifact(source, "training")
    trainable, specs = training.trainable, specs_of(training)
    training.infos(trainable)  # the model's description names them; each must be an input
    if LOSS_SCALE in specs:
        raise ArtifactError(
            "The loss is scaled for gradients in half precision, which JavaScript does not undo: "
            "make the artifacts for it from the model of float32."
        )
    files = {TRAINING: len(source)}
    facts: dict[str, Any] = {
        "version": VERSION,
        "files": files,
        "parameters": [_info(v) for v in training.infos(training.parameters)],
        "trainable": trainable,
        "optimizer": None,
        "adapter": _adapter(training.model),
    }
    models = {"train": _training(training, source)}
    evaluation = folder / f"{prefix}{EVAL}"
    if evaluation.is_file():
        source = _content(evaluation)
        files[EVAL] = len(source)
        models |= _evaluation(source, specs)
    models["copy"] = _embedded_model(*updates.copy())
    if trainable:
        models["accumulate"] = _embedded_model(*updates.accumulation(trainable))
    optimizer = _optimizer(folder / f"{prefix}{OPTIMIZER}")
    if trainable and optimizer is not None:
        _refuse_packed(optimizer)
        facts["optimizer"] = {
            "name": optimizer.name,
            "clip_norm": (optimizer.clip or {}).get("norm"),
            "moments": _moments(optimizer, [specs[n] for n in trainable]),
        }
        shapes = {name: specs[name].shape for name in trainable}
        models["update"] = _embedded_model(*updates.update(optimizer, shapes))
        models["update_float32"] = _embedded_model(
            *updates.update(optimizer, shapes, doubles=False)
        )
    return json.dumps({**facts, "models": models}, separators=(",", ":")).encode()


def _content(path: Path) -> bytes:
    """The bytes of a model; a device has nothing but them."""
    source = read_regular(path, ModelFileError)
    try:
        external.refuse(source, path.name)
    except ExternalDataError as error:
        raise ArtifactError(
            f"{path.name} has constants in a file beside it: it trains in Python only."
        ) from error
    return source


def write_device_file(folder: Path, prefix: str = "") -> None:
    """Write device.json beside the artifacts; if a device cannot use them, say why and go on."""
    try:
        write_atomically(folder / f"{prefix}{FILE}", [device_file(folder, prefix)])
    except OnnxTrainError as error:
        log.info("No %s%s: %s", prefix, FILE, error)


def _model(
    spans: list[Span],
    feeds: Mapping[str, str],
    updates: Mapping[str, str],
    *,
    file: str | None = None,
    inputs: Sequence[ValueInfo] = (),
    outputs: Sequence[str] = (),
    labels: Sequence[ClassLabels] = (),
    on_host: Sequence[str] = (),
) -> dict[str, Any]:
    """A model as device.json has it.

    Args:
        spans: of its bytes.
        feeds: inputs that come from the state, by key.
        updates: outputs that go there.
        file: the artifact that the spans point at.
        inputs: what the user gives.
        outputs: what the user gets.
        labels: what has to be checked of the inputs.
        on_host: nodes that WebGPU claims and cannot run, or not safely.
    """
    # what goes to the state stays on the device; what the user gets comes to the host
    location: Any = dict.fromkeys(updates, "gpu-buffer") if outputs else "gpu-buffer"
    forced = {"preferredLayout": "NCHW", "forceCpuNodeNames": list(on_host)} if on_host else {}
    return {
        "file": file,
        "pieces": spans,
        "inputs": [_info(v) for v in inputs],
        "outputs": list(outputs),
        "labels": [asdict(one) for one in labels],
        "feeds": dict(feeds),
        "updates": dict(updates),
        "webgpu": {"session": {"preferredOutputLocation": location}, "provider": forced},
    }


def _info(value: ValueInfo) -> dict[str, Any]:
    shape = ["?" if d is None else d for d in value.shape or ()]
    return {"name": value.name, "type": type_name(value.elem_type), "shape": shape}


def _embedded_model(
    content: bytes, feeds: Mapping[str, str], updated: Mapping[str, str]
) -> dict[str, Any]:
    """A model that is in device.json as a whole."""
    return _model([base64.b64encode(content).decode("ascii")], feeds, updated)


def _parameters(names: Sequence[str]) -> dict[str, str]:
    return {n: f"param/{n}" for n in names}


# --- training and evaluation --------------------------------------------------------------------


def _training(artifact: Artifact, source: bytes) -> dict[str, Any]:
    """Gradients are outputs, nothing is accumulated, and seeds of random nodes are left open.

    ``random`` is the input that the device feeds with seed and counter, if there is one.
    """
    model, parameters = artifact.model, artifact.parameters
    inputs = artifact.infos(artifact.user_inputs)
    drop_accumulation(artifact)
    random = set(artifact.random_nodes)
    for node in model.all_nodes():
        if node.name in random:
            _open_seed(node)
    gradients = {artifact.gradient_of(p): f"fresh/{p}" for p in artifact.trainable}
    states = {updated: f"param/{s}" for s, updated in artifact.states.items()}
    # WebGPU claims a MaxPool that gives indices, as the gradient needs, and cannot run it
    on_host = [n.name for n in model.nodes if n.op_type == "MaxPool" and len(n.outputs) > 1]
    if any(one.classes is None for one in artifact.labels):
        # only the run can tell that a label is too large: the processor does, WebGPU does not
        on_host += [n.name for n in model.nodes if n.op_type == "GatherElements"]
    described = _model(
        spans_of(model, source), _parameters(parameters), {**gradients, **states},
        file=TRAINING, inputs=inputs, outputs=artifact.user_outputs, labels=artifact.labels,
        on_host=on_host,
    )  # fmt: skip
    return {**described, "random": artifact.random_input or None}


def _open_seed(node: Node) -> None:
    """Give a random node a seed of four bytes that the device fills in."""
    is_float = node.op_type != "Dropout"
    node.set_attribute("seed", 0.0 if is_float else 0)
    attribute = node.message.messages(5)[-1]
    hole = cast(Any, Hole(SEED_SIZE, {"seed": node.name, "float": is_float}))
    number, wire = (2, FIXED32) if is_float else (3, VARINT)
    attribute.fields = [(number, wire, hole) if f[0] == number else f for f in attribute.fields]


def _evaluation(source: bytes, specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """The eval model as it is, the original model with parameters as inputs, and as constants."""
    artifact = load_artifact(source, "eval")
    model = artifact.model
    described = model.described(KEY) or {}
    users = [v for v in model.inputs if v.name not in specs]
    present = [v.name for v in model.inputs if v.name in specs]
    models = {
        "evaluate": _model(
            [[0, len(source)]], _parameters(present), {},
            file=EVAL, inputs=users, outputs=[v.name for v in model.outputs],
            labels=artifact.labels,
        )
    }  # fmt: skip
    outputs = artifact.model_outputs if described.get("model_outputs") else []
    if not outputs:
        return models
    model.set_outputs(outputs)
    to_inference(model)
    model.prune()
    used = model.used_names()
    model.keep_inputs(lambda n: n in used)
    infos = {v.name: v for v in model.inputs}
    users = [v for v in infos.values() if v.name not in specs]
    present = [n for n in infos if n in specs]
    models["predict"] = _model(
        spans_of(model, source), _parameters(present), {}, file=EVAL, inputs=users, outputs=outputs
    )
    add_output_types(model)
    model.set_metadata({k: v for k, v in model.metadata.items() if not k.startswith("onnxtrain.")})
    if model.message.integer(1) >= 4:  # before IR 4 every initializer is an input too
        model.keep_inputs(lambda n: n not in specs)
    for name in present:  # their data are what the device has learned
        spec, hole = specs[name], Hole(specs[name].nbytes, {"value": name})
        model.add_initializer(name, spec.type.onnx, spec.shape, cast(Any, hole))
    models["export"] = _model(spans_of(model, source), {}, {}, file=EVAL)
    return models


def _adapter(model: ModelFile) -> dict[str, Any] | None:
    """What the artifacts say of an adapter: its settings, its base and the names of its parts."""
    noted = model.described(ADAPTERS)
    if noted is None:
        return None
    if not noted.keys() >= ADAPTER_KEYS:
        raise ArtifactError(
            f"{model.where}: the metadata {ADAPTERS!r} describe no adapter. Add it to the base "
            "again with onnxtrain.lora.add, and generate the artifacts from that."
        )
    return {key: noted[key] for key in sorted(ADAPTER_KEYS)}


# --- the optimizer ------------------------------------------------------------------------------


def _optimizer(path: Path) -> OptimizerFile | None:
    """The optimizer; None if there is none, or only one over sequences, which JavaScript lacks."""
    optimizer = load_optimizer(path) if path.is_file() else None
    return None if optimizer is None or optimizer.is_sequence else optimizer


def _refuse_packed(optimizer: OptimizerFile) -> None:
    if optimizer.is_packed:
        raise ArtifactError(
            f"The optimizer {optimizer.name} stores its moments in fewer bits, which JavaScript "
            "does not: make the artifacts for it with moments='float32', as optim.adamw() does."
        )


def _moments(optimizer: OptimizerFile, specs: Sequence[TensorSpec]) -> dict[str, list[int]]:
    """What the optimizer remembers of each parameter: its key in a checkpoint, its shape."""
    return {
        f"optim/{state}/{spec.name}": list(optimizer.state_shape(state, spec.name, spec.shape))
        for state in optimizer.states
        for spec in specs
    }


if __name__ == "__main__":
    if len(sys.argv) not in {2, 3}:
        sys.exit("usage: python -m onnxtrain.artifacts.device DIR [PREFIX]")
    target, prefix = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    try:
        write_atomically(target / f"{prefix}{FILE}", [device_file(target, prefix)])
    except (OnnxTrainError, OSError) as error:
        sys.exit(str(error))
