"""From a module and the arguments of a call to the graphs that run it, forward and backward."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
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
from ._ortmodule_structure import Structure, leaf_names, put_together, take_apart
from .export import ExportError, Probe, called, export
from .fallback import (
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
)
from .repair import rename
from .size_rules import Fits
from .value_reads import FixedValues

INNER = "inner."
_generation = itertools.count()


class _Seen:
    """The structure of a result; kept outside the module, whose attributes torch resets."""

    structure: Structure = None


class _Call(torch.nn.Module):
    """The module with a row of tensors as arguments, and as result: outputs, changed buffers."""

    def __init__(self, module: torch.nn.Module, structure: Structure, changed: list[str]) -> None:
        super().__init__()
        self.inner = module
        self.structure = structure
        self.changed = changed
        self.seen = _Seen()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = put_together(self.structure, tensors)
        leaves: list[torch.Tensor] = []
        self.seen.structure = take_apart(self.inner(*args, **kwargs), leaves)
        buffers = dict(self.inner.named_buffers())
        return (*leaves, *(buffers[name] for name in self.changed))


@dataclass
class Traced:
    """A module in one mode as an ONNX model, dimensions of its inputs open.

    Attributes:
        model: weights as initializers under their `state_dict` names.
        result: structure of what the module returns.
        outputs: names of the tensors in it.
        inputs: names of the arguments' tensors; `used` says which of them the graph has.
        arguments: what the caller calls them.
        buffers: from the graph's outputs that are new values of buffers to the buffers.
        averaged: from running statistics that are the plain average over all batches to the
            buffers that count the batches.
        statistics: running statistics that a call changes.
        barriers: names of the nodes that no gradient passes.
        fits: whether it holds for inputs of other sizes.
        exporter: which exporter made it, and why not the preferred one.
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
        gradients: from names of inputs and tensors to the backward graph's outputs.
        labels: from inputs of the forward graph that hold class labels to what they may hold.
    """

    forward: onnx.ModelProto
    backward: onnx.ModelProto | None
    feeds: list[str]
    updates: dict[str, str]
    saved: list[str] = field(default_factory=list)
    seeds: list[str | None] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    whole: onnx.ModelProto | None = None
    labels: dict[str, ClassLabels] = field(default_factory=dict)


# --- tracing --------------------------------------------------------------------------------------


def trace(
    module: torch.nn.Module,
    structure: Structure,
    tensors: Sequence[torch.Tensor],
    *,
    opset: int,
    exporter: str | None,
    fixed_values: FixedValues | None = None,
) -> Traced:
    """Export a module as it is now, for calls with arguments of this structure."""
    with torch.inference_mode(False):  # its tensors cannot be part of a graph
        plain = [t.detach().clone() for t in tensors]
        averaged = _averaging(module)
        with _momentum_one(module, averaged):
            expected, changed, probe = _probe(module, structure, plain)
        statistics = _statistics(module)
        watched = [n for n in changed if n not in statistics]
        call = _Call(module, structure, watched)
        names = [f"input_{i}" for i in range(len(plain))]
        axes = {n: {a: f"{n}_{a}" for a in range(t.ndim)} for n, t in zip(names, plain)}
        with torch.enable_grad(), _momentum_one(module, averaged):
            try:
                found = export(
                    call,
                    plain,
                    input_names=names,
                    dynamic_axes=axes,
                    training=None,
                    opset=opset,
                    exporter=exporter,
                    fixed_values=fixed_values,
                    probe=probe,
                )
            except ExportError as error:
                raise ORTModuleTorchModelException(str(error)) from error
    seen = call.seen.structure  # None where torch read the code instead of running it
    if seen is not None and seen != expected:
        raise ORTModuleIOError(
            f"What {type(module).__name__} returns besides tensors depends on its arguments: it "
            f"was {expected} and is {seen}. A graph returns tensors only."
        )
    mine = {n: n.removeprefix(INNER) for n in found.names if n.startswith(INNER)}
    rename(found.model, {found.names[n]: found.names[n].removeprefix(INNER) for n in mine})
    present = {i.name for i in found.model.graph.input}
    count = len(found.outputs) - len(watched)
    note = f" ({found.note})" if found.note else ""
    return Traced(
        found.model,
        expected,
        found.outputs[:count],
        names,
        leaf_names(structure),
        [n in present for n in names],
        dict(zip(found.outputs[count:], watched)),
        {name: count for mean, var, count in averaged.values() for name in (mean, var)},
        [n for n in changed if n in statistics],
        found.barriers,
        found.fits,
        found.exporter + note,
    )


def _probe(
    module: torch.nn.Module, structure: Structure, tensors: Sequence[torch.Tensor]
) -> tuple[Structure, list[str], Probe]:
    """Call the module once, for real.

    Returns:
        The structure of its result, the buffers it changes, and what else the call has shown.
    """
    buffers = dict(module.named_buffers())
    before = {n: (b, b._version, b.detach().clone()) for n, b in buffers.items()}
    versions = [t._version for t in tensors]
    modified: list[str] = []
    with torch.random.fork_rng(devices=[]):
        try:
            args, kwargs = put_together(structure, tensors)
            result, probe = called(module, tensors, lambda: module(*args, **kwargs))
            now = dict(module.named_buffers())
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
    if any(t._version != v for t, v in zip(tensors, versions)):
        raise ORTModuleTorchModelException(
            f"{type(module).__name__} changes an argument in place, and a graph cannot. Let it "
            "work on a copy (tensor.clone())."
        )
    leaves: list[torch.Tensor] = []
    structure = take_apart(result, leaves)
    if not leaves:
        raise ORTModuleIOError(f"{type(module).__name__} returns no tensor.")
    return structure, modified, probe


def _put_back(module: torch.nn.Module, name: str, buffer: torch.Tensor) -> None:
    owner, _, last = name.rpartition(".")
    module.get_submodule(owner)._buffers[last] = buffer


def _statistics(module: torch.nn.Module) -> set[str]:
    """Names of all running statistics."""
    found = set()
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase):
            stem = f"{name}." if name else ""
            found |= {f"{stem}running_mean", f"{stem}running_var"}
    return found


def _averaging(module: torch.nn.Module) -> dict[str, tuple[str, str, str]]:
    """BatchNorm modules that train and average over all batches: names of their buffers."""
    found = {}
    for name, part in module.named_modules():
        norm = isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.training
        if norm and part.momentum is None and part.running_mean is not None:
            stem = f"{name}." if name else ""
            found[name] = (
                f"{stem}running_mean",
                f"{stem}running_var",
                f"{stem}num_batches_tracked",
            )
    return found


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
    wanted: Sequence[str],
    shapes: Sequence[Sequence[int]] | None,
    gradients: bool,
    *,
    recompute: Recompute = None,
) -> Halves:
    """Make the graphs.

    Args:
        traced: the exported module.
        tensors: names of the module's parameters and buffers that the caller feeds.
        wanted: names of inputs and parameters whose gradients are wanted.
        shapes: sizes of the inputs, when the graph shall be made for these only.
        gradients: whether a backward graph is needed.
        recompute: what it computes again instead of reading it.
    """
    try:
        return _build(traced, tensors, wanted, shapes, gradients, recompute)
    except (OnnxTrainError, onnx.checker.ValidationError) as error:
        raise ORTModuleONNXModelException(
            f"The exported module cannot be {'differentiated' if gradients else 'prepared'}: "
            f"{error}"
        ) from error


def _build(
    traced: Traced,
    tensors: Sequence[str],
    wanted: Sequence[str],
    shapes: Sequence[Sequence[int]] | None,
    gradients: bool,
    recompute: Recompute,
) -> Halves:
    model = ir.from_proto(_with_sizes(traced, shapes))
    present = set(model.graph.initializers)
    known = [n for n in tensors if n in present]
    inputs = {v.name for v in model.graph.inputs}
    chosen = set(wanted) if gradients else set()
    plan = Plan(
        model,
        outputs=[*traced.outputs, *traced.buffers],
        trainable=[n for n in known if n in chosen],
        frozen=[n for n in known if n not in chosen],
        inputs=[n for n in wanted if n in inputs and n in chosen],
        of=traced.outputs,
        vjp=True,
        unused="leave out",
        no_gradient=traced.barriers,
        unbiased=True,
        recompute=recompute,
        counter=True,
    )
    built, parts = halves(plan, before_cut=_seed)
    lost = sorted(set(traced.statistics) - set(built.states))
    if lost:
        raise ORTModuleTorchModelException(
            f"The exporter drops the update of {', '.join(lost)}. Set track_running_stats=False "
            "in that layer, or put it into eval mode."
        )
    updates = {new: s for s, new in built.states.items()} | traced.buffers
    labels = _labels(built.labels, traced)
    if parts is None:
        feeds = [v.name or "" for v in built.model.graph.inputs]
        return Halves(to_proto(built.model), None, feeds, updates, labels=labels)
    return Halves(
        parts.forward,
        parts.backward,
        [i.name for i in parts.forward.graph.input],
        updates,
        parts.saved,
        [built.seeds.get(n) for n in traced.outputs],
        built.gradients,
        to_proto(built.model),
        labels,
    )


def _labels(found: Sequence[Expected], traced: Traced) -> dict[str, ClassLabels]:
    """Inputs that hold class labels, under the names that the caller knows."""
    called = dict(zip(traced.inputs, traced.arguments))
    return {
        one.input: ClassLabels(called[one.input], one.classes, one.ignore_index)
        for one in found
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
