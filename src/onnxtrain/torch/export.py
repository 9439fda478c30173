"""From a torch module, with or without a loss, to an ONNX model that can be trained.

Both of torch's exporters are written for inference. What training needs is put right here: every
torch parameter is one initializer under its `state_dict` name (tied parameters are one, merely
equal ones are not), BatchNormalization and Dropout are in the mode of their modules, what torch
lets no gradient through is marked, and the export leaves no trace in the module: not in its
buffers, not in its mode, not in the random state.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ..errors import OnnxTrainError
from ..preparing import preparing
from ..runtime.session.sharing import GlobalLock
from . import repair, translations
from .autograd_functions import custom_functions, without_checkpoints
from .gradient_marks import GradientMarks, name_barriers, zeros
from .local_backwards import LocalBackwards
from .repair import DynamicAxes
from .size_rules import Fits, TracerWarning, any_sizes, assumed, decided, only
from .value_reads import FixedValues, Read, ValueReads, check_choice, describe, warn

log = logging.getLogger(__name__)
OPSET = 18
"""What is asked of torch: artifacts need 18 at least, and older ones lack LayerNormalization."""

DYNAMO, TORCHSCRIPT = "dynamo", "torchscript"
LossFunction = Callable[[Any, Any], Any]
_one_export = GlobalLock()
"""torch's exporters work on its global state, and stdout and logging are turned off meanwhile."""


class ExportError(OnnxTrainError, RuntimeError):
    """torch could not export the module; says what each exporter complained about."""


@dataclass
class Exported:
    """A module as an ONNX model.

    Attributes:
        model: the model, weights as initializers under their `state_dict` names.
        inputs: names of the inputs that the graph has, in the order of the call.
        outputs: names of the outputs; with a loss that is the first.
        names: from each `state_dict` name that the graph uses to its initializer; tied names share
            one, all others have their own.
        exporter: ``"dynamo"`` or ``"torchscript"``.
        note: why the preferred exporter was not used; empty if it was.
        barriers: names of the nodes that no gradient passes; they add a zero.
        fits: says whether the graph holds for inputs of other sizes, given their shapes in the
            order of the call; it does not if another branch of the module's code were taken.
        rebuild: puts the outputs, loss left out, back into the structure the module returned.
    """

    model: onnx.ModelProto
    inputs: list[str]
    outputs: list[str]
    names: dict[str, str]
    exporter: str
    note: str = ""
    barriers: list[str] = field(default_factory=list)
    rebuild: Callable[[Sequence[Any]], Any] = field(default=list)
    fits: Fits = any_sizes


@dataclass
class Probe:
    """What one real call of a module has shown.

    Attributes:
        name: of the module's type.
        marked: whether it has places that no gradient passes.
        reads: where it reads values of tensors in Python.
        backwards: which of its functions with a backward of their own a graph can tell.
    """

    name: str
    marked: bool = False
    reads: list[Read] = field(default_factory=list)
    backwards: LocalBackwards = field(default_factory=LocalBackwards)


def default_exporter() -> str:
    """The exporter that the installed torch maintains: dynamo from 2.9 on."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return DYNAMO if (major, minor) >= (2, 9) else TORCHSCRIPT


@preparing("exporting the module with torch")
def export(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss_fn: LossFunction | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: DynamicAxes | None = None,
    training: bool | None = True,
    opset: int = OPSET,
    exporter: str | None = None,
    fixed_values: FixedValues | None = None,
    probe: Probe | None = None,
    export_options: Mapping[str, Any] | None = None,
) -> Exported:
    """Export a module for training.

    Args:
        module: what to export.
        args: sample inputs, in the order of the call; with `loss_fn` the last is the label.
            Lists, tuples and dictionaries of tensors are taken apart; what is not a tensor
            becomes a constant of the graph.
        kwargs: more sample inputs, by name.
        loss_fn: called with the module's result and the label; its value is the first output.
        input_names: one per tensor; by default from the signature of `forward`.
        output_names: one per output, the loss included; by default ``loss`` and ``output``,
            ``output_1``, …
        dynamic_axes: dimensions that may change: ``{"x": {0: "batch"}}``.
        training: put the module into training (True) or eval (False) mode for the export; None
            takes every submodule as it is.
        opset: ai.onnx version, 18 at least.
        exporter: ``"dynamo"`` or ``"torchscript"``. By default the one that is maintained, and the
            other if that fails (`Exported.note` then says why).
        fixed_values: what to do when tracing fixes values that the module reads in Python
            (``if x.sum() > 0``): ``"warn"``, ``"error"`` or ``"ignore"``. By default the
            environment variable ``ORTMODULE_FIXED_VALUES``, else a `FixedValueWarning`.
        probe: what a call has shown already; by default the module is called once to see.
        export_options: more arguments of `torch.onnx.export`.

    Raises:
        ExportError: no exporter managed.
    """
    order = _order(exporter)
    choice, axes = check_choice(fixed_values) or "warn", dynamic_axes or {}
    flat = _Flat(module, args, kwargs or {}, loss_fn)
    names = list(input_names) if input_names is not None else flat.default_names()
    if len(names) != len(flat.tensors):
        raise ExportError(
            f"{len(flat.tensors)} input tensor(s) were given, and {len(names)} name(s): {names}."
        )
    if probe is None:
        with _undisturbed(flat, module, training):
            probe = _probe(flat)
    if probe.marked:
        flat.mark()
    reasons: list[str] = []
    cause: Exception | None = None
    for kind in order:
        run = _dynamo if kind == DYNAMO else _torchscript
        if kind == TORCHSCRIPT and probe.reads and choice == "error":
            reasons.append(f"{kind}: {describe(probe.name, probe.reads)}")
            continue
        try:
            with (
                _one_export,
                _undisturbed(flat, module, training),
                _quiet(),
                without_checkpoints(),
                probe.backwards.written_out(),
            ):
                asked = _Request(names, axes, max(opset, OPSET), probe.reads, export_options or {})
                proto, fits = run(flat, asked)
        except Exception as error:
            reasons.append(f"{kind}: {_reason(error)}")
            cause = error
            continue
        note = "; ".join(reasons)
        if note:
            log.info("%s is exported with %s. %s", probe.name, kind, note)
        if kind == TORCHSCRIPT and probe.reads and choice == "warn":
            warn(probe.name, probe.reads)
        exported = _finish(proto, flat, names, output_names, axes, kind, note, training)
        exported.fits = fits
        return exported
    said = f"{probe.name} cannot be exported to ONNX. {' | '.join(reasons)}{_remedy(module)}"
    raise ExportError(said) from cause


def _remedy(module: torch.nn.Module) -> str:
    """What can be done about a module that exporters fail on, where that is known."""
    parts = list(module.modules())
    has_experts = any("Experts" in type(part).__name__ for part in parts)
    if has_experts and any(hasattr(part, "set_experts_implementation") for part in parts):
        return (
            " Exporters know its experts as batched products only, "
            "model.set_experts_implementation('batched_mm') chooses these."
        )
    return ""


def _order(exporter: str | None) -> list[str]:
    if exporter is None:
        first = default_exporter()
        return [first, TORCHSCRIPT if first == DYNAMO else DYNAMO]
    if exporter not in (DYNAMO, TORCHSCRIPT):
        raise ExportError(f"exporter is {DYNAMO!r} or {TORCHSCRIPT!r}, not {exporter!r}.")
    return [exporter]


class _Flat(torch.nn.Module):
    """The module with tensors in a row as inputs, and as outputs (after the loss, if any)."""

    def __init__(
        self,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        loss_fn: LossFunction | None,
    ) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn
        leaves, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        self.is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self.constants = [None if t else leaf for leaf, t in zip(leaves, self.is_tensor)]
        self.tensors = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))
        self.result = _Result()
        self.marked = False
        self.other_forms = False

    def mark(self) -> None:
        """Mark from now on what no gradient passes."""
        self.marked = True
        for name, zero in zeros().items():
            self.register_buffer(name, zero)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self.marked and not self.other_forms:
            return self.call(*tensors)
        known = zeros() if self.marked else {}
        marks = GradientMarks({name: getattr(self, name) for name in known})
        with torch.enable_grad(), marks:
            return self.call(*tensors)

    def call(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Loss and outputs."""
        remaining = iter(tensors)
        leaves = [next(remaining) if t else c for t, c in zip(self.is_tensor, self.constants)]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        loss: tuple[torch.Tensor, ...] = ()
        if self.loss_fn is None:
            result = self.module(*args, **kwargs)
        else:
            result = self.module(*args[:-1], **kwargs)
            loss = (self.loss_fn(result, args[-1]),)
        return (*loss, *self.result.take_apart(result))

    def default_names(self) -> list[str]:
        """Names of the tensors, after the parameters of `forward` that they are given as."""
        args, kwargs = pytree.tree_unflatten([*range(len(self.constants))], self.spec)
        known = [
            p.name
            for p in inspect.signature(self.module.forward).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        label = len(args) - 1 if self.loss_fn is not None else None
        pairs = [
            ("label" if i == label else known[i] if i < len(known) else f"input_{i}", value)
            for i, value in enumerate(args)
        ]
        names: list[str] = []
        for name, value in (*pairs, *kwargs.items()):
            leaves = pytree.tree_leaves(value)
            alone = not isinstance(value, (list, tuple, dict))
            names += [
                name if alone else f"{name}_{i}"
                for i, leaf in enumerate(leaves)
                if self.is_tensor[leaf]
            ]
        return names


class _Result:
    """The structure of a result; kept outside the module, whose attributes torch resets."""

    def __init__(self) -> None:
        self.spec: Any = None
        self.leaves: list[Any] = []
        self.is_tensor: list[bool] = []

    def take_apart(self, result: Any) -> list[torch.Tensor]:
        leaves, self.spec = pytree.tree_flatten(result)
        self.is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self.leaves = [None if t else leaf for leaf, t in zip(leaves, self.is_tensor)]
        return [leaf for leaf, t in zip(leaves, self.is_tensor) if t]

    def rebuild(self, values: Sequence[Any]) -> Any:
        remaining = iter(values)
        leaves = [next(remaining) if t else leaf for leaf, t in zip(self.leaves, self.is_tensor)]
        return pytree.tree_unflatten(leaves, self.spec)


def called(
    module: torch.nn.Module, tensors: Sequence[torch.Tensor], call: Callable[[], Any]
) -> tuple[Any, Probe]:
    """Call a module once, for real.

    Args:
        module: what is called.
        tensors: its arguments.
        call: calls it.

    Returns:
        What the call gave, and what it has shown.

    Raises:
        ExportError: the module does what no graph can do.
    """
    marks, reads = GradientMarks(zeros()), ValueReads(module, tensors)
    backwards = LocalBackwards()
    versions = {name: p._version for name, p in module.named_parameters()}
    with torch.enable_grad(), reads, marks, without_checkpoints(), backwards.written_out():
        result = call()
    custom = custom_functions(result)
    if "CompiledFunction" in custom:
        raise ExportError(
            f"A part of {type(module).__name__} runs in torch.compile, and ORTModule cannot look "
            "into that. Use one of the two: leave torch.compile out."
        )
    if custom:
        raise ExportError(
            f"{type(module).__name__} has a backward of its own in {', '.join(custom)}, and an "
            "exported graph would lose it: it is neither a factor per element nor the derivative "
            "of its forward. Write it with torch's functions, or let torch do the work "
            "(ORTModule(..., fallback='UNSUPPORTED_TORCH_MODEL'))."
        )
    now = {name: p._version for name, p in module.named_parameters()}
    changed = [f"{n!r} in place" for n, version in now.items() if versions.get(n) != version]
    if marks.refused or changed:
        raise ExportError(
            f"{type(module).__name__} changes {', '.join((marks.refused + changed)[:4])} while it "
            "runs, and a graph cannot. Do that outside of `forward`, after an update."
        )
    return result, Probe(type(module).__name__, marks.count > 0, reads.reads, backwards)


def _probe(flat: _Flat) -> Probe:
    try:
        return called(flat.module, flat.tensors, lambda: flat(*flat.tensors))[1]
    except OnnxTrainError:
        raise
    except Exception as error:
        raise ExportError(
            f"{type(flat.module).__name__} fails when it is called: {_reason(error)}"
        ) from error


# --- the exporters --------------------------------------------------------------------------------


@dataclass
class _Request:
    """What is asked of an exporter."""

    names: Sequence[str]
    dynamic: DynamicAxes
    opset: int
    reads: Sequence[Read]
    options: Mapping[str, Any]


def _dynamo(flat: _Flat, asked: _Request) -> tuple[onnx.ModelProto, Fits]:
    flat.other_forms = True
    auto = torch.export.Dim.AUTO
    shapes = tuple(dict.fromkeys(asked.dynamic.get(n, {}), auto) or None for n in asked.names)
    # The fused kernels of attention give other strides than what torch decomposes it into later,
    # and a `view` that one layout allows fails on the other.
    plain = sdpa_kernel(SDPBackend.MATH)
    table = {**translations.missing(), **asked.options.get("custom_translation_table", {})}
    with _assumptions() as rules, translations.read_once(), plain:
        program = torch.onnx.export(
            flat,
            flat.tensors,
            input_names=list(asked.names),
            dynamo=True,
            dynamic_shapes=(shapes,),
            verbose=False,
            optimize=False,
            opset_version=asked.opset,
            **{**asked.options, "custom_translation_table": table},
        )
    assert program is not None
    return program.model_proto, rules[-1]


@contextlib.contextmanager
def _assumptions() -> Iterator[list[Fits]]:
    """What each program that torch captures meanwhile assumes of sizes.

    The program that the exporter gives back has its assertions removed already, so this looks at
    it where it is made.
    """
    capture, rules = torch.export.export, list[Fits]()

    def looked_at(*args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
        program = capture(*args, **kwargs)
        rules.append(assumed(program))
        return program

    torch.export.export = looked_at
    try:
        yield rules
    finally:
        torch.export.export = capture


def _torchscript(flat: _Flat, asked: _Request) -> tuple[onnx.ModelProto, Fits]:
    flat.other_forms = False  # they would hide which line takes a branch by size
    # "Training" on the outermost module keeps parameters that merely are equal apart
    flat.training = True
    buffer: Any = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracerWarning)
        torch.onnx.export(
            flat,
            flat.tensors,
            buffer,
            input_names=list(asked.names),
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            opset_version=min(asked.opset, 20),
            dynamic_axes={n: dict(axes) for n, axes in asked.dynamic.items() if axes},
            **{"do_constant_folding": False, **asked.options},
        )
    by_size = decided(caught, {(read.path, read.line) for read in asked.reads})
    fits = only([t.shape for t in flat.tensors]) if by_size else any_sizes
    return onnx.load_from_string(buffer.getvalue()), fits


@contextlib.contextmanager
def _undisturbed(flat: _Flat, module: torch.nn.Module, training: bool | None) -> Iterator[None]:
    """Modes, buffers and random state as before; tracing runs the module for real."""
    modes = [(m, m.training) for m in module.modules()]
    buffers = [(b, b.detach().clone()) for b in flat.buffers()]
    try:
        if training is not None:
            module.train(training)
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for submodule, mode in modes:
            submodule.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What exporters print, log and warn about is told in an error, or not at all."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            sink = io.StringIO()
            with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                yield
        finally:
            logging.disable(level)


def _reason(error: BaseException) -> str:
    """The first cause of an exporter's error, in one line."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = [line.strip() for line in str(root).splitlines() if line.strip()]
    return f"{type(root).__name__}: {lines[0] if lines else ''}"


def _finish(
    proto: onnx.ModelProto,
    flat: _Flat,
    names: Sequence[str],
    output_names: Sequence[str] | None,
    dynamic: DynamicAxes,
    exporter: str,
    note: str,
    training: bool | None,
) -> Exported:
    graph = proto.graph
    repair.split_merged(proto, flat)
    repair.restore_buffers(proto, flat)
    repair.activate_dropout(proto)
    repair.drop_zero_biases(proto)
    repair.count_axes_from_the_front(proto)
    repair.separate_outputs(proto)
    aliases = repair.aliases(flat)
    renamed = repair.canonical_names(proto, flat, aliases)
    outputs = _output_names(output_names, len(graph.output), flat.loss_fn is not None)
    renamed.update(zip([o.name for o in graph.output], outputs))
    barriers = name_barriers(proto)
    repair.rename(proto, {old: new for old, new in renamed.items() if old != new})
    repair.name_dimensions(proto, dynamic)
    if exporter == DYNAMO:
        repair.training_statistics(proto, flat.module, training)
    present = {i.name for i in graph.initializer}
    marks = set(zeros())
    tied = {n: first for n, first in aliases.items() if first in present and n not in marks}
    return Exported(
        proto,
        [n for n in names if n in {i.name for i in graph.input}],
        outputs,
        tied,
        exporter,
        note,
        barriers,
        flat.result.rebuild,
    )


def _output_names(names: Sequence[str] | None, count: int, with_loss: bool) -> list[str]:
    if names is None:
        plain = count - with_loss
        rest = ["output", *(f"output_{i}" for i in range(1, plain))][:plain]
        return [*(["loss"] if with_loss else []), *rest]
    if len(names) != count:
        what = "loss and outputs" if with_loss else "outputs"
        raise ExportError(
            f"The module has {count} {what}, and {len(names)} are described: {list(names)}."
        )
    return list(names)
