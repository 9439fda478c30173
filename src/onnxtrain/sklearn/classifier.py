"""`OnnxClassifier`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from ..compat.onnxcustom.base import Array, SelectionError
from ..runtime.session.sharing import exclusive
from .estimator import OnnxEstimator
from .networks import Network, mlp


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
            self._hidden_sizes(),
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
