"""Where a module reads the value of a tensor in Python, which an export by tracing fixes.

`if x.sum() > 0:` takes one branch while the module is traced, and the graph has that branch only.
`ValueReads` watches one real call and notes the places, so that they can be told.
"""

from __future__ import annotations

import linecache
import os
import sys
import types
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import OnnxTrainError, outside_level
from .size_rules import only_raises

FixedValues = Literal["warn", "error", "ignore"]
CHOICES: tuple[FixedValues, ...] = ("warn", "error", "ignore")
FIXED_VALUES_VARIABLE = "ORTMODULE_FIXED_VALUES"

READS = frozenset(
    {
        "__array__", "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__",
        "allclose", "equal", "is_nonzero", "item", "numpy", "tolist",
    }
)  # fmt: skip
"""Functions of torch that give a tensor's value to Python."""
RANDOM = frozenset(
    {
        "bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "poisson", "rand",
        "rand_like", "randint", "randint_like", "randn", "randn_like", "random_", "randperm",
        "uniform_",
    }
)  # fmt: skip
"""Functions of torch that draw."""
TRANSLATED = (
    os.path.join("torch", "nn", "utils", "rnn.py"),
    os.path.join("nn", "modules", "rnn.py"),
)
"""Files of torch whose reads of values tracing translates: packed sequences and their layers."""
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class FixedValueWarning(UserWarning):
    """A value that Python read from a tensor is fixed in the exported graph."""


class FixedValuesError(OnnxTrainError, ValueError):
    """What to do about fixed values is none of the known words."""


@dataclass(frozen=True)
class Read:
    """A place where the value of a tensor is read.

    Attributes:
        module: name and type of the innermost module, as ``encoder.gate (Gate)``.
        path, line: where.
    """

    module: str
    path: str
    line: int

    def __str__(self) -> str:
        source = linecache.getline(self.path, self.line).strip()
        return f"{self.module}, {os.path.basename(self.path)}:{self.line}: {source}"


class ValueReads(TorchFunctionMode):
    """Notes where Python reads values that may be others in the next call.

    Those are the values of arguments, parameters, buffers and random draws, and all that is
    computed from them; what is computed from constants is not noted.

    Args:
        module: what is called.
        tensors: its arguments.

    Attributes:
        reads: the places, in the order in which they were first met.
    """

    def __init__(self, module: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(part): name for name, part in module.named_modules()}
        self._changing = WeakIdKeyDictionary()
        for tensor in (*tensors, *module.parameters(), *module.buffers()):
            self._changing[tensor] = True
        self.reads: list[Read] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in RANDOM or self._any_changing((args, kwargs or {})):
            if name in READS:
                self._note()
            written = args[0] if name == "__setitem__" else result
            for tensor in _tensors(written):
                self._changing[tensor] = True
        return result

    def _any_changing(self, values: Any) -> bool:
        return any(tensor in self._changing for tensor in _tensors(values))

    def _note(self) -> None:
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _HERE)):
            if frame.f_code.co_filename.endswith(TRANSLATED):
                return
            frame = frame.f_back
        if frame is None:
            return
        path, line = frame.f_code.co_filename, frame.f_lineno
        read = Read(self._module_of(frame), path, line)
        if read not in self.reads and not only_raises(path, line):
            self.reads.append(read)

    def _module_of(self, frame: types.FrameType | None) -> str:
        """The innermost part of the module whose method is being run."""
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module) and id(owner) in self._names:
                kind, name = type(owner).__name__, self._names[id(owner)]
                return f"{name} ({kind})" if name else kind
            frame = frame.f_back
        return "the loss function"


def _tensors(values: Any) -> Iterable[torch.Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def check_choice(choice: str | None) -> FixedValues | None:
    """What to do about fixed values, as given or in the environment; None if nothing is said."""
    chosen = choice if choice is not None else os.environ.get(FIXED_VALUES_VARIABLE) or None
    if chosen is not None and chosen not in CHOICES:
        where = "fixed_values" if choice is not None else FIXED_VALUES_VARIABLE
        raise FixedValuesError(f"{where} is one of {', '.join(CHOICES)}, not {chosen!r}.")
    return chosen


def describe(name: str, reads: Sequence[Read]) -> str:
    """What is wrong, where, and what to do about it."""
    listed = "".join(f"\n  {read}" for read in reads)
    return (
        f"{name} reads values of tensors in Python, and the exported graph has "
        "them fixed as they were in this call: with other values it computes the same branch, "
        f"which may be the wrong one.{listed}\n"
        "What to do: write the choice with torch.where or torch.cond, or let torch do the work "
        "(ORTModule(..., fallback=True)). To make this an error or to be quiet: "
        f'fixed_values="error" or "ignore", or {FIXED_VALUES_VARIABLE} in the environment.'
    )


def warn(name: str, reads: Sequence[Read]) -> None:
    """Warn, in the name of the line that called onnxtrain."""
    text = describe(name, reads)
    warnings.warn(text, FixedValueWarning, stacklevel=outside_level("torch"))
