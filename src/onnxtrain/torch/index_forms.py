"""What is added or read by number, where an exporter gives other numbers without a word.

TorchScript's adds but one of the elements that have the same number (`index_add`), and reads
elsewhere where several lists of numbers count from the end (`x[i, j]`). Both exporters have sums in
the place of averages (`scatter_reduce`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .diagonal_forms import is_traced


def index_add(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.index_add` by `scatter_add`, which adds up what has the same number."""
    add = torch.Tensor.scatter_add_ if function is torch.Tensor.index_add_ else torch.scatter_add

    def another(marks: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        named = _named(("input", "dim", "index", "source"), args, kwargs)
        x, dim, index = named["input"], named["dim"], named["index"].to(torch.int64)
        source, alpha = named["source"], named.get("alpha", 1)
        marks.count += 1  # also where nobody exports yet: it tells that another form is needed
        if not is_traced() or x.dim() == 0:
            return function(x, dim, index, source, alpha=alpha)
        source = source * alpha
        sizes = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
        everywhere = index.reshape(sizes).expand_as(source)
        return add(x, dim, everywhere, source)

    return another


NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}
"""What changes nothing that it is reduced with."""


def scatter_reduce(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Averages are sums by counts, and what is left out is neutral; what nothing goes to stays."""
    in_place = function is torch.Tensor.scatter_reduce_

    def another(marks: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        named = _named(("input", "dim", "index", "src", "reduce"), args, kwargs)
        x, dim, index, source = (named[n] for n in ("input", "dim", "index", "src"))
        how, with_self = named["reduce"], bool(named.get("include_self", True))
        is_plain = how not in NEUTRAL or (how != "mean" and with_self)
        if is_plain or x.dim() == 0 or not x.is_floating_point():
            return function(*args, **kwargs)
        marks.count += 1
        if how != "mean" and not is_traced():
            return function(*args, **kwargs)
        counts = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(source))
        begun = x if with_self else torch.where(counts > 0, NEUTRAL[how], x)
        if how == "mean":
            sums = begun.scatter_add(dim, index, source)
            result = sums / (counts + 1 if with_self else counts.clamp(min=1))
        else:
            result = begun.scatter_reduce(dim, index, source, how)
        return x.copy_(result) if in_place else result

    return another


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; a method's may have those of the function."""
    other = {"self": "input", "tensor": "source"}
    return {**dict(zip(names, args)), **{other.get(k, k): v for k, v in kwargs.items()}}


def taken(marks: Any, x: torch.Tensor, key: Any) -> Any:
    """`x[key]`; several lists of numbers count from the front."""
    if isinstance(key, tuple) and any(map(_is_list, key)) and sum(map(_is_of_places, key)) > 1:
        marks.count += 1
        key = tuple(_from_the_front(x, key)) if is_traced() else key
    return torch.Tensor.__getitem__(x, key)


def _from_the_front(x: torch.Tensor, key: tuple[Any, ...]) -> Any:
    axis, named_axes = 0, sum(map(_axes, key))
    for part in key:
        if part is Ellipsis:
            axis += x.dim() - named_axes
            yield part
        elif _is_list(part):
            index = torch.as_tensor(part)
            yield torch.where(index < 0, index + x.shape[axis], index)
            axis += 1
        else:
            axis += _axes(part)
            yield part


def _is_list(part: Any) -> bool:
    """Whether a part of a key is a list of numbers, not one of truth values."""
    if isinstance(part, list):
        return bool(part) and all(type(number) is int for number in part)
    return isinstance(part, torch.Tensor) and part.dtype not in (torch.bool, torch.uint8)


def _is_of_places(part: Any) -> bool:
    """Whether a part of a key names places, by numbers or by truth values."""
    return isinstance(part, (torch.Tensor, list))


def _axes(part: Any) -> int:
    """Over how many axes a part of a key goes; an Ellipsis over those that are left."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, torch.Tensor) and not _is_list(part) else 1
