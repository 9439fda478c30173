"""The first API as an estimator: loss, gradient and update in one graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...errors import InputError, ModelError, NonFiniteError, UnknownNameError
from ...runtime.session.binding import Binding
from ...runtime.session.devices import create_session
from ...runtime.session.sharing import exclusive
from ...runtime.state.buffers import TensorStore
from ...runtime.step.finite import first_not_finite, is_finite
from ..ort import TrainingParameters, TrainingSession
from ..ort.runner import STATE
from .base import Array
from .common import (
    TrainerBase,
    as_array,
    input_dtype,
    own_inputs,
    rate_for,
    with_weights_as_inputs,
)
from .data_loader import Batch, OrtDataLoader, generator
from .devices import device_to_providers
from .exceptions import BatchError, UnknownWeightError
from .onnx_helper import get_train_initializer
from .sgd_learning_rate import BaseLearningRate, LearningRateAdam

RATE = "Learning_Rate"


class OrtGradientOptimizer(TrainerBase):
    """Trains a model whose graph holds its loss (see `add_loss_output`).

    Args:
        model_onnx: the model with its loss.
        weights_to_train: names of the initializers to train.
        loss_output_name: the loss among the outputs.
        max_iter: passes over the data.
        training_optimizer_name: ``"SGDOptimizer"`` or ``"AdamOptimizer"``.
        batch_size: rows per step.
        learning_rate: a name, a number or a `BaseLearningRate`, with or without momentum. The rate
            is divided by the number of rows, since the loss is a sum (not for Adam, whose steps
            do not depend on the scale of the loss).
        device: ``"cpu"`` or ``"cuda:0"``.
        warm_start: go on from the last state; otherwise every fit starts with random weights.
        verbose: show progress.
        validation_every: iterations between validations; below 1 a fraction of `max_iter`.
        saved_gradient: a file for the graph with gradients; the training graph goes to
            ``<file>.training.onnx``.
        sample_weight_name: the input that takes weights per observation.
        random_state: seed of the shuffling and the initial weights.

    Attributes:
        train_session_: the `TrainingSession`.
        train_losses_: mean loss of every iteration.
        validation_losses_: losses on the validation data.
        trained_coef_: weights by name.
    """

    _transient = ("train_session_", "_validation", "_steps")

    def __init__(
        self,
        model_onnx: Any,
        weights_to_train: Sequence[str] | None = None,
        loss_output_name: str = "loss",
        max_iter: int = 100,
        training_optimizer_name: str = "SGDOptimizer",
        batch_size: int = 10,
        learning_rate: Any = "SGD",
        device: Any = "cpu",
        warm_start: bool = False,
        verbose: Any = 0,
        validation_every: float = 0.1,
        saved_gradient: str | None = None,
        sample_weight_name: str = "weight",
        random_state: Any = None,
    ) -> None:
        self.model_onnx = model_onnx
        self.weights_to_train = weights_to_train
        self.loss_output_name = loss_output_name
        self.max_iter = max_iter
        self.training_optimizer_name = training_optimizer_name
        self.batch_size = batch_size
        self.learning_rate = rate_for(training_optimizer_name, learning_rate)
        self.device = device
        self.warm_start = warm_start
        self.verbose = verbose
        self.validation_every = validation_every
        self.saved_gradient = saved_gradient
        self.sample_weight_name = sample_weight_name
        self.random_state = random_state

    # -- training ----------------------------------------------------------------------------------

    @exclusive
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        X_val: Any = None,
        y_val: Any = None,
        use_numpy: bool = False,
    ) -> OrtGradientOptimizer:
        """Train.

        Args:
            X: features.
            y: expected values.
            sample_weight: one weight per observation; the model then needs an input for them.
            X_val: features to validate with.
            y_val: expected values to validate with.
            use_numpy: feed arrays through `run` instead of binding memory once (slower).
        """
        resume = self.warm_start and hasattr(self, "_state")
        model = self._model()
        self._set_names(model, sample_weight is not None)
        if not resume:
            self.rng_ = generator(self.random_state)
            self.learning_rate_ = self._new_rate().init_learning_rate()
            self.t_ = 0
            self._state = self._random_weights(model)
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] = []
        self._make_session(model, check_finite=use_numpy)
        loader = OrtDataLoader(
            as_array(X, input_dtype(model, self.input_names_[0])),
            as_array(y, input_dtype(model, self.input_names_[1])),
            None if sample_weight is None else as_array(sample_weight, self._weight_dtype(model)),
            batch_size=self.batch_size,
            device=self.device,
            random_state=self.rng_,
        )
        self._check_labels(loader.y_np)
        validate = None
        if X_val is not None:
            if y_val is None:
                raise InputError("X_val needs y_val.")
            self._check_labels(as_array(y_val, input_dtype(model, self.input_names_[1])))
            validate = lambda: self._validate(X_val, y_val)  # noqa: E731
        step = self._numpy_steps if use_numpy else self._bound_steps
        try:
            self._iterate(self.learning_rate_, lambda: self._iteration(loader, step), validate)
        finally:
            self._state = self.train_session_.get_state()
        return self

    def _check_labels(self, y: Array) -> None:
        """All labels at once, before the first step: the steps themselves do not look at them."""
        for labels in self.train_session_.labels:
            if labels.input == self.input_names_[1]:
                labels.check(y)

    def _set_names(self, model: onnx.ModelProto, weighted: bool) -> None:
        outputs = [o.name for o in model.graph.output]
        if self.loss_output_name not in outputs:
            raise UnknownNameError(
                "output (loss_output_name; add_loss_output makes one)",
                self.loss_output_name,
                outputs,
            )
        inputs = own_inputs(model)
        has_weight = self.sample_weight_name in inputs
        plain = [n for n in inputs if n != self.sample_weight_name]
        if len(plain) != 2:
            raise ModelError(
                f"The model takes {', '.join(inputs)}; features, labels and, if wanted, weights "
                f"named {self.sample_weight_name!r} are expected."
            )
        if weighted != has_weight:
            what = "has no" if weighted else "has an"
            raise InputError(
                f"The model {what} input {self.sample_weight_name!r} for sample_weight. Pass "
                "weight_name to add_loss_output exactly when weights are used."
            )
        self.input_names_ = [*plain, *([self.sample_weight_name] if has_weight else [])]
        self.output_names_ = outputs
        self.loss_index_ = outputs.index(self.loss_output_name)

    def _weight_dtype(self, model: onnx.ModelProto) -> Any:
        return input_dtype(model, self.sample_weight_name)

    def _weights(self, model: onnx.ModelProto) -> dict[str, Array]:
        known = {n: a for n, (a, _) in get_train_initializer(model).items()}
        for name in self.weights_to_train or ():
            if name not in known:
                raise UnknownWeightError("float initializer", name, list(known))
        return {n: known[n] for n in (self.weights_to_train or known)}

    def _random_weights(self, model: onnx.ModelProto) -> dict[str, Array]:
        """Start anew from the standard normal distribution; with warm_start from the model's."""
        weights = self._weights(model)
        if self.warm_start:
            return weights
        return {n: self.rng_.standard_normal(a.shape).astype(a.dtype) for n, a in weights.items()}

    def _make_session(self, model: onnx.ModelProto, check_finite: bool) -> None:
        self.train_session_ = self._create_training_session(
            model,
            list(self._weights(model)),
            self.loss_output_name,
            self.learning_rate_.optimizer(),
            self.device,
            check_finite,  # `BoundStep` looks for itself
        )
        self.train_session_.load_state(self._state)
        self._steps: dict[int, BoundStep] | None = {}
        self._validation: Any = None

    def _create_training_session(
        self,
        training_onnx: onnx.ModelProto,
        weights_to_train: Sequence[str],
        loss_output_name: str = "loss",
        training_optimizer_name: Any = "SGDOptimizer",
        device: Any = "cpu",
        check_finite: bool = False,
    ) -> TrainingSession:
        """A `TrainingSession` for a model with its loss."""
        parameters = TrainingParameters()
        parameters.check_finite = check_finite
        parameters.loss_output_name = loss_output_name
        parameters.weights_to_train = list(weights_to_train)
        parameters.training_optimizer_name = training_optimizer_name
        parameters.lr_params_feed_name = RATE
        parameters.enable_grad_norm_clip = False
        if self.saved_gradient:
            parameters.model_with_gradient_graph_path = str(self.saved_gradient)
            parameters.model_with_training_graph_path = f"{self.saved_gradient}.training.onnx"
        return TrainingSession(
            training_onnx.SerializeToString(), parameters, providers=device_to_providers(device)
        )

    def _iteration(self, loader: OrtDataLoader, step: Any) -> float:
        total, data = 0.0, loader.epoch()
        for rows, starts in loader.by_size():
            total += step(data, rows, starts, _rate_of(self.learning_rate_, rows))
        return total / len(loader)

    def _bound_steps(self, data: Batch, rows: int, starts: range, rate: float) -> float:
        assert self._steps is not None
        step = self._steps.get(rows)
        if step is None:
            step = self._steps[rows] = BoundStep(
                self.train_session_, self.input_names_, data, rows, self.loss_output_name
            )
        return step.run(data, starts, rate)

    def _numpy_steps(self, data: Batch, rows: int, starts: range, rate: float) -> float:
        total, outputs = 0.0, [self.loss_output_name]
        ranks = {i.name: len(i.shape) for i in self.train_session_.get_inputs()}
        data = tuple(a.reshape(-1) if ranks[n] == 1 else a for n, a in zip(self.input_names_, data))
        for start in starts:
            batch = [a[start : start + rows] for a in data]
            feeds = dict(zip(self.input_names_, batch))
            feeds[RATE] = np.array([rate], np.float32)
            try:
                total += self.train_session_.run(outputs, feeds)[0].item()
            except NonFiniteError as error:
                where = f"in the batch of rows {start} to {start + rows - 1}"
                raise BatchError(f"{error.reason} {where}") from error
        return total

    def _validate(self, X: Any, y: Any) -> float:
        model = self._model()
        weights = list(self._weights(model))
        if self._validation is None:
            self._validation = create_session(
                with_weights_as_inputs(model, dict.fromkeys(weights)).SerializeToString(),
                providers=device_to_providers(self.device),
            )
        x_name, y_name = self.input_names_[:2]
        expected = as_array(y, input_dtype(model, y_name))
        rank = next(i for i in model.graph.input if i.name == y_name).type.tensor_type.shape.dim
        if expected.ndim == 1 and len(rank) == 2:
            expected = expected.reshape(-1, 1)
        feeds = {x_name: as_array(X, input_dtype(model, x_name)), y_name: expected}
        if len(self.input_names_) == 3:
            feeds[self.sample_weight_name] = np.ones(len(feeds[x_name]), self._weight_dtype(model))
        state = self.train_session_.get_state()
        feeds.update({n: state[n] for n in weights})
        (loss,) = self._validation.run([self.loss_output_name], feeds)
        return float(loss.item()) / len(feeds[x_name])

    # -- results -----------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Array]:
        """The trained weights by name."""
        if not hasattr(self, "_state"):
            raise AttributeError("Method fit must be called before the weights can be read.")
        names = self._weights(self._model())
        state = self._full_state()
        return {n: state[n] for n in names}

    def _full_state(self) -> dict[str, Array]:
        session = getattr(self, "train_session_", None)
        return self._state if session is None else session.get_state()

    @exclusive
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set weights by name."""
        for name, value in state.items():
            known = self.get_state()
            if name not in known:
                raise UnknownWeightError("trained weight", name, list(known))
            if np.shape(value) != known[name].shape:
                raise InputError(
                    f"{name!r} has the shape {list(known[name].shape)}, not "
                    f"{list(np.shape(value))}."
                )
        self._state = {**self._full_state(), **state}
        if getattr(self, "train_session_", None) is not None:
            self.train_session_.load_state(self._state)

    @property
    def trained_coef_(self) -> dict[str, Array]:
        """The trained weights by name."""
        return self.get_state()


def _rate_of(rate: BaseLearningRate, rows: int) -> float:
    """The loss is a sum over the rows; what gradient descent shall follow is the mean."""
    return rate.value if isinstance(rate, LearningRateAdam) else rate.value / rows


def _floats(store: TensorStore) -> list[Array]:
    return [buffer.data for buffer in store.buffers.values() if buffer.data.dtype.kind == "f"]


class BoundStep:
    """Steps on memory that is bound once for all batches of one size.

    A step costs one copy per input and one call into onnxruntime.
    """

    def __init__(
        self, session: TrainingSession, names: Sequence[str], data: Batch, rows: int, loss: str
    ) -> None:
        ranks = {i.name: len(i.shape) for i in session.get_inputs()}
        self._session, self._rows, self._names = session, rows, names
        self._rate: Array = np.zeros(1, np.float32)
        self._inputs: list[Array] = []
        for name, array in zip(names, data):
            shape = (rows,) if ranks[name] == 1 else (rows, *array.shape[1:])
            self._inputs.append(np.zeros(shape, array.dtype))
        output = next(o for o in session.get_outputs() if o.name == loss)
        kind = np.float64 if output.type == "tensor(double)" else np.float32
        self._loss: Array = np.zeros([1] * len(output.shape), kind)
        # One for each direction of the session.
        self._bindings = [self._bind(turn, loss) for turn in (0, 1)]

    def _bind(self, turn: int, loss: str) -> Binding:
        key = (True, turn)
        binding = self._session.new_binding(key)
        binding.host_output(loss, self._loss)
        self._session.runner.bind(key, binding)
        self._bind_inputs(binding)
        return binding

    def _bind_inputs(self, binding: Binding) -> None:
        for name, array in zip((*self._names, RATE), (*self._inputs, self._rate)):
            binding.host_input(name, array)

    def run(self, data: Batch, starts: range, rate: float) -> float:
        """A step for each of the batches that begin at `starts`; gives the sum of the losses.

        A batch whose loss, or whose update, is not finite raises `BatchError` and changes
        nothing: the step has written the session's other set of buffers, which is not taken over.
        """
        with self._session.lock:
            return self._steps(data, starts, rate)

    def _steps(self, data: Batch, starts: range, rate: float) -> float:
        session, rows, read = self._session, self._rows, self._loss.item
        self._rate[0] = rate
        runner, buffers = session.runner, session.runner.buffers
        written = [_floats(buffers.target(turn)[STATE]) for turn in (0, 1)]
        pairs = [
            (buffer, array.reshape(-1, *buffer.shape[1:]))
            for buffer, array in zip(self._inputs, data)
        ]
        host, copy, total = runner.device.is_host, np.copyto, 0.0
        steps = [binding.bare_run() for binding in self._bindings]
        with np.errstate(over="ignore", invalid="ignore"):
            for start in starts:
                stop = start + rows
                for buffer, array in pairs:
                    copy(buffer, array[start:stop])
                turn = buffers.turn
                if not host:  # a device has its own copy of what was bound
                    self._bind_inputs(self._bindings[turn])
                steps[turn]()
                loss = read()
                # one product per step: a sum of squares is finite only if every number is
                numbers = written[turn]
                if not host or not math.isfinite(loss + sum(a.dot(a) for a in numbers)):
                    self._check(loss, turn, start)
                runner.finish((True, turn))
                total += loss
        return total

    def _check(self, loss: float, turn: int, start: int) -> None:
        store = self._session.runner.buffers.target(turn)[STATE]
        store.written()
        if math.isfinite(loss) and is_finite(store):
            return
        what = f"The loss is {loss}"
        if math.isfinite(loss):
            what = f"A gradient is NaN or infinite (seen in {first_not_finite(store)!r})"
        raise BatchError(f"{what} in the batch of rows {start} to {start + self._rows - 1}", loss)
