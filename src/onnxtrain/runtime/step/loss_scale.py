"""The scale of a loss whose gradients are computed in half precision.

It is a frozen parameter of the model, and so is saved and resumed with the others: two numbers, the
scale and the updates since it last changed. `onnxtrain.quant.mixed_precision` puts it there.
"""

from __future__ import annotations

from ..state.buffers import TensorStore

LOSS_SCALE = "onnxtrain.loss_scale"
"""The parameter's name."""
INTERVAL, FACTOR, SMALLEST, LARGEST = 2000, 2.0, 1.0, 2.0**24
"""Updates after which it grows, by how much it changes, and its limits: those of torch's scaler."""


class LossScale:
    """The scale in a store of parameters.

    Args:
        frozen: the store; it may be on a device.
    """

    def __init__(self, frozen: TensorStore) -> None:
        self._store = frozen
        self._numbers = frozen.view(LOSS_SCALE)

    @classmethod
    def of(cls, frozen: TensorStore) -> LossScale | None:
        """That of a training; None if its loss is not scaled."""
        if LOSS_SCALE not in frozen or frozen.specs[LOSS_SCALE].shape != (2,):
            return None
        return cls(frozen)

    @property
    def value(self) -> float:
        """What gradients are multiplied by."""
        return float(self._numbers[0])

    def grow(self) -> None:
        """Count an update whose gradients were finite."""
        self._numbers[1] += 1
        if self._numbers[1] >= INTERVAL:
            self._change(min(self.value * FACTOR, LARGEST))

    def shrink(self) -> None:
        """Answer gradients that were not."""
        self._change(max(self.value / FACTOR, SMALLEST))

    def _change(self, scale: float) -> None:
        self._numbers[:] = scale, 0.0
        self._store.push()
