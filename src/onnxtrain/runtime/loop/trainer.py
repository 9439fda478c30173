"""Trainer: the loop people expect, on numpy and onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...errors import InputError, NonFiniteError, SharingError, StateError
from ...hyper import check_limit, check_rate
from ..files.onnxfile import Source
from ..session.devices import Device, Provider
from ..session.sharing import OneProcess, exclusive
from ..state.checkpoint_state import CheckpointState
from ..state.training_state import TrainingState
from ..step.engines import OneGraphEngine, TwoPartEngine, one_graph_pays
from ..step.evaluator import Evaluator, join
from ..step.module import Module
from ..step.one_graph import OneGraphStep
from ..step.optimizer import Optimizer
from ..step.process_group import make_group
from ..step.step import Engine
from ..step.update import load_optimizer
from .batches import ArrayBatches, Batches, make_batches
from .callbacks import Callback, EveryEpoch, Progress, SaveCheckpoint
from .metrics import Metric, resolve
from .resume import Position
from .schedulers import LRScheduler, ReduceLROnPlateau, WarmUp

Array = npt.NDArray[Any]
SchedulerMaker: TypeAlias = Callable[[Any], LRScheduler]


class History(dict[str, list[float]]):
    """One list per value ("loss", "lr", "val_loss" …), one entry per epoch."""

    def add(self, logs: dict[str, float]) -> None:
        """Append an epoch."""
        for name, value in logs.items():
            self.setdefault(name, []).append(float(value))


class Trainer(OneProcess):
    """Trains artifacts on data: epochs, validation, metrics, callbacks, exact resume.

    Several threads may share a trainer: `evaluate`, `predict`, `save` and `export` wait for the
    step that is under way and see one state of the weights. Only one `fit` runs at a time.

    Args:
        train_model: path or bytes of the training model.
        optimizer_model: path or bytes of the optimizer model.
        state: a `CheckpointState`, or the path of a checkpoint.
        eval_model: path or bytes of the eval model; needed for validation and prediction.
        step_model: path or bytes of the one-graph step model. If given it does the training
            (one run per step instead of two), unless gradients are accumulated or clipped here, or
            the model is large and numba is installed: its fused update beats any graph.
        learning_rate: the learning rate; by default that of the checkpoint.
        scheduler: makes a schedule from an optimizer, e.g. ``lambda o: StepLR(o, 10)``.
        scheduler_interval: ``"step"`` or ``"epoch"``: what the schedule counts.
            `ReduceLROnPlateau` always counts epochs.
        metrics: names or `Metric` objects, computed on validation data.
        accumulate: micro-batches per update; the mean of their gradients counts each by its labels
            that do (or by its rows), so that it is the gradient of all of them as one batch.
        clip_norm: limit of the global gradient norm, instead of the optimizer model's own.
        device: where to run, see `Module`.
        session_options: onnxruntime's options; what they leave alone, onnxtrain chooses.
        providers: execution providers, see `Module`.
        check_finite: stop with a `NonFiniteError` when a loss or a gradient is NaN or infinite. The
            batch changes nothing: weights, moments, step count and running statistics stay, and
            micro-batches gathered for the same update are dropped with it. `save` then writes the
            last good state, and `fit(..., resume=True)` goes on with the next batch.
        distributed: ``"mpi"``, ``"torch"``, ``"auto"`` (whichever launcher started the process, if
            any), or an `onnxtrain.distributed.Backend`: train together with other processes. Needs
            `onnxtrain[mpi]` or torch. `batch_size` is then that of all processes together.
        shard_optimizer: with `distributed`, let each process keep and update only its part of the
            optimizer's moments.
        overlap: with `distributed`, exchange gradients while others are still being computed: True,
            False, or ``"auto"`` for whichever the first updates show to be faster.
        bucket_mb: megabytes of gradients per message with `overlap`; a model with fewer has one.

    Example:
        >>> trainer = Trainer.from_directory("artifacts", metrics=["accuracy"])  # doctest: +SKIP
        >>> history = trainer.fit((x, y), epochs=5, validation_data=(xv, yv))  # doctest: +SKIP
        >>> trainer.predict(xv)  # doctest: +SKIP
    """

    _instead = "Write a checkpoint with Trainer.save, and make a new Trainer from it there."

    def __init__(
        self,
        train_model: Source,
        optimizer_model: Source,
        state: CheckpointState | str | os.PathLike[str],
        eval_model: Source | None = None,
        step_model: Source | None = None,
        *,
        learning_rate: float | None = None,
        scheduler: SchedulerMaker | None = None,
        scheduler_interval: str = "step",
        metrics: Sequence[str | Metric] = (),
        accumulate: int = 1,
        clip_norm: float | None = None,
        device: str = "cpu",
        session_options: Any = None,
        providers: Sequence[Provider] | None = None,
        check_finite: bool = False,
        distributed: Any = None,
        shard_optimizer: bool = False,
        overlap: Literal["auto"] | bool = "auto",
        bucket_mb: float = 25.0,
    ) -> None:
        if scheduler_interval not in {"step", "epoch"}:
            raise ValueError(
                f"scheduler_interval is 'step' or 'epoch', not {scheduler_interval!r}."
            )
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, not {accumulate}.")
        if learning_rate is not None:
            learning_rate = check_rate(learning_rate)
        if clip_norm is not None:
            clip_norm = check_limit(clip_norm, "clip_norm", infinite=True)
        self.group = make_group(distributed, shard_optimizer, overlap, bucket_mb)
        state = self.group.load(state)
        self._values = state.training_state
        self._values.need_values()
        self.state, self.metrics = state, resolve(metrics)
        self._share(state.lock)
        self._fits = False
        self.accumulate, self.check_finite = accumulate, check_finite
        self.stop, self.epoch, self.batch = False, 0, 0
        self.batches: int | None = None
        self.history = History()
        self._seed, self._sums = 0, (0.0, 0)
        self._refused: NonFiniteError | None = None
        self._source = Batches()
        self._eval_model = eval_model
        self._session_options = self.group.session_options(session_options)
        self._device = Device(device, providers)
        self._interval = scheduler_interval
        self._evaluators: dict[tuple[bool, bool], Evaluator] = {}
        self._resumable = dict(self._values.trainer)
        self._engine = self._make_engine(
            train_model, optimizer_model, step_model, device, providers, clip_norm
        )
        self.optimizer: _Rate = _Rate(self._values)
        if learning_rate is not None:
            self.optimizer.set_learning_rate(learning_rate)
        self.scheduler = scheduler(self.optimizer) if scheduler is not None else None

    @classmethod
    def from_directory(
        cls,
        directory: str | os.PathLike[str],
        prefix: str = "",
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        latest: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Trainer:
        """A trainer for the files that `generate_artifacts` wrote into a directory.

        Args:
            directory: where the artifacts are.
            prefix: of their names.
            checkpoint: a checkpoint to start from, instead of the one in the directory.
            latest: a checkpoint that is taken if it is there: the one that `SaveCheckpoint` writes,
                for a job that is started again after a failure; see `resume="auto"` of `fit`.
            options: as for `Trainer`.
        """
        folder = Path(directory)
        if not folder.is_dir():
            raise FileNotFoundError(f"There is no directory {str(folder)!r}.")

        if latest is not None and Path(latest).exists():
            checkpoint = latest

        def optional(name: str) -> str | None:
            path = folder / f"{prefix}{name}.onnx"
            return str(path) if path.exists() else None

        return cls(
            str(folder / f"{prefix}training_model.onnx"),
            str(folder / f"{prefix}optimizer_model.onnx"),
            checkpoint if checkpoint is not None else folder / f"{prefix}checkpoint",
            optional("eval_model"),
            options.pop("step_model", optional("step_model")),
            **options,
        )

    # --- training --------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Number of updates so far, those before a resume included."""
        return self._engine.step_count

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        *,
        validation_data: Any = None,
        callbacks: Sequence[Callback | Callable[..., object]] = (),
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        progress: bool = True,
        resume: bool | Literal["auto"] = False,
    ) -> History:
        """Train.

        Args:
            data: a tuple of arrays in the order of the model's inputs (targets last), a dict by
                name, an `onnxtrain.data.Stream` of files that are larger than memory, or an
                iterable of batches such as a torch DataLoader.
            epochs: passes over the data; with `resume`, those before included.
            batch_size: rows per step, for arrays.
            validation_data: like `data`; evaluated after every epoch.
            callbacks: `Callback` objects, or functions ``f(trainer, logs)`` for every epoch.
            shuffle: a new order of the rows in every epoch, for arrays.
            seed: from which the order follows.
            drop_last: leave out a last, smaller batch. Models that take batches of one size only
                always do; a warning says so.
            progress: show a line per epoch.
            resume: go on where the checkpoint was written, bit for bit, with the same data and
                arguments; or, after a `NonFiniteError`, behind the batch that was no good. "auto"
                begins anew if the checkpoint was not written during a fit: what a job needs that is
                started again after a failure.

        Returns:
            Loss, learning rate, validation loss and metrics, by epoch.
        """
        with self._only_fit():
            return self._fit(
                data, epochs, batch_size, validation_data, callbacks, shuffle, seed, drop_last,
                progress, resume,
            )  # fmt: skip

    @contextmanager
    def _only_fit(self) -> Iterator[None]:
        """Refuse a second training that would share epoch, batch and schedule with the first."""
        with self._lock:
            if self._fits:
                raise SharingError(
                    "fit is running already, in another thread or around this call. Wait for it, "
                    "or make a second Trainer with a CheckpointState of its own."
                )
            self._fits = True
        try:
            yield
        finally:
            self._fits = False

    def _fit(
        self,
        data: Any,
        epochs: int,
        batch_size: int,
        validation_data: Any,
        callbacks: Sequence[Callback | Callable[..., object]],
        shuffle: bool,
        seed: int,
        drop_last: bool,
        progress: bool,
        resume: bool | Literal["auto"],
    ) -> History:
        if resume not in (True, False, "auto"):
            raise ValueError(f"resume is True, False or 'auto', not {resume!r}.")
        hooks = [c if isinstance(c, Callback) else EveryEpoch(c) for c in callbacks]
        hooks += [Progress()] if progress and self.group.is_main else []
        hooks.sort(key=lambda h: isinstance(h, SaveCheckpoint))  # it saves the others' state too
        self._seed, self.epoch, self.batch, self._sums = seed, 0, 0, (0.0, 0)
        saved = dict[str, Any]()
        if resume is True or (resume and self._resumable):
            saved = self._resume(hooks)
        else:
            self.history = History()
            if self._refused is not None:  # this fit does not go on behind the batch
                self._resumable = {}
        self._refused = None
        names = self._engine.input_names
        fixed = self._engine.fixed_batch
        source = make_batches(
            data,
            names,
            batch_size,
            shuffle=shuffle,
            seed=self._seed,
            drop_last=drop_last or fixed is not None,
        )
        source.check_state(saved)
        self._source = source
        if fixed is not None and isinstance(source, ArrayBatches):
            source.check_whole(fixed, drop_last=drop_last)
        self.batches, self.stop = source.size, False
        self._used_rate = self.optimizer.get_learning_rate()
        self._engine.forget()
        self._hooks = hooks
        self._votes = any(_may_stop_between_steps(h) for h in hooks)
        try:
            self._run_epochs(self.group.split(source), epochs, validation_data, batch_size)
        except BaseException as error:
            if error is not self._refused:  # that one all processes have raised
                self.group.failed(error)
            raise
        return self.history

    def _run_epochs(
        self, source: Batches, epochs: int, validation_data: Any, batch_size: int
    ) -> None:
        for hook in self._hooks:
            hook.on_train_begin(self)
        while self.epoch < epochs and not self.stop:
            self._run_epoch(source, validation_data, batch_size)
        self._values.sync()
        for hook in self._hooks:
            hook.on_train_end(self)

    def _run_epoch(self, source: Batches, validation_data: Any, batch_size: int) -> None:
        for hook in self._hooks:
            hook.on_epoch_begin(self, self.epoch)
        for values in source.epoch(self.epoch, self.batch):
            self._run_batch(values)
            if self.group.stopping(self.stop, vote=self._votes):
                break
        with self._lock:
            updates = self.step
            try:
                self._count(*self._engine.finish())
            except NonFiniteError as error:
                raise self._refuse(error) from error
            updated = self.step != updates
            if updated:
                self._schedule()
        if updated:
            self._after_update(self._sums[0] / self._sums[1])
        total, rows = self._sums
        if not rows:
            raise InputError("The data gave no batch.")
        logs = {"loss": total / rows, "lr": self._used_rate}
        if validation_data is not None:
            scores = self.evaluate(validation_data, batch_size)
            logs.update({f"val_{name}": value for name, value in scores.items()})
        with self._lock:  # a `save` in another thread sees all of this or nothing
            if self.scheduler is not None and self._by_epoch():
                self.scheduler.step(logs.get("val_loss", logs["loss"]))
            epoch = self.epoch
            self.epoch, self.batch, self._sums = epoch + 1, 0, (0.0, 0)
            self.history.add(logs)
        for hook in self._hooks:
            hook.on_epoch_end(self, epoch, logs)
        self.stop = self.group.stopping(self.stop)

    def _count(self, loss: float, rows: int) -> None:
        self._sums = (self._sums[0] + loss * rows, self._sums[1] + rows)

    def _run_batch(self, values: Sequence[Any]) -> None:
        with self._lock:  # update, counters and schedule are one for a `save` in another thread
            updates = self.step
            try:
                loss, rows = self._engine.run(values)
            except NonFiniteError as error:
                self.batch += 1
                raise self._refuse(error) from error
            self.batch += 1
            if not math.isfinite(loss) and self._engine.nothing_counts(values):
                rows = 0  # the mean of no labels is no number, and no mistake
            if rows:
                self._count(loss, rows)
            updated = self.step != updates
            if updated:
                self._schedule()
        if updated:
            self._after_update(loss)

    def _refuse(self, error: NonFiniteError) -> NonFiniteError:
        """Leave everything ready to go on behind the batch that was no good; gives the error."""
        self._engine.forget()
        self._resumable = self._position()
        self._values.resumable_scheduler = self._values.scheduler  # a schedule goes on where it is
        self._refused = NonFiniteError(
            f"In epoch {self.epoch}, batch {self.batch - 1}: {error.reason}",
            "Nothing was changed, and gradients gathered for the same update are dropped: "
            "fit(..., resume=True) goes on with the next batch, save(path) keeps the state. Look "
            "at the batch, the learning rate and the initial values, or clip the gradients.",
        )
        return self._refused

    def _schedule(self) -> None:
        self._used_rate = self.optimizer.get_learning_rate()
        if self.scheduler is not None and not self._by_epoch():
            self.scheduler.step()

    def _after_update(self, loss: float) -> None:
        logs = {"loss": loss, "lr": self._used_rate}
        for hook in self._hooks:
            hook.on_step_end(self, logs)

    def _by_epoch(self) -> bool:
        inner = self.scheduler.scheduler if isinstance(self.scheduler, WarmUp) else self.scheduler
        return self._interval == "epoch" or isinstance(inner, ReduceLROnPlateau)

    # --- evaluation ------------------------------------------------------------------------------

    @exclusive
    def evaluate(self, data: Any, batch_size: int = 32) -> dict[str, float]:
        """Loss and metrics on data, with the eval model; labels that are ignored do not count.

        A model that takes batches of one size only gets a last, smaller batch with rows added whose
        labels are ignored; if its loss ignores no label, that batch is left out.
        """
        gathered = [m for m in self.metrics if m.reads_prediction]
        evaluator = self._evaluator(with_loss=True, with_outputs=bool(gathered))
        for metric in gathered:
            metric.reset()
        total, rows = 0.0, 0
        size = evaluator.fixed_batch or batch_size
        source = make_batches(data, evaluator.user.input_names, size)
        for values in self.group.evaluated(source, gathered):
            whole = evaluator.filled(values)
            if whole is None:
                continue
            loss, *outputs = evaluator(whole)
            target = np.asarray(whole[evaluator.target_index])
            weight, mean = evaluator.weight(target), float(np.mean(loss))
            if not weight:
                continue  # every label is ignored
            total, rows = total + mean * weight, rows + weight
            if gathered:
                prediction, target = evaluator.counted(outputs[0] if outputs else loss, target)
            for metric in gathered:
                metric.update(prediction, target, mean)
        total, rows = self.group.merge(total, rows, gathered)
        if not rows:
            raise InputError("The data gave no batch.")
        mean = total / rows
        scores = {m.name: m.result() if m in gathered else m.of_loss(mean) for m in self.metrics}
        return {"loss": mean, **scores}

    @exclusive
    def predict(self, data: Any, batch_size: int = 32) -> Any:
        """The model's outputs on inputs without targets: one array, or a tuple of several.

        Batches are put together row by row; an output that is a single number has one per batch.
        """
        evaluator = self._evaluator(with_loss=False)
        count = len(evaluator.user.input_names)
        if isinstance(data, tuple) and len(data) > count:
            data = data[:count]
        size = evaluator.fixed_batch or batch_size
        batches = make_batches(data, evaluator.user.input_names, size)
        parts = [evaluator.predict(values[:count]) for values in batches.epoch(0)]
        if not parts:
            raise InputError("The data gave no batch.")
        outputs = join(parts)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _evaluator(self, *, with_loss: bool, with_outputs: bool = True) -> Evaluator:
        if self._eval_model is None:
            raise StateError("Eval model was not provided. Give eval_model to Trainer.")
        key = (with_loss, with_outputs)
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(
                self._eval_model,
                self._values,
                self._device,
                with_loss=with_loss,
                with_outputs=with_outputs,
                options=self._session_options,
            )
        return self._evaluators[key]

    # --- keeping ---------------------------------------------------------------------------------

    @exclusive
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `fit(..., resume=True)` goes on exactly."""
        self._values.trainer = self._position()
        self.group.save(self.state, path)

    def _position(self) -> dict[str, Any]:
        """Where the training is, ready for JSON."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seed": self._seed,
            "sums": list(self._sums),
            "history": dict(self.history),
            "data": self._source.state(),
            "callbacks": [
                {"name": type(h).__name__, "state": h.state_dict()}
                for h in getattr(self, "_hooks", [])
                if h.state_dict()
            ],
        }

    def _resume(self, hooks: Sequence[Callback]) -> dict[str, Any]:
        """Take over what the checkpoint remembers; gives what it says about the data."""
        saved = self._resumable
        if not saved:
            raise StateError(
                "The checkpoint was not written during a fit: there is nothing to resume. Use "
                "SaveCheckpoint or Trainer.save, or fit without resume."
            )
        position = Position.parse(saved)
        if self.scheduler is not None:
            self.scheduler.resume()
        for hook in hooks:
            for name, state in position.callbacks:
                if name == type(hook).__name__:
                    hook.load_state_dict(state)
        self.epoch, self.batch = position.epoch, position.batch
        self._seed, self._sums = position.seed, position.sums
        self.history = History(position.history)
        self._resumable = {}
        return position.data

    @exclusive
    def snapshot(self) -> list[Array]:
        """A copy of all parameters, for `restore`."""
        self._values.sync()
        stores = (self._values.trainable, self._values.frozen)
        return [b.data.copy() for s in stores for b in s.buffers.values()]

    @exclusive
    def restore(self, kept: Sequence[Array]) -> None:
        """Put a copy made by `snapshot` back."""
        self._values.sync()
        stores = (self._values.trainable, self._values.frozen)
        for buffer, values in zip((b for s in stores for b in s.buffers.values()), kept):
            np.copyto(buffer.data, values)
        for store in stores:
            store.push()

    @exclusive
    def export(
        self, path: str | os.PathLike[str], graph_output_names: Sequence[str] | None = None
    ) -> None:
        """Write the inference model; by default with the outputs of the original model."""
        from ..step.export import export

        names = graph_output_names or self._evaluator(with_loss=False).model_outputs
        assert self._eval_model is not None
        if not self.group.is_main:
            return
        self._values.sync()
        export(self._eval_model, self._values, path, names)

    def _make_engine(
        self,
        train_model: Source,
        optimizer_model: Source,
        step_model: Source | None,
        device: str,
        providers: Sequence[Provider] | None,
        clip_norm: float | None,
    ) -> Engine:
        together = self.group.engine(
            train_model,
            optimizer_model,
            self.state,
            {
                "device": device,
                "session_options": self._session_options,
                "providers": providers,
                "check_finite": self.check_finite,
            },
            clip_norm,
            self.accumulate,
        )
        if together is not None:
            return together
        file = load_optimizer(optimizer_model)
        plain = self.accumulate == 1 and clip_norm is None
        # clipped by value, an infinite gradient leaves no trace in what the one graph gives
        plain = plain and not (self.check_finite and "value" in (file.clip or {}))
        sizes = [spec.size for spec in self._values.trainable.specs.values()]
        if step_model is not None and plain and one_graph_pays(file, sizes, self._device):
            return OneGraphEngine(
                OneGraphStep(
                    step_model,
                    self._values,
                    file,
                    self._device,
                    self._session_options,
                    check_finite=self.check_finite,
                )
            )
        module = Module(
            train_model,
            self.state,
            device=device,
            session_options=self._session_options,
            providers=providers,
            check_finite=self.check_finite,
        )
        optimizer = Optimizer(optimizer_model, module)
        optimizer.clip_norm = clip_norm
        return TwoPartEngine(module, optimizer, self.accumulate)


def _may_stop_between_steps(hook: Callback) -> bool:
    """Whether a callback might set `trainer.stop` after a step, in one process only perhaps."""
    return hook.may_stop and type(hook).on_step_end is not Callback.on_step_end


class _Rate:
    """The learning rate of either way of training, as schedules see it."""

    def __init__(self, state: TrainingState) -> None:
        self.training_state = state
        """Where schedules leave their position."""

    def get_learning_rate(self) -> float:
        """The current learning rate."""
        return self.training_state.need_optimizer().learning_rate

    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from the next step on."""
        self.training_state.need_optimizer().learning_rate = check_rate(learning_rate)
