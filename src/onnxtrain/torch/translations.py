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
    """Operators that no table has.

    Two of them torch's checks of values leave behind in a graph: the assertion itself is taken out,
    and what it asked about is computed for nothing. A pool that is undone would be written with the
    numbers of all planes, and one ScatterND into all at once: its places are those of a plane.
    """
    import onnxscript

    op: Any = onnxscript.opset18
    boolean, number = 9, 6

    def all_true(self: Any) -> Any:
        return op.Cast(op.ReduceMin(op.Cast(self, to=number), keepdims=0), to=boolean)

    def any_true(self: Any) -> Any:
        return op.Cast(op.ReduceMax(op.Cast(self, to=number), keepdims=0), to=boolean)

    def max_unpool(self: Any, indices: Any, output_size: Any, *_: Any) -> Any:
        axes = len(output_size)
        planes = op.Shape(self, start=0, end=-axes)
        count = op.ReduceProd(op.Shape(self, start=-axes), op.Constant(value_ints=[0]), keepdims=1)
        sizes = [
            op.Constant(value_ints=[n]) if isinstance(n, int) else op.Reshape(n, [1])
            for n in output_size
        ]
        size = op.Concat(*sizes, axis=0)
        whole = op.ReduceProd(size, op.Constant(value_ints=[0]), keepdims=1)
        flat, all_sizes = op.Concat(planes, count, axis=0), op.Concat(planes, size, axis=0)
        zeros = op.CastLike(op.ConstantOfShape(op.Concat(planes, whole, axis=0)), self)
        places, values = op.Reshape(indices, flat), op.Reshape(self, flat)
        return op.Reshape(op.ScatterElements(zeros, places, values, axis=-1), all_sizes)

    forms: dict[str, Callable[..., Any]] = {
        "_is_all_true": all_true,
        "_is_any_true": any_true,
        "max_unpool2d": max_unpool,
        "max_unpool3d": max_unpool,
    }
    return {getattr(torch.ops.aten, name).default: form for name, form in forms.items()}
