"""What `activate` adds to the installed onnxruntime, and how it is taken away again."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .aliases import PYBIND, TOP, Names
from .finder import lazy

Undo = Callable[[], None]
PATCHED: tuple[tuple[str, Names], ...] = (
    ("onnxruntime", TOP),
    ("onnxruntime.capi._pybind_state", PYBIND),
    ("onnxruntime.capi.onnxruntime_pybind11_state", PYBIND),
)


def apply() -> list[Undo]:
    """Add the training names; gives what undoes it, in the order to be called."""
    undo = [_add_names(importlib.import_module(name), names) for name, names in PATCHED]
    undo.append(_add_training_mode())
    return undo


def _add_names(module: ModuleType, names: Names) -> Undo:
    """Let a module answer to more names. Its own come first, and none is stored in it."""
    before = vars(module).get("__getattr__")
    module.__dict__["__getattr__"] = lazy(module.__name__, names, before)

    def undo() -> None:
        if before is None:
            del module.__dict__["__getattr__"]
        else:
            module.__dict__["__getattr__"] = before

    return undo


def _add_training_mode() -> Undo:
    """`RunOptions.training_mode`: kept, and without effect: training graphs say it themselves."""
    options: Any = importlib.import_module("onnxruntime").RunOptions
    if hasattr(options, "training_mode"):
        return lambda: None
    values: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def get(self: Any) -> bool:
        return values.get(self, False)

    def put(self: Any, value: bool) -> None:
        values[self] = bool(value)

    options.training_mode = property(get, put)

    def undo() -> None:
        del options.training_mode

    return undo
