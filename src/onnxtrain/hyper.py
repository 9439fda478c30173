"""What a learning rate, a limit or a decay may be: one answer for every door.

NaN compares false with everything, so ``rate < 0`` lets it pass; and a rate that is finite as a
Python number may be infinite in single precision, where training happens.
"""

from __future__ import annotations

import math
from typing import Any

from .errors import InputError, OnnxTrainError

LARGEST = 3.4028234663852886e38
"""The largest number of single precision."""


def check_rate(
    value: Any, what: str = "The learning rate", error: type[OnnxTrainError] = InputError
) -> float:
    """A learning rate as a float; raises `error` unless it is finite and not negative.

    Example:
        >>> check_rate(0)
        0.0
        >>> check_rate(-1, "lr")
        Traceback (most recent call last):
        onnxtrain.errors.InputError: lr must be 0 or a positive finite number, not -1.
    """
    number = _number(value, what, error)
    if not 0.0 <= number <= LARGEST:
        raise error(f"{what} must be 0 or a positive finite number, not {value!r}.")
    return number


def check_limit(
    value: Any, what: str, error: type[OnnxTrainError] = InputError, *, infinite: bool = False
) -> float:
    """A limit of gradients as a float; raises `error` unless it is positive.

    Zero would stop the training, a negative limit turns the gradient round, and NaN limits nothing.

    Args:
        value: the limit.
        what: its name, for the message.
        error: the class to raise.
        infinite: whether infinity may stand for "no limit"; a file cannot hold it.
    """
    number = _number(value, what, error)
    if number == math.inf and infinite:
        return number
    if not 0.0 < number <= LARGEST:
        hint = "or math.inf for no limit" if infinite else "or left out for no limit"
        raise error(f"{what} must be a positive number, {hint}, not {value!r}.")
    return number


def check_amount(value: Any, what: str, error: type[OnnxTrainError] = InputError) -> float:
    """A decay, an epsilon, a momentum … as a float; raises `error` unless finite and not negative.

    Example:
        >>> check_amount(-1, "weight_decay")
        Traceback (most recent call last):
        onnxtrain.errors.InputError: weight_decay must not be negative, infinite or NaN, but is -1.
    """
    number = _number(value, what, error)
    if not 0.0 <= number <= LARGEST:
        raise error(f"{what} must not be negative, infinite or NaN, but is {value!r}.")
    return number


def _number(value: Any, what: str, error: type[OnnxTrainError]) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise error(f"{what} must be a number, not {value!r}.") from None
