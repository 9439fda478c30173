"""When `ORTModule` may let torch do the work, and the errors it raises when it may not."""

from __future__ import annotations

import os
from enum import IntFlag

from ..errors import DeviceError, OnnxTrainError

POLICY_VARIABLE = "ORTMODULE_FALLBACK_POLICY"
RETRY_VARIABLE = "ORTMODULE_FALLBACK_RETRY"


class FallbackPolicy(IntFlag):
    """Reasons for which torch may take over, combined with ``|``.

    By default torch never does: an error says what is wrong. Give a policy to `ORTModule`, or its
    names in the environment variable ``ORTMODULE_FALLBACK_POLICY``, to let it.
    """

    FALLBACK_DISABLE = 1
    """Never."""
    FALLBACK_FORCE_TORCH_FORWARD = 2
    """Always: forward (and with it backward) runs in torch."""
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    """Whenever gradients are wanted; without them onnxruntime runs."""
    FALLBACK_UNSUPPORTED_DEVICE = 8
    """Tensors on a device that the installed onnxruntime has no provider for."""
    FALLBACK_UNSUPPORTED_DATA = 16
    """Arguments or results of a type that no graph can take or give."""
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    """A module that torch cannot export."""
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    """An exported model that has no gradient, or that onnxruntime refuses."""
    FALLBACK_BAD_INITIALIZATION = 128
    """A missing package."""


ANY_REASON = FallbackPolicy(8 | 16 | 32 | 64 | 128)


class ORTModuleFallbackException(OnnxTrainError, RuntimeError):  # noqa: N818 - the name that scripts catch
    """Why a module cannot run in onnxruntime."""

    policy = FallbackPolicy.FALLBACK_DISABLE


class ORTModuleInitException(ORTModuleFallbackException):
    """Something that is needed is not installed."""

    policy = FallbackPolicy.FALLBACK_BAD_INITIALIZATION


class ORTModuleDeviceException(ORTModuleFallbackException, DeviceError):  # noqa: N818 - the name that scripts catch
    """Tensors are on a device that onnxruntime cannot use, or on several."""

    policy = FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE


class ORTModuleIOError(ORTModuleFallbackException, TypeError):
    """An argument or a result has a type that a graph cannot have."""

    policy = FallbackPolicy.FALLBACK_UNSUPPORTED_DATA


class ORTModuleTorchModelException(ORTModuleFallbackException, NotImplementedError):  # noqa: N818 - the name that scripts catch
    """The module cannot be exported, or not without changing what it does."""

    policy = FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL


class ORTModuleONNXModelException(ORTModuleFallbackException, NotImplementedError):  # noqa: N818 - the name that scripts catch
    """The exported model has no gradient or does not run in onnxruntime."""

    policy = FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL


class PolicyError(OnnxTrainError, ValueError):
    """A fallback policy that does not exist."""


def read_policy(choice: FallbackPolicy | str | bool | None) -> FallbackPolicy:
    """The policy: as given, else from the environment, else none.

    Args:
        choice: a policy, names joined by ``|``, True for every reason, False for none.
    """
    if choice is None:
        choice = os.environ.get(POLICY_VARIABLE, "")
    if isinstance(choice, bool):
        return ANY_REASON if choice else FallbackPolicy.FALLBACK_DISABLE
    if isinstance(choice, str):
        policy = FallbackPolicy(0)
        for name in choice.replace(",", "|").split("|"):
            policy |= _by_name(name.strip()) if name.strip() else FallbackPolicy(0)
        choice = policy or FallbackPolicy.FALLBACK_DISABLE
    if not isinstance(choice, int):
        raise PolicyError(f"A fallback policy is a FallbackPolicy or names, not {choice!r}.")
    policy = FallbackPolicy(choice)
    if policy & FallbackPolicy.FALLBACK_DISABLE and policy != FallbackPolicy.FALLBACK_DISABLE:
        raise PolicyError("FALLBACK_DISABLE cannot be combined with other fallback policies.")
    return policy


def _by_name(name: str) -> FallbackPolicy:
    full = name if name.startswith("FALLBACK_") else f"FALLBACK_{name}"
    if full not in FallbackPolicy.__members__:
        known = ", ".join(FallbackPolicy.__members__)
        raise PolicyError(f"There is no fallback policy {name!r}. Known: {known}.")
    return FallbackPolicy[full]


def read_retry() -> bool:
    """Whether every call tries onnxruntime again after a fallback (`ORTMODULE_FALLBACK_RETRY`)."""
    return os.environ.get(RETRY_VARIABLE, "0").lower() in {"1", "true", "yes"}
