"""The optimizers people know, each one line of chain with its equations.

η is the learning rate, fed at every step; λ the weight decay; g the gradient; t the number of the
step, from 1 on. All states start at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from .adafactor import scale_by_factored_rms
from .optimizer import (
    ClipNorm,
    ClipValue,
    Group,
    Optimizer,
    OptimizerError,
    chain,
    check_not_negative,
    check_unit,
)
from .transform import Transform
from .transforms import (
    FIRST,
    add_decayed_weights,
    scale_by_adadelta,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_rms,
    scale_by_sign_of_momentum,
    scale_by_sum_of_squares,
    scale_by_trust_ratio,
    shrink_updated_weights,
    subtract_decayed_weights,
    trace,
)

Clip = ClipNorm | ClipValue | None
Moments = Literal["float32", "float16", "int8"]


class AdamWPreset(NamedTuple):
    """What `adamw` takes where the caller does not say."""

    form: Literal["huggingface", "torch"]
    eps: float
    weight_decay: float


ADAMW_PRESETS = {
    "onnxruntime": AdamWPreset("huggingface", 1e-6, 0.0),
    "torch": AdamWPreset("torch", 1e-8, 0.01),
}
"""The predecessor's AdamW (`onnxblock.optim.AdamW`, `FusedAdam`) and PyTorch's."""

ADAMW_EPS = {preset.form: preset.eps for preset in ADAMW_PRESETS.values()}


def sgd(
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Stochastic gradient descent, as `torch.optim.SGD`.

        g ← g + λ·p
        b ← μ·b + (1 − dampening)·g          (b ← g at the first step)
        p ← p − η·b                          (Nesterov: p − η·(g + μ·b))

    Without momentum there is no state.

    Example:
        >>> from onnxtrain import optim
        >>> optim.sgd(momentum=0.9, nesterov=True).states
        ('first_order_moments',)
    """
    check_not_negative(momentum=momentum, dampening=dampening, weight_decay=weight_decay)
    if nesterov and (momentum == 0 or dampening != 0):
        raise OptimizerError("Nesterov's form needs a momentum and no dampening.")
    links: list[Transform] = [add_decayed_weights()]
    if momentum:
        links.append(trace(momentum, dampening, nesterov))
    return chain(
        *links,
        scale_by_learning_rate(),
        name="SGD",
        hyper={"momentum": momentum, "dampening": dampening, "nesterov": nesterov},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def adamw(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float | None = None,
    weight_decay: float | None = None,
    *,
    preset: Literal["onnxruntime", "torch"] = "onnxruntime",
    correct_bias: bool = True,
    form: Literal["huggingface", "torch"] | None = None,
    clip: Clip = None,
    groups: Sequence[Group] = (),
    moments: Moments = "float32",
) -> Optimizer:
    """Adam with decoupled weight decay, in the two forms that are in use.

        m ← β₁·m + (1 − β₁)·g        v ← β₂·v + (1 − β₂)·g²

    ``form="huggingface"`` (ε = 1e-6, what onnxruntime-training did):
        p ← p − η·√(1 − β₂ᵗ)/(1 − β₁ᵗ) · m/(√v + ε)
        p ← p − η·λ·p
    ``form="torch"`` (`torch.optim.AdamW`, ε = 1e-8):
        p ← p − η·λ·p
        p ← p − η · (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)

    A preset is a form with a weight decay; what you give besides goes before it:

        preset             form           ε       λ
        "onnxruntime"      huggingface    1e-6    0        the default, as the predecessor
        "torch"            torch          1e-8    0.01     `torch.optim.AdamW()`

    ``moments="int8"`` stores m and v in a byte each, with a scale for every 256 of them, and
    ``"float16"`` in two bytes; the arithmetic is that of float32. See the guide on optimizers.

    Example:
        >>> from onnxtrain import optim
        >>> optim.adamw(weight_decay=0.01, clip=optim.ClipNorm(1.0)).states
        ('first_order_moments', 'second_order_moments')
        >>> optim.adamw(preset="torch").weight_decay
        0.01
    """
    if preset not in ADAMW_PRESETS:
        raise OptimizerError(f"preset is one of {', '.join(ADAMW_PRESETS)}, not {preset!r}.")
    form = ADAMW_PRESETS[preset].form if form is None else form
    if form not in ADAMW_EPS:
        raise OptimizerError(f"form is 'huggingface' or 'torch', not {form!r}.")
    eps = ADAMW_EPS[form] if eps is None else eps
    weight_decay = ADAMW_PRESETS[preset].weight_decay if weight_decay is None else weight_decay
    torch_form = form == "torch"
    _check_adam(betas, eps, weight_decay)
    adam = scale_by_adam(*betas, eps, correct_bias, eps_inside_correction=torch_form)
    links: tuple[Transform, ...] = (
        (adam, add_decayed_weights(), scale_by_learning_rate())
        if torch_form
        else (adam, scale_by_learning_rate(), shrink_updated_weights())
    )
    return chain(
        *links,
        name="AdamW",
        hyper={"betas": list(betas), "eps": eps, "correct_bias": correct_bias, "form": form},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    ).with_moments(moments)


def adam(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
    moments: Moments = "float32",
) -> Optimizer:
    """Adam with L2 regularisation, as `torch.optim.Adam`.

    g ← g + λ·p
    m ← β₁·m + (1 − β₁)·g        v ← β₂·v + (1 − β₂)·g²
    p ← p − η · (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε)

    `moments` is that of `adamw`.
    """
    _check_adam(betas, eps, weight_decay)
    return chain(
        add_decayed_weights(),
        scale_by_adam(*betas, eps),
        scale_by_learning_rate(),
        name="Adam",
        hyper={"betas": list(betas), "eps": eps},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    ).with_moments(moments)


def adamw_8bit(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float | None = None,
    weight_decay: float | None = None,
    *,
    preset: Literal["onnxruntime", "torch"] = "onnxruntime",
    correct_bias: bool = True,
    form: Literal["huggingface", "torch"] | None = None,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """`adamw` with its moments in a byte each: what bitsandbytes calls AdamW8bit."""
    return adamw(
        betas, eps, weight_decay, preset=preset, correct_bias=correct_bias, form=form, clip=clip,
        groups=groups, moments="int8",
    )  # fmt: skip


def adam_8bit(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """`adam` with its moments in a byte each: what bitsandbytes calls Adam8bit."""
    return adam(betas, eps, weight_decay, clip=clip, groups=groups, moments="int8")


def lamb(
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Lamb: Adam's direction, with a step as long as the layer is large.

    u = (m/(1 − β₁ᵗ)) / (√(v/(1 − β₂ᵗ)) + ε) + λ·p
    p ← p − η · ‖p‖/‖u‖ · u              (factor 1 where a norm is 0)
    """
    _check_adam(betas, eps, weight_decay)
    return chain(
        scale_by_adam(*betas, eps),
        add_decayed_weights(),
        scale_by_trust_ratio(),
        scale_by_learning_rate(),
        name="Lamb",
        hyper={"betas": list(betas), "eps": eps},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def adagrad(
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adagrad, as `torch.optim.Adagrad`.

    g ← g + λ·p;   s ← s + g²
    p ← p − η/(1 + (t − 1)·decay) · g/(√(s₀ + s) + ε)
    """
    check_not_negative(
        lr_decay=lr_decay, weight_decay=weight_decay, initial=initial_accumulator_value, eps=eps
    )
    return chain(
        add_decayed_weights(),
        scale_by_sum_of_squares(lr_decay, initial_accumulator_value, eps),
        scale_by_learning_rate(),
        name="Adagrad",
        hyper={
            "lr_decay": lr_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "eps": eps,
        },
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def rmsprop(
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """RMSprop, as `torch.optim.RMSprop`.

    g ← g + λ·p;   v ← α·v + (1 − α)·g²
    u = g/(√v + ε)                       (centered: √(v − m²) with m ← α·m + (1 − α)·g)
    b ← μ·b + u;   p ← p − η·b           (without momentum: p − η·u)
    """
    check_unit("alpha", alpha)
    check_not_negative(eps=eps, weight_decay=weight_decay, momentum=momentum)
    links: list[Transform] = [add_decayed_weights(), scale_by_rms(alpha, eps, centered)]
    if momentum:
        links.append(trace(momentum))
    return chain(
        *links,
        scale_by_learning_rate(),
        name="RMSprop",
        hyper={"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def adadelta(
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adadelta, as `torch.optim.Adadelta`.

    g ← g + λ·p;   v ← ρ·v + (1 − ρ)·g²
    u = √(d + ε)/√(v + ε) · g;   d ← ρ·d + (1 − ρ)·u²
    p ← p − η·u
    """
    check_unit("rho", rho)
    check_not_negative(eps=eps, weight_decay=weight_decay)
    return chain(
        add_decayed_weights(),
        scale_by_adadelta(rho, eps),
        scale_by_learning_rate(),
        name="Adadelta",
        hyper={"rho": rho, "eps": eps},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def lion(
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Lion: the sign of a momentum.

    u = sign(β₁·m + (1 − β₁)·g);   m ← β₂·m + (1 − β₂)·g
    p ← p − η·(u + λ·p)
    """
    _check_adam(betas, 0.0, weight_decay)
    return chain(
        scale_by_sign_of_momentum(*betas),
        add_decayed_weights(),
        scale_by_learning_rate(),
        name="Lion",
        hyper={"betas": list(betas)},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def adafactor(
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    *,
    clip: Clip = None,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adafactor, as `torch.optim.Adafactor`: rows + columns of memory instead of rows × columns.

    The equations stand at `scale_by_factored_rms`; the decay is ``p ← p − η·λ·p`` before them.
    """
    eps1 = float(np.finfo(np.float32).eps) if eps[0] is None else eps[0]
    check_not_negative(eps1=eps1, eps2=eps[1], weight_decay=weight_decay)
    if not (-math.inf < beta2_decay <= 0 and 1.0 <= d < math.inf):
        raise OptimizerError("Adafactor needs beta2_decay ≤ 0 and d ≥ 1, both finite.")
    return chain(
        scale_by_factored_rms(beta2_decay, eps1, eps[1], d),
        subtract_decayed_weights(),
        name="Adafactor",
        hyper={"beta2_decay": beta2_decay, "eps": [eps1, eps[1]], "d": d},
        weight_decay=weight_decay,
        clip=clip,
        groups=groups,
    )


def _check_adam(betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    if len(betas) != 2:
        raise OptimizerError(f"betas are two numbers, not {betas!r}.")
    check_unit("betas[0]", betas[0])
    check_unit("betas[1]", betas[1])
    check_not_negative(eps=eps, weight_decay=weight_decay)


__all__ = [
    "FIRST", "adadelta", "adafactor", "adagrad", "adam", "adamw", "lamb", "lion", "rmsprop", "sgd",
]  # fmt: skip
