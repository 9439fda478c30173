"""What can go wrong while a model is trained by an estimator."""

from __future__ import annotations

from ...errors import DeviceError, OnnxTrainError


class ConvergenceError(OnnxTrainError, RuntimeError):
    """The loss became NaN or infinite."""


class ConvergenceWarning(UserWarning):
    """The same, when the estimator was told to go on (``exc=False``, in a grid search say)."""


class EvaluationError(OnnxTrainError, RuntimeError):
    """A loss on the validation data is NaN."""


class ProviderError(DeviceError):
    """A device is unknown, or no execution provider serves it."""
