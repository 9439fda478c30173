"""What both generations of ORTTrainer share: export when the first batch comes, then train."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import torch

from .... import optim
from ....compile import weights_of
from ....errors import DeviceError, InputError, NonFiniteError, StateError, UnknownNameError
from ....hyper import check_rate
from ....passes import Recompute, check_recompute
from ....preparing import preparing
from ....runtime.session.devices import Device
from ....runtime.step.finite import all_finite, refused
from ....torch.export import ExportError, LossFunction, export
from ....torch.size_rules import Fits, any_sizes
from ....torch.value_reads import FixedValues
from . import state
from .descriptions import Described, DescriptionError
from .engine import Engine, as_array, check_loss

Array = npt.NDArray[Any]
log = logging.getLogger(__name__)


@dataclass
class Settings:
    """How a core trains.

    Attributes:
        make_optimizer: the optimizer for the weights that are trained.
        frozen: weights that are not.
        accumulate: batches per update; their gradients are averaged.
        scaled: whether the loss is scaled and steps with infinite gradients are void.
        device: where to run.
        session_options: onnxruntime's.
        exporter: which of torch's exporters; None chooses.
        opset: ai.onnx version to export, raised to what training needs.
        world_size: processes that train together; they average their gradients.
        world_rank: number of this one; each draws random numbers of its own.
        by_name: call the module with its inputs by name.
        postprocess: functions that change the ONNX model before it is differentiated, in place.
        graph_paths: where to write graphs, by the names of `ORTTrainerOptions`.
        check_export: compare the exported model with torch on the first batch.
        check_finite: raise `NonFiniteError`, and change nothing, when a loss or a gradient is NaN
            or infinite.
        recompute: what the backward half computes again instead of keeping it.
        fixed_values: what to do about values that tracing fixes, see `export`.
    """

    make_optimizer: Callable[[list[str]], optim.Optimizer]
    frozen: Sequence[str] = ()
    accumulate: int = 1
    scaled: bool = False
    device: str = "cpu"
    session_options: Any = None
    exporter: str | None = None
    opset: int = 18
    world_size: int = 1
    world_rank: int = 0
    by_name: bool = False
    postprocess: Sequence[Callable[[onnx.ModelProto], object]] = ()
    graph_paths: Mapping[str, str] = field(default_factory=dict)
    check_export: bool = False
    check_finite: bool = False
    recompute: Recompute = None
    fixed_values: FixedValues | None = None


@dataclass
class _Ready:
    """An engine, and the sizes it takes: a number, or None where any will do.

    Attributes:
        order: names of the inputs in the order of the export.
        fits: what else the export says about sizes.
    """

    engine: Engine
    sizes: dict[str, tuple[int | None, ...]]
    order: Sequence[str] = ()
    fits: Fits = any_sizes

    def takes(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        for name, sizes in self.sizes.items():
            shape = shapes.get(name)
            if shape is None:
                continue
            if len(shape) != len(sizes) or any(s not in (None, d) for s, d in zip(sizes, shape)):
                return False
        if any(name not in shapes for name in self.order):
            return True  # predictions without a label
        return self.fits([shapes[name] for name in self.order])


@dataclass
class Result:
    """What one batch gave."""

    outputs: list[torch.Tensor]
    all_finite: bool = True
    updated: bool = True


class Core:
    """A model, its loss and its optimizer, trained batch by batch.

    Args:
        model: a torch module, or an ONNX model whose outputs include the loss.
        loss_fn: takes the module's result and the label, which is the last input.
        inputs: descriptions in the order of the call.
        outputs: descriptions in the order of the results.
        loss: which output is the loss.
        settings: the rest.
        on_start: called once, when there is an engine and before it makes its first step.
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        loss_fn: LossFunction | None,
        inputs: Sequence[Described],
        outputs: Sequence[Described],
        loss: str,
        settings: Settings,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        check_recompute(settings.recompute)
        self.model, self.loss_fn, self.settings = model, loss_fn, settings
        self._on_start = on_start
        self.inputs, self.outputs, self.loss = list(inputs), list(outputs), loss
        self.device = Device(settings.device)
        self.input_names = [i.name for i in inputs]
        self.output_names = [o.name for o in outputs]
        self.pending = self.batches = 0
        self._has_trained = False
        self._used: list[Engine] = []
        self._is_bad = False
        self.exporter, self.note = "", ""
        self._ready: list[_Ready] = []
        self._names: dict[str, str] = {}
        self._dynamic: dict[str, dict[int, str]] = {}
        self._waiting: state.Loaded | None = None
        if not isinstance(model, torch.nn.Module):
            self._check_onnx(model)
        if settings.world_size > 1 and not torch.distributed.is_available():
            raise DeviceError("world_size > 1 needs a torch with torch.distributed.")

    def _check_onnx(self, model: onnx.ModelProto) -> None:
        if not isinstance(model, onnx.ModelProto):
            raise InputError(
                f"model must be a torch.nn.Module or an onnx.ModelProto, not "
                f"{type(model).__name__}."
            )
        if self.loss_fn is not None:
            raise DescriptionError(
                "loss_fn cannot be combined with an ONNX model: its loss must be an output."
            )
        check_loss(model, self.loss)
        known = [o.name for o in model.graph.output]
        for name in self.output_names:
            if name not in known:
                raise UnknownNameError("output", name, known)

    # --- running ---------------------------------------------------------------------------------

    def train(
        self,
        values: Mapping[str, Any],
        rate: float,
        fetches: Sequence[str] | None = None,
        scale: float = 1.0,
    ) -> Result:
        """Train on one batch."""
        if self._has_trained:
            return self._train(values, rate, fetches, scale)
        with preparing("ORTTrainer prepares its first step"):
            result = self._train(values, rate, fetches, scale)
        self._has_trained = True
        return result

    def _train(
        self,
        values: Mapping[str, Any],
        rate: float,
        fetches: Sequence[str] | None,
        scale: float,
    ) -> Result:
        rate = check_rate(rate)
        names = self._fetch_names(fetches)
        arrays = {n: as_array(v) for n, v in values.items()}
        engine = self._engine_for(arrays, values)
        feeds = [arrays[n] for n in engine.inputs]
        if not engine.trainable:
            return Result(self._tensors(engine.evaluate(arrays, names)), updated=False)
        if engine.is_one_graph:
            outputs = engine.step(feeds, rate, names)
            self.batches += 1
            return Result(self._tensors(outputs))
        try:
            return self._train_apart(engine, feeds, rate, names, scale)
        except NonFiniteError:
            self._discard()
            raise

    def _train_apart(
        self, engine: Engine, feeds: list[Any], rate: float, fetches: Sequence[str], scale: float
    ) -> Result:
        """Gradients first, and the update when all of them are there."""
        if engine not in self._used:
            self._used.append(engine)
        outputs = engine.gradients(feeds, add=self.pending > 0, scale=scale)
        by_name = dict(zip(engine.outputs, outputs))
        self._is_bad |= not np.isfinite(by_name[self.loss]).all()
        result = Result(self._tensors([by_name[n] for n in fetches]), updated=False)
        self.pending += 1
        self.batches += 1
        if self.pending == self.settings.accumulate:
            result.all_finite = result.updated = self._update(engine, rate, scale)
            if not result.all_finite:
                self._discard()
            for used in self._used:
                used.updated()
            self.pending, self._used, self._is_bad = 0, [], False
        return result

    def _discard(self) -> None:
        """Leave everything as it was before the first batch of the update."""
        for engine in reversed(self._used):  # the last to be used has seen the others' statistics
            engine.discard()
        self.batches -= self.pending
        self.pending, self._used, self._is_bad = 0, [], False

    def _update(self, engine: Engine, rate: float, scale: float) -> bool:
        vectors = engine.gradient_vectors()
        world = self.settings.world_size
        if world > 1:
            _sum_over_processes(vectors, world)
            if self.settings.check_finite:
                self._check_together(world)
        if self.settings.scaled and not all(map(all_finite, vectors)):
            return False
        engine.update(rate, 1.0 / (scale * self.settings.accumulate * world))
        return True

    def _check_together(self, world: int) -> None:
        """Raise in all processes when the loss of one is not finite."""
        bad = np.array([self._is_bad], np.float32)
        _sum_over_processes([bad], world)
        if bad[0]:
            raise refused(f"The loss is NaN or infinite in {int(bad[0])} of {world} processes")

    def evaluate(
        self, values: Mapping[str, Any], fetches: Sequence[str] | None = None
    ) -> list[torch.Tensor]:
        """Outputs in inference mode; without a label, those that do not need it."""
        missing = [n for n in self.input_names if n not in values]
        arrays = {n: as_array(v) for n, v in values.items()}
        engine = self._engine_for(arrays, values)
        known = [n for n in self.output_names if n != self.loss or not missing]
        names = self._fetch_names(fetches) if fetches is not None else known
        needed = engine.eval_inputs(self.loss in names)
        lacking = [n for n in needed if n not in arrays]
        if lacking:
            raise InputError(f"Missing input(s) {lacking} for the output(s) {list(names)}.")
        return self._tensors(engine.evaluate(arrays, names))

    def _fetch_names(self, fetches: Sequence[str] | None) -> list[str]:
        if fetches is None:
            return self.output_names
        if isinstance(fetches, str) or not fetches:
            raise InputError("fetches must be a list with the name of at least one output.")
        for name in fetches:
            if name not in self.output_names:
                raise UnknownNameError("output", str(name), self.output_names)
        return list(fetches)

    def _tensors(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        tensors = [torch.from_numpy(a) for a in arrays]
        if self.settings.device.startswith("cuda"):
            tensors = [t.to(self.settings.device) for t in tensors]
        return tensors

    # --- making the engine -----------------------------------------------------------------------

    @property
    def engine(self) -> Engine | None:
        """The engine, once the first batch has come."""
        return self._ready[0].engine if self._ready else None

    def need_engine(self, what: str) -> Engine:
        """The engine, or an error that says what to do first."""
        if self.engine is None:
            raise StateError(
                "Training session is not created yet. 'train_step' or 'eval_step' methods must be "
                f"executed before calling '{what}'."
            )
        return self.engine

    def _engine_for(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> Engine:
        """An engine that takes inputs of these shapes; a new export if there is none yet."""
        shapes = {n: np.shape(a) for n, a in arrays.items()}
        for ready in self._ready:
            if ready.takes(shapes):
                return ready.engine
        with preparing("ORTTrainer prepares its model for batches of these shapes"):
            return self._make_engine(shapes, values)

    def _make_engine(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]
    ) -> Engine:
        missing = [n for n in self.input_names if n not in values]
        if missing:
            raise InputError(
                f"Missing input(s) {missing}: for the first batch, and for one of another shape, "
                "the model is exported, and that needs all inputs."
            )
        if isinstance(self.model, onnx.ModelProto):
            engine = self._start_onnx(self.model)
            self._ready.append(_Ready(engine, {}))
        else:
            self._ready.append(self._start_torch(self.model, shapes, values))
        if len(self._ready) == 1:
            self._start()
        return self._ready[-1].engine

    def _start(self) -> None:
        """Tell that there is an engine; there is none if a state that waits for it does not fit."""
        try:
            self._on_start()
        except BaseException:
            self._ready.clear()
            raise

    def _start_onnx(self, model: onnx.ModelProto) -> Engine:
        weights = weights_of(model, [self.loss])
        self._names = {i.name: i.name for i in model.graph.initializer}
        return self._new_engine(model, weights)

    def _start_torch(
        self,
        model: torch.nn.Module,
        shapes: Mapping[str, tuple[int, ...]],
        values: Mapping[str, Any],
    ) -> _Ready:
        dynamic = self._dynamic_axes(shapes)
        args, kwargs, order = self._call(model, values)
        exported = export(
            model,
            args,
            kwargs,
            loss_fn=self.loss_fn,
            input_names=order,
            output_names=self._export_names(),
            dynamic_axes=dynamic,
            opset=self.settings.opset,
            exporter=self.settings.exporter,
            fixed_values=self.settings.fixed_values,
        )
        check_loss(exported.model, self.loss)
        _order_inputs(exported.model, self.input_names)
        self._dynamic = dynamic
        self.exporter, self.note, self._names = exported.exporter, exported.note, exported.names
        own = dict(model.named_parameters())
        if isinstance(self.loss_fn, torch.nn.Module):
            own.update((f"loss_fn.{n}", p) for n, p in self.loss_fn.named_parameters())
        trainable = [
            exported.names[n] for n, p in own.items() if p.requires_grad and n in exported.names
        ]
        engine = self._new_engine(exported.model, trainable, exported.barriers)
        if self.settings.check_export and not self._ready:
            self._check_export(model, engine, args, kwargs, values)
        sizes = {
            n: tuple(None if i in dynamic.get(n, {}) else d for i, d in enumerate(shape))
            for n, shape in shapes.items()
        }
        return _Ready(engine, sizes, order, exported.fits)

    def _call(
        self, model: torch.nn.Module, values: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any], list[str]]:
        """How the module is called, and the order in which the export sees its inputs."""
        tensors = {n: torch.as_tensor(values[n]).cpu() for n in self.input_names}
        names = self.input_names
        if not self.settings.by_name:
            return list(tensors.values()), {}, names
        label = names[-1:] if self.loss_fn is not None else []
        rest = names[: len(names) - len(label)]
        known = inspect.signature(model.forward).parameters
        anything = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in known.values())
        wrong = [n for n in rest if n not in known]
        if wrong and not anything:
            raise DescriptionError(
                f"Invalid model_desc: {wrong} are described as inputs, but forward() of "
                f"{type(model).__name__} takes {list(known)}."
            )
        if wrong:
            return list(tensors.values()), {}, names
        return [tensors[n] for n in label], {n: tensors[n] for n in rest}, [*label, *rest]

    def _export_names(self) -> list[str]:
        """Names of the export's outputs: with a loss function the loss comes first."""
        if self.loss_fn is None:
            return self.output_names
        return [self.loss, *(n for n in self.output_names if n != self.loss)]

    def _dynamic_axes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[int, str]]:
        """Named dimensions, and those that were seen to change."""
        if not self._ready:
            return {i.name: i.symbols(len(shapes[i.name])) for i in self.inputs}
        dynamic = {name: dict(axes) for name, axes in self._dynamic.items()}
        for ready in self._ready:
            for name, sizes in ready.sizes.items():
                if len(sizes) != len(shapes[name]):
                    raise InputError(
                        f"Input {name!r} had {len(sizes)} dimension(s) in the first batch, and "
                        f"has {len(shapes[name])} now."
                    )
                for axis, (size, now) in enumerate(zip(sizes, shapes[name])):
                    if size not in (None, now):
                        dynamic[name][axis] = f"{name}_dim{axis}"
        log.info("Another shape has come: exporting again with dynamic axes %s.", dynamic)
        return dynamic

    def _new_engine(
        self, base: onnx.ModelProto, trainable: Sequence[str], barriers: Sequence[str] = ()
    ) -> Engine:
        known = list(self._names)
        for name in self.settings.frozen:
            if name not in self._names:
                raise UnknownNameError("weight", name, known)
        frozen = {self._names[n] for n in self.settings.frozen}
        first = self.engine
        engine = Engine(
            self._postprocessed(base),
            self.loss,
            self.output_names,
            [n for n in dict.fromkeys(trainable) if n not in frozen],
            self.settings.make_optimizer,
            device=self.device,
            options=self.settings.session_options,
            scaled=self.settings.scaled,
            seed=torch.initial_seed() % (1 << 63),
            rank=self.settings.world_rank,
            like=first,
            from_torch=isinstance(self.model, torch.nn.Module),
            recompute=self.settings.recompute,
            check_finite=self.settings.check_finite,
            alone=self.settings.world_size == 1,
            may_be_one_graph=self.settings.accumulate == 1,
            barriers=barriers,
        )
        if first is not None:
            constants = {n: onnx.numpy_helper.to_array(t) for n, t in first.constants().items()}
            same = engine.constants()
            engine.set_constants({n: v for n, v in constants.items() if n in same and n in known})
        if first is None:
            engine.write_graphs(self.settings.graph_paths)
        if first is None and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._apply(engine, waiting)
        return engine

    def _check_export(
        self,
        model: torch.nn.Module,
        engine: Engine,
        args: list[Any],
        kwargs: dict[str, Any],
        values: Mapping[str, Any],
    ) -> None:
        """Compare the loss in inference mode; a state that was loaded is part of both."""
        names = set(model.state_dict())
        weights = {n: torch.from_numpy(a.copy()) for n, a in engine.weights().items() if n in names}
        twin = copy.deepcopy(model).eval()
        twin.load_state_dict(weights, strict=False)
        with torch.no_grad():
            if self.loss_fn is None:
                result = twin(*args, **kwargs)
                outputs = [result] if isinstance(result, torch.Tensor) else list(result)
                expected = outputs[self.output_names.index(self.loss)]
            else:
                expected = self.loss_fn(twin(*args[:-1], **kwargs), args[-1])
        (loss,) = engine.evaluate({n: as_array(v) for n, v in values.items()}, [self.loss])
        if not np.allclose(loss, as_array(expected), rtol=1e-3, atol=1e-5):
            raise ExportError(
                f"The exported model's loss is {loss}, torch's {expected.item()}. Try the other "
                f"exporter than {self.exporter!r}."
            )

    def _postprocessed(self, base: onnx.ModelProto) -> onnx.ModelProto:
        if not self.settings.postprocess:
            return base
        changed = onnx.ModelProto()
        changed.CopyFrom(base)
        for change in self.settings.postprocess:
            change(changed)
        return changed

    # --- values ----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Array]:
        """All weights and buffers under torch's names; what the graph does not use included."""
        weights = state.read(self.need_engine("state_dict"), self.model, self._names)
        for name in _counters(self.model):
            weights[name] = weights[name] + self.batches
        return weights

    def trained(self) -> list[str]:
        """Names of the weights that are trained."""
        return list(self.need_engine("state_dict").plan.trainable)

    def load(self, loaded: state.Loaded) -> None:
        """Take over values, now or when the engine is made."""
        if self.engine is None:
            self._waiting = loaded
        else:
            self._apply(self.engine, loaded)

    def _apply(self, engine: Engine, loaded: state.Loaded) -> None:
        engines = [r.engine for r in self._ready] or [engine]
        state.write(engines, self.model, self._names, loaded)
        if any(name in loaded.weights for name in _counters(self.model)):
            self.batches = 0  # what was loaded is in the module's own buffers


def _counters(model: torch.nn.Module | onnx.ModelProto) -> list[str]:
    """Buffers that count the batches which running statistics have seen; no graph has them."""
    if not isinstance(model, torch.nn.Module):
        return []
    norms = torch.nn.modules.batchnorm._NormBase
    norms_by_name = {n: m for n, m in model.named_modules() if isinstance(m, norms)}
    return [
        f"{name}.num_batches_tracked".lstrip(".")
        for name, part in norms_by_name.items()
        if part.num_batches_tracked is not None
    ]


def _order_inputs(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Bring the inputs into the order of the description: an export has those by name last."""
    rank = {name: i for i, name in enumerate(names)}
    inputs = sorted(model.graph.input, key=lambda i: rank.get(i.name, len(rank)))
    del model.graph.input[:]
    model.graph.input.extend(inputs)


def _sum_over_processes(vectors: Sequence[Array], world: int) -> None:
    from torch import distributed

    if not distributed.is_initialized() or distributed.get_world_size() != world:
        raise DeviceError(
            f"world_size is {world}, but torch.distributed is not running with {world} processes. "
            "Call torch.distributed.init_process_group first (backend 'gloo' on CPUs)."
        )
    for vector in vectors:
        distributed.all_reduce(torch.from_numpy(vector))
