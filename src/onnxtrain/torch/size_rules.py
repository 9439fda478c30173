"""For which sizes an export holds: those that take the same branches in Python.

`if x.shape[0] > 3:` is decided while a module is exported. The graph is right for all sizes that
decide it the same way, and for no others.
"""

from __future__ import annotations

import ast
import linecache
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.jit._trace import TracerWarning as TracerWarning

Shapes: TypeAlias = "Sequence[Sequence[int]]"
Fits: TypeAlias = Callable[[Shapes], bool]
"""Whether an export holds for inputs of these sizes."""
_TORCH = os.path.dirname(torch.__file__) + os.sep


def any_sizes(shapes: Shapes) -> bool:
    """The rule of an export that decided nothing by sizes."""
    return True


@dataclass(frozen=True)
class Only:
    """The rule of an export that holds for these sizes and may hold for others."""

    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, shapes: Shapes) -> bool:
        """Whether the export holds for these."""
        return tuple(tuple(shape) for shape in shapes) == self.shapes


def only(shapes: Shapes) -> Only:
    """The rule of an export that holds for these sizes and may hold for others."""
    return Only(tuple(tuple(shape) for shape in shapes))


@dataclass(frozen=True)
class Assumed:
    """The rule of an export that knows what it assumed of sizes.

    Attributes:
        dims: a symbol for each size of each input, in order; None where it is a number or an
            expression.
        ranges: the lowest and highest size of a symbol, None where there is no limit.
        relations: conditions on the symbols that must hold.
        simple: whether the sizes are told completely by `dims` and `ranges`.
    """

    dims: tuple[str | None, ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    relations: tuple[Any, ...] = ()
    simple: bool = True

    def __call__(self, shapes: Shapes) -> bool:
        """Whether the export holds for these."""
        sizes: dict[str, int] = {}
        for dim, size in zip(self.dims, _flat(shapes)):
            if dim is not None and sizes.setdefault(dim, size) != size:
                return False
        for symbol, size in sizes.items():
            low, high = self.ranges.get(symbol, (None, None))
            if (low is not None and size < low) or (high is not None and size > high):
                return False
        return all(_holds(relation, sizes) for relation in self.relations)


# --- rules in files -------------------------------------------------------------------------------


def to_json(fits: Fits, shapes: Shapes) -> Any:
    """A rule as numbers and texts; one that cannot be written becomes `Only` these sizes."""
    if fits is any_sizes:
        return "any"
    if isinstance(fits, Assumed) and fits.simple:
        return {"dims": list(fits.dims), "ranges": {s: list(r) for s, r in fits.ranges.items()}}
    return {"only": [list(shape) for shape in shapes]}


def from_json(data: Any) -> Fits:
    """The rule that `to_json` has written.

    Raises:
        ValueError: it is none.
    """
    if data == "any":
        return any_sizes
    if isinstance(data, dict) and data.keys() == {"only"}:
        return only([[_size(size) for size in shape] for shape in _list(data["only"])])
    if isinstance(data, dict) and data.keys() == {"dims", "ranges"}:
        dims = tuple(None if dim is None else str(dim) for dim in _list(data["dims"]))
        ranges = {
            str(symbol): (_limit(limits[0]), _limit(limits[1]))
            for symbol, limits in dict(data["ranges"]).items()
            if len(_list(limits)) == 2
        }
        return Assumed(dims, ranges)
    raise ValueError(f"no rule for sizes: {str(data)[:80]}")


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"no list: {str(data)[:80]}")
    return data


def _size(data: Any) -> int:
    if type(data) is not int or data < 0:
        raise ValueError(f"no size: {str(data)[:80]}")
    return data


def _limit(data: Any) -> int | None:
    return None if data is None else _size(data)


# --- dynamo: the exporter knows what it assumed ---------------------------------------------------


def assumed(program: torch.export.ExportedProgram) -> Assumed:
    """The rule of a program: ranges of its symbolic sizes, and the relations it asserts."""
    dims = _input_dims(program)
    relations = tuple(_asserted(program))
    ranges = {
        str(symbol): (_finite(known.lower), _finite(known.upper))
        for symbol, known in program.range_constraints.items()
    }
    simple = not relations and all(dim is None or dim.is_Symbol for dim in dims)
    symbols = tuple(str(dim) if dim is not None and dim.is_Symbol else None for dim in dims)
    return Assumed(symbols, ranges, relations, simple)


def _finite(limit: Any) -> int | None:
    """A limit of torch's as a number; None where there is none."""
    try:
        return max(int(limit), 0)
    except (OverflowError, TypeError, ValueError, AttributeError):
        return None


def _flat(shapes: Shapes) -> Iterator[int]:
    return (size for shape in shapes for size in shape)


def _input_dims(program: torch.export.ExportedProgram) -> list[Any]:
    """The expression behind each size of each input, in order; None for a number."""
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    dims: list[Any] = []
    for name in program.graph_signature.user_inputs:
        value = placeholders[str(name)].meta["val"]
        dims += [d.node.expr if isinstance(d, torch.SymInt) else None for d in value.shape]
    return dims


def _asserted(program: torch.export.ExportedProgram) -> Iterator[Any]:
    """Conditions on sizes that the program checks when torch runs it, which a graph does not."""
    for node in program.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            value = getattr(node.args[0], "meta", {}).get("val")
            if isinstance(value, torch.SymBool):
                yield value.node.expr


def _holds(relation: Any, sizes: Mapping[str, int]) -> bool:
    known = {symbol: sizes[str(symbol)] for symbol in relation.free_symbols if str(symbol) in sizes}
    if len(known) < len(relation.free_symbols):
        return True  # of values, not of sizes
    return bool(relation.subs(known))


# --- TorchScript: tracing warns where it fixes something ------------------------------------------


def decided(caught: Sequence[warnings.WarningMessage], others: Collection[tuple[str, int]]) -> bool:
    """Whether a trace took a branch of the user's code by size.

    Args:
        caught: warnings of the trace.
        others: files and lines where the branch is known to depend on values.
    """
    return any(
        issubclass(w.category, TracerWarning)
        and "Python boolean" in str(w.message)
        and not w.filename.startswith(_TORCH)
        and (w.filename, w.lineno) not in others
        and not only_raises(w.filename, w.lineno)
        for w in caught
    )


def only_raises(file: str, line: int) -> bool:
    """Whether a condition in this line is a check: an assertion, or an `if` that only raises."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.lineno <= line <= (node.end_lineno or line):
            return True
        if isinstance(node, ast.If) and node.lineno <= line <= (node.test.end_lineno or line):
            return not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.Raise)
    return False
