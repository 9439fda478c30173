"""What an optimizer is made of: small transforms of the update, each with its named states.

A transform takes the update so far (at first the gradient) and gives the next one:

    adamw = chain(scale_by_adam(), add_decayed_weights(), scale_by_learning_rate())

The parameter then becomes ``p + update``. Transforms see one tensor at a time and do not know
whether it is a whole flat buffer, one parameter of a sequence, or part of a larger graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from ..graph import OpBuilder, Tensor
from .linear import Linear, Scalar


@dataclass
class Context:
    """One parameter tensor while its update is being built.

    Attributes:
        op: the builder.
        param: the parameter before the update.
        learning_rate: the learning rate of this tensor.
        weight_decay: the decay of this tensor; the number 0.0 when it has none.
        step: number of this update, from 1 on (INT64 without dimensions).
        states: the tensor's states before the update, by name.
        updated: the states after it; transforms fill this in.
    """

    op: OpBuilder
    param: Tensor
    learning_rate: Scalar
    weight_decay: Scalar
    step: Tensor
    states: Mapping[str, Tensor]
    updated: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, new: Linear) -> Tensor:
        """Compute the next value of a state, remember it as such, and give it."""
        value = self.updated[name] = new.value()
        return value

    def per_step(self, formula: Callable[[Tensor], Tensor]) -> Tensor:
        """A scalar that depends on the step count only, computed in double precision.

        ``1 − β₂ᵗ`` loses half its digits in single precision during the first steps.
        """
        result = formula(self.op.Cast(self.step, to=ir.DataType.DOUBLE))
        return self.typed(result)

    def typed(self, scalar: Tensor) -> Tensor:
        """A scalar in the parameter's element type."""
        return self.op.as_type_of(scalar, self.param)


class Transform(Protocol):
    """One link of an optimizer's chain."""

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states it keeps per parameter; they start at zero."""
        ...

    @property
    def elementwise(self) -> bool:
        """Whether each element is treated on its own (no norms of the tensor)."""
        ...

    def __call__(self, ctx: Context, update: Linear) -> Linear:
        """The next update."""
        ...
