"""The predecessor's optimizer operators, attribute by attribute, as chains of `onnxtrain.optim`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ... import optim
from ...errors import UnknownNameError
from ...hyper import check_amount
from ...optim.optimizer import check_unit
from .parameters import ParameterError, TrainingParameters

ADAM = {
    "alpha": 0.9,
    "beta": 0.999,
    "lambda": 0.0,
    "epsilon": 1e-8,
    "max_norm_clip": 1.0,
    "do_bias_correction": 1,
    "weight_decay_mode": 0,
}
LAMB = {
    "alpha": 0.9,
    "beta": 0.999,
    "lambda": 0.0,
    "epsilon": 1e-6,
    "max_norm_clip": 1.0,
    "do_bias_correction": 0,
    "ratio_min": float("-inf"),
    "ratio_max": float("inf"),
}
SGD = {"momentum": 0.0, "nesterov": 0, "lambda": 0.0}
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "SGDOptimizer": SGD,
    "AdamOptimizer": ADAM,
    "LambOptimizer": LAMB,
}
"""Optimizer → its attributes with their defaults."""


def optimizers_for(
    parameters: TrainingParameters, weights: Sequence[str]
) -> dict[str, optim.Optimizer]:
    """The optimizer of each weight; nothing when none is asked for."""
    name = parameters.training_optimizer_name
    if not name:
        return {}
    if isinstance(name, optim.Optimizer):
        return dict.fromkeys(weights, name)
    if name not in ATTRIBUTES:
        raise ParameterError(
            f"training_optimizer_name is one of {', '.join(ATTRIBUTES)}, not {name!r}."
        )
    for given in (parameters.optimizer_attributes_map, parameters.optimizer_int_attributes_map):
        for weight in given:
            if weight not in weights:
                raise UnknownNameError("trained weight (in an attribute map)", weight, weights)
    return {weight: _optimizer(name, _attributes(parameters, name, weight)) for weight in weights}


def _attributes(parameters: TrainingParameters, name: str, weight: str) -> dict[str, Any]:
    known = ATTRIBUTES[name]
    given = {
        **parameters.optimizer_attributes_map.get(weight, {}),
        **parameters.optimizer_int_attributes_map.get(weight, {}),
    }
    for attribute in given:
        if attribute not in known:
            close = difflib.get_close_matches(attribute, known, 1, 0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"{name} has no attribute {attribute!r} (asked for {weight!r}); it has "
                f"{', '.join(known) or 'none'}.{hint}"
            )
    values = {**known, **given}
    if not parameters.enable_grad_norm_clip:
        values.pop("max_norm_clip", None)
    return values


def _optimizer(name: str, values: Mapping[str, Any]) -> optim.Optimizer:
    if name == "SGDOptimizer":
        return gradient_descent(values["momentum"], bool(values["nesterov"]), values["lambda"])
    limit = values.get("max_norm_clip")
    clip = None if limit in (None, math.inf) else optim.ClipNorm(limit)
    betas, decay = (values["alpha"], values["beta"]), values["lambda"]
    correct = bool(values["do_bias_correction"])
    if name == "AdamOptimizer":
        mode = values["weight_decay_mode"]
        if mode not in (0, 1):
            raise ParameterError(f"weight_decay_mode is 0 or 1, not {mode}.")
        return optim.adamw(
            betas,
            values["epsilon"],
            decay,
            correct_bias=correct,
            form="huggingface" if mode else "torch",
            clip=clip,
        )
    for beta in ("alpha", "beta"):
        check_unit(beta, values[beta])
    check_amount(values["epsilon"], "epsilon", ParameterError)
    return optim.chain(
        optim.scale_by_adam(*betas, values["epsilon"], correct),
        optim.add_decayed_weights(),
        optim.scale_by_trust_ratio(values["ratio_min"], values["ratio_max"]),
        optim.scale_by_learning_rate(),
        name="Lamb",
        weight_decay=decay,
        clip=clip,
    )


def gradient_descent(
    momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> optim.Optimizer:
    """Gradient descent with the rate inside the velocity, as scikit-learn writes it.

        g ← g + λ·w;   v ← μ·v − η·g
        w ← w + v                            (Nesterov: w + μ·v − η·g)

    With a constant rate these are the steps of `optim.sgd`; when the rate changes, the velocity
    keeps the steps that were made.
    """
    check_amount(momentum, "momentum", ParameterError)
    if not momentum:
        if nesterov:
            raise ParameterError("Nesterov's form needs a momentum.")
        return optim.sgd(weight_decay=weight_decay)
    return optim.chain(
        optim.add_decayed_weights(),
        optim.scale_by_learning_rate(),
        optim.trace(momentum, nesterov=nesterov),
        name="SGD",
        hyper={"momentum": momentum, "nesterov": nesterov},
        weight_decay=weight_decay,
    )
