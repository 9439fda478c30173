"""Whether a module is still what its graphs were made for, which every call asks.

A small module's step takes a hundred microseconds, and torch's own code has had the processor's
caches in between: each line of Python costs several times what it does in a loop. So parts and
tensors are looked through by functions of C, and what cannot have changed is not made anew.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_all, _values = itertools.chain.from_iterable, dict.values
_training, _requires_grad = operator.attrgetter("training"), operator.attrgetter("requires_grad")
_kinds = operator.attrgetter("dtype", "shape", "requires_grad")
_find_guards = operator.attrgetter("_dynamo.guards.TensorGuards")

State = tuple[tuple[bool, ...], tuple[bool, ...]]


class Watch:
    """A module's parts and tensors as they were at the last look.

    Attributes:
        names: of all parameters and buffers.
        tensors: those.
        state: modes of all parts, and which tensors have a gradient. As long as it is the same
            object these are as they were, and so are types and sizes of the tensors.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._parts: list[torch.nn.Module] = []
        self._filled: list[dict[str, Any]] = []
        self._empty: list[dict[str, Any]] = []
        self._held: list[Any] = []
        self._ids: list[int] = []
        self._modes: list[bool] = []
        self._hold: Callable[..., bool] = _never
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.state: State = ((), ())

    def look(self) -> bool:
        """See what has changed; whether parts or tensors are other objects than before."""
        is_other = any(self._empty) or not self._held
        if is_other or list(map(id, _all(map(_values, self._filled)))) != self._ids:
            is_other = True
            self._find()
        modes = list(map(_training, self._parts))
        if modes != self._modes or not self._hold(*self.tensors):
            self._modes = modes
            self.state = tuple(modes), tuple(map(_requires_grad, self.tensors))
            self._hold = holding(self.tensors)
        return is_other

    def parts_are_as_now(self) -> Callable[[], bool]:
        """Whether the module has the same objects in it, in the same modes, as at the last look."""
        filled, empty, ids = self._filled, self._empty, self._ids
        parts, modes, held = self._parts, self._modes, self._held

        def same() -> bool:
            return bool(
                held
                and list(map(id, _all(map(_values, filled)))) == ids
                and list(map(_training, parts)) == modes
                and not any(empty)
            )

        return same

    def make(self) -> tuple[list[Any], list[type]]:
        """What other graphs are needed for if it changes: names, sizes and types of everything."""
        tensors = [(n, t.shape, t.dtype, t.device) for n, t in zip(self.names, self.tensors)]
        return tensors, [type(part) for part in self._parts]

    def let_go(self) -> None:
        """Look for everything again next time."""
        self._held = []

    def _find(self) -> None:
        module = self._module
        self._parts = list(module.modules())
        dicts = [d for p in self._parts for d in (p._parameters, p._buffers, p._modules)]
        self._filled, self._empty = [d for d in dicts if d], [d for d in dicts if not d]
        # Held, so that no other object gets the same id
        self._held = [module, *(v for d in self._filled for v in d.values())]
        self._ids = list(map(id, _all(map(_values, self._filled))))
        by_name = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.names, self.tensors = list(by_name), list(by_name.values())
        self._hold = _never


def holding(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether tensors still have the types, sizes, strides and `requires_grad` that they have now.

    Asked in C, by what torch's compiler guards its graphs with, where this torch has it: a third
    of a microsecond for the six tensors of a small network, instead of one. The guards also hold
    only under the autocast and inference modes of their making.
    """
    if not tensors:
        return _always
    return guards_for(tensors) or holding_in_python(tensors)


def guards_for(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """As `holding`, in C only: None where there is no such thing, or two tensors are one.

    What is asked about may be anything; it does not hold for what is no tensor.
    """
    sizes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    try:
        guards = _find_guards(torch._C)
        check = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        holds = check(*tensors)
    except Exception:  # no public name: another version may have it elsewhere, or otherwise
        return None
    return check if holds else None


def holding_in_python(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """As `holding`, without torch's guards."""
    noted = list(map(_kinds, tensors))
    strides = list(map(torch.Tensor.stride, tensors))

    def hold(*now: torch.Tensor) -> bool:
        return list(map(_kinds, now)) == noted and list(map(torch.Tensor.stride, now)) == strides

    return hold


def _never(*_: torch.Tensor) -> bool:
    return False


def _always(*_: torch.Tensor) -> bool:
    return True
