"""Functions of a module that bring a backward of their own, which no exporter writes down."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction


def custom_functions(result: Any) -> list[str]:
    """Names of the `torch.autograd.Function` classes that a result was computed with."""
    waiting = [t.grad_fn for t in _tensors(result) if t.grad_fn is not None]
    seen, names = set(waiting), dict[str, None]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction):
            names[type(node).__name__.removesuffix("Backward")] = None
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return list(names)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a nested result."""
    parts: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = vars(value).values()
    for part in parts:
        yield from _tensors(part)


def is_checkpoint(function: type) -> bool:
    """Whether this is the function of `torch.utils.checkpoint`."""
    return issubclass(function, CheckpointFunction)


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """Run what `torch.utils.checkpoint` wraps as it is: a graph keeps or computes again by itself.

    Its reentrant form is an autograd function whose forward lets no gradient through.
    """

    def plain(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)

    saved = CheckpointFunction.__dict__.get("apply")
    setattr(CheckpointFunction, "apply", staticmethod(plain))  # noqa: B010 - a method to mypy
    try:
        yield
    finally:
        if saved is None:
            delattr(CheckpointFunction, "apply")
        else:
            setattr(CheckpointFunction, "apply", saved)  # noqa: B010 - as above
