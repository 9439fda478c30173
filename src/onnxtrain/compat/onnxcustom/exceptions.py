"""What can go wrong while a model is trained by an estimator."""

from __future__ import annotations

import math

from ...errors import DeviceError, NonFiniteError, OnnxTrainError, UnknownNameError


class ConvergenceError(OnnxTrainError, RuntimeError, ValueError):
    """The loss became NaN or infinite.

    A ValueError too: where weights in another than alphabetical order were one, they are trained,
    and a script that tries them is ready for nothing else if the rate it chose is too large.
    """


class ConvergenceWarning(UserWarning):
    """The same, when the estimator was told to go on (``exc=False``, in a grid search say)."""


class EvaluationError(OnnxTrainError, RuntimeError):
    """A loss on the validation data is NaN."""


class ProviderError(DeviceError, ValueError):
    """A device is unknown, or no execution provider serves it."""


class UnknownWeightError(UnknownNameError, ValueError):
    """A weight to train is not among the model's float initializers."""


class BatchError(NonFiniteError):
    """A batch whose loss, gradient or update is not finite; it has changed nothing.

    Args:
        reason: what was found, and where.
        loss: the loss of the batch.
    """

    def __init__(self, reason: str, loss: float = math.nan) -> None:
        super().__init__(reason)
        self.loss = loss if math.isinf(loss) else math.nan
        """Infinite, or NaN also where the loss is finite and something else is not."""
