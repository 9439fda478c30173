"""An optimizer: a chain of transforms with its hyperparameters, clipping and parameter groups."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError, OnnxTrainError
from ..graph import OpBuilder, Tensor
from ..hyper import check_amount, check_limit, check_rate
from .adafactor import factored_shapes, scale_by_factored_rms
from .linear import Linear, Scalar, times
from .transform import Context, Transform
from .transforms import clip_by_value


class OptimizerError(OnnxTrainError, ValueError):
    """A hyperparameter or a parameter group that makes no sense."""


@dataclass(frozen=True)
class ClipNorm:
    """Scale all gradients together so that their common 2-norm is at most `max_norm`.

    The coefficient is ``min(1, max_norm / (‖g‖₂ + 1e-6))``, as in PyTorch.
    """

    max_norm: float

    def __post_init__(self) -> None:
        check_limit(self.max_norm, "max_norm", OptimizerError)


@dataclass(frozen=True)
class ClipValue:
    """Limit every element of every gradient to ``[-limit, limit]``."""

    limit: float

    def __post_init__(self) -> None:
        check_limit(self.limit, "limit", OptimizerError)


@dataclass(frozen=True)
class Group:
    """Parameters with a learning rate and a decay of their own.

    Args:
        params: a name, a list of names and patterns (``"*.bias"``), or a function of the name.
        lr_scale: factor on the learning rate.
        weight_decay: decay of these parameters; None takes the optimizer's.
        transforms: a chain of their own, with the same states; None takes the optimizer's.
        hyper: the hyperparameters of that chain, for the record.

    Example:
        >>> from onnxtrain import optim
        >>> no_decay = optim.Group(["*.bias", "*norm*"], weight_decay=0.0)
        >>> optim.adamw(weight_decay=0.01, groups=[no_decay]).resolve(["a.weight", "a.bias"])
        [Segment(params=('a.bias',), lr_scale=1.0, weight_decay=0.0), \
Segment(params=('a.weight',), lr_scale=1.0, weight_decay=0.01)]
    """

    params: str | Sequence[str] | Callable[[str], bool]
    lr_scale: float = 1.0
    weight_decay: float | None = None
    transforms: tuple[Transform, ...] | None = None
    hyper: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_rate(self.lr_scale, "lr_scale", OptimizerError)
        check_amount(self.weight_decay or 0.0, "weight_decay", OptimizerError)

    def matches(self, name: str) -> bool:
        """Whether a parameter belongs to the group."""
        if callable(self.params):
            return bool(self.params(name))
        patterns = [self.params] if isinstance(self.params, str) else self.params
        return any(name == p or fnmatch.fnmatchcase(name, p) for p in patterns)


@dataclass(frozen=True)
class Segment:
    """A group whose parameters are known by name."""

    params: tuple[str, ...]
    lr_scale: float
    weight_decay: float
    transforms: tuple[Transform, ...] | None = field(default=None, repr=False)
    hyper: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Optimizer:
    """A chain of transforms, ready to be built as a graph; see `onnxtrain.optim.build`.

    Attributes:
        name: what it is called in the artifacts.
        transforms: the chain.
        hyper: all hyperparameters, for the record.
        weight_decay: the decay of parameters that no group claims.
        clip: `ClipNorm`, `ClipValue` or None.
        groups: parameter groups; the first that matches a name claims it.
        moments: how states are stored: "float32", "float16" or "int8"; see `packed`.
    """

    name: str
    transforms: tuple[Transform, ...]
    hyper: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    clip: ClipNorm | ClipValue | None = None
    groups: tuple[Group, ...] = ()
    moments: str = "float32"

    def __post_init__(self) -> None:
        if self.clip is not None and not isinstance(self.clip, ClipNorm | ClipValue):
            raise OptimizerError(
                f"clip={self.clip!r} does not say how: give optim.ClipNorm(...) for the norm of all"
                " gradients together, or optim.ClipValue(...) for each value."
            )

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states kept per parameter, in the chain's order."""
        names = dict.fromkeys(name for t in self.transforms for name in t.states)
        return tuple(names)

    @property
    def layout(self) -> str:
        """How it is run: "elementwise" over flat buffers in any pieces, or "tensor" by tensor."""
        elementwise = all(t.elementwise for t in self.transforms) and self.moments == "float32"
        return "elementwise" if elementwise else "tensor"

    @property
    def decays(self) -> bool:
        """Whether any parameter is decayed."""
        return bool(self.weight_decay) or any(g.weight_decay for g in self.groups)

    def replace(self, **changes: Any) -> Optimizer:
        """A copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def with_moments(self, moments: str) -> Optimizer:
        """The same with its moments stored in another type.

        Raises:
            OptimizerError: they cannot be.
        """
        from .packed import check_packed

        changed = self.replace(moments=moments)
        check_packed(changed)
        return changed

    def resolve(self, names: Sequence[str]) -> list[Segment]:
        """The groups over these parameters; those that no group claims come last."""
        claimed: dict[int, list[str]] = {i: [] for i in range(len(self.groups))}
        rest = []
        for name in names:
            for i, group in enumerate(self.groups):
                if group.matches(name):
                    claimed[i].append(name)
                    break
            else:
                rest.append(name)
        segments = []
        for i, group in enumerate(self.groups):
            if not claimed[i]:
                raise OptimizerError(
                    f"Parameter group {i} ({group.params!r}) matches none of the trainable "
                    f"parameters, or earlier groups claim them all: {', '.join(names[:12])}."
                )
            decay = self.weight_decay if group.weight_decay is None else group.weight_decay
            names_of_group = tuple(claimed[i])
            segments.append(
                Segment(names_of_group, group.lr_scale, decay, group.transforms, group.hyper)
            )
        if rest:
            segments.append(Segment(tuple(rest), 1.0, self.weight_decay))
        return segments

    def for_segment(self, segment: Segment) -> Optimizer:
        """The optimizer with the chain that a group has for itself, if it has one."""
        if segment.transforms is None:
            return self
        own = self.replace(transforms=segment.transforms, hyper=segment.hyper or {})
        if set(own.states) != set(self.states):
            raise OptimizerError(
                f"The parameter group of {segment.params[0]!r} keeps the states {own.states}, the "
                f"optimizer {self.states}. A group's chain must keep the same."
            )
        return own

    def state_shape(self, state: str, shape: Sequence[int]) -> list[int]:
        """Shape of a state for a parameter of a given shape."""
        if any(isinstance(t, scale_by_factored_rms) for t in self.transforms):
            return factored_shapes(shape).get(state, list(shape))
        return list(shape)

    def update(
        self,
        op: OpBuilder,
        param: Tensor,
        gradient: Tensor,
        states: Mapping[str, Tensor],
        *,
        step: Tensor,
        learning_rate: Scalar,
        weight_decay: Scalar = 0.0,
        grad_scale: Scalar = 1.0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Emit one update; gives the new parameter and the new states."""
        ctx = Context(op, param, learning_rate, weight_decay, step, states)
        update = Linear([(grad_scale, gradient)])
        if isinstance(self.clip, ClipValue):
            update = clip_by_value(self.clip.limit)(ctx, update)
        for transform in self.transforms:
            update = transform(ctx, update)
        return (Linear([(1.0, param)]) + update).value(), ctx.updated


def chain(
    *transforms: Transform,
    name: str = "custom",
    hyper: Mapping[str, Any] | None = None,
    weight_decay: float = 0.0,
    clip: ClipNorm | ClipValue | None = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Make an optimizer of transforms, applied from left to right to the gradient.

    Example:
        >>> from onnxtrain import optim
        >>> sign_descent = optim.chain(
        ...     optim.scale_by_sign_of_momentum(), optim.scale_by_learning_rate(), name="lion")
        >>> sign_descent.states
        ('first_order_moments',)
    """
    if not transforms:
        raise OptimizerError("An optimizer needs at least one transform.")
    check_amount(weight_decay, "weight_decay", OptimizerError)
    for transform in transforms:
        _check_no_nan(transform)
    owners: dict[str, Transform] = {}
    for transform in transforms:
        for state in transform.states:
            if state in owners:
                raise OptimizerError(
                    f"Two transforms of the chain keep a state named {state!r}: "
                    f"{type(owners[state]).__name__} and {type(transform).__name__}."
                )
            owners[state] = transform
    return Optimizer(name, transforms, dict(hyper or {}), weight_decay, clip, tuple(groups))


def check_unit(name: str, value: float) -> None:
    """Raise unless a rate lies in [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise OptimizerError(f"{name} must be at least 0 and below 1, not {value}.")


def check_not_negative(**values: float) -> None:
    """Raise for a hyperparameter that is negative, infinite or NaN."""
    for name, value in values.items():
        check_amount(value, name, OptimizerError)


def _check_no_nan(transform: Transform) -> None:
    """Raise for a number of a transform that is none; its limits may well be infinite."""
    for name, value in vars(transform).items() if hasattr(transform, "__dict__") else ():
        if isinstance(value, float) and math.isnan(value):
            raise OptimizerError(f"{name} of {type(transform).__name__} is NaN.")


__all__ = [
    "ClipNorm", "ClipValue", "Group", "ModelError", "Optimizer", "OptimizerError", "Segment",
    "chain", "check_not_negative", "check_unit", "times",
]  # fmt: skip
