"""torch's table of translations to ONNX: read once in a process, and what it lacks.

The dynamo exporter parses the source of some five hundred translations anew for every export,
which takes half a second, more than the rest of the export of a small module.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

_tables: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """While this lasts, an export takes the table that an earlier one has read.

    Every export gets a copy, so that none sees what another has added to it. A torch that keeps its
    table elsewhere exports as it always does.
    """
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:
        yield
        return
    read = ONNXRegistry.__dict__.get("from_torchlib")
    if not isinstance(read, classmethod):
        yield
        return

    def remembered(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        key = (cls, *args, *kwargs.items())
        if key not in _tables:
            _tables[key] = read.__func__(cls, *args, **kwargs)
        table = copy.copy(_tables[key])
        table.functions = {target: list(functions) for target, functions in table.functions.items()}
        return table

    setattr(ONNXRegistry, "from_torchlib", classmethod(remembered))  # noqa: B010 - a method to mypy
    try:
        yield
    finally:
        setattr(ONNXRegistry, "from_torchlib", read)  # noqa: B010 - as above


def missing() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Operators that torch's checks of values leave behind in a graph, and no table has.

    The assertion itself is taken out of the graph; what it asked about is computed for nothing.
    """
    import onnxscript

    op: Any = onnxscript.opset18
    boolean, number = 9, 6

    def all_true(self: Any) -> Any:
        return op.Cast(op.ReduceMin(op.Cast(self, to=number), keepdims=0), to=boolean)

    def any_true(self: Any) -> Any:
        return op.Cast(op.ReduceMax(op.Cast(self, to=number), keepdims=0), to=boolean)

    forms = {"_is_all_true": all_true, "_is_any_true": any_true}
    return {getattr(torch.ops.aten, name).default: form for name, form in forms.items()}
