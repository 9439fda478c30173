"""`OnnxRegressor`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from sklearn.base import RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from ..compat.onnxcustom.base import Array, SelectionError
from ..runtime.session.sharing import exclusive
from .estimator import OnnxEstimator
from .networks import Network, mlp


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
        features, outputs = self.n_features_in_, self.n_outputs_
        sizes = self._hidden_sizes()
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
