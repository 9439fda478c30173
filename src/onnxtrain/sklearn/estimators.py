"""Estimators made of ONNX models: `OnnxClassifier` and `OnnxRegressor`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from .. import optim
from ..compat.onnxcustom.base import Array, Locked, SelectionError
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
from ..hyper import check_amount, check_limit
from ..optim.recipes import gradient_descent
from ..runtime.session.devices import create_session
from ..runtime.session.sharing import exclusive, keep_from_parent, lock_after_fork
from .networks import LABEL, LOSS, WEIGHT, Network, Penalty, mlp, network, training_model
from .validation import validated

PENALTIES = (None, "l1", "l2", "elasticnet")


class OnnxEstimator(Locked, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: parameters, the loop, and the trained model."""

    _transient = ("_session", "_steps", "_predictor", "_evaluator")

    def __init__(
        self,
        model: Any = None,
        *,
        hidden_layer_sizes: Sequence[int] = (100,),
        activation: str = "relu",
        loss: str = "auto",
        optimizer: Any = "adam",
        learning_rate: float = 0.001,
        schedule: str = "constant",
        power_t: float = 0.5,
        momentum: float = 0.9,
        nesterov: bool = True,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float = 0.15,
        batch_size: Any = "auto",
        max_iter: int = 200,
        shuffle: bool = True,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        weights_to_train: Sequence[str] | None = None,
        output: str | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        random_state: Any = None,
        verbose: Any = False,
    ) -> None:
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.loss = loss
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.power_t = power_t
        self.momentum = momentum
        self.nesterov = nesterov
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.weights_to_train = weights_to_train
        self.output = output
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- for subclasses ----------------------------------------------------------------------------

    _classifier = False

    def _default_model(self, rng: np.random.RandomState) -> onnx.ModelProto:
        raise NotImplementedError

    def _loss_name(self, net: Network) -> str:
        raise NotImplementedError

    # -- checks ------------------------------------------------------------------------------------

    def _check_params(self) -> None:
        """Raise for parameters that make no sense; `fit` calls it, `__init__` only stores."""
        if not isinstance(self.optimizer, optim.Optimizer) and self.optimizer not in optim.RECIPES:
            raise SelectionError(
                f"optimizer is one of {', '.join(optim.RECIPES)} or an onnxtrain.optim.Optimizer, "
                f"not {self.optimizer!r}."
            )
        if self.penalty not in PENALTIES:
            raise SelectionError(f"penalty is l1, l2, elasticnet or None, not {self.penalty!r}.")
        if self.dtype not in {"auto", "float32", "float64"}:
            raise SelectionError(f"dtype is 'auto', 'float32' or 'float64', not {self.dtype!r}.")
        for name, low in (("max_iter", 1), ("n_iter_no_change", 1)):
            if getattr(self, name) < low:
                raise SelectionError(f"{name} must be at least {low}, not {getattr(self, name)}.")
        check_amount(self.alpha, "alpha", SelectionError)
        check_amount(self.momentum, "momentum", SelectionError)
        check_limit(self.learning_rate, "learning_rate", SelectionError)
        if not 0 <= self.l1_ratio <= 1:
            raise SelectionError("l1_ratio must lie between 0 and 1.")
        if self.early_stopping and not 0 < self.validation_fraction < 1:
            raise SelectionError(
                f"validation_fraction must lie between 0 and 1, not {self.validation_fraction}."
            )

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
            single = _is_single(X) if self.dtype == "auto" else self.dtype == "float32"
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

    def _penalties(self) -> Penalty:
        if self.penalty == "l1":
            return Penalty(self.alpha, 0.0)
        if self.penalty == "l2":
            return Penalty(0.0, self.alpha)
        if self.penalty == "elasticnet":
            return Penalty(self.alpha * self.l1_ratio, self.alpha * (1 - self.l1_ratio))
        return Penalty()

    def _optimizer(self) -> optim.Optimizer:
        if isinstance(self.optimizer, optim.Optimizer):
            return self.optimizer
        if self.optimizer == "sgd":
            return gradient_descent(self.momentum, self.nesterov and self.momentum > 0)
        return optim.RECIPES[self.optimizer].make()

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
        best, bad, best_state = -np.inf, 0, None
        for _ in range(epochs):
            loss = self._epoch(loader)
            self.loss_curve_.append(loss)
            self.t_ += 1
            self.n_iter_ += 1
            self._rate.report_loss(loss)
            self._rate.update_learning_rate(self.t_)
            score = -loss
            if validation is not None:
                score = self._score(*validation)
                self.validation_scores_.append(score)
            if self.verbose:
                print(f"iteration {self.n_iter_}: loss {loss:.6g}")
            bad = bad + 1 if score < best + self.tol else 0
            if score > best:
                best = score
                if validation is not None:
                    best_state = self._session.get_state()
            if fit and bad >= self.n_iter_no_change:
                break
        else:
            if fit and epochs > 1:
                warnings.warn(
                    f"{type(self).__name__} did not converge in {epochs} iterations; raise "
                    "max_iter or learning_rate, or scale the features.",
                    ConvergenceWarning,
                    stacklevel=4,
                )
        if best_state is not None:
            self._session.load_state(best_state)
            self.best_validation_score_ = best
        self._finish()

    def _batch_rows(self, rows: int) -> int:
        if self.batch_size == "auto":
            return min(200, rows)
        if int(self.batch_size) < 1:
            raise SelectionError(f"batch_size is 'auto' or at least 1, not {self.batch_size!r}.")
        return min(int(self.batch_size), rows)

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
        given = get_train_initializer(self._net_proto)
        whole = set(self._weights) <= set(given)
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


class OnnxClassifier(ClassifierMixin, OnnxEstimator):  # type: ignore[misc]
    """A classifier made of an ONNX model, trained on stock onnxruntime.

    Args:
        model: a path, bytes, ModelProto or `onnx_ir.Model` to start from: scores, or
            probabilities behind a Softmax or Sigmoid, one column per class (or one in all for two
            classes). What skl2onnx converts from a fitted LogisticRegression or MLPClassifier
            is trained on from its weights. None builds a multi-layer perceptron.
        hidden_layer_sizes: hidden layers of the default model.
        activation: ``"relu"``, ``"tanh"``, ``"logistic"`` or ``"identity"``.
        loss: ``"auto"`` or ``"log_loss"``.
        optimizer: a name of `onnxtrain.optim.RECIPES` (``"adam"``, ``"sgd"``, ``"adamw"`` …), or an
            optimizer of `onnxtrain.optim`.
        learning_rate: the first learning rate.
        schedule: ``"constant"``, ``"invscaling"``, ``"optimal"`` or ``"adaptive"``.
        power_t: exponent of inverse scaling.
        momentum: momentum of ``"sgd"``.
        nesterov: Nesterov's form of it.
        penalty: ``"l1"``, ``"l2"``, ``"elasticnet"`` or None, on matrices, not on biases.
        alpha: strength of the penalty: α·(r·Σ|w| + (1 − r)/2·Σw²).
        l1_ratio: r of ``"elasticnet"``.
        batch_size: rows per step; ``"auto"`` is 200, or all rows if they are fewer.
        max_iter: passes over the data, at most.
        shuffle: a new order of the rows in every pass.
        tol: what counts as progress.
        n_iter_no_change: passes without progress before training stops.
        early_stopping: keep some rows out and stop when their score does not improve; the best
            weights are kept.
        validation_fraction: how many rows.
        warm_start: a second `fit` goes on from the first, moments of the optimizer included.
        weights_to_train: initializers to train; the others stay. None trains all.
        output: the output with scores or probabilities, when the model has several.
        dtype: type of the default model; ``"auto"`` is float32 for features of that type, float64
            otherwise. Training in float32 is faster, and most runtimes prefer such models.
        device: ``"cpu"`` or ``"cuda:0"``.
        random_state: seed of initial weights and shuffling.
        verbose: print every pass.
        class_weight: weights of classes, a dict or ``"balanced"``.

    Attributes:
        onnx_model_: the trained model for inference, a ModelProto.
        classes_: labels in the order of the columns.
        n_iter_: passes made.
        loss_curve_: loss of every pass.
        loss_: the last one.
        validation_scores_: scores of every pass, with `early_stopping`.

    Example:
        >>> import numpy as np
        >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
        >>> model = OnnxClassifier(learning_rate=0.05, max_iter=300, random_state=0)
        >>> model.fit(X, ["low", "low", "high", "high"]).predict([[0.2], [2.9]]).tolist()
        ['low', 'high']
    """

    _classifier = True
    classes_: Array

    def __init__(
        self,
        model: Any = None,
        *,
        hidden_layer_sizes: Sequence[int] = (100,),
        activation: str = "relu",
        loss: str = "auto",
        optimizer: Any = "adam",
        learning_rate: float = 0.001,
        schedule: str = "constant",
        power_t: float = 0.5,
        momentum: float = 0.9,
        nesterov: bool = True,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float = 0.15,
        batch_size: Any = "auto",
        max_iter: int = 200,
        shuffle: bool = True,
        tol: float = 1e-4,
        n_iter_no_change: int = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        weights_to_train: Sequence[str] | None = None,
        output: str | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        random_state: Any = None,
        verbose: Any = False,
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            model,
            hidden_layer_sizes=hidden_layer_sizes,
            activation=activation,
            loss=loss,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            power_t=power_t,
            momentum=momentum,
            nesterov=nesterov,
            penalty=penalty,
            alpha=alpha,
            l1_ratio=l1_ratio,
            batch_size=batch_size,
            max_iter=max_iter,
            shuffle=shuffle,
            tol=tol,
            n_iter_no_change=n_iter_no_change,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            warm_start=warm_start,
            weights_to_train=weights_to_train,
            output=output,
            dtype=dtype,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

    @exclusive
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnnxClassifier:
        """Train until the loss, or the validation score, does not improve any more."""
        X, y = self._features(X, reset=True, y=y)
        check_classification_targets(y)
        labels = unique_labels(y)
        goes_on = self.warm_start and hasattr(self, "onnx_model_")
        if goes_on and not np.array_equal(labels, self.classes_):
            raise SelectionError(
                f"warm_start: the classes are {labels.tolist()}, and were "
                f"{self.classes_.tolist()}. Fit a new estimator."
            )
        self.classes_ = labels
        rng = self._begin(incremental=False)
        weight = self._row_weights(X, y, sample_weight)
        self._train(X, self._encoded(y), weight, self.max_iter, rng, fit=True)
        return self

    @exclusive
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> OnnxClassifier:
        """One pass over the data.

        Args:
            X: features.
            y: labels.
            classes: all labels that will ever be seen; needed in the first call.
            sample_weight: one weight per row.
        """
        first = not hasattr(self, "onnx_model_")
        X, y = self._features(X, reset=first, y=y)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise SelectionError("classes must be passed on the first call to partial_fit.")
            self.classes_ = unique_labels(classes)
        unknown = np.setdiff1d(unique_labels(y), self.classes_)
        if len(unknown):
            raise SelectionError(
                f"y contains the label {unknown[0]!r}, which is not among the classes "
                f"{self.classes_.tolist()}."
            )
        rng = self._begin(incremental=True)
        weight = self._row_weights(X, y, sample_weight)
        self._train(X, self._encoded(y), weight, 1, rng, fit=False)
        return self

    def _row_weights(self, X: Array, y: Array, sample_weight: Any) -> Array:
        dtype = self._session.get_inputs()[2].type
        kind = np.float64 if dtype == "tensor(double)" else np.float32
        weight = _check_sample_weight(sample_weight, X, dtype=kind)
        if self.class_weight is not None:
            weight = weight * compute_sample_weight(self.class_weight, y)
        return np.ascontiguousarray(weight, kind)

    def _encoded(self, y: Array) -> Array:
        return np.searchsorted(self.classes_, y).astype(np.int64)

    def _default_model(self, rng: np.random.RandomState) -> onnx.ModelProto:
        several = len(self.classes_) > 2
        return mlp(
            self.n_features_in_,
            len(self.classes_) if several else 1,
            _sizes(self.hidden_layer_sizes),
            self.activation,
            "softmax" if several else "sigmoid",
            self._dtype,
            rng,
        )

    def _loss_name(self, net: Network) -> str:
        if self.loss not in {"auto", "log_loss"}:
            raise SelectionError(f"loss is 'auto' or 'log_loss', not {self.loss!r}.")
        width, count = net.width, len(self.classes_)
        link = net.link or ("sigmoid" if width == 1 else "softmax")
        if width != count and not (width == 1 and count <= 2):
            raise SelectionError(
                f"The model's {net.output!r} has {width} columns, and y has {count} classes "
                f"({self.classes_.tolist()[:10]})."
            )
        if link == "softmax" and width == 1:
            raise SelectionError("A Softmax over one column is always 1: use a Sigmoid.")
        return link

    @exclusive
    def predict_proba(self, X: Any) -> Array:
        """Probabilities, one column per class in the order of `classes_`."""
        check_is_fitted(self)
        return self._probabilities(self._raw(self._features(X)))

    def _probabilities(self, scores: Array) -> Array:
        if self._loss_kind == "softmax":
            shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
        chances = 0.5 * (1 + np.tanh(0.5 * scores))  # a sigmoid that cannot overflow
        if scores.shape[1] > 1:
            return np.asarray(chances / chances.sum(axis=1, keepdims=True))
        if len(self.classes_) == 1:
            return np.ones_like(chances)
        return np.hstack([1 - chances, chances])

    @exclusive
    def predict(self, X: Any) -> Array:
        """The most probable label of each row."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _score(self, X: Array, y: Array, weight: Array) -> float:
        hits = self._probabilities(self._raw_now(X)).argmax(axis=1) == y
        return float(np.average(hits, weights=weight)) if weight.sum() else float(hits.mean())


class OnnxRegressor(RegressorMixin, OnnxEstimator):  # type: ignore[misc]
    """A regressor made of an ONNX model, trained on stock onnxruntime.

    The parameters are those of `OnnxClassifier`, except that there are no class weights, and:

    Args:
        model: a path, bytes, ModelProto or `onnx_ir.Model` to start from, what skl2onnx converts
            from a fitted LinearRegression or MLPRegressor say. None builds a multi-layer
            perceptron.
        loss: ``"squared_error"`` (½·(z − y)², also ``"auto"``), ``"absolute_error"`` or
            ``"huber"``.

    Attributes:
        onnx_model_: the trained model for inference, a ModelProto.
        n_iter_: passes made.
        loss_curve_: loss of every pass.
        validation_scores_: R² of every pass, with `early_stopping`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(-1, 1, 40).reshape(-1, 1)
        >>> model = OnnxRegressor(learning_rate=0.01, max_iter=500, tol=1e-6, random_state=0)
        >>> bool(model.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.95)
        True
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _more_tags(self) -> dict[str, Any]:  # before scikit-learn 1.6
        return {"multioutput": True}

    @exclusive
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnnxRegressor:
        """Train until the loss, or the validation score, does not improve any more."""
        X, y = self._features(X, reset=True, y=y, multi_output=True, y_numeric=True)
        self._n_outputs(y)
        rng = self._begin(incremental=False)
        targets = self._targets(y)
        weight = _check_sample_weight(sample_weight, X, dtype=targets.dtype)
        self._train(X, targets, weight, self.max_iter, rng, fit=True)
        return self

    @exclusive
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> OnnxRegressor:
        """One pass over the data."""
        first = not hasattr(self, "onnx_model_")
        X, y = self._features(X, reset=first, y=y, multi_output=True, y_numeric=True)
        if first:
            self._n_outputs(y)
        rng = self._begin(incremental=True)
        targets = self._targets(y)
        weight = _check_sample_weight(sample_weight, X, dtype=targets.dtype)
        self._train(X, targets, weight, 1, rng, fit=False)
        return self

    def _n_outputs(self, y: Array) -> None:
        self._flat = y.ndim == 1
        self.n_outputs_: int = 1 if self._flat else y.shape[1]

    def _targets(self, y: Array) -> Array:
        dtype = self._session.get_inputs()[1].type
        kind = np.float64 if dtype == "tensor(double)" else np.float32
        return np.ascontiguousarray(y.reshape(len(y), -1), kind)

    def _default_model(self, rng: np.random.RandomState) -> onnx.ModelProto:
        sizes = _sizes(self.hidden_layer_sizes)
        features, outputs = self.n_features_in_, self.n_outputs_
        return mlp(features, outputs, sizes, self.activation, "", self._dtype, rng)

    def _loss_name(self, net: Network) -> str:
        if self.loss not in {"auto", "squared_error", "absolute_error", "huber"}:
            raise SelectionError(
                f"loss is squared_error, absolute_error, huber or auto, not {self.loss!r}."
            )
        if net.width != self.n_outputs_:
            raise SelectionError(
                f"The model's {net.output!r} has {net.width} columns, and y has {self.n_outputs_}."
            )
        return "squared_error" if self.loss == "auto" else self.loss

    @exclusive
    def predict(self, X: Any) -> Array:
        """The model's prediction, one value per row, or one row per row for several targets."""
        check_is_fitted(self)
        predicted = self._raw(self._features(X))
        return predicted.reshape(-1) if self._flat else predicted

    def _score(self, X: Array, y: Array, weight: Array) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(y, self._raw_now(X), sample_weight=weight))


def _is_single(X: Any) -> bool:
    """Whether features are float32, in an array or in all columns of a table."""
    kinds = getattr(X, "dtypes", None)
    if kinds is not None and hasattr(kinds, "__iter__"):
        return all(k == np.float32 for k in kinds)
    return bool(getattr(X, "dtype", None) == np.float32)


def _sizes(given: Any) -> list[int]:
    return [int(s) for s in np.atleast_1d(np.asarray(given, dtype=np.int64))]
