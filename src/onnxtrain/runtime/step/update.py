"""How an optimizer model is run: flat and in place, by tensor, or over sequences."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelFileError
from ...hyper import check_amount, check_limit, check_rate
from ...operators import ELEMENTWISE
from ..describe import check_optimizer
from ..files.dtypes import BY_CODE, F32, ElementType
from ..files.onnxfile import ModelFile, Source, uses
from ..files.predecessor import converted_optimizer, kind_of
from ..session.binding import Binding
from ..session.device_ops import DeviceOps
from ..session.devices import Device, session_options
from ..state.buffers import TensorSpec, TensorStore
from . import kernels

if TYPE_CHECKING:
    from ..state.training_state import TrainingState

Array = npt.NDArray[Any]
KEY = "onnxtrain.optimizer"
CHUNK = 262_144
"""Elements per run: small enough to stay in the cache between operators (measured)."""


@dataclass
class OptimizerFile:
    """An optimizer model and its description."""

    model: bytes
    name: str
    states: list[str]
    layout: str
    description: dict[str, Any]
    is_sequence: bool
    inputs: list[str]
    outputs: list[str]
    node_count: int = 0
    unsafe: set[str] = field(default_factory=set)
    """States whose buffer is still read when the new value is written."""
    rules: dict[int, OptimizerFile] = field(default_factory=dict)
    """Groups, by number, that have an update of their own."""

    @property
    def clip(self) -> dict[str, float] | None:
        """Clipping: {"norm": x}, {"value": x} or None."""
        return self.description.get("clip")

    @property
    def clip_norm(self) -> float | None:
        """Limit of the gradients' common norm."""
        return (self.clip or {}).get("norm")

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups, may be empty."""
        return list(self.description.get("groups") or [])

    @property
    def weight_decay(self) -> float:
        """The decay of parameters without a group."""
        return float((self.description.get("hyper") or {}).get("weight_decay") or 0.0)

    def state_type(self, kind: str) -> ElementType:
        """Element type in which a state is stored."""
        types = self.description.get("state_types") or {}
        return BY_CODE[types.get(kind, "F32")]

    @property
    def is_packed(self) -> bool:
        """Whether a state is stored in another type than float32."""
        return bool(self.description.get("state_types"))

    def state_shape(self, kind: str, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a parameter's state; that of the parameter unless described otherwise."""
        shapes = self.description.get("state_shapes") or {}
        own = tuple((shapes.get(kind) or {}).get(name, shape))
        if math.prod(own) > max(math.prod(shape), 1):
            raise ModelFileError(
                f"The optimizer says that {kind!r} of {name!r} has the shape {list(own)}, more "
                f"than the parameter itself ({list(shape)}). Generate the artifacts again."
            )
        return own


def load_optimizer(source: Source) -> OptimizerFile:
    """Read an optimizer model in any of its forms."""
    model = ModelFile.load(source)
    description = model.described(KEY)
    if description is None and kind_of(model) == "optimizer":
        model = converted_optimizer(source)
        description = model.described(KEY)
    if description is None:
        return _own_model(model)
    if "flat" in description:
        model = _decoded(description["flat"], model.where)
    file = _flat_file(model, description)
    for number, group in enumerate(file.groups):
        if "flat" in group:
            file.rules[number] = _rule_of_group(group["flat"], file, model.where)
    return file


def _decoded(text: Any, where: str) -> ModelFile:
    try:
        content = base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise ModelFileError(f"{where}: the flat update in it is damaged.") from None
    return ModelFile.load(content)


def _rule_of_group(text: Any, file: OptimizerFile, where: str) -> OptimizerFile:
    """The update of a group: it has the states and the layout of the others."""
    model = _decoded(text, where)
    description = model.described(KEY)
    if description is None:
        raise ModelFileError(f"{where}: the update of a parameter group has no description.")
    rule = _flat_file(model, description)
    if (rule.states, rule.layout) != (file.states, file.layout):
        raise ModelFileError(
            f"{where}: a parameter group has the states {rule.states} ({rule.layout}), the "
            f"optimizer {file.states} ({file.layout}). Generate the artifacts again."
        )
    return rule


def _flat_file(model: ModelFile, description: dict[str, Any]) -> OptimizerFile:
    check_optimizer(description, model.where)
    states, layout = description["states"], description["layout"]
    _check_numbers(description, model.where)
    inputs, outputs = _names(model)
    needed = ["params", "gradients", *states]
    missing = [n for n in needed if n not in inputs]
    missing += [f"{n}.updated" for n in ("params", *states) if f"{n}.updated" not in outputs]
    if missing:
        raise ModelFileError(f"{model.where}: the flat update has no {', '.join(missing)}.")
    unsafe = {n for n in ("params", *states) if not safe_in_place(model, n, f"{n}.updated")}
    return OptimizerFile(
        model.encode(), str(description.get("name", "")), states, layout, description, False,
        inputs, outputs, len(model.nodes), unsafe,
    )  # fmt: skip


def _check_numbers(description: Mapping[str, Any], where: str) -> None:
    """Limits, decays and factors of the learning rate that make sense, whoever wrote the file."""
    for kind, limit in (description.get("clip") or {}).items():
        check_limit(limit, f"{where}: the limit by {kind}", ModelFileError, infinite=True)
    for group in (description.get("hyper") or {}, *(description.get("groups") or [])):
        check_rate(group.get("lr_scale", 1.0), f"{where}: lr_scale", ModelFileError)
        check_amount(group.get("weight_decay") or 0.0, f"{where}: weight_decay", ModelFileError)


def _own_model(model: ModelFile) -> OptimizerFile:
    """A user's model: sequences in, a flag and the updated sequences out."""
    inputs, outputs = _names(model)
    sequences = [v.name for v in model.inputs if v.is_sequence]
    states = [n for n in sequences if n not in {"params", "gradients"}]
    if "params" not in sequences or "gradients" not in sequences or "params.updated" not in outputs:
        raise ModelFileError(
            f"{model.where} is not an optimizer model: it needs the sequences 'params' and "
            "'gradients' as inputs and 'params.updated' as an output."
        )
    missing = [f"{s}.updated" for s in states if f"{s}.updated" not in outputs]
    if missing:
        raise ModelFileError(f"{model.where} has no output {', '.join(missing)}.")
    return OptimizerFile(model.encode(), "", states, "sequence", {}, True, inputs, outputs)


def _names(model: ModelFile) -> tuple[list[str], list[str]]:
    return [v.name for v in model.inputs], [v.name for v in model.outputs]


def safe_in_place(model: ModelFile, source: str, result: str) -> bool:
    """Whether `result` may be written over `source`.

    It may if every node that reads `source` is needed for `result`, so that it has run before, and
    the last one works element by element. Otherwise a reader might come after the writer.
    """
    nodes = model.nodes
    producer = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    if result not in producer:
        return False
    last = nodes[producer[result]]
    if last.op_type not in ELEMENTWISE and source in last.inputs:
        return False
    needed: set[int] = set()
    waiting = [producer[result]]
    while waiting:
        index = waiting.pop()
        if index not in needed:
            needed.add(index)
            waiting += [producer[n] for n in uses(nodes[index]) if n in producer]
    return all(i in needed for i, n in enumerate(nodes) if source in uses(n))


def make_update(
    file: OptimizerFile,
    state: TrainingState,
    device: Device,
    options: Any = None,
    names: Sequence[str] | None = None,
) -> Update | SequenceUpdate:
    """The way to run this optimizer on the buffers of this state.

    `names` is the order of the parameters in a model over sequences.
    """
    if file.is_sequence:
        return SequenceUpdate(file, state, device, options, names)
    return Update(file, state, device, options)


@dataclass(frozen=True)
class Chunk:
    """A contiguous run of elements, or one tensor, that is updated in one call."""

    group: int
    start: int
    stop: int
    tensor: str | None = None


class Update:
    """The flat update, run in place over chunks of the flat buffers.

    Args:
        file: the optimizer.
        state: whose parameters, gradients and moments are bound.
        device: where they live.
        options: the user's session options.
        chunk_size: elements per run.
    """

    is_foreign = False
    """Whether a user wrote it, so that nothing is known of what it makes of finite gradients."""

    def __init__(
        self,
        file: OptimizerFile,
        state: TrainingState,
        device: Device,
        options: Any = None,
        chunk_size: int = CHUNK,
    ) -> None:
        self.file, self.device, self.options = file, device, options
        self._ops = DeviceOps(device)
        self.params, self.gradients = state.trainable, state.need_gradients()
        self.states = [state.need_optimizer().states[n] for n in file.states]
        self.groups = _groups(file, list(self.params))
        self.chunks = list(_chunks(self.params, self.groups, file.layout, chunk_size))
        self.rates = [np.zeros(1, np.float32) for _ in self.groups]
        self.decays = [np.array([g.weight_decay], np.float32) for g in self.groups]
        self.step, self.scale = np.zeros(1, np.int64), np.ones(1, np.float32)
        self._rate: float | None = None
        self._scale = 1.0
        self._bindings: list[Binding] | None = None
        self._views: list[tuple[int, list[Array]]] | None = None
        self._scratch: dict[str, TensorStore] = {}
        self._kernels = self._find_kernels()
        self._packed = self._find_packed_kernels()

    @property
    def is_session(self) -> bool:
        """Whether onnxruntime runs it, with threads of its own."""
        return self._kernels is None and self._packed is None

    def _find_packed_kernels(self) -> list[kernels.Kernel] | None:
        """The kernel of each group for moments of 8 bits; None if the graph runs."""
        if not self.device.is_host or not self.file.is_packed:
            return None
        size = sum(b.data.size for b in self.params.buffers.values())
        of_groups = [kernels.find_packed(group.rule.description, size) for group in self.groups]
        some = [kernel for kernel in of_groups if kernel is not None]
        return some if len(some) == len(self.groups) else None

    def _find_kernels(self) -> list[kernels.Kernel] | None:
        """The kernel of each group; None if one has none."""
        if not self.device.is_host or self.file.layout != "elementwise":
            return None
        size = sum(b.data.size for b in self.params.buffers.values())
        of_groups = [kernels.find(group.rule.description, size) for group in self.groups]
        some = [kernel for kernel in of_groups if kernel is not None]
        return some if len(some) == len(self.groups) else None

    def run(self, step: int, rate: float, scale: float) -> None:
        """One update with the given number, learning rate and gradient scale."""
        if rate != self._rate:
            self._rate = rate
            for group, slot in zip(self.groups, self.rates):
                slot[0] = rate * group.lr_scale
        if self._kernels is not None:
            self._run_kernels(self._kernels, step, scale)
            return
        if self._packed is not None:
            self._run_packed(self._packed, step, scale)
            return
        self.step[0] = step
        if scale != self._scale:
            self._scale = self.scale[0] = scale
        self._run_graph()
        if not self.device.is_host:
            for store in (self.params, *self.states):
                store.written()

    def _run_kernels(self, of_groups: list[kernels.Kernel], step: int, scale: float) -> None:
        if self._views is None:
            stores = (self.params, self.gradients, *self.states)
            buffers = [store.buffers["F32"].data for store in stores]
            runs = _runs(self.params, self.groups)
            self._views = [(group, [b[a:z] for b in buffers]) for a, z, group in runs]
        for group, views in self._views:
            rate, decay = self.rates[group][0], self.decays[group][0]
            of_groups[group](step, rate, decay, scale, *views)

    def _run_packed(self, of_groups: list[kernels.Kernel], step: int, scale: float) -> None:
        if self._views is None:
            stores = (self.params, self.gradients, *self.states)
            self._views = [
                (c.group, [store.view(c.tensor).reshape(-1) for store in stores])
                for c in self.chunks
                if c.tensor is not None
            ]
        for group, views in self._views:
            rate, decay = self.rates[group][0], self.decays[group][0]
            of_groups[group](step, rate, decay, scale, *views)

    def _run_graph(self) -> None:
        if self._bindings is None:
            self._bindings = self._bind()
        if not self._scratch:
            for binding in self._bindings:
                binding.run()
            return
        for chunk, binding in zip(self.chunks, self._bindings):
            binding.run()
            self._copy_back(chunk)

    def _bind(self) -> list[Binding]:
        device = self.device
        rules = {group.rule.model: group.rule for group in self.groups}
        sessions = {m: device.session(m, session_options(self.options)) for m in rules}
        stores = dict(zip(["params", *self.file.states], [self.params, *self.states]))
        longest = max((p.stop - p.start for p in self.chunks), default=0)
        for name in set().union(*(rule.unsafe for rule in rules.values())):
            self._scratch[name] = _scratch(longest, stores[name], device)
        try:
            return [self._bind_chunk(sessions, chunk, stores) for chunk in self.chunks]
        except RuntimeError as error:  # onnxruntime's own
            raise ModelFileError(
                f"The optimizer model cannot be fed with vectors: {error}. Use the file that was "
                "generated with the training model."
            ) from error

    def _bind_chunk(
        self, sessions: Mapping[bytes, Any], chunk: Chunk, stores: Mapping[str, TensorStore]
    ) -> Binding:
        rule = self.groups[chunk.group].rule
        binding = Binding(sessions[rule.model], self.device)
        scalars: dict[str, Array] = {
            "learning_rate": self.rates[chunk.group],
            "weight_decay": self.decays[chunk.group],
            "step": self.step,
            "grad_scale": self.scale,
        }
        for name, array in scalars.items():
            if name in rule.inputs:
                binding.host_input(name, array)
        for name, store in {**stores, "gradients": self.gradients}.items():
            shape, pointer = _shape_and_pointer(store, chunk)
            kind = F32 if chunk.tensor is None else store.specs[chunk.tensor].type
            binding.input(name, kind, shape, pointer)
            if name == "gradients":
                continue
            if name in self._scratch:
                pointer = self._scratch[name].pointer("scratch")
            binding.output(f"{name}.updated", kind, shape, pointer)
        return binding

    def _copy_back(self, chunk: Chunk) -> None:
        stores = dict(zip(["params", *self.file.states], [self.params, *self.states]))
        for name, scratch in self._scratch.items():
            self._ops.copy_chunk(stores[name], chunk.start, chunk.stop, chunk.tensor, scratch)


class SequenceUpdate:
    """A user's own optimizer model over sequences, fed as it is."""

    is_session = is_foreign = True

    def __init__(
        self,
        file: OptimizerFile,
        state: TrainingState,
        device: Device,
        options: Any = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.file, self.names = file, list(names or state.trainable)
        moments = state.need_optimizer().states
        self.stores: dict[str, TensorStore] = {
            "params": state.trainable,
            **{n: moments[n] for n in file.states},
        }
        self.gradients = state.need_gradients()
        self.session = device.session(file.model, session_options(options))

    def run(self, step: int, rate: float, scale: float) -> None:
        """One update; the model has no input for `scale`, so the gradients are scaled here."""
        names = self.names
        for store in (*self.stores.values(), self.gradients):
            store.pull()
        factor = np.float32(scale)
        feeds: dict[str, Any] = {
            "learning_rate": np.array([rate], np.float32),
            "step": np.array([step], np.int64),
            "gradients": [
                self.gradients.view(n) * factor if scale != 1.0 else self.gradients.view(n)
                for n in names
            ],
            **{kind: [s.view(n) for n in names] for kind, s in self.stores.items()},
        }
        outputs = [f"{kind}.updated" for kind in self.stores]
        feeds = {n: v for n, v in feeds.items() if n in self.file.inputs}
        results = self.session.run(outputs, feeds)
        for store, values in zip(self.stores.values(), results):
            for name, value in zip(names, values):
                store.view(name)[...] = value
            store.push()


@dataclass(frozen=True)
class Group:
    """Parameters that share an update, a learning-rate factor and a weight decay."""

    params: frozenset[str]
    lr_scale: float
    weight_decay: float
    rule: OptimizerFile


def _groups(file: OptimizerFile, trainable: Sequence[str]) -> list[Group]:
    groups: list[Group] = []
    rest = set(trainable)
    for number, described in enumerate(file.groups):
        names = frozenset(described.get("params") or [])
        unknown = sorted(names - set(trainable))
        if unknown:
            raise ModelFileError(
                f"The optimizer's parameter group names {unknown[:8]}, which are not trained."
            )
        scale, decay = described.get("lr_scale", 1.0), described.get("weight_decay")
        decay = file.weight_decay if decay is None else decay
        rule = file.rules.get(number, file)
        groups.append(Group(names, float(scale), float(decay), rule))
        rest -= names
    if rest or not groups:
        groups.append(Group(frozenset(rest), 1.0, file.weight_decay, file))
    return groups


def _runs(params: TensorStore, groups: Sequence[Group]) -> Iterator[tuple[int, int, int]]:
    """The flat buffer cut where the group changes: start, stop, group."""
    buffer = params.buffers.get("F32")
    if buffer is None:
        return
    group_of = {n: i for i, g in enumerate(groups) for n in g.params}
    slots = list(buffer.slots.values())
    start, current = 0, group_of[slots[0].spec.name]
    for slot in slots[1:]:
        if group_of[slot.spec.name] != current:
            yield start, slot.start, current
            start, current = slot.start, group_of[slot.spec.name]
    yield start, buffer.data.size, current


def _chunks(
    params: TensorStore, groups: Sequence[Group], layout: str, chunk_size: int
) -> Iterator[Chunk]:
    if layout == "tensor":
        group_of = {n: i for i, g in enumerate(groups) for n in g.params}
        for name, spec in params.specs.items():
            if spec.size:
                yield Chunk(group_of[name], 0, spec.size, name)
        return
    for start, stop, group in _runs(params, groups):
        for at in range(start, stop, chunk_size):
            yield Chunk(group, at, min(at + chunk_size, stop))


def _shape_and_pointer(store: TensorStore, chunk: Chunk) -> tuple[tuple[int, ...], int]:
    if chunk.tensor is not None:
        return store.specs[chunk.tensor].shape, store.pointer(chunk.tensor)
    return (chunk.stop - chunk.start,), store.buffers["F32"].pointer(chunk.start)


def _scratch(size: int, like: TensorStore, device: Device) -> TensorStore:
    largest = max((s.size for s in like.specs.values()), default=0)
    store = TensorStore([TensorSpec("scratch", F32, (max(size, largest),))])
    store.place(device)
    return store
