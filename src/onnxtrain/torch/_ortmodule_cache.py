"""Which graphs a call of a module needs: found, or made when there are none yet."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..passes import Recompute
from ..preparing import preparing
from ..runtime.session.sharing import keep_from_parent, note
from ..runtime.step.halves import Vector
from ._ortmodule_constants import MAX_CHANGES, Constants, with_values, without_values, worth_it
from ._ortmodule_graph import Halves, Traced, build, trace
from ._ortmodule_memory import Bound, Weights
from ._ortmodule_repeat import Repeat, repeat_of
from ._ortmodule_run import (
    Call,
    Graphs,
    RunAgainForBackward,
    is_small,
    providers_for,
    run_now,
)
from ._ortmodule_structure import TENSOR, Structure, constants, put_together
from ._ortmodule_watch import Watch
from .debug_options import DebugOptions
from .export import OPSET
from .fallback import ORTModuleDeviceException, ORTModuleONNXModelException
from .first_result import warn_if_different
from .value_reads import FixedValues
from .widen import autocast

log = logging.getLogger(__name__)
_address = torch.Tensor.data_ptr
OPSET_VARIABLE = "ORTMODULE_ONNX_OPSET_VERSION"
MAX_GRAPHS = 64
"""Kinds of calls whose graphs are kept; beyond that all are made anew."""
MAX_SIGNATURES = 1024
"""Exact sizes of arguments that are found without looking further."""


@dataclass
class Settings:
    """How graphs are made."""

    options: DebugOptions
    exporter: str | None
    recompute: Recompute = None
    fixed_values: FixedValues | None = None
    export_options: Mapping[str, Any] = field(default_factory=dict)


class Kind:
    """The graphs of one kind of call: as inference, or with gradients.

    Attributes:
        training: the mode.
        changes_arguments: whether the module changes arguments in place.
        is_tensor: whether a call gives a tensor, and changes no argument.
        constants: tensors of the module that its graphs have as constants; None without any.
    """

    def __init__(
        self,
        traced: Traced,
        graphs: Graphs,
        names: Sequence[str],
        later: Callable[[], Graphs] | None = None,
        constants: Constants | None = None,
    ) -> None:
        self.traced, self.graphs, self.later = traced, graphs, later
        self.constants = constants
        self.training, self.changes_arguments = traced.training, bool(traced.changed)
        self.is_tensor = traced.result == TENSOR and not traced.changed
        number = {n: i for i, n in enumerate(names)}
        self.counts = {
            number[n]: number[count] for n, count in traced.averaged.items() if n in number
        }

        self._bound: Bound | None = None

    def prepare(
        self, inputs: list[torch.Tensor], cache: Cache
    ) -> tuple[Bound, list[torch.Tensor], list[Any]]:
        """The module's tensors, what was drawn, and OrtValues of all that the graph reads."""
        graphs, bound, watch = self.graphs, self._bound, cache.watch
        if bound is None or bound.of is not watch.tensors:
            self._bound = bound = Bound(watch.tensors, graphs.from_tensors, cache.weights)
        if bound.state is not watch.state or list(map(_address, bound.tensors)) != bound.addresses:
            bound.bind(watch.state)
        drawn = graphs.drawn() if graphs.draws else []
        return bound, drawn, graphs.feeds(inputs, bound.values, drawn)

    def __call__(
        self,
        inputs: list[torch.Tensor],
        cache: Cache,
        bound: Bound,
        drawn: list[torch.Tensor],
        feeds: list[Any],
    ) -> Sequence[torch.Tensor]:
        """Run on what `prepare` gave: the graph's outputs."""
        if self.later is not None:
            results: Sequence[torch.Tensor] = self._later(
                inputs, cache, bound.of, drawn, feeds, self.later
            )
            return results
        return self.run(inputs, bound, drawn, feeds)

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        bound: Bound,
        drawn: list[torch.Tensor],
        feeds: list[Any],
    ) -> Sequence[torch.Tensor]:
        """Run graphs that need no others `later`."""
        graphs = self.graphs
        results: Sequence[torch.Tensor]
        if graphs.differentiable:
            tensors = [*[inputs[i] for i in graphs.from_inputs], *bound.tensors, *drawn]
            outputs = Vector()
            wrt = [tensors[i] for i in graphs.wrt]
            results = run_now(graphs, feeds, tensors, outputs, *wrt)
        else:
            outputs = graphs.run_forward(feeds, Vector(), save=False)
            results = graphs.results(outputs)
        if graphs.updated:
            graphs.update(outputs, bound.of, self.counts)
        return results

    def compare(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        """Tell if the first results are not those that torch gave."""
        traced = self.traced
        expected, traced.expected = traced.expected, []
        warn_if_different(name, traced.exporter, expected, outputs)

    def result(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Any:
        """What the module would return; arguments that it would have changed are changed."""
        traced = self.traced
        if traced.changed:
            outputs = _written_back(traced, outputs, inputs)
        if traced.result == TENSOR:
            return outputs[0]
        return put_together(traced.result, outputs)

    def _later(
        self,
        inputs: list[torch.Tensor],
        cache: Cache,
        tensors: list[torch.Tensor],
        drawn: list[torch.Tensor],
        feeds: list[Any],
        make: Callable[[], Graphs],
    ) -> Any:
        """Inference now; the graphs with gradients are made if torch asks for gradients."""
        names = [*self.traced.inputs, *cache.names]
        everything = [*inputs, *tensors]
        trained = [i for i, t in enumerate(everything) if t.requires_grad]

        def graphs_and_feeds() -> tuple[Graphs, list[Any], list[str]]:
            with cache.lock:
                graphs = make()
                bound = Bound(tensors, graphs.from_tensors, cache.weights)
                bound.bind(cache.watch.state)
                again = graphs.feeds(inputs, bound.values, drawn)
            return graphs, again, [names[i] for i in trained]

        call = Call(feeds, everything, graphs_and_feeds)
        wrt = [everything[i] for i in trained]
        return RunAgainForBackward.apply(self.graphs, call, *wrt)  # type: ignore[no-untyped-call]


class Moving:
    """A call that gives views or copies of its arguments: torch runs the module."""

    constants = None
    later = None


class Cache:
    """The graphs of a module by the kind of call, and a watch on what they depend on.

    Whoever looks something up holds `lock`. The graphs themselves may run in several threads.

    Attributes:
        known: graphs by the exact kind of a call.
        used: those of the last call in training mode (True) and in eval mode (False).
        stale: whether graphs were dropped since the last call.
        repeat: runs a call like the last ones; None while these are of several kinds.
        is_trained_in_eval_mode: whether results in eval mode have been differentiated, as where a
            head is trained on frozen layers: from then on what that needs is kept at once, and the
            forward pass does not run twice.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.lock = threading.RLock()
        note(self)
        self.known: dict[Any, Kind | Moving] = {}
        self.used: dict[bool, Kind] = {}
        self.stale = self.is_trained_in_eval_mode = False
        self._changes = 0
        self._traced: dict[Any, list[Traced]] = {}
        self._kinds: dict[Any, Kind] = {}
        self.watch = Watch(module)
        self.weights = Weights([])
        self._makes: tuple[list[Any], list[type]] | None = None
        self._last: tuple[Any, Any, Kind | Moving | None] = None, None, None
        self._in_a_row = 0
        self.repeat: Repeat | None = None

    @property
    def names(self) -> list[str]:
        """Names of the module's tensors."""
        return self.watch.names

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The module's tensors."""
        return self.watch.tensors

    def after_fork(self) -> None:
        """Make new graphs in a forked process: the threads of these have stayed behind."""
        keep_from_parent((self.known, self._kinds))
        self.lock = threading.RLock()
        self.watch.let_go()
        self.forget()

    def forget(self) -> None:
        """Drop all graphs."""
        self.known, self._traced, self._kinds = {}, {}, {}
        self.used, self.stale, self.repeat = {}, True, None

    def share(self, other: Cache) -> None:
        """Take over the graphs of an equal module."""
        self._traced, self._kinds = dict(other._traced), dict(other._kinds)
        if other.names and self.watch.look():
            self._adapt()

    def known_kind(
        self, structure: Structure, inputs: Sequence[torch.Tensor]
    ) -> tuple[Any, Kind | Moving | None]:
        """What tells calls apart, and the graphs of one like this if there has been one."""
        watch, known = self.watch, self.known
        if watch.look():
            self._adapt()
            known = self.known
        signature = tuple([(t.shape, t.dtype, t.requires_grad) for t in inputs])
        key = (structure, signature, watch.state, torch.is_grad_enabled(), autocast())
        last_known, last_key, kind = self._last
        if last_known is not known or last_key != key:  # most calls are like the last one
            kind = known.get(key)
            self._last, self._in_a_row = (known, key, kind), 0
        if kind is not None and kind.constants is not None and not self.is_current(kind):
            kind = None
        return key, kind

    def _adapt(self) -> None:
        """Take over other parts and tensors; if they are of another make, graphs are made anew."""
        before, self._makes = self._makes, self.watch.make()
        self.weights = Weights(self.names)
        if before is not None and before != self._makes:
            self.forget()

    def prepare_repeat(
        self,
        kind: Kind,
        bound: Bound,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        """Let further calls like this one be short, if its arguments are nothing but tensors.

        Not from the first one on, and more and more rarely where that is of no use (as with
        weights whose memory is exchanged in every step): it takes longer than one call saves.
        """
        self._in_a_row += 1
        count = self._in_a_row
        if count == 1 or count & (count - 1):
            return
        is_plain = not kwargs and len(args) == len(inputs) and all(map(operator.is_, args, inputs))
        is_usual = kind.later is None and kind.constants is None and not kind.changes_arguments
        self.repeat = repeat_of(kind, self.watch, bound, inputs) if is_plain and is_usual else None

    def remember(self, key: Any, kind: Kind | Moving) -> None:
        """Next time a call of exactly this kind is found at once."""
        if len(self.known) >= MAX_SIGNATURES:
            self.known.clear()
        self.known[key] = kind
        self._last = self.known, key, kind

    # --- making ----------------------------------------------------------------------------------

    def find(
        self, structure: Structure, inputs: list[torch.Tensor], graded: bool, settings: Settings
    ) -> Kind | Moving:
        """The graphs for a call; made if there are none that fit."""
        with preparing(f"preparing {type(self.module).__name__} for onnxruntime", logger=log):
            return self._make(structure, inputs, graded, settings)

    def _make(
        self, structure: Structure, inputs: list[torch.Tensor], graded: bool, settings: Settings
    ) -> Kind | Moving:
        device = _device([*inputs, *self.tensors])
        if len(self._kinds) >= MAX_GRAPHS:
            log.info("%d kinds of calls: graphs are made anew.", len(self._kinds))
            self.forget()
        traced = self._trace(structure, inputs, settings)
        if traced is None:
            log.info("%s computes nothing: torch runs it.", type(self.module).__name__)
            return Moving()
        trained = [n for n, t in zip(self.names, self.tensors) if t.requires_grad]
        trained += [n for n, t in zip(traced.inputs, inputs) if t.requires_grad]
        with_gradients = graded and bool(trained)
        at_once = with_gradients and (self.module.training or self.is_trained_in_eval_mode)
        kind = None
        if with_gradients and not at_once and self._has_new_head():
            with contextlib.suppress(ORTModuleONNXModelException):  # inference may be all there is
                kind, at_once = self._kind(traced, inputs, trained, settings), True
        if kind is None:
            kind = self._kind(traced, inputs, trained if at_once else [], settings)
        if with_gradients and not at_once:

            def later() -> Graphs:
                self.is_trained_in_eval_mode = True
                self.known = {key: kind for key, kind in self.known.items() if kind.later is None}
                return self._kind(traced, inputs, trained, settings).graphs

            kind = Kind(traced, kind.graphs, self.names, later, kind.constants)
        log.info("%s runs on %s.", type(self.module).__name__, device)
        self.stale = False
        return kind

    def _has_new_head(self) -> bool:
        """Whether eval mode looks like training: some parameters are frozen, others are not.

        So heads are trained on frozen layers. Graphs for inference would be made first, and those
        that train a moment later. A module that was trained in training mode is in eval mode to be
        evaluated.
        """
        needed = {p.requires_grad for p in self.module.parameters()}
        return len(needed) > 1 and True not in self.used

    def _trace(
        self, structure: Structure, inputs: Sequence[torch.Tensor], settings: Settings
    ) -> Traced | None:
        """An export whose assumptions about sizes the inputs meet; None with nothing to compute."""
        ones = tuple(tuple(size < 2 for size in t.shape) for t in inputs)
        types = tuple(t.dtype for t in inputs)
        key = (structure, types, ones, self.watch.state[0], autocast())
        for traced in self._traced.get(key, ()):
            if _fits(traced, inputs):
                return traced
        exported = self._new_trace(structure, inputs, settings)
        if exported is not None:
            self._traced.setdefault(key, []).append(exported)
        return exported

    def _new_trace(
        self, structure: Structure, inputs: Sequence[torch.Tensor], settings: Settings
    ) -> Traced | None:
        opset = int(os.environ.get(OPSET_VARIABLE, OPSET))
        traced = trace(
            self.module,
            structure,
            inputs,
            opset=opset,
            exporter=settings.exporter,
            fixed_values=settings.fixed_values,
            export_options=settings.export_options,
        )
        if traced is None:
            return None
        for constant in constants(structure):
            log.info(
                "Received input of type %s is treated as a constant by ORT by default.",
                type(constant),
            )
        log.info("%s is exported with %s.", type(self.module).__name__, traced.exporter)
        settings.options.save(traced.model, "torch_exported", _mode(self.module))
        traced.model = without_values(traced.model, self.names)  # they are fed
        return traced

    def _kind(
        self, traced: Traced, inputs: Sequence[torch.Tensor], trained: list[str], settings: Settings
    ) -> Kind:
        """Graphs for exactly these sizes the first time, for all sizes from the second on."""
        self._drop_changed()
        exact = [tuple(t.shape) for t in inputs]
        general = (id(traced), tuple(trained))
        for sizes in (tuple(exact), None):
            known = self._kinds.get((*general, sizes))
            if known is not None:
                return known
        first = not any(k[:2] == general for k in self._kinds)
        shapes = exact if first else None
        key = (*general, tuple(exact) if first else None)
        constants = self._constants(traced, trained)
        halves = build(
            traced,
            self.names,
            trained,
            shapes,
            bool(trained),
            recompute=settings.recompute,
            constants=constants.values if constants else None,
        )
        device = _device([*inputs, *self.tensors])
        options = settings.options
        if options.save_onnx:
            self._save(traced, halves, shapes, options)
        config = {"log_severity_level": str(max(3, options.log_level.onnxruntime))}
        if first and is_small(halves.forward, traced.inputs):
            config["intra_op_num_threads"] = "1"
        if settings.recompute is not None:
            # Planned in one piece, the second run's memory would come on top of the first one's.
            # Without the plan a step takes up to 5 % longer, so only who asks for less gets it.
            config["enable_mem_pattern"] = "0"
        config.update(options.config)
        graphs = Graphs(halves, traced.inputs, self.names, traced.outputs, device, config)
        halves.drop()
        kind = Kind(traced, graphs, self.names, constants=constants)
        self._kinds[key] = kind
        return kind

    def _constants(self, traced: Traced, trained: Sequence[str]) -> Constants | None:
        """The module's tensors that graphs should have as constants."""
        if self._changes > MAX_CHANGES:
            return None
        updated = {*traced.buffers.values(), *traced.statistics}
        frozen = {
            name: tensor
            for name, tensor in zip(self.names, self.tensors)
            if not tensor.requires_grad and name not in updated and name not in trained
        }
        chosen = worth_it(traced.model, frozen, trained)
        return Constants(self.names, self.tensors, chosen) if chosen else None

    def is_current(self, kind: Kind | Moving) -> bool:
        """Whether what a graph has as constants is still what the module has."""
        return kind.constants is None or kind.constants.hold(self.tensors)

    def _drop_changed(self) -> None:
        """Drop graphs whose constants are not those of the module any more."""
        changed = {key for key, kind in self._kinds.items() if not self.is_current(kind)}
        if not changed:
            return
        self._changes += 1
        log.info("Frozen weights of %s have changed.", type(self.module).__name__)
        self._kinds = {key: kind for key, kind in self._kinds.items() if key not in changed}
        self.known = {key: kind for key, kind in self.known.items() if self.is_current(kind)}

    def _save(
        self,
        traced: Traced,
        halves: Halves,
        shapes: Sequence[Sequence[int]] | None,
        options: DebugOptions,
    ) -> None:
        mode, values = _mode(self.module), halves.lent
        options.save(with_values(halves.forward, values), "forward", mode)
        for stage in ("optimized", "execution_model"):
            options.save(with_values(halves.whole or halves.forward, values), stage, mode)
        if halves.backward is not None:
            options.save(with_values(halves.backward, values), "backward", mode)
            plain = build(traced, self.names, [], shapes, gradients=False)
            options.save(with_values(plain.forward, plain.lent), "optimized_pre_grad", mode)


def protected(traced: Traced, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments, copied where the module changes them: the backward pass reads the old ones."""
    changed = set(traced.changed)
    return [t.clone() if i in changed else t for i, t in enumerate(inputs)]


def _written_back(
    traced: Traced, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Change arguments as the module does, in a way that autograd sees."""
    count = len(outputs) - len(traced.changed)
    for i, value in zip(traced.changed, outputs[count:]):
        inputs[i].copy_(value)
    returned = traced.returned
    return [inputs[returned[k]] if k in returned else outputs[k] for k in range(count)]


def _mode(module: torch.nn.Module) -> str:
    return "training" if module.training else "inference"


def _fits(traced: Traced, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether sizes that the export found to be fixed, equal or limited are so."""
    values = {v.name: v for v in traced.model.graph.input}
    symbols: dict[str, int] = {}
    for name, tensor in zip(traced.inputs, inputs):
        if name not in values:
            continue
        for dim, size in zip(values[name].type.tensor_type.shape.dim, tensor.shape):
            fixed = dim.dim_value if dim.HasField("dim_value") else None
            if fixed is None and dim.dim_param:
                fixed = symbols.setdefault(dim.dim_param, size)
            if fixed is not None and fixed != size:
                return False
    return traced.fits([t.shape for t in inputs])


def _device(tensors: Sequence[torch.Tensor]) -> torch.device:
    devices = {t.device for t in tensors}
    if len(devices) > 1:
        raise ORTModuleDeviceException(
            "Parameters and arguments are on several devices "
            f"({', '.join(sorted(map(str, devices)))}); one graph runs on one."
        )
    device = devices.pop() if devices else torch.device("cpu")
    providers_for(device)
    return device
