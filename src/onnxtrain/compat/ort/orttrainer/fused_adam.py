"""Adam in one pass over all parameters, and quicker overflow checks for half-precision training."""

from __future__ import annotations

import logging
import math
import types
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import torch

from ....errors import OnnxTrainError
from ....hyper import check_amount, check_rate
from ....optim.optimizers import ADAMW_PRESETS
from ....runtime.step.kernels import corrections

log = logging.getLogger(__name__)
CORRECTED = 1e9
"""As a number of steps: so many that the moments' start at zero is forgotten."""


class AdamWMode(IntEnum):
    """How weight decay enters."""

    ADAM_L2_REGULARIZATION = 0
    """As in `torch.optim.Adam`: the decay is part of the gradient."""
    ADAMW_TRANSFORMERS = 1
    """As in Hugging Face's AdamW: weights are decayed after the step."""
    ADAMW_TORCH = 2
    """As in `torch.optim.AdamW`: weights are decayed before the step."""


class OptimizerError(OnnxTrainError, ValueError, RuntimeError):
    """Hyperparameters or gradients that the optimizer cannot work with."""


class FusedAdam(torch.optim.Optimizer):
    """Adam whose update runs as one kernel over all parameters.

    Args:
        params: parameters, or groups of them with hyperparameters of their own.
        lr: learning rate.
        bias_correction: whether the moments' start at zero is corrected.
        betas: decay of the two moments.
        eps: keeps the division finite.
        adam_w_mode: an `AdamWMode`.
        weight_decay: weight decay.
        set_grad_none: whether `zero_grad` drops gradients instead of zeroing them.

    Example:
        >>> import torch
        >>> w = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = FusedAdam([w], lr=0.5)
        >>> w.sum().backward()
        >>> _ = optimizer.step()
        >>> w.detach().round(decimals=4)
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = ADAMW_PRESETS["onnxruntime"].eps,
        adam_w_mode: AdamWMode = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = ADAMW_PRESETS["onnxruntime"].weight_decay,
        set_grad_none: bool = True,
    ) -> None:
        check_rate(lr, "lr", OptimizerError)
        check_amount(eps, "eps", OptimizerError)
        check_amount(weight_decay, "weight_decay", OptimizerError)
        if not all(0 <= beta < 1 for beta in betas):
            raise OptimizerError(f"betas must be in [0, 1): {betas}.")
        self._mode = AdamWMode(adam_w_mode)
        self._set_grad_none = set_grad_none
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": bias_correction,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
            },
        )

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Forget the gradients: drop them, or set them to zero."""
        super().zero_grad(self._set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient.

        Args:
            closure: computes the loss again and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            alike: dict[tuple[Any, Any], list[torch.Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise OptimizerError("FusedAdam does not work with sparse gradients.")
                alike.setdefault((p.dtype, p.device), []).append(p)
            for weights in alike.values():
                self._update(group, weights)
        return loss

    def _update(self, group: dict[str, Any], weights: list[torch.Tensor]) -> None:
        for p in weights:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
        step = float(group["step"]) if group["bias_correction"] else CORRECTED
        (beta1, beta2), decay, eps = group["betas"], group["weight_decay"], group["eps"]
        after = self._mode is AdamWMode.ADAMW_TRANSFORMERS
        kernel = torch._fused_adamw_
        if self._mode is AdamWMode.ADAM_L2_REGULARIZATION:
            kernel = torch._fused_adam_
        elif after:  # (√v + ε)/√c is what stands below the fraction there, √v/√c + ε here
            eps /= corrections(beta1, beta2, step)[1]
        device = weights[0].device
        steps = [torch.tensor(step, device=device)] * len(weights)
        kernel(
            weights,
            [p.grad for p in weights if p.grad is not None],
            [self.state[p]["exp_avg"] for p in weights],
            [self.state[p]["exp_avg_sq"] for p in weights],
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0 if after else decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )
        if after and decay:
            torch._foreach_mul_(weights, 1.0 - group["lr"] * decay)


# --- half precision -------------------------------------------------------------------------------


def any_not_finite(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether an element of any tensor is NaN or infinite; one kernel over all of them."""
    nonempty = [t for t in tensors if t is not None and t.numel()]
    if not nonempty:
        return False
    largest = torch._foreach_norm(nonempty, math.inf)
    return not bool(torch.stack([n.float() for n in largest]).isfinite().all())


def FP16_Optimizer(optimizer: Any, **kwargs: Any) -> Any:
    """Make the overflow check of a half-precision optimizer one pass over all gradients.

    Optimizers of DeepSpeed (ZeRO stage 1 and 2, ``has_overflow_serial`` and
    ``has_overflow_partitioned_grads_serial``), and any other that checks its gradients in
    ``has_overflow_serial(parameters)`` or ``_check_overflow()``, get a faster method of that name.
    Others come back as they are, with a warning.

    Args:
        optimizer: the optimizer; it is changed.
        kwargs: accepted for scripts that name functions of Megatron's model parallel package.

    Returns:
        The optimizer.
    """
    replaced = []
    for name, method in _OVERFLOW_CHECKS.items():
        if callable(getattr(optimizer, name, None)):
            setattr(optimizer, name, types.MethodType(method, optimizer))
            replaced.append(name)
    if not replaced:
        log.warning(
            "%s has none of the overflow checks %s; it is left as it is.",
            type(optimizer).__name__,
            ", ".join(_OVERFLOW_CHECKS),
        )
    return optimizer


def _serial(self: Any, params: Iterable[torch.Tensor], is_grad_list: bool = False) -> bool:
    return any_not_finite(params if is_grad_list else (p.grad for p in params))


def _partitioned(self: Any) -> bool:
    groups = range(len(self.bit16_groups))
    return any_not_finite(g for i in groups for g in self.averaged_gradients[i])


def _check(self: Any, *unused: Any, **ignored: Any) -> bool:
    groups = self.param_groups
    self.overflow = any_not_finite(p.grad for group in groups for p in group["params"])
    return bool(self.overflow)


_OVERFLOW_CHECKS: dict[str, Callable[..., bool]] = {
    "has_overflow_serial": _serial,
    "has_overflow_partitioned_grads_serial": _partitioned,
    "_check_overflow": _check,
}
