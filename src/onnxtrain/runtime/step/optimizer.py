"""Optimizer: update the parameters in place from the gradients."""

from __future__ import annotations

from ...errors import CheckpointError, InputError, NonFiniteError
from ...hyper import check_limit, check_rate
from ..files.dtypes import F32
from ..files.onnxfile import Source
from ..session.sharing import OneProcess, exclusive
from ..state.buffers import TensorSpec, TensorStore
from ..state.training_state import OptimizerState, TrainingState
from .loss_scale import SMALLEST, LossScale
from .module import Module
from .update import OptimizerFile, SequenceUpdate, Update, load_optimizer, make_update
from .watched import Watch


class Optimizer(OneProcess):
    """Applies an optimizer model to the parameters of a `Module`.

    The update runs in place over the flat buffers. Step count, learning rate and moments are
    part of the checkpoint and come back with it.

    Args:
        optimizer_uri: path or bytes of the optimizer model: the one `generate_artifacts` writes
            (sequences of tensors; the flat form inside it is what runs), a flat one, or
            a model of your own with the same inputs.
        module: the module whose parameters are updated.
        reset: start with fresh moments even if the checkpoint has some.

    Example:
        >>> optimizer = Optimizer("optimizer_model.onnx", module)  # doctest: +SKIP
        >>> loss = module(x, y)  # doctest: +SKIP
        >>> optimizer.step()  # doctest: +SKIP
        >>> module.lazy_reset_grad()  # doctest: +SKIP
    """

    _instead = (
        "Hand over the CheckpointState, which has the moments too, and make Module and Optimizer "
        "from it there."
    )

    def __init__(self, optimizer_uri: Source, module: Module, *, reset: bool = False) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"module must be a Module, not {type(module).__name__}.")
        self._reset = reset
        self._step = module.gradient_step
        self._state = self._step.state
        self._watch = Watch(self._state, self._step.discard)
        self._share(self._state.lock)
        self._file = load_optimizer(optimizer_uri)
        self._clip_norm: float | None = None
        self._limit = self._file.clip_norm
        self._update: Update | SequenceUpdate | None = None
        self._loss_scale: LossScale | None = None
        self._pending_rate: float | None = None
        with self._lock:
            if not self._state.is_nominal:
                self._prepare()

    def step(self) -> None:
        """Update every trainable parameter from its gradient. Gradients are kept."""
        self.apply(1.0)

    def apply(self, scale: float) -> None:
        """Update as `step` does, with all gradients times `scale` (1/k averages k batches)."""
        with self._lock:
            state = self._state
            if state.nominal is not None:
                state.need_values()
            update = self._update or self._prepare()
            if self._loss_scale is not None:
                if not self._are_finite(self._loss_scale):
                    return
                scale /= self._loss_scale.value
                self._loss_scale.grow()
            if state.write_back is not None:
                state.write_back()
            memory, step = state.optimizer or self._memory, self._step
            checks = step.check_finite
            if self._limit is not None or checks:
                rate = memory.learning_rate
                self._watch.apply(update, rate, scale, limit=self._limit, check_finite=checks)
            else:
                update.run(memory.step + 1, memory.learning_rate, scale)
            if checks or step.draws is not None:
                step.updated()
            memory.step += 1

    @property
    def scales_loss(self) -> bool:
        """Whether gradients are those of a scaled loss, so that not finite ones are no mistake."""
        return self._loss_scale is not None

    def _are_finite(self, loss_scale: LossScale) -> bool:
        """Whether gradients can be used; otherwise they are dropped, and the scale is halved."""
        try:
            self._watch.check_gradients()
        except NonFiniteError:
            if loss_scale.value <= SMALLEST:
                raise  # not the scale's doing
            loss_scale.shrink()
            return False
        return True

    @exclusive
    def check_gradients(self) -> float:
        """The norm of all gradients together; raises `NonFiniteError` if one is not finite.

        `step` does the same when the module was made with `check_finite`. Between batches whose
        gradients are added up it tells which of them was no good.
        """
        return self._watch.check_gradients()

    @exclusive
    def set_learning_rate(self, learning_rate: float) -> None:
        """Use this learning rate from the next step on."""
        rate = check_rate(learning_rate)
        if self._update is None:
            self._pending_rate = rate
        else:
            self._memory.learning_rate = rate

    def get_learning_rate(self) -> float:
        """The current learning rate."""
        if self._update is None:
            return 0.001 if self._pending_rate is None else self._pending_rate
        return self._memory.learning_rate

    @property
    def clip_norm(self) -> float | None:
        """Limit of the global gradient norm, instead of the optimizer model's own.

        None leaves it to the model, `math.inf` does not clip at all.
        """
        return self._clip_norm

    @clip_norm.setter
    def clip_norm(self, limit: float | None) -> None:
        if limit is not None:
            limit = check_limit(limit, "clip_norm", infinite=True)
        self._clip_norm = limit
        self._limit = self._file.clip_norm if limit is None else limit

    @property
    def training_state(self) -> TrainingState:
        """What is updated; schedules leave their position there."""
        return self._state

    @property
    def step_count(self) -> int:
        """Number of updates so far, those before a resume included."""
        memory = self._state.optimizer
        return memory.step if memory is not None else 0

    def __repr__(self) -> str:
        return (
            f"Optimizer({self._file.name}, step={self.step_count}, "
            f"learning_rate={self.get_learning_rate()})"
        )

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _memory(self) -> OptimizerState:
        return self._state.need_optimizer()

    def _prepare(self) -> Update | SequenceUpdate:
        step, state = self._step, self._state
        memory = attach(state, self._file, self._reset)
        for store in memory.states.values():
            store.place(step.device)
        if self._pending_rate is not None:
            memory.learning_rate = self._pending_rate
        names = step.artifact.trainable
        self._loss_scale = LossScale.of(state.frozen)
        self._update = make_update(self._file, state, step.device, step.user_options, names)
        if self._update.is_session:
            step.sessions.stop_spinning()
        return self._update


def attach(state: TrainingState, file: OptimizerFile, reset: bool = False) -> OptimizerState:
    """The optimizer state of a checkpoint, made to fit: taken over if there, else zeros."""
    trainable = state.trainable
    wrong = [n for n, s in trainable.specs.items() if s.type != F32]
    if wrong:
        raise InputError(
            f"The optimizer updates float32 parameters; {', '.join(map(repr, wrong[:8]))} have "
            "another type. Train in float32, or freeze them."
        )
    old: OptimizerState | None = None if reset else state.optimizer
    if old is not None and old.name and file.name and old.name != file.name:
        raise CheckpointError(
            f"The checkpoint has the state of {old.name}, the optimizer is {file.name}. Use the "
            "optimizer model it was trained with, or give reset=True to start with fresh moments."
        )
    memory = OptimizerState(file.name)
    if old is not None:
        memory.step, memory.learning_rate = old.step, old.learning_rate
    for kind in file.states:
        specs = {
            n: TensorSpec(n, file.state_type(kind), file.state_shape(kind, n, s.shape))
            for n, s in trainable.specs.items()
        }
        store = old.states.get(kind) if old is not None else None
        if store is None and old is not None and old.states:
            raise CheckpointError(
                f"The checkpoint's optimizer state has no {kind!r}, only "
                f"{', '.join(old.states)}. Give reset=True to start with fresh moments."
            )
        if store is not None and store.specs != specs:
            raise CheckpointError(
                f"The checkpoint's {kind!r} do not have the shapes or types this optimizer needs. "
                "Use the optimizer model it was trained with, or give reset=True."
            )
        if store is None:
            store = TensorStore(specs.values(), layout=trainable.layout)
        memory.states[kind] = store
    state.optimizer = memory
    return memory
