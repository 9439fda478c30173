"""Modules that compute nothing: what they give are elements of their arguments, or constants.

torch has them in one copy, or in none where the result is in an argument's memory. A graph would
copy at least once for each direction: `diag_embed` of 32,768 numbers took onnxruntime 0.5 ms and
torch 0.12, a `view_copy` of two million 0.87 and 0.29, and the 128 rows of `unbind_copy` 6.5 and
2.0, with eight seconds before, in which torch exported 128 results. So torch runs them itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COPIES = frozenset(
    {
        "_reshape_alias", "_unsafe_view", "alias_copy", "block_diag", "channel_shuffle",
        "constant_pad_nd", "detach_copy", "diag_embed", "empty", "expand_copy", "flip", "full",
        "lift_fresh", "narrow_copy", "new_empty", "new_full", "new_ones", "new_zeros", "ones",
        "repeat", "select_copy", "slice_copy", "split_copy", "squeeze_copy", "unbind_copy",
        "unsafe_split", "unsafe_split_with_sizes", "unsqueeze_copy", "view_copy", "zeros",
    }
)  # fmt: skip
"""Operators that put elements elsewhere, and are faster in torch. Not those that turn a tensor
(`permute_copy` of a million takes torch 4.5 ms and us 1.3, `t_copy` 0.43 and 0.09), nor what puts
tensors together (`dstack` 5.8 and 3.9)."""
NEVER = "no operator at all"
_stands_for_a_copy: ContextVar[bool] = ContextVar("_stands_for_a_copy", default=False)
"""Whether what torch does now is another form, for an export, of one of these operators."""


@contextlib.contextmanager
def one_copy() -> Iterator[None]:
    """What is done while this lasts counts as one copy."""
    before = _stands_for_a_copy.set(True)
    try:
        yield
    finally:
        _stands_for_a_copy.reset(before)


class Movements(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether all that torch does while this lasts is to put elements elsewhere.

    Attributes:
        other: the first operator that is none of these.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.other: str | None = NEVER

    @property
    def copies_only(self) -> bool:
        """Whether it is so, and something was done."""
        return self.other is None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.other in (None, NEVER):
            moves = _stands_for_a_copy.get() or _moves(func, args)
            self.other = None if moves else str(func)
        return result


def _moves(operator: Any, args: Sequence[Any]) -> bool:
    """Whether an operator gives a view, or copies without turning."""
    if operator.namespace != "aten" or operator._schema.is_mutable:  # noqa: SLF001 - no other way
        return False
    name = operator._schema.name.partition("::")[2]  # noqa: SLF001 - as above
    if name == "clone":
        return isinstance(args[0], torch.Tensor) and _lies_in_order(args[0])
    return bool(operator.is_view) or name in COPIES


def _lies_in_order(x: torch.Tensor) -> bool:
    """Whether a tensor, some axes of which may be repeated, lies in memory as it will."""
    steps = [step for step, size in zip(x.stride(), x.shape) if size > 1 and step]
    return steps == sorted(steps, reverse=True)
