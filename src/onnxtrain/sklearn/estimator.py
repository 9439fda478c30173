"""What `OnnxClassifier` and `OnnxRegressor` share: building, the loop, and the trained model."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import onnx
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..compat.onnxcustom.base import Array, Locked
from ..compat.onnxcustom.common import own_inputs
from ..compat.onnxcustom.data_loader import OrtDataLoader, generator
from ..compat.onnxcustom.devices import device_to_providers
from ..compat.onnxcustom.exceptions import BatchError, ConvergenceError
from ..compat.onnxcustom.onnx_helper import (
    as_proto,
    get_train_initializer,
    replace_initializers_into_onnx,
)
from ..compat.onnxcustom.optimizers import RATE, BoundStep
from ..compat.onnxcustom.sgd_learning_rate import LearningRateSGD
from ..compat.ort import TrainingParameters, TrainingSession
from ..graph import parameters as params
from ..graph import to_proto
from ..graph.contract import RANDOM_INPUT
from ..runtime.session.devices import create_session
from ..runtime.session.sharing import exclusive, keep_from_parent, lock_after_fork
from .networks import LABEL, LOSS, WEIGHT, Network, network, training_model
from .parameters import EstimatorParameters
from .validation import is_single, validated


class Patience:
    """Tells when a score has stopped to improve.

    Args:
        tol: what counts as progress.
        limit: so many scores without progress are enough.
    """

    def __init__(self, tol: float, limit: int) -> None:
        self._tol, self._limit, self._waited = tol, limit, 0
        self.best = -np.inf

    def is_best(self, score: float) -> bool:
        """Note a score; whether it is the best so far."""
        self._waited = self._waited + 1 if score < self.best + self._tol else 0
        if score <= self.best:
            return False
        self.best = score
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing has improved for too long."""
        return self._waited >= self._limit


class OnnxEstimator(Locked, EstimatorParameters):
    """What classifier and regressor share: the loop, and the trained model."""

    _transient = ("_session", "_steps", "_predictor", "_evaluator")

    # -- for subclasses ----------------------------------------------------------------------------

    _classifier = False

    def _default_model(self, rng: np.random.RandomState) -> onnx.ModelProto:
        raise NotImplementedError

    def _loss_name(self, net: Network) -> str:
        raise NotImplementedError

    # -- features ----------------------------------------------------------------------------------

    def _input_dtype(self) -> Any:
        """The type of the features: that of the model's input."""
        if self.model is None:
            return np.dtype(self._dtype)
        proto = as_proto(self.model)
        (name,) = own_inputs(proto)[:1]
        value = next(i for i in proto.graph.input if i.name == name)
        return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)

    def _input_rank(self) -> int:
        if self.model is None:
            return 2
        proto = as_proto(self.model)
        name = own_inputs(proto)[0]
        value = next(i for i in proto.graph.input if i.name == name)
        return len(value.type.tensor_type.shape.dim) or 2

    def _features(self, X: Any, reset: bool = False, **y: Any) -> Any:
        """Checked features (and targets): an array of the model's type."""
        if reset and not (self.warm_start and hasattr(self, "onnx_model_")):
            single = is_single(X) if self.dtype == "auto" else self.dtype == "float32"
            self._dtype = "float32" if single else "float64"
        return validated(
            self, X, reset=reset, dtype=self._input_dtype(), nd=self._input_rank() != 2, **y
        )

    # -- building ----------------------------------------------------------------------------------

    def _build(self, rng: np.random.RandomState) -> None:
        """Make the model, its training graph and its session."""
        self._check_params()
        proto = self._default_model(rng) if self.model is None else as_proto(self.model)
        self._net_proto = proto
        net = network(proto, self.weights_to_train, self.output, self._classifier)
        self._loss_kind = self._loss_name(net)
        self._link = net.link
        self._weights = {
            n: np.array(v.const_value.numpy())
            for n, v in params.parameters(net.model).items()
            if v.const_value is not None
        }
        self._make_prediction_model(net)
        self._train_onnx = training_model(net, self._loss_kind, self._penalties())
        self._rng = generator(rng)
        self._rate = LearningRateSGD(
            float(self.learning_rate), power_t=self.power_t, learning_rate=self.schedule,
            tol=self.tol,
        ).init_learning_rate()  # fmt: skip
        seed = copy.deepcopy(rng).randint(1 << 31)  # a copy: nothing else shall draw differently
        self._state: dict[str, Array] = {**self._weights, RANDOM_INPUT: np.array([seed, 0])}
        self.t_ = 0
        self._start_session()

    def _start_session(self) -> None:
        parameters = TrainingParameters()
        parameters.loss_output_name = LOSS
        parameters.weights_to_train = list(self._weights)
        parameters.training_optimizer_name = self._optimizer()
        parameters.enable_grad_norm_clip = False
        parameters.lr_params_feed_name = RATE
        self._session: Any = TrainingSession(
            self._train_onnx.SerializeToString(),
            parameters,
            providers=device_to_providers(self.device),
        )
        self._session.load_state(self._state)
        self._steps: dict[int, BoundStep] = {}

    def _make_prediction_model(self, net: Network) -> None:
        """The model down to the prediction, with the weights as initializers."""
        model = net.model.clone()
        params.to_initializers(model)
        self._prediction_onnx = to_proto(model)
        for value in net.model.graph.inputs:
            value.const_value = value.const_value if value.name in self._weights else None
        inputs = net.model.clone()
        for value in inputs.graph.inputs:
            value.const_value = None
        self._evaluation_onnx = to_proto(inputs)
        self._evaluator: Any = None
        self._predictor: Any = None

    # -- training ----------------------------------------------------------------------------------

    def _train(self, X: Array, y: Array, weight: Array, epochs: int, rng: Any, fit: bool) -> None:
        validation = None
        if fit and self.early_stopping:
            X, validation_x, y, validation_y, weight, validation_w = self._split(X, y, weight, rng)
            validation = (validation_x, validation_y, validation_w)
        loader = OrtDataLoader(
            X,
            y,
            weight,
            batch_size=self._batch_rows(len(X)),
            random_iter=self.shuffle,
            random_state=self._rng,
        )
        if self._classifier:  # one label per row, not a column
            loader.y_np = y
        patience, best_state = Patience(self.tol, self.n_iter_no_change), None
        for _ in range(epochs):
            loss = self._epoch(loader)
            self._note(loss)
            score = -loss
            if validation is not None:
                score = self._score(*validation)
                self.validation_scores_.append(score)
            if patience.is_best(score) and validation is not None:
                best_state = self._session.get_state()
            if fit and patience.is_over:
                break
        else:
            if fit and epochs > 1:
                self._warn_unfinished(epochs)
        if best_state is not None:
            self._session.load_state(best_state)
            self.best_validation_score_ = patience.best
        self._finish()

    def _note(self, loss: float) -> None:
        """Count an iteration, and set the rate of the next."""
        self.loss_curve_.append(loss)
        self.t_ += 1
        self.n_iter_ += 1
        self._rate.report_loss(loss)
        self._rate.update_learning_rate(self.t_)
        if self.verbose:
            print(f"iteration {self.n_iter_}: loss {loss:.6g}")

    def _warn_unfinished(self, epochs: int) -> None:
        first, last = self.loss_curve_[0], self.loss_curve_[-1]
        advice = "raise max_iter or learning_rate, or scale the features."
        if last > first:
            advice = (
                f"the loss grew from {first:.4g} to {last:.4g}: lower learning_rate, or scale the "
                "features and the target."
            )
        warnings.warn(
            f"{type(self).__name__} did not converge in {epochs} iterations; {advice}",
            ConvergenceWarning,
            stacklevel=5,
        )

    def _split(self, X: Array, y: Array, weight: Array, rng: Any) -> list[Array]:
        stratify = y if self._classifier else None
        parts: list[Array] = train_test_split(
            X, y, weight, test_size=self.validation_fraction, random_state=rng, stratify=stratify
        )
        return parts

    def _epoch(self, loader: OrtDataLoader) -> float:
        total, data = 0.0, loader.epoch()
        for rows, starts in loader.by_size():
            step = self._steps.get(rows)
            if step is None:
                names = [self._input_name(), LABEL, WEIGHT]
                step = self._steps[rows] = BoundStep(self._session, names, data, rows, LOSS)
            try:
                total += step.run(data, starts, self._rate.value) * rows
            except BatchError as error:
                raise ConvergenceError(
                    f"{error} of iteration {self.n_iter_}; the losses of the iterations before it "
                    f"are {self.loss_curve_[-5:]}. That batch changed nothing: a warm start, or "
                    "partial_fit, goes on from the weights before it. Lower learning_rate or scale "
                    "the features."
                ) from error
        return total / len(loader)

    def _input_name(self) -> str:
        return str(self._prediction_onnx.graph.input[0].name)

    def _finish(self) -> None:
        """Take the weights out of the session and put them into the model."""
        self._state = self._session.get_state()
        self._weights = {n: self._state[n] for n in self._weights}
        self.loss_ = self.loss_curve_[-1]
        self._prediction_onnx = replace_initializers_into_onnx(self._prediction_onnx, self._weights)
        initializers = get_train_initializer(self._net_proto)
        whole = set(self._weights) <= set(initializers)
        source = self._net_proto if whole else self._prediction_onnx
        self.onnx_model_ = replace_initializers_into_onnx(source, self._weights)
        self._predictor = self._new_predictor()

    def _new_predictor(self) -> Any:
        return create_session(
            self._prediction_onnx.SerializeToString(), providers=device_to_providers(self.device)
        )

    def _begin(self, incremental: bool) -> Any:
        """Start over, or go on when that is wanted; gives the random state."""
        rng = check_random_state(self.random_state)
        fresh = not hasattr(self, "onnx_model_")
        if fresh or not (incremental or self.warm_start):
            self._build(rng)
            self.n_iter_ = 0
            self.loss_curve_: list[float] = []
        else:
            self._check_params()
            if getattr(self, "_session", None) is None:
                self._start_session()
        if self.early_stopping and (fresh or not self.warm_start):
            self.validation_scores_: list[float] = []
        return rng

    # -- prediction --------------------------------------------------------------------------------

    def _raw(self, X: Array) -> Array:
        """The model's prediction or scores."""
        predictor = getattr(self, "_predictor", None)
        if predictor is None:
            predictor = self._predictor = self._new_predictor()
        return np.asarray(predictor.run(None, {self._input_name(): X})[0])

    def _raw_now(self, X: Array) -> Array:
        """The same with the weights of the moment, while training."""
        if self._evaluator is None:
            self._evaluator = create_session(
                self._evaluation_onnx.SerializeToString(),
                providers=device_to_providers(self.device),
            )
        state = self._session.get_state()
        feeds = {n: state[n] for n in self._weights}
        return np.asarray(self._evaluator.run(None, {self._input_name(): X, **feeds})[0])

    def _score(self, X: Array, y: Array, weight: Array) -> float:
        raise NotImplementedError

    @exclusive
    def save(self, path: Any) -> None:
        """Write the trained model to a file."""
        check_is_fitted(self)
        onnx.save(self.onnx_model_, str(path))

    @exclusive
    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if state.get("_session") is not None:
            state["_state"] = self._session.get_state()
        state.pop("_mutex", None)
        return {**state, **self._without_sessions()}

    def _without_sessions(self) -> dict[str, Any]:
        """What attributes with sessions are where these have to be made again."""
        there = [n for n in self._transient if n in self.__dict__]
        return {name: {} if name == "_steps" else None for name in there}

    def after_fork(self) -> None:
        """Make new sessions in a forked process: the threads of these have stayed behind."""
        keep_from_parent(dict(self.__dict__))
        lock = lock_after_fork(self._lock, type(self).__name__)
        self.__dict__.update(_mutex=lock, **self._without_sessions())
