"""The parameters of the estimators: what they are, and which make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from .. import optim
from ..compat.onnxcustom.base import SelectionError
from ..hyper import check_amount, check_limit
from ..optim.recipes import gradient_descent
from .networks import Penalty

OPTIMIZERS = ("sgd", "adam", "adamw", "lamb", "rmsprop", "adagrad", "lion")
PENALTIES = (None, "l1", "l2", "elasticnet")


class EstimatorParameters(BaseEstimator):  # type: ignore[misc]
    """The parameters that `OnnxClassifier` and `OnnxRegressor` share, stored as they are given."""

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

    def _batch_rows(self, rows: int) -> int:
        if self.batch_size == "auto":
            return min(200, rows)
        if int(self.batch_size) < 1:
            raise SelectionError(f"batch_size is 'auto' or at least 1, not {self.batch_size!r}.")
        return min(int(self.batch_size), rows)

    def _hidden_sizes(self) -> list[int]:
        sizes = np.atleast_1d(np.asarray(self.hidden_layer_sizes, dtype=np.int64))
        return [int(size) for size in sizes]
