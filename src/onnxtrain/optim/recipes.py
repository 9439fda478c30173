"""Optimizers by name: one row each, and beside them what the predecessors' operators took.

A new optimizer is a function that gives an `Optimizer`, in a file of its own, and a row in
`RECIPES`: the command line, the estimators and `onnxtrain.onnxblock.optim` find it there.

The predecessor had two generations of Adam, and they differ on purpose: `onnxblock.optim.AdamW`
follows Hugging Face (ε = 1e-6, decay after the step, no clipping: the preset ``"onnxruntime"`` of
`adamw`), and the operator of `TrainingSession` and `ORTTrainer` follows PyTorch (ε = 1e-8, decay
in the step) and clips gradients at norm 1. Lamb's operator does not correct its moments, our
`lamb` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..hyper import check_amount
from .optimizer import ClipNorm, Optimizer, OptimizerError, chain, check_unit
from .optimizers import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adam_8bit,
    adamw,
    adamw_8bit,
    lamb,
    lion,
    rmsprop,
    sgd,
)
from .transforms import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_trust_ratio,
    trace,
)


@dataclass(frozen=True)
class Recipe:
    """An optimizer that can be asked for by name.

    Attributes:
        make: gives the `Optimizer`; its arguments are the hyperparameters.
        block: its name in `onnxtrain.onnxblock.optim`.
    """

    make: Callable[..., Optimizer]
    block: str


RECIPES: dict[str, Recipe] = {
    "adamw": Recipe(adamw, "AdamW"),
    "adam": Recipe(adam, "Adam"),
    "adamw_8bit": Recipe(adamw_8bit, "AdamW8bit"),
    "adam_8bit": Recipe(adam_8bit, "Adam8bit"),
    "sgd": Recipe(sgd, "SGD"),
    "rmsprop": Recipe(rmsprop, "RMSprop"),
    "adagrad": Recipe(adagrad, "Adagrad"),
    "adadelta": Recipe(adadelta, "Adadelta"),
    "lamb": Recipe(lamb, "Lamb"),
    "lion": Recipe(lion, "Lion"),
    "adafactor": Recipe(adafactor, "Adafactor"),
}
"""Every optimizer of this package."""

OPERATORS: dict[str, dict[str, float | int | None]] = {
    "SGDOptimizer": {"momentum": 0.0, "nesterov": 0, "lambda": 0.0, "max_norm_clip": None},
    "AdamOptimizer": {
        "alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-8, "max_norm_clip": 1.0,
        "do_bias_correction": 1, "weight_decay_mode": 0,
    },
    "LambOptimizer": {
        "alpha": 0.9, "beta": 0.999, "lambda": 0.0, "epsilon": 1e-6, "max_norm_clip": 1.0,
        "do_bias_correction": 0, "ratio_min": -math.inf, "ratio_max": math.inf,
    },
}  # fmt: skip
"""Optimizers of `TrainingSession` and `ORTTrainer`: their attributes with the defaults they had.

Momentum and decay of SGD are new: the predecessor's operator had no attribute at all.
"""


def from_operator(name: str, attributes: Mapping[str, Any]) -> Optimizer:
    """The optimizer that an operator of the predecessor was.

    Args:
        name: one of `OPERATORS`.
        attributes: where they differ from the defaults; ``max_norm_clip=None`` does not clip.

    Example:
        >>> from_operator("AdamOptimizer", {"lambda": 0.1}).clip
        ClipNorm(max_norm=1.0)
    """
    values = {**OPERATORS[name], **attributes}
    limit, decay = values["max_norm_clip"], float(values["lambda"])
    clip = None if limit in (None, math.inf) else ClipNorm(limit)
    if name == "SGDOptimizer":
        momentum = gradient_descent(values["momentum"], bool(values["nesterov"]), decay)
        return momentum.replace(clip=clip)
    betas, epsilon = (float(values["alpha"]), float(values["beta"])), float(values["epsilon"])
    correct_bias = bool(values["do_bias_correction"])
    if name == "AdamOptimizer":
        mode = values["weight_decay_mode"]
        if mode not in (0, 1):
            raise OptimizerError(f"weight_decay_mode is 0 or 1, not {mode}.")
        return adamw(
            betas,
            epsilon,
            decay,
            correct_bias=correct_bias,
            form="huggingface" if mode else "torch",
            clip=clip,
        )
    for beta in ("alpha", "beta"):
        check_unit(beta, values[beta])
    check_amount(epsilon, "epsilon", OptimizerError)
    return chain(
        scale_by_adam(*betas, epsilon, correct_bias),
        add_decayed_weights(),
        scale_by_trust_ratio(float(values["ratio_min"]), float(values["ratio_max"])),
        scale_by_learning_rate(),
        name="Lamb",
        weight_decay=decay,
        clip=clip,
    )


def gradient_descent(
    momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Optimizer:
    """Gradient descent with the rate inside the velocity, as scikit-learn writes it.

        g ← g + λ·w;   v ← μ·v − η·g
        w ← w + v                            (Nesterov: w + μ·v − η·g)

    With a constant rate these are the steps of `optim.sgd`; when the rate changes, the velocity
    keeps the steps that were made.
    """
    check_amount(momentum, "momentum", OptimizerError)
    if not momentum:
        if nesterov:
            raise OptimizerError("Nesterov's form needs a momentum.")
        return sgd(weight_decay=weight_decay)
    return chain(
        add_decayed_weights(),
        scale_by_learning_rate(),
        trace(momentum, nesterov=nesterov),
        name="SGD",
        hyper={"momentum": momentum, "nesterov": nesterov},
        weight_decay=weight_decay,
    )
