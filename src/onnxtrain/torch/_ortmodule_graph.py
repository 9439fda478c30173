"""From a module and the arguments of a call to the graphs that run it, forward and backward."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir
import torch

from ..compile import Plan, halves
from ..errors import OnnxTrainError
from ..graph import to_proto
from ..graph.labels import ClassLabels as Expected
from ..passes import Recompute
from ..passes.draws import draws
from ..runtime.session.labels import ClassLabels
from ._ortmodule_constants import Array, lend, park, without_values
from ._ortmodule_gradients import share, without_views
from ._ortmodule_structure import Structure, leaf_names, put_together, take_apart
from .export import Exported, ExportError, Probe, called, export
from .export_cache import Request, cached
from .fallback import (
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from .first_result import sample
from .movements import Movements
from .repair import rename
from .size_rules import Fits
from .value_reads import FixedValues
from .widen import autocast, narrow_types, widen

INNER = "inner."
RESERVED = "onnxtrain"
"""How names begin that are given to inputs of our own."""
OURS = frozenset(
    {
        "args", "dynamic_axes", "dynamic_shapes", "dynamo", "export_params", "f", "input_names",
        "keep_initializers_as_inputs", "kwargs", "model", "opset_version", "optimize",
        "output_names", "training", "verbose",
    }
)  # fmt: skip
"""Arguments of torch's exporter that cannot be given."""
_generation = itertools.count()


class _Seen:
    """The structure of a result; kept outside the module, whose attributes torch resets."""

    structure: Structure = None


class _Call(torch.nn.Module):
    """The module with a row of tensors as arguments.

    Its result: the module's outputs, new values of arguments that the module changes, new values
    of buffers that it changes.
    """

    def __init__(self, module: torch.nn.Module, structure: Structure, seen: _Probed) -> None:
        super().__init__()
        self.inner = module
        self.structure = structure
        self.buffers_changed = seen.buffers
        self.arguments_changed = seen.arguments
        self.seen = _Seen()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        changed = {i: tensors[i].clone() for i in self.arguments_changed}
        arguments = [changed.get(i, tensor) for i, tensor in enumerate(tensors)]
        args, kwargs = put_together(self.structure, arguments)
        leaves: list[torch.Tensor] = []
        self.seen.structure = take_apart(self.inner(*args, **kwargs), leaves)
        buffers = dict(self.inner.named_buffers())
        return (*leaves, *changed.values(), *(buffers[name] for name in self.buffers_changed))


@dataclass
class _Probed:
    """What a real call of a module has shown.

    Attributes:
        result: structure of what it returned.
        buffers: names of those that it changed, running statistics left out.
        statistics: running statistics that it changed.
        arguments: numbers of the tensors that it changed in place.
        returned: from places in the result to the changed argument that stands there itself.
        probe: what else there was to see.
        count: of the tensors in the result, and of changed arguments.
        moves_only: whether the result is made of views and copies, and nothing else happened.
        sampled: some numbers of the result, if nothing was drawn.
    """

    result: Structure
    buffers: list[str]
    statistics: list[str]
    arguments: list[int]
    returned: dict[int, int]
    probe: Probe
    count: int
    moves_only: bool
    sampled: list[torch.Tensor | None]


@dataclass
class Traced:
    """A module in one mode as an ONNX model, dimensions of its inputs open.

    Attributes:
        model: weights as initializers under their `state_dict` names.
        result: structure of what the module returns.
        outputs: names of the tensors in it, then of new values of the arguments in `changed`.
        changed: numbers of the arguments that the module changes in place.
        returned: from places in the result to the changed argument that stands there itself.
        inputs: names of the arguments' tensors; `used` says which of them the graph has.
        arguments: what the caller calls them.
        buffers: from the graph's outputs that are new values of buffers to the buffers.
        averaged: from running statistics that are the plain average over all batches to the
            buffers that count the batches.
        statistics: running statistics that a call changes.
        barriers: names of the nodes that no gradient passes.
        fits: whether it holds for inputs of other sizes.
        exporter: which exporter made it, and why not the preferred one.
        structure: of the arguments.
        training: the mode.
        expected: some numbers of what torch gave for the first call, until they are compared.
    """

    model: onnx.ModelProto
    result: Structure
    outputs: list[str]
    inputs: list[str]
    arguments: list[str]
    used: list[bool]
    buffers: dict[str, str]
    averaged: dict[str, str]
    statistics: list[str]
    barriers: list[str]
    fits: Fits
    exporter: str
    changed: list[int]
    returned: dict[int, int]
    structure: Structure
    training: bool
    expected: list[torch.Tensor | None]


@dataclass
class Halves:
    """The graphs of one kind of call.

    Attributes:
        forward: inputs and tensors of the module → outputs, new values of buffers, saved values.
        backward: what its inputs are named after → gradients; None when nothing has a gradient.
        feeds: names of the forward graph's inputs, `RANDOM_INPUT` among them if it draws.
        updates: from outputs of the forward graph to the buffers they are new values of.
        saved: outputs of the forward graph that the backward graph reads.
        seeds: for each output the backward graph's input for its gradient, or None.
        gradients: from names of inputs and tensors to the backward graph's outputs; several may
            have one.
        views: sizes that torch gives to some of these, of which the graph has the numbers only.
        labels: from inputs of the forward graph that hold class labels to what they may hold.
        lent: numbers of the constants that the graphs do not have themselves.
    """

    forward: onnx.ModelProto
    backward: onnx.ModelProto | None
    feeds: list[str]
    updates: dict[str, str]
    saved: list[str] = field(default_factory=list)
    seeds: list[str | None] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    views: dict[str, tuple[int, ...]] = field(default_factory=dict)
    whole: onnx.ModelProto | None = None
    labels: dict[str, ClassLabels] = field(default_factory=dict)
    lent: dict[str, Array] = field(default_factory=dict)

    def drop(self) -> None:
        """Forget the numbers of constants: tensors without any take the places of lent ones."""
        names, self.lent = set(self.lent), {}
        if not names:
            return
        self.forward = without_values(self.forward, names)
        if self.backward is not None:
            self.backward = without_values(self.backward, names)
        if self.whole is not None:
            self.whole = without_values(self.whole, names)


# --- tracing --------------------------------------------------------------------------------------


def trace(
    module: torch.nn.Module,
    structure: Structure,
    tensors: Sequence[torch.Tensor],
    *,
    opset: int,
    exporter: str | None,
    fixed_values: FixedValues | None = None,
    export_options: Mapping[str, Any] | None = None,
) -> Traced | None:
    """Export a module as it is now, for calls with arguments of this structure.

    None if these arguments leave nothing to compute (`movements.py`).
    """
    _check_options(export_options or {})
    with torch.inference_mode(False):  # its tensors cannot be part of a graph
        plain = [t.detach().clone() for t in tensors]
        averaged = _averaging(module)
        with _momentum_one(module, averaged):
            probed = _probe(module, structure, [_like(t) for t in tensors])
        if probed.moves_only:
            return None
        call = _Call(module, structure, probed)
        numbered = [f"input_{i}" for i in range(len(plain))]
        with torch.enable_grad(), _momentum_one(module, averaged):
            try:
                exported = _exported(
                    call,
                    dict(zip(numbered, plain)),
                    probed,
                    opset=opset,
                    exporter=exporter,
                    fixed_values=fixed_values,
                    export_options=export_options or {},
                )
            except ExportError as error:
                raise ORTModuleTorchModelException(str(error)) from error
    seen = call.seen.structure  # None where torch read the code instead of running it
    if seen is not None and seen != probed.result:
        raise ORTModuleIOError(
            f"What {type(module).__name__} returns besides tensors depends on its arguments: it "
            f"was {probed.result} and is {seen}. A graph returns tensors only."
        )
    names = _input_names(module, structure)
    mine = [name for n, name in exported.names.items() if n.startswith(INNER)]
    present = {i.name for i in exported.model.graph.input}
    rename(
        exported.model,
        {name: name.removeprefix(INNER) for name in mine}
        | {old: new for old, new in zip(numbered, names) if old != new and old in present},
    )
    if all(t.device.type == "cpu" for t in (*plain, *module.parameters())):
        widen(exported.model, narrow_types(autocast()))
    count = len(exported.outputs) - len(probed.buffers)
    note = f" ({exported.note})" if exported.note else ""
    return Traced(
        exported.model,
        probed.result,
        exported.outputs[:count],
        names,
        leaf_names(structure),
        [n in present for n in numbered],
        dict(zip(exported.outputs[count:], probed.buffers)),
        {name: count for mean, var, count in averaged.values() for name in (mean, var)},
        probed.statistics,
        exported.barriers,
        exported.fits,
        exported.exporter + note,
        probed.arguments,
        probed.returned,
        structure,
        module.training,
        probed.sampled,
    )


def _exported(
    call: _Call,
    inputs: Mapping[str, torch.Tensor],
    probed: _Probed,
    *,
    opset: int,
    exporter: str | None,
    fixed_values: FixedValues | None,
    export_options: Mapping[str, Any],
) -> Exported:
    """The call as a graph, read from the folder for exports if that has it."""
    run = functools.partial(
        export,
        call,
        list(inputs.values()),
        input_names=list(inputs),
        dynamic_axes={n: {a: f"{n}_{a}" for a in range(t.ndim)} for n, t in inputs.items()},
        training=None,
        opset=opset,
        exporter=exporter,
        fixed_values=fixed_values,
        probe=probed.probe,
        export_options=export_options,
    )
    if probed.probe.reads:  # the graph may depend on values
        return run()
    more = (opset, exporter, autocast(), probed.probe.marked, dict(export_options))
    outputs = probed.count + len(probed.buffers)
    return cached(Request(type(call.inner).__name__, call, inputs, outputs, more), run)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that may be changed, and has a gradient if the original has."""
    return tensor.detach().requires_grad_(tensor.requires_grad).clone()


def _check_options(options: Mapping[str, Any]) -> None:
    """Refuse options of torch's exporter that are decided here."""
    refused = set(options) & OURS
    if refused:
        raise ORTModuleONNXModelException(
            f"The following PyTorch exporter arguments cannot be specified: '{refused}'."
        )


def _input_names(module: torch.nn.Module, structure: Structure) -> list[str]:
    """Names of the tensors among the arguments, after the parameters of `forward`.

    A name that a tensor of the module or an output has is replaced by a number.
    """
    parameters = [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    taken = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    taken |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    names: list[str] = []
    for i, path in enumerate(leaf_names(structure, parameters)):
        name = re.sub(r"\W", "_", path)
        usable = name not in taken and not name.startswith(("output", "loss", RESERVED))
        names.append(name if usable else f"input_{i}")
        taken.add(names[-1])
    return names


def _probe(
    module: torch.nn.Module, structure: Structure, tensors: Sequence[torch.Tensor]
) -> _Probed:
    """Call the module once, for real, on tensors that it may change."""
    buffers = dict(module.named_buffers())
    before = {n: (b, b._version, b.detach().clone()) for n, b in buffers.items()}
    versions = [t._version for t in tensors]
    modified: list[str] = []
    copies_only = False
    with torch.random.fork_rng(devices=[]):
        try:
            drawn_before = torch.get_rng_state()
            args, kwargs = put_together(structure, tensors)
            result, probe = called(module, tensors, lambda: module(*args, **kwargs))
            is_drawn = not torch.equal(drawn_before, torch.get_rng_state())
            now = dict(module.named_buffers())
            is_bare = not now and next(module.parameters(), None) is None
            if is_bare and [t._version for t in tensors] == versions:
                # a second call, since compiled functions do not run as such while it is watched
                with Movements() as seen:
                    module(*args, **kwargs)
                copies_only = seen.copies_only
        except ExportError as error:
            raise ORTModuleTorchModelException(str(error)) from error
        finally:
            for name, (buffer, version, value) in before.items():
                if module.get_buffer(name) is not buffer:
                    _put_back(module, name, buffer)
                    modified.append(name)
                elif buffer._version != version or not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)
                    modified.append(name)
    if set(now) != set(before):
        raise ORTModuleTorchModelException(
            f"{type(module).__name__} registers or removes buffers while it runs: "
            f"{', '.join(sorted(set(now) ^ set(before)))}. Do that before the first call."
        )
    leaves: list[torch.Tensor] = []
    expected = take_apart(result, leaves)
    arguments = [i for i, (t, v) in enumerate(zip(tensors, versions)) if t._version != v]
    if not leaves and not arguments:
        raise ORTModuleIOError(f"{type(module).__name__} returns no tensor.")
    statistics = _statistics(module)
    is_pure = not modified and not arguments and not probe.reads
    return _Probed(
        expected,
        [n for n in modified if n not in statistics],
        [n for n in modified if n in statistics],
        arguments,
        {k: i for k, leaf in enumerate(leaves) for i in arguments if leaf is tensors[i]},
        probe,
        len(leaves) + len(arguments),
        is_pure and (copies_only or _are_views(leaves, tensors)),
        [] if is_drawn else sample(leaves),
    )


def _are_views(results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all results are in the memory of these tensors."""
    memory = {t.untyped_storage().data_ptr() for t in tensors if t.numel()}
    return all(r.numel() and r.untyped_storage().data_ptr() in memory for r in results)


def _put_back(module: torch.nn.Module, name: str, buffer: torch.Tensor) -> None:
    owner, _, last = name.rpartition(".")
    module.get_submodule(owner)._buffers[last] = buffer


def _statistics(module: torch.nn.Module) -> set[str]:
    """Names of all running statistics."""
    names = set()
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase):
            stem = f"{name}." if name else ""
            names |= {f"{stem}running_mean", f"{stem}running_var"}
    return names


def _averaging(module: torch.nn.Module) -> dict[str, tuple[str, str, str]]:
    """BatchNorm modules that train and average over all batches: names of their buffers."""
    buffers = {}
    for name, part in module.named_modules():
        norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training
        if norm and part.momentum is None and part.running_mean is not None:
            stem = f"{name}." if name else ""
            buffers[name] = (
                f"{stem}running_mean",
                f"{stem}running_var",
                f"{stem}num_batches_tracked",
            )
    return buffers


@contextlib.contextmanager
def _momentum_one(module: torch.nn.Module, averaged: dict[str, Any]) -> Iterator[None]:
    """Let these modules' new statistics be those of the batch, to be averaged outside the graph."""
    for name in averaged:
        module.get_submodule(name).momentum = 1.0  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in averaged:
            module.get_submodule(name).momentum = None  # type: ignore[assignment]


# --- building -------------------------------------------------------------------------------------


def build(
    traced: Traced,
    tensors: Sequence[str],
    trained: Sequence[str],
    shapes: Sequence[Sequence[int]] | None,
    gradients: bool,
    *,
    recompute: Recompute = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> Halves:
    """Make the graphs.

    Args:
        traced: the exported module.
        tensors: names of the module's parameters and buffers that the caller feeds.
        trained: names of inputs and parameters whose gradients are wanted.
        shapes: sizes of the inputs, when the graph shall be made for these only.
        gradients: whether a backward graph is needed.
        recompute: what it computes again instead of reading it.
        constants: those of the module's tensors that are no inputs, with their values.
    """
    try:
        return _build(traced, tensors, trained, shapes, gradients, recompute, constants or {})
    except (OnnxTrainError, onnx.checker.ValidationError) as error:
        raise ORTModuleONNXModelException(
            f"The exported module cannot be {'differentiated' if gradients else 'prepared'}: "
            f"{error}"
        ) from error


def _build(
    traced: Traced,
    tensors: Sequence[str],
    trained: Sequence[str],
    shapes: Sequence[Sequence[int]] | None,
    gradients: bool,
    recompute: Recompute,
    constants: Mapping[str, torch.Tensor],
) -> Halves:
    model = ir.from_proto(_with_sizes(traced, shapes))
    for name, value in constants.items():
        model.graph.initializers[name].const_value = ir.tensor(value.numpy(), name=name)
    present = set(model.graph.initializers) - set(constants)
    known = [n for n in tensors if n in present]
    inputs = {v.name for v in model.graph.inputs}
    chosen = set(trained) if gradients else set()
    plan = Plan(
        model,
        outputs=[*traced.outputs, *traced.buffers],
        trainable=[n for n in known if n in chosen],
        frozen=[n for n in known if n not in chosen],
        inputs=[n for n in trained if n in inputs and n in chosen],
        of=traced.outputs,
        vjp=True,
        unused="leave out",
        no_gradient=traced.barriers,
        unbiased=True,
        recompute=recompute,
        counter=True,
    )

    lent: dict[str, Array] = {}

    def prepare(whole: ir.Model) -> None:
        _seed(whole)
        lent.update(park(whole, constants))

    built, parts = halves(plan, before_cut=prepare)
    lost = sorted(set(traced.statistics) - set(built.states))
    if lost:
        raise ORTModuleTorchModelException(
            f"The exporter drops the update of {', '.join(lost)}. Set track_running_stats=False "
            "in that layer, or put it into eval mode."
        )
    updates = {new: s for s, new in built.states.items()} | traced.buffers
    labels = _labels(built.labels, traced)
    whole = to_proto(built.model)
    lend(whole, lent)
    if parts is None:
        feeds = [value.name for value in whole.graph.input]
        return Halves(whole, None, feeds, updates, labels=labels, lent=lent)
    for half in (parts.forward, parts.backward):
        lend(half, lent)
    gradients_at, views = without_views(parts.backward, share(parts.backward, built.gradients))
    return Halves(
        parts.forward,
        parts.backward,
        [i.name for i in parts.forward.graph.input],
        updates,
        parts.saved,
        [built.seeds.get(n) for n in traced.outputs],
        gradients_at,
        views,
        whole,
        labels,
        lent,
    )


def _labels(expected: Sequence[Expected], traced: Traced) -> dict[str, ClassLabels]:
    """Inputs that hold class labels, under the names that the caller knows."""
    called = dict(zip(traced.inputs, traced.arguments))
    return {
        one.input: ClassLabels(called[one.input], one.classes, one.ignore_index)
        for one in expected
        if one.input in called
    }


def _with_sizes(traced: Traced, shapes: Sequence[Sequence[int]] | None) -> onnx.ModelProto:
    """A copy of the model, its inputs of these sizes."""
    model = onnx.ModelProto()
    model.CopyFrom(traced.model)
    if shapes is None:
        return model
    del model.graph.value_info[:]
    sizes = dict(zip(traced.inputs, shapes))
    symbols: dict[str, int] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, sizes.get(value.name, ())):
            if dim.dim_param:
                symbols[dim.dim_param] = size
            dim.dim_value = size
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
            elif dim.dim_param:
                dim.ClearField("dim_param")
    return model


def _seed(model: ir.Model) -> None:
    """Seeds of the random operators that draw themselves, inside a SequenceMap say."""
    nodes = [n for n in model.graph.all_nodes() if draws(n)]
    start = f"{torch.initial_seed()}/{next(_generation)}" if nodes else ""
    for index, node in enumerate(nodes):
        digest = hashlib.blake2b(f"{start}/{index}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") % (1 << 24)  # a float attribute holds it
        whole = node.op_type == "Dropout"
        node.attributes["seed"] = (
            ir.AttrInt64("seed", seed) if whole else ir.AttrFloat32("seed", float(seed))
        )
