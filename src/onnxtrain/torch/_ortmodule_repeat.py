"""A call like the one before: whether it is, and what it runs, without looking anything up.

A training loop calls a module with arguments of the same types and sizes again and again. Between
two calls torch's own code has had the processor's caches, so that every Python function on the way
costs several times what it does in a loop. So what such a call needs is put together once, and one
function asks whether all is as it was and runs the graphs. Whatever else is called goes the long
way, through `Cache`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from onnxruntime.capi import _pybind_state as ort

from ..runtime.step.halves import Vector
from ._ortmodule_memory import is_shared
from ._ortmodule_run import run_now
from ._ortmodule_watch import guards_for

if TYPE_CHECKING:
    from ._ortmodule_cache import Kind
    from ._ortmodule_memory import Bound
    from ._ortmodule_watch import Watch

_address, _to_dlpack = torch.Tensor.data_ptr, torch._C._to_dlpack
_from_torch = ort.OrtValue.from_dlpack
_is_grad_enabled = torch.is_grad_enabled


class Repeat:
    """What a call runs whose arguments are tensors like those of the call before.

    Nothing in it changes, so that several threads may use it. It is dropped with the graphs, and
    when other calls are repeated.

    Attributes:
        kind: the graphs.
        is_tensor: whether a call gives a tensor.

    Args:
        kind: the graphs.
        watch: what the module is like.
        bound: the module's tensors for these graphs.
        inputs: the arguments.
        check: whether others, and the module's tensors behind them, are of the same kind.
    """

    __slots__ = (
        "_addresses",
        "_bound",
        "_check",
        "_count",
        "_graded",
        "_inputs",
        "_is_as_it_was",
        "_is_direct",
        "_read",
        "_tensors",
        "_values",
        "is_tensor",
        "kind",
    )

    def __init__(
        self,
        kind: Kind,
        watch: Watch,
        bound: Bound,
        inputs: Sequence[torch.Tensor],
        check: Callable[..., bool],
    ) -> None:
        self.kind, self._bound, self._count = kind, bound, len(inputs)
        self.is_tensor = kind.is_tensor
        self._graded = torch.is_grad_enabled()
        graphs = kind.graphs
        self._inputs = graphs.from_inputs
        is_usual = graphs.differentiable and not (graphs.draws or graphs.updated)
        self._is_direct = is_usual and all(map(is_shared, inputs))
        self._is_as_it_was = watch.parts_are_as_now()
        self._check, self._tensors = check, tuple(watch.tensors)
        self._read, self._values, self._addresses = bound.tensors, bound.values, bound.addresses

    def __call__(self, inputs: Sequence[Any]) -> Sequence[torch.Tensor] | None:
        """The graph's outputs; None if the call, or the module, is another one."""
        if (
            len(inputs) != self._count
            or _is_grad_enabled() is not self._graded
            or not self._is_as_it_was()
            or not self._check(*inputs, *self._tensors)
            or list(map(_address, self._read)) != self._addresses
        ):
            return None
        kind = self.kind
        graphs = kind.graphs
        read = [inputs[i] for i in self._inputs]
        if self._is_direct:
            feeds = [_from_torch(_to_dlpack(tensor), False) for tensor in read]
            feeds += self._values
            read += self._read
            results: Sequence[torch.Tensor] = run_now(
                graphs, feeds, read, Vector(), *[read[i] for i in graphs.wrt]
            )
            return results
        drawn = graphs.drawn()
        return kind.run(inputs, self._bound, drawn, graphs.feeds(inputs, self._values, drawn))


def repeat_of(
    kind: Kind, watch: Watch, bound: Bound, inputs: Sequence[torch.Tensor]
) -> Repeat | None:
    """For further calls like this one; None where torch has no guards, or a tensor is there twice.

    Under autocast there is none either: guards tell whether it is on, and not to which type.
    """
    if torch.is_autocast_enabled("cpu") or bound.state is not watch.state:
        return None
    check = guards_for([*inputs, *watch.tensors])
    return None if check is None else Repeat(kind, watch, bound, inputs, check)
