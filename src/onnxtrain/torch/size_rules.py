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


def only(shapes: Shapes) -> Fits:
    """The rule of an export that holds for these sizes and may hold for others."""
    sizes = [tuple(shape) for shape in shapes]
    return lambda others: [tuple(shape) for shape in others] == sizes


# --- dynamo: the exporter knows what it assumed ---------------------------------------------------


def assumed(program: torch.export.ExportedProgram) -> Fits:
    """The rule of a program: ranges of its symbolic sizes, and the relations it asserts."""
    dims = _input_dims(program)
    ranges = dict(program.range_constraints)
    relations = list(_asserted(program))

    def fits(shapes: Shapes) -> bool:
        sizes: dict[Any, int] = {}
        for dim, size in zip(dims, _flat(shapes)):
            if dim is not None and dim.is_Symbol and sizes.setdefault(dim, size) != size:
                return False
        for symbol, size in sizes.items():
            known = ranges.get(symbol)
            if known is not None and not known.lower <= size <= known.upper:
                return False
        return all(_holds(relation, sizes) for relation in relations)

    return fits


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


def _holds(relation: Any, sizes: Mapping[Any, int]) -> bool:
    if not relation.free_symbols <= set(sizes):
        return True  # of values, not of sizes
    return bool(relation.subs(sizes))


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
