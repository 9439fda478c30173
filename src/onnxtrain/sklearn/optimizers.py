"""The first API as an estimator: loss, gradient and update in one graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ..errors import InputError, ModelError, UnknownNameError
from ..training import TrainingParameters, TrainingSession
from .base import Array
from .common import TrainerBase, as_array, input_dtype, own_inputs, with_weights_as_inputs
from .data_loader import OrtDataLoader, generator
from .devices import device_to_providers
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
        self.learning_rate = learning_rate
        self.device = device
        self.warm_start = warm_start
        self.verbose = verbose
        self.validation_every = validation_every
        self.saved_gradient = saved_gradient
        self.sample_weight_name = sample_weight_name
        self.random_state = random_state

    # -- training ----------------------------------------------------------------------------------

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
        self._make_session(model)
        loader = OrtDataLoader(
            as_array(X, input_dtype(model, self.input_names_[0])),
            as_array(y, input_dtype(model, self.input_names_[1])),
            None if sample_weight is None else as_array(sample_weight, self._weight_dtype(model)),
            batch_size=self.batch_size,
            device=self.device,
            random_state=self.rng_,
        )
        validate = None
        if X_val is not None:
            if y_val is None:
                raise InputError("X_val needs y_val.")
            validate = lambda: self._validate(X_val, y_val)  # noqa: E731
        step = self._numpy_step if use_numpy else self._bound_step
        try:
            self._iterate(self.learning_rate_, lambda: self._iteration(loader, step), validate)
        finally:
            self._state = self.train_session_.get_state()
        return self

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
                raise UnknownNameError("float initializer", name, list(known))
        return {n: known[n] for n in (self.weights_to_train or known)}

    def _random_weights(self, model: onnx.ModelProto) -> dict[str, Array]:
        """Start anew from the standard normal distribution; with warm_start from the model's."""
        weights = self._weights(model)
        if self.warm_start:
            return weights
        return {n: self.rng_.standard_normal(a.shape).astype(a.dtype) for n, a in weights.items()}

    def _make_session(self, model: onnx.ModelProto) -> None:
        parameters = TrainingParameters()
        parameters.loss_output_name = self.loss_output_name
        parameters.weights_to_train = list(self._weights(model))
        parameters.training_optimizer_name = self.learning_rate_.optimizer()
        parameters.lr_params_feed_name = RATE
        parameters.enable_grad_norm_clip = False
        if self.saved_gradient:
            parameters.model_with_gradient_graph_path = str(self.saved_gradient)
            parameters.model_with_training_graph_path = f"{self.saved_gradient}.training.onnx"
        self.train_session_ = TrainingSession(
            model.SerializeToString(), parameters, providers=device_to_providers(self.device)
        )
        self.train_session_.load_state(self._state)
        self._steps: dict[int, BoundStep] | None = {}
        self._validation: Any = None

    def _iteration(self, loader: OrtDataLoader, step: Any) -> float:
        rate = self.learning_rate_
        total, data, size = 0.0, loader.epoch(), loader.batch_size
        for start in loader.starts():
            batch = [a[start : start + size] for a in data]
            total += step(batch, _rate_of(rate, len(batch[0])))
        return total / len(loader)

    def _bound_step(self, batch: list[Array], rate: float) -> float:
        assert self._steps is not None
        key = len(batch[0])
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = BoundStep(
                self.train_session_, self.input_names_, batch, self.loss_output_name
            )
        return step.run(batch, rate)

    def _numpy_step(self, batch: list[Array], rate: float) -> float:
        feeds = dict(zip(self.input_names_, batch))
        feeds[RATE] = np.array([rate], np.float32)
        return float(self.train_session_.run([self.loss_output_name], feeds)[0])

    def _validate(self, X: Any, y: Any) -> float:
        model = self._model()
        weights = list(self._weights(model))
        if self._validation is None:
            self._validation = onnxruntime.InferenceSession(
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
        return float(loss) / len(feeds[x_name])

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

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set weights by name."""
        for name, value in state.items():
            known = self.get_state()
            if name not in known:
                raise UnknownNameError("trained weight", name, list(known))
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


class BoundStep:
    """A step on memory that is bound once for all batches of one size."""

    def __init__(
        self, session: TrainingSession, names: Sequence[str], batch: list[Array], loss: str
    ) -> None:
        shapes = {i.name: i.shape for i in session.get_inputs()}
        self._host = session._device.is_host
        self._names = names
        self._rate: Array = np.zeros(1, np.float32)
        self._inputs: list[Array] = []
        self._binding = session.io_binding()
        for name, array in zip(names, batch):
            shape = (len(array),) if len(shapes[name]) == 1 else array.shape
            self._inputs.append(np.zeros(shape, array.dtype))
            self._binding._iobinding.bind_input(name, self._inputs[-1])
        self._binding._iobinding.bind_input(RATE, self._rate)
        kind = next(o for o in session.get_outputs() if o.name == loss).type
        dtype = np.float64 if kind == "tensor(double)" else np.float32
        self._loss: Any = np.zeros((), dtype)
        place = (self._loss.dtype.type, (), self._loss.ctypes.data)
        cpu = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        self._binding._iobinding.bind_output(loss, cpu, *place)
        self._run = session._sess.run_with_iobinding

    def run(self, batch: list[Array], rate: float) -> float:
        """One step; gives the loss."""
        for buffer, array in zip(self._inputs, batch):
            buffer[...] = array if array.shape == buffer.shape else array.reshape(buffer.shape)
        self._rate[0] = rate
        if not self._host:  # a device has its own copy of what was bound
            for name, buffer in zip((*self._names, RATE), (*self._inputs, self._rate)):
                self._binding._iobinding.bind_input(name, buffer)
        self._run(self._binding._iobinding, None)
        return float(self._loss)
