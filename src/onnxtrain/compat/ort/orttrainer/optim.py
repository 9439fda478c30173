"""Optimizer configurations by the names and hyperparameters of onnxruntime-training.

config = optim.AdamConfig(
    params=[{"params": ["fc.bias"], "lambda_coef": 0.0}], lr=1e-3, lambda_coef=0.01)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from .... import optim as chains
from ....errors import OnnxTrainError, UnknownNameError
from ....hyper import check_amount, check_limit, check_rate
from ....optim.recipes import OPERATORS, from_operator
from . import lr_scheduler as lr_scheduler
from .fused_adam import AdamWMode as AdamWMode
from .fused_adam import FP16_Optimizer as FP16_Optimizer
from .fused_adam import FusedAdam as FusedAdam

Hyper = Mapping[str, "float | int | bool"]
SGD, ADAM, LAMB = OPERATORS


class ConfigError(OnnxTrainError, ValueError, AssertionError):
    """An optimizer configuration that makes no sense."""


class DecayMode(IntEnum):
    """When Adam decays the weights."""

    BEFORE_WEIGHT_UPDATE = 0
    """As `torch.optim.AdamW`: the decay is part of the step."""
    AFTER_WEIGHT_UPDATE = 1
    """As Hugging Face's AdamW: the weights the step has made are decayed."""


def make(
    name: str,
    weights: Sequence[str],
    attributes: Callable[[str], Hyper | None],
    *,
    clip: bool = True,
) -> chains.Optimizer:
    """The optimizer for these weights, each with its own attributes.

    Args:
        name: ``"SGDOptimizer"``, ``"AdamOptimizer"`` or ``"LambOptimizer"``.
        weights: names of all that is trained.
        attributes: hyperparameters of a weight, where they differ from the defaults: ``alpha`` and
            ``beta`` (decay of the moments), ``lambda`` (weight decay), ``epsilon``,
            ``max_norm_clip``, ``do_bias_correction``, ``weight_decay_mode``, ``ratio_min``,
            ``ratio_max``.
        clip: whether gradients are clipped by their global norm at all.
    """
    check_name(name)
    alike: dict[tuple[tuple[str, Any], ...], list[str]] = {}
    for weight in weights:
        hyper = _complete(name, weight, attributes(weight) or {})
        alike.setdefault(tuple(sorted(hyper.items())), []).append(weight)
    kinds = sorted(alike, key=lambda k: -len(alike[k])) or [
        tuple(sorted(_complete(name, "", {}).items()))
    ]
    limits = {dict(k)["max_norm_clip"] for k in kinds}
    if len(limits) > 1:
        raise ConfigError(
            f"max_norm_clip limits the norm of all gradients together, so it must be the same for "
            f"every weight, not {sorted(limits, key=str)}."
        )
    optimizers = [from_operator(name, dict(kind)) for kind in kinds]
    groups = [
        chains.Group(
            frozenset(alike[kind]).__contains__,
            weight_decay=optimizer.weight_decay,
            transforms=optimizer.transforms,
            hyper=optimizer.hyper,
        )
        for kind, optimizer in zip(kinds[1:], optimizers[1:])
    ]
    main = optimizers[0]
    return main.replace(clip=main.clip if clip else None, groups=tuple(groups))


def check_name(name: str) -> None:
    """Raise for an optimizer that is not known."""
    if name not in OPERATORS:
        raise UnknownNameError("optimizer", str(name), list(OPERATORS))


def _complete(name: str, weight: str, attributes: Hyper) -> dict[str, Any]:
    defaults = OPERATORS[name]
    unknown = sorted(set(attributes) - set(defaults))
    if unknown:
        raise ConfigError(
            f"{name} has no attribute {', '.join(map(repr, unknown))} (asked for the weight "
            f"{weight!r}); it has {', '.join(defaults)}."
        )
    for key, value in attributes.items():
        if value is None and defaults[key] is None:
            continue
        if not isinstance(value, (int, float)):
            raise ConfigError(f"Attribute {key!r} of {weight!r} must be a number, not {value!r}.")
        what = f"Attribute {key!r} of {weight!r}"
        if key == "max_norm_clip":
            check_limit(value, what, ConfigError, infinite=True)
        elif key not in {"ratio_min", "ratio_max"}:
            check_amount(value, what, ConfigError)
    return {**defaults, **attributes}


# --- configurations -------------------------------------------------------------------------------


class _OptimizerConfig:
    """An optimizer, its hyperparameters, and groups of weights with other ones."""

    def __init__(
        self, name: str, params: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]
    ) -> None:
        if name not in OPERATORS:
            raise ConfigError(
                f"'name' must be one of {', '.join(map(repr, OPERATORS))}, not {name!r}."
            )
        if not isinstance(defaults, Mapping) or "lr" not in defaults:
            raise ConfigError("'defaults' must be a dictionary with the entry 'lr'.")
        check_rate(defaults["lr"], "lr", ConfigError)
        if not isinstance(params, list):
            raise ConfigError("'params' must be a list")
        self.name = name
        self.lr = float(defaults["lr"])
        self.defaults = dict(defaults)
        self.params = [self._group(g) for g in params]
        for key, value in defaults.items():
            if key != "lr":
                setattr(self, key, value)

    def _group(self, group: Any) -> dict[str, Any]:
        """A group with all hyperparameters, its own before the others."""
        if not isinstance(group, Mapping):
            raise ConfigError("'params' must be a list of dictionaries, one per group")
        names = group.get("params")
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            raise ConfigError("Each group of 'params' needs a list of names under 'params'")
        if "lr" in group:
            raise ConfigError("'lr' is not supported inside params")
        unknown = sorted(set(group) - set(self.defaults) - {"params"})
        if unknown:
            raise ConfigError(
                f"'params' has hyperparameters {unknown} that {type(self).__name__} does not have"
            )
        return {**self.defaults, **group}

    def hyper_of(self, weight: str) -> dict[str, Any]:
        """Attributes of a weight, under the names of `OPERATORS`."""
        hyper = {k: v for k, v in self.defaults.items() if k != "lr"}
        for group in self.params:
            if weight in group["params"]:
                hyper.update({k: v for k, v in group.items() if k not in ("params", "lr")})
        if "lambda_coef" in hyper:
            hyper["lambda"] = hyper.pop("lambda_coef")
        return {k: int(v) if isinstance(v, (bool, IntEnum)) else v for k, v in hyper.items()}

    def build(self, weights: Sequence[str], *, clip: bool = True) -> chains.Optimizer:
        """The optimizer for these weights."""
        named = [n for g in self.params for n in g["params"]]
        known = set(weights)
        unknown = [n for n in named if n not in known]
        if unknown:
            raise UnknownNameError("trainable weight", unknown[0], list(weights))
        hyper = self._hyper_of_all(weights)
        return make(self.name, weights, hyper.__getitem__, clip=clip)

    def _hyper_of_all(self, weights: Sequence[str]) -> dict[str, dict[str, Any]]:
        """`hyper_of` of many weights: those that are in no group share it."""
        grouped = {n for g in self.params for n in g["params"]}
        others = self.hyper_of("")
        return {w: self.hyper_of(w) if w in grouped else others for w in weights}


class SGDConfig(_OptimizerConfig):
    """Stochastic gradient descent.

    Args:
        params: must be empty.
        lr: learning rate.
        max_norm_clip: limit of the global gradient norm; None does not clip.
    """

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        max_norm_clip: float | None = None,
    ) -> None:
        if params:
            raise ConfigError("'params' must be an empty list for SGD optimizer")
        super().__init__(SGD, [], {"lr": lr, "max_norm_clip": max_norm_clip})


class AdamConfig(_OptimizerConfig):
    """Adam with weight decay.

    Args:
        params: groups ``{"params": [names], hyperparameter: value, …}``; no learning rate.
        lr: learning rate.
        alpha: decay of the first moment.
        beta: decay of the second moment.
        lambda_coef: weight decay.
        epsilon: keeps the division finite.
        max_norm_clip: limit of the global gradient norm.
        do_bias_correction: whether the moments' start at zero is corrected.
        weight_decay_mode: a `DecayMode`.
    """

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        _not_negative(lr=lr, alpha=alpha, beta=beta, lambda_coef=lambda_coef, epsilon=epsilon)
        super().__init__(
            ADAM,
            list(params) if isinstance(params, tuple) else params,
            {
                "lr": lr, "alpha": alpha, "beta": beta, "lambda_coef": lambda_coef,
                "epsilon": epsilon, "max_norm_clip": max_norm_clip,
                "do_bias_correction": do_bias_correction,
                "weight_decay_mode": DecayMode(weight_decay_mode),
            },
        )  # fmt: skip


AdamConfig.DecayMode = DecayMode  # type: ignore[attr-defined]


class LambConfig(_OptimizerConfig):
    """Lamb: Adam's direction with a step as long as the layer is large.

    Args:
        params: groups, see `AdamConfig`.
        lr: learning rate.
        alpha: decay of the first moment.
        beta: decay of the second moment.
        lambda_coef: weight decay.
        ratio_min: lower limit of ‖weight‖/‖step‖.
        ratio_max: upper limit of it.
        epsilon: keeps the division finite.
        max_norm_clip: limit of the global gradient norm.
        do_bias_correction: whether the moments' start at zero is corrected.
    """

    def __init__(
        self,
        params: Sequence[Mapping[str, Any]] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        _not_negative(lr=lr, alpha=alpha, beta=beta, lambda_coef=lambda_coef, epsilon=epsilon)
        super().__init__(
            LAMB,
            list(params) if isinstance(params, tuple) else params,
            {
                "lr": lr, "alpha": alpha, "beta": beta, "lambda_coef": lambda_coef,
                "ratio_min": ratio_min, "ratio_max": ratio_max, "epsilon": epsilon,
                "max_norm_clip": max_norm_clip, "do_bias_correction": do_bias_correction,
            },
        )  # fmt: skip


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"'{name}' must be a positive number, not {value!r}.")
