"""The two halves of a `torch.autograd.Function`, called one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx


class Context(FunctionCtx):
    """What forward hands to backward.

    Args:
        args: of the function.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self.needs_input_grad = tuple(is_float(a) for a in args)
        self.to_save: tuple[Any, ...] = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What forward has saved, as backward asks for it."""
        return self.to_save


def is_float(value: Any) -> bool:
    """Whether this is a tensor that may have a gradient."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def call_forward(cls: Any, args: Sequence[Any]) -> tuple[Any, Context]:
    """The value of a function, and what its backward is given."""
    context = Context(args)
    if cls.setup_context is torch.autograd.Function.setup_context:
        return cls.forward(context, *args), context
    value = cls.forward(*args)
    cls.setup_context(context, tuple(args), value)
    return value, context


def call_backward(cls: Any, context: Context, *grads: torch.Tensor) -> list[torch.Tensor | None]:
    """What the backward makes of the gradients of its results, for each argument."""
    answer = cls.backward(context, *grads)
    return list(answer) if isinstance(answer, (tuple, list)) else [answer]
