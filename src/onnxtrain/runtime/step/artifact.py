"""What an artifact's metadata say, checked against its graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import CheckpointError, ModelFileError
from ...operators import LABEL_LOSSES
from ..files.dtypes import BY_ONNX
from ..files.onnxfile import ModelFile, Source, ValueInfo, check_names
from ..files.predecessor import converted_training, kind_of
from ..session.labels import UNSIGNED, ClassLabels
from ..state.buffers import TensorSpec
from ..state.training_state import TrainingState

KEY = "onnxtrain.artifact"
ACCUMULATION = "onnxtrain.accumulate/"
RESET = "lazy_reset_grad"


@dataclass
class Artifact:
    """A model file and its description."""

    model: ModelFile
    kind: str
    user_inputs: list[str]
    user_outputs: list[str]
    trainable: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    random_nodes: list[str] = field(default_factory=list)
    random_input: str = ""
    """What random operators draw from, if the model has that; see `seeds.Draws`."""
    labels: list[ClassLabels] = field(default_factory=list)

    @property
    def folder(self) -> str | None:
        """Where onnxruntime has to look for data beside the model, whose bytes it gets edited."""
        return self.model.folder

    @property
    def parameters(self) -> list[str]:
        """All parameters in the order of the graph's inputs."""
        known = {*self.trainable, *self.frozen}
        return [v.name for v in self.model.inputs if v.name in known]

    @property
    def model_outputs(self) -> list[str]:
        """What the original model computed; of an eval model that does not say, all but the loss.

        There may be none: artifacts of onnxruntime-training often have the loss only.
        """
        described = self.model.described(KEY) or {}
        return _names(self.model, described, "model_outputs") or self.user_outputs[1:]

    def gradient_of(self, parameter: str) -> str:
        """The name of a parameter's gradient; the usual one where the description is silent."""
        return self.gradients.get(parameter, f"{parameter}_grad")

    def infos(self, names: Sequence[str], *, outputs: bool = False) -> list[ValueInfo]:
        """Types and shapes of inputs (or outputs) by name."""
        values = self.model.outputs if outputs else self.model.inputs
        known = {v.name: v for v in values}
        check_names("output" if outputs else "input", names, known)
        return [known[n] for n in names]


def load_artifact(source: Source, kind: str, state: TrainingState | None = None) -> Artifact:
    """Read an artifact and check that it is of the kind expected."""
    model = ModelFile.load(source)
    described = model.described(KEY)
    if described is None and kind_of(model) == kind == "training":
        model = converted_training(source, [] if state is None else state.names()[1])
        described = model.described(KEY)
    if described is None:
        if kind == "eval" and state is not None:
            return _guess_eval(model, state)
        raise ModelFileError(
            f"{model.where} is not a {kind} model: neither onnxtrain nor onnxruntime-training "
            "made it for that. Use the right file, or generate the artifacts again with "
            "onnxtrain.artifacts.generate_artifacts."
        )
    if described.get("kind") != kind:
        raise ModelFileError(
            f"{model.where} is the {described.get('kind')!r} model; the {kind!r} model is needed."
        )
    artifact = Artifact(
        model,
        kind,
        _names(model, described, "user_inputs"),
        _names(model, described, "user_outputs"),
        _names(model, described, "trainable"),
        _names(model, described, "frozen"),
        _mapping(model, described, "gradients"),
        _mapping(model, described, "states"),
        _names(model, described, "random_nodes"),
        _random_input(model, described),
        _labels(model, described),
    )
    artifact.infos(artifact.user_inputs)
    artifact.infos(artifact.user_outputs, outputs=True)
    _check_labels(artifact)
    _check_states(artifact)
    if kind == "eval" and state is not None and not artifact.parameters:
        trainable, frozen = state.names()
        present = {v.name for v in model.inputs} - set(artifact.user_inputs)
        artifact.trainable = [n for n in trainable if n in present]
        artifact.frozen = [n for n in frozen if n in present]
    return artifact


def _check_states(artifact: Artifact) -> None:
    """What steps replace beside the trained parameters is among the frozen ones."""
    strange = [name for name in artifact.states if name not in artifact.frozen]
    if strange:
        raise ModelFileError(
            f"{artifact.model.where}: {KEY} calls {strange[0]!r} a state, and it is none of the "
            "frozen parameters. Generate the artifacts again."
        )


def _random_input(model: ModelFile, described: dict[str, Any]) -> str:
    name = described.get("random", "")
    if not isinstance(name, str) or (name and name not in {v.name for v in model.inputs}):
        raise ModelFileError(f"{model.where}: {KEY} says 'random' = {name!r}; no input has it.")
    return name


def _guess_eval(model: ModelFile, state: TrainingState) -> Artifact:
    """An eval model without our description (onnxruntime-training's own runs on stock)."""
    trainable, frozen = state.names()
    present = [v.name for v in model.inputs]
    users = [n for n in present if n not in {*trainable, *frozen}]
    losses = [
        n
        for n in model.nodes
        if n.op_type in LABEL_LOSSES and n.inputs[1:2] and n.inputs[1] in users
    ]
    return Artifact(
        model,
        "eval",
        users,
        [v.name for v in model.outputs],
        [n for n in present if n in trainable],
        [n for n in present if n in frozen],
        labels=[ClassLabels(n.inputs[1], None, n.integer("ignore_index", None)) for n in losses],
    )


def specs_of(artifact: Artifact) -> dict[str, TensorSpec]:
    """Parameters as the graph declares them; an open dimension counts as unknown."""
    specs: dict[str, TensorSpec] = {}
    for info in artifact.infos(artifact.parameters):
        kind = BY_ONNX.get(info.elem_type or 0)
        if kind is None or info.shape is None:
            raise ModelFileError(
                f"{artifact.model.where}: parameter {info.name!r} has no type or shape."
            )
        sizes = tuple(d for d in info.shape if isinstance(d, int))
        if len(sizes) != len(info.shape):
            raise ModelFileError(
                f"{artifact.model.where}: parameter {info.name!r} has the shape {info.shape}."
            )
        specs[info.name] = TensorSpec(info.name, kind, sizes)
    return specs


def check_state(artifact: Artifact, state: TrainingState) -> None:
    """The checkpoint and the model must speak of the same parameters."""
    specs = specs_of(artifact)
    trainable, frozen = state.names()
    for kind, declared, present in (
        ("trainable", artifact.trainable, trainable),
        ("frozen", artifact.frozen, frozen),
    ):
        missing = [n for n in declared if n not in present]
        if missing:
            raise CheckpointError(
                f"The checkpoint does not fit {artifact.model.where}: it has no {kind} "
                f"parameter {', '.join(map(repr, missing[:8]))}. Use the checkpoint that was "
                "generated with this model."
            )
    if artifact.kind == "training":
        extra = sorted(set(trainable) - set(artifact.trainable))
        if extra:
            raise CheckpointError(
                f"The checkpoint does not fit {artifact.model.where}: the model does not train "
                f"{', '.join(map(repr, extra[:8]))}."
            )
    state.allocate(specs)
    for name, spec in specs.items():
        stored = state.store_of(name).specs[name]
        if stored != spec:
            raise CheckpointError(
                f"The checkpoint does not fit {artifact.model.where}: parameter {name!r} is "
                f"{stored.type.code}{list(stored.shape)} there and {spec.type.code}"
                f"{list(spec.shape)} in the model."
            )


def drop_accumulation(artifact: Artifact) -> None:
    """Make this step's gradients outputs of the training model, and accumulate nothing.

    The file keeps the accumulation inputs and outputs for other runtimes; here they would
    cost one more pass over all gradients in every step.
    """
    model = artifact.model
    trainable = artifact.trainable
    named = (*trainable, *artifact.user_inputs)  # some models accumulate gradients of inputs too
    buffers = {f"{n}_grad.accumulation.buffer" for n in named} | {RESET}
    model.drop_nodes(lambda n: n.name.startswith(ACCUMULATION))
    gradients = [artifact.gradient_of(p) for p in trainable]
    states = list(artifact.states.values())
    like = {**dict(zip(gradients, trainable)), **{v: k for k, v in artifact.states.items()}}
    model.set_outputs([*artifact.user_outputs, *gradients, *states], like)
    model.keep_inputs(lambda name: name not in buffers)
    model.prune()


def fold_frozen(artifact: Artifact, state: TrainingState) -> list[str]:
    """Turn frozen parameters that the training does not change into constants of the graph."""
    names = [n for n in artifact.frozen if n not in artifact.states]
    for name in names:
        spec = state.frozen.specs[name]
        values = state.frozen.view(name).reshape(-1)
        raw = bytes(values.view("u1").data) if values.size else b""
        artifact.model.add_initializer(name, spec.type.onnx, spec.shape, raw)
    artifact.model.keep_inputs(lambda n: n not in names)
    return names


def weights_change(artifact: Artifact) -> bool:
    """Whether most convolutions have weights that are no constants of the graph."""
    convolutions = [n for n in artifact.model.nodes if n.op_type in {"Conv", "ConvTranspose"}]
    constants = set(artifact.model.initializer_names)
    changing = sum(n.inputs[1] not in constants for n in convolutions if len(n.inputs) > 1)
    return 2 * changing >= len(convolutions)


def _names(model: ModelFile, described: dict[str, Any], key: str) -> list[str]:
    listed = described.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
        raise ModelFileError(f"{model.where}: {KEY} says {key!r} = {listed!r}; names are needed.")
    return list(listed)


def _labels(model: ModelFile, described: dict[str, Any]) -> list[ClassLabels]:
    listed = described.get("labels", [])
    try:
        labels = [
            ClassLabels(e["input"], e["classes"], e["ignore_index"], e.get("skip", 0))
            for e in listed
        ]
        numbers = [n for e in labels for n in (e.classes, e.ignore_index)]
        sound = all(isinstance(e.input, str) and e.skip in {0, 1} for e in labels)
        if sound and all(map(_is_number, numbers)):
            return labels
    except (TypeError, KeyError, AttributeError):
        pass
    raise ModelFileError(
        f"{model.where}: {KEY} says 'labels' = {listed!r}; a list of inputs with their classes and "
        "the label to ignore is needed."
    )


def _check_labels(artifact: Artifact) -> None:
    for info in artifact.infos([one.input for one in artifact.labels]):
        kind = BY_ONNX.get(info.elem_type or 0)
        if info.name not in artifact.user_inputs or kind is None or kind.numpy not in UNSIGNED:
            raise ModelFileError(
                f"{artifact.model.where}: {KEY} says that {info.name!r} holds labels, and it is "
                "no input of the user that holds integers."
            )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _mapping(model: ModelFile, described: dict[str, Any], key: str) -> dict[str, str]:
    listed = described.get(key, {})
    if not isinstance(listed, dict) or not all(isinstance(v, str) for v in listed.values()):
        raise ModelFileError(f"{model.where}: {KEY} says {key!r} = {listed!r}; names are needed.")
    return dict(listed)
