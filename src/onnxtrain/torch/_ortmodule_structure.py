"""Nested arguments and results: taken apart into leaves, and put together again.

A structure is hashable, so that it can tell whether a graph fits the arguments of a call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from .fallback import ORTModuleIOError

CONSTANTS = (type(None), bool, int, float, str, complex, Enum, torch.dtype, torch.device)
TENSOR = "tensor"
Structure = Any
"""`TENSOR`, or a tuple (kind, type or value, names, structures of the parts)."""


def take_apart(value: Any, leaves: list[torch.Tensor]) -> Structure:
    """Append the tensors of a value to `leaves`; gives its structure."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return TENSOR
    kind = type(value)
    if kind is tuple or kind is list:
        return ("sequence", kind, (), tuple([take_apart(v, leaves) for v in value]))
    if isinstance(value, CONSTANTS):
        return ("constant", kind, value, ())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in dataclasses.fields(value))
        parts = tuple(take_apart(getattr(value, n), leaves) for n in names)
        return ("dataclass", kind, names, parts)
    if isinstance(value, Mapping):
        names = tuple(value)
        return ("mapping", kind, names, tuple(take_apart(value[n], leaves) for n in names))
    if isinstance(value, (tuple, list)):  # a named tuple, torch.Size, a subclass
        return ("sequence", kind, (), tuple([take_apart(v, leaves) for v in value]))
    raise ORTModuleIOError(
        f"A value of type {kind.__module__}.{kind.__qualname__} cannot be an argument or result "
        "of a graph: tensors, None, numbers and strings can, and tuples, lists, dictionaries and "
        "dataclasses of them."
    )


def leaf_names(arguments: Structure, parameters: Sequence[str] = ()) -> list[str]:
    """What the tensors of (args, kwargs) are called: by parameter, by place, or by keyword."""
    args, kwargs = arguments[3]
    parts = [(f"argument {i}", part) for i, part in enumerate(args[3])]
    parts[: len(parameters)] = [(n, part) for n, (_, part) in zip(parameters, parts)]
    parts += zip(kwargs[2], kwargs[3])
    return [path for name, part in parts for path in _paths(part, name)]


def constants(structure: Structure) -> list[Any]:
    """What is fixed in a graph: all that is neither a tensor nor None."""
    if structure == TENSOR:
        return []
    kind, _, value, parts = structure
    if kind == "constant":
        return [] if value is None else [value]
    return [c for part in parts for c in constants(part)]


def _paths(structure: Structure, path: str) -> list[str]:
    if structure == TENSOR:
        return [path]
    kind, _, names, parts = structure
    if not parts:  # a constant, or nothing
        return []
    steps = range(len(parts)) if kind == "sequence" else names
    return [p for step, part in zip(steps, parts) for p in _paths(part, f"{path}.{step}")]


def put_together(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The value with this structure and these tensors."""
    return _make(structure, iter(leaves).__next__)


def _make(structure: Structure, take: Callable[[], Any]) -> Any:
    if structure == TENSOR:
        return take()
    kind, cls, info, parts = structure
    if kind == "constant":
        return info
    rebuilt = [_make(part, take) for part in parts]
    if kind == "sequence":
        return cls(*rebuilt) if hasattr(cls, "_fields") else cls(rebuilt)
    if kind == "mapping":
        items = dict(zip(info, rebuilt))
        return items if cls is dict else cls(items)
    return _dataclass(cls, dict(zip(info, rebuilt)))


def _dataclass(cls: type, values: Mapping[str, Any]) -> Any:
    arguments = {f.name for f in dataclasses.fields(cls) if f.init}
    instance = cls(**{n: v for n, v in values.items() if n in arguments})
    for name, value in values.items():
        if name not in arguments:
            object.__setattr__(instance, name, value)
    return instance
