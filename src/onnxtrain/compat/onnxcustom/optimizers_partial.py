"""The second API as an estimator: four graphs, with loss, penalty and rate of one's choice."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...errors import InputError, ModelError, UnknownNameError
from ...runtime.session.sharing import exclusive
from .base import Array, Selected, to_array
from .common import TrainerBase, as_array, input_dtype, own_inputs, rate_for
from .data_loader import OrtDataLoader, generator
from .devices import device_to_providers, numpy_to_ort_value
from .exceptions import UnknownWeightError
from .four_graphs import FourGraphs
from .onnx_helper import get_train_initializer
from .ortgradient import OrtGradientForwardBackward
from .sgd_learning_loss import BaseLearningLoss
from .sgd_learning_penalty import BaseLearningPenalty

LOGGER = logging.getLogger("onnxcustom")


class OrtGradientForwardBackwardOptimizer(TrainerBase):
    """Trains a model without loss; the loss, the penalty and the update are graphs of their own.

    Args:
        model_onnx: the model.
        weights_to_train: initializers to train, in any order and with any names; all float ones
            that the output depends on by default.
        loss_output_name: the output to compare with the labels, if the model has one of this
            name; otherwise its first float output.
        max_iter: passes over the data.
        training_optimizer_name: ``"SGDOptimizer"`` or ``"AdamOptimizer"``.
        batch_size: rows per step.
        learning_rate: a name, a number or a `BaseLearningRate`.
        device: ``"cpu"`` or ``"cuda:0"``.
        warm_start: a second fit goes on where the first ended, velocities and schedule included.
        verbose: show progress.
        validation_every: iterations between validations; below 1 a fraction of `max_iter`.
        learning_loss: a name or a `BaseLearningLoss`.
        enable_logging: log every iteration to the logger ``onnxcustom``.
        weight_name: not None to train with a weight per observation.
        learning_penalty: a name or a `BaseLearningPenalty`.
        exc: an infinite loss is an error; otherwise a `ConvergenceWarning`.
        random_state: seed of the shuffling.

    Attributes:
        train_losses_: mean loss of every iteration, with the penalty.
        validation_losses_: losses on the validation data.
        train_session_: the model with its gradient, an `OrtGradientForwardBackward`.
        train_function_: forward and backward, for use by hand.
        input_names_: inputs of the gradient graph: the features, then the weights.
        output_names_: its outputs: gradients of the features, then of the weights.
    """

    _transient = ("_engine", "train_function_")
    learning_loss = Selected(BaseLearningLoss.select)
    learning_penalty = Selected(BaseLearningPenalty.select)

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
        learning_loss: Any = "square_error",
        enable_logging: bool = False,
        weight_name: str | None = None,
        learning_penalty: Any = None,
        exc: bool = True,
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
        self.learning_loss = learning_loss
        self.enable_logging = enable_logging
        self.weight_name = weight_name
        self.learning_penalty = learning_penalty
        self.exc = exc
        self.random_state = random_state

    @property
    def needs_grad(self) -> bool:
        """Whether the learning rate keeps a velocity."""
        return self._new_rate().needs_grad

    # -- building ----------------------------------------------------------------------------------

    def _build(self, model: onnx.ModelProto) -> None:
        """The four graphs."""
        inputs = own_inputs(model)
        if len(inputs) != 1:
            raise ModelError(
                f"The model takes {', '.join(inputs)}; one input, the features, is expected. Is "
                "the loss part of the graph? Then use OrtGradientOptimizer."
            )
        self.input_name_ = inputs[0]
        self.output_name_ = self._output(model)
        self.train_session_ = self._create_training_session(model, self._weights(model))
        self.input_names_ = self.train_session_.feed_names
        self.output_names_ = self.train_session_.gradient_names
        self._build_small_graphs(list(self.train_session_.weights.values()))
        self._log("fit", "weights_to_train=%r", self.train_session_.weights_to_train)

    def _create_training_session(
        self, model_onnx: onnx.ModelProto, weights_to_train: Sequence[str]
    ) -> OrtGradientForwardBackward:
        """The model with its gradient; its sessions are made when they are first used."""
        return OrtGradientForwardBackward(
            model_onnx,
            weights_to_train,
            output_names=[self.output_name_],
            providers=device_to_providers(self.device),
            device_index=self._device().id,
        )

    def _build_small_graphs(self, weights: Sequence[Array]) -> None:
        """The graphs of loss and penalty, for weights of this type."""
        dtype = weights[0].dtype if weights else np.float32
        self.learning_loss.build_onnx_function(weight_name=self.weight_name, dtype=dtype)
        self.learning_penalty.build_onnx_function(n_tensors=len(weights), dtype=dtype)

    def _log(self, method: str, message: str, *values: Any) -> None:
        if self.enable_logging:
            LOGGER.info(f"[{type(self).__name__}.{method}] {message}", *values)

    @exclusive
    def build_onnx_function(self) -> OrtGradientForwardBackwardOptimizer:
        """Build all graphs without training, to look at them or to set a state."""
        self._start(self._model())
        return self

    def _output(self, model: onnx.ModelProto) -> str:
        names = {o.name: o.type.tensor_type.elem_type for o in model.graph.output}
        if self.loss_output_name in names:
            return self.loss_output_name
        floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
        candidates = [n for n, kind in names.items() if kind in floats]
        if not candidates:
            raise ModelError(f"None of the outputs {', '.join(names)} is a float tensor.")
        return str(candidates[0])

    def _weights(self, model: onnx.ModelProto) -> list[str]:
        known = list(get_train_initializer(model))
        if self.weights_to_train is None:
            return _reachable(model, known, self.output_name_)
        for name in self.weights_to_train:
            if name not in known:
                raise UnknownWeightError("float initializer", name, known)
        return list(self.weights_to_train)

    def _start(self, model: onnx.ModelProto) -> None:
        self._build(model)
        self.rng_ = generator(self.random_state)
        self.learning_rate_ = self._new_rate().init_learning_rate()
        self.t_ = 0
        self._engine = self._new_engine()
        self.train_function_ = self.train_session_.new_instance()

    def _new_engine(self) -> FourGraphs:
        return FourGraphs(
            self.train_session_,
            self.learning_loss,
            self.learning_penalty,
            self.learning_rate_,
            self._device(),
        )

    @property
    def engine_(self) -> FourGraphs:
        """The four graphs with their memory; made again after unpickling."""
        if not hasattr(self, "learning_rate_"):
            raise AttributeError("Method fit must be called before this.")
        if getattr(self, "_engine", None) is None:
            self._engine = self._new_engine()
            self._engine.set_full_state(self._saved)
            self.train_function_ = self.train_session_.new_instance()
        return self._engine

    # -- training ----------------------------------------------------------------------------------

    @exclusive
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None
    ) -> OrtGradientForwardBackwardOptimizer:
        """Train.

        Args:
            X: features.
            y: expected values.
            sample_weight: one weight per observation; needs `weight_name`.
            X_val: features to validate with.
            y_val: expected values to validate with.
        """
        if (sample_weight is not None) != (self.weight_name is not None):
            raise InputError("sample_weight and the parameter weight_name go together.")
        if not (self.warm_start and hasattr(self, "learning_rate_")):
            self._start(self._model())
        engine = self.engine_
        self.train_losses_: list[float] = []
        self.validation_losses_: list[float] = []
        loader = self._loader(X, y, sample_weight, random_state=self.rng_)
        validate = None
        if X_val is not None:
            if y_val is None:
                raise InputError("X_val needs y_val.")
            validate = lambda: -self.score(X_val, y_val)  # noqa: E731
        self._iterate(
            self.learning_rate_, lambda: self._iteration(engine, loader), validate, self.exc
        )
        return self

    def _loader(self, X: Any, y: Any, weight: Any, **options: Any) -> OrtDataLoader:
        x = as_array(X, input_dtype(self.train_session_.onnx_model, self.input_name_))
        dtype = self.engine_.dtype
        labels = as_array(y, self.learning_loss.label_dtype or dtype)
        weights = None if weight is None else as_array(weight, dtype)
        return OrtDataLoader(
            x, labels, weights, batch_size=self.batch_size, device=self.device, **options
        )

    def _iteration(self, engine: FourGraphs, loader: OrtDataLoader) -> float:
        engine.set_rate(self.learning_rate_.value)
        total, penalty, data = 0.0, 0.0, loader.epoch()
        for rows, starts in loader.by_size():
            losses, penalties = engine.run(data, rows, starts)
            total += losses
            penalty += penalties
        loss = total / len(loader) + penalty / len(loader.starts())
        self._log("_iteration", "iteration %d: loss %g", self.t_, loss)
        return loss

    # -- results -----------------------------------------------------------------------------------

    @exclusive
    def predict(self, X: Any) -> Array:
        """The model's output with the trained weights."""
        engine = self.engine_
        x = as_array(X, input_dtype(self.train_session_.onnx_model, self.input_name_))
        feeds = [x, *engine.state().values()]
        (output,) = self.train_function_.forward(feeds)
        return np.array(output.numpy())  # a copy: the memory belongs to the OrtValue

    @exclusive
    def losses(self, X: Any, y: Any, sample_weight: Any = None) -> Array:
        """The loss of every observation, in the order of the rows."""
        predicted = self.predict(X)
        loss = self.learning_loss
        expected = loss.prepare(np.asarray(y), predicted.shape)
        scores = loss.loss_scores(self.device, expected, predicted, sample_weight)
        return np.array(scores.numpy())

    @exclusive
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Minus the mean loss: the larger the better."""
        losses = self.losses(X, y, sample_weight)
        total = len(losses) if sample_weight is None else float(np.sum(sample_weight))
        return -float(losses.sum()) / total

    @exclusive
    def get_full_state(self, kind: str | Sequence[str] = "weight") -> Any:
        """What the gradient graph takes, or all that the training would go on from.

        Args:
            kind: ``"weight"`` or ``"grad"``: a list as `get_state` gives it, with None in front for
                the features; ``"moments"``: what the update keeps, by name; ``"all"``: everything,
                by name; several of them for a list.
        """
        if not isinstance(kind, str):
            return [self.get_full_state(k) for k in kind]
        if kind in {"weight", "grad"}:
            return [None, *self.get_state(kind)]
        state = self.engine_.full_state()
        if kind == "all":
            return state
        if kind != "moments":
            raise UnknownNameError("kind of state", kind, ["weight", "grad", "moments", "all"])
        return state[kind]

    @exclusive
    def get_state(self, kind: str = "weight") -> list[Any]:
        """The trained weights (or their last gradients): OrtValues, in the order of their names.

        `trained_coef_` has them as arrays by name.
        """
        return [numpy_to_ort_value(a, self.device) for a in self._state_by_name(kind).values()]

    def _state_by_name(self, kind: str = "weight") -> dict[str, Array]:
        if kind not in {"weight", "grad"}:
            raise UnknownNameError("kind of state", kind, ["weight", "grad"])
        return self.engine_.state(kind)

    @exclusive
    def set_state(
        self,
        state: Mapping[str, Any] | Sequence[Any],
        check_trained: bool = True,
        kind: str = "weight",
        zero: bool = False,
    ) -> None:
        """Set weights or gradients.

        Args:
            state: arrays or OrtValues by name, or a list as `get_state` or `get_full_state` gives.
            check_trained: refuse names that are not trained; otherwise they are passed over.
            kind: ``"weight"`` or ``"grad"``.
            zero: set the velocities to zero.
        """
        names = list(self._state_by_name(kind))
        values = _by_name(state, names)
        unknown = [n for n in values if n not in names]
        if unknown and check_trained:
            raise UnknownWeightError("trained weight", unknown[0], names)
        engine = self.engine_
        engine.set_state({n: to_array(v) for n, v in values.items() if n in names}, kind)
        if zero:
            engine.clear_moments()

    @property
    def trained_coef_(self) -> dict[str, Array]:
        """The trained weights by name."""
        return self._state_by_name()

    @exclusive
    def onnx_graphs(self) -> dict[str, Any]:
        """The graphs of the training, by the attribute that has them."""
        if not hasattr(self, "train_session_"):
            known = get_train_initializer(self._model())
            names = [n for n in self.weights_to_train or known if n in known]
            self._build_small_graphs([known[n][0] for n in names])
        graphs = super().onnx_graphs()
        if hasattr(self, "learning_rate_"):
            graphs["learning_rate_"] = {"update_onnx_": self.engine_.update_onnx_}
        return graphs

    @exclusive
    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if getattr(self, "_engine", None) is not None:
            state["_saved"] = self.engine_.full_state()
        return state


def _by_name(state: Mapping[str, Any] | Sequence[Any], names: list[str]) -> Mapping[str, Any]:
    if isinstance(state, Mapping):
        return state
    values = [v for v in state if v is not None]  # None stands for the features
    if len(values) != len(names):
        raise InputError(
            f"There are {len(names)} trained weights ({', '.join(names)}), and the state has "
            f"{len(values)} values."
        )
    return dict(zip(names, values))


def _reachable(model: onnx.ModelProto, names: list[str], output: str) -> list[str]:
    """Weights on which an output depends by a differentiable path."""
    from ...autodiff import reachable
    from ...graph import load
    from ...graph import parameters as params
    from ...normalize import normalize

    loaded = load(model)
    params.to_inputs(loaded, names)
    return reachable(normalize(loaded), names, [output])
