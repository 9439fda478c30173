"""The forms of a model that a session may be asked for, the fastest first.

A model of standard operators says by marks what onnxruntime, or a kernel of ours, does faster. What
is written in the places of marked nodes is decided by those who read the marks (`blocked`,
`kernels`, `fusion`, `products`, …), all of one outline where that is possible, and put into the
bytes of the model once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnxruntime

from ...errors import ModelFileError
from ...operators import COLUMN_LOOP, FUSED, KERNEL
from ..files.outline import Outline
from ..fusion.library import is_available
from ..fusion.operators import ADD_ROWS_TO, Operator, mentioned
from ..fusion.operators import COLUMN_LOOP as LOOP_OPERATOR
from .blocked import blocked_nodes, may_have_blocks
from .column_loops import with_column_loops
from .edits import NOTHING, Rewritten, changed
from .few_bits import with_kernels
from .fusion import fused_groups
from .kernels import own_kernels
from .optimizers import idle_of_shapes, idle_optimizers, idle_without_us
from .products import CONTRIBUTED, fused_products, may_be_changed
from .rows_in_place import with_rows_in_place


class Form(NamedTuple):
    """A model as a session is asked for it, the optimizers that it does without, our operators."""

    content: bytes | str
    idle: list[str]
    operators: Collection[Operator] = ()


class Idle(NamedTuple):
    """Optimizers that a session does without: with products put together, and as they are."""

    fused: list[str]
    plain: list[str]


def forms_of(
    model: bytes | str, outline: Outline | None, options: Any, *, on_host: bool, kernels: bool
) -> Iterator[Form]:
    """The forms of a model, the fastest first and last the model itself, whose error is shown.

    A form may be refused: a build or a version may lack the kernel for weights of four bits or the
    blocked layout, and a model may have been changed since its products were marked. Only then is
    the next one made.
    """
    names = idle_optimizers(outline, on_host=on_host)
    idle = Idle(names, idle_without_us(outline, names))
    if outline is not None and on_host:
        native = with_kernels(outline, options) if kernels else None
        if _are_fused(options):
            yield from _fused_forms(outline, native, idle)
        elif native is not None:
            yield Form(native, idle.plain)
    yield Form(model, idle.plain)


def _are_fused(options: Any) -> bool:
    """Whether onnxruntime would put operators together, as far as the options say."""
    extended = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options is None or int(options.graph_optimization_level) >= int(extended)


def _fused_forms(outline: Outline, native: bytes | None, idle: Idle) -> Iterator[Form]:
    """Forms with products put together: in onnxruntime's own kernels, in blocks, as they are.

    Args:
        outline: of the model.
        native: the model with onnxruntime's kernels for weights of few bits, if it has such.
        idle: optimizers that a model does without.
    """
    marks = (FUSED, KERNEL, COLUMN_LOOP)
    is_marked = any(outline.mentions(mark.encode()) for mark in marks)
    for source, is_blocked in _sources(outline, native):
        if is_marked and (best := _in_one_pass(source, idle, is_blocked=is_blocked)) is not None:
            yield best
        is_marked = False  # what is refused with our kernels is tried without
        blocks = blocked_nodes(source) if is_blocked else NOTHING
        form = _written(source, blocks, {}, (), idle)
        if form is not None:
            yield form
        elif source is not outline:
            yield Form(source.model, idle.plain)


def _sources(outline: Outline, native: bytes | None) -> Iterator[tuple[Outline, bool]]:
    """What forms are made of, and whether convolutions are to be in blocks."""
    chosen = None if native is None else Outline.of(native)
    if chosen is not None:
        yield chosen, False
    if may_have_blocks(outline):
        yield outline, True
    yield outline, False


def _in_one_pass(outline: Outline, idle: Idle, *, is_blocked: bool) -> Form | None:
    """A form with kernels of ours, for loops, single nodes and elementwise ones; None without."""
    loops = with_column_loops(outline)
    outline = (None if loops is None else Outline.of(loops)) or outline
    rows = with_rows_in_place(outline)
    outline = (None if rows is None else Outline.of(rows)) or outline
    blocks = blocked_nodes(outline, kernels=is_available()) if is_blocked else NOTHING
    kernels = own_kernels(outline, blocks)
    kernels |= fused_groups(outline, taken={*blocks.changes, *kernels})
    ours = mentioned({**blocks.changes, **kernels})
    if not ours and loops is None and rows is None:
        return None
    ours += [] if loops is None else [LOOP_OPERATOR]
    ours += [] if rows is None else [ADD_ROWS_TO]
    return _written(outline, blocks, kernels, ours, idle)


def _written(
    outline: Outline,
    blocks: Rewritten,
    kernels: Mapping[int, list[bytes]],
    ours: Sequence[Operator],
    idle: Idle,
) -> Form | None:
    """A model with all that stands in the places of its nodes; None if that is as it was.

    Args:
        outline: of the model.
        blocks: its convolutions in blocks.
        kernels: nodes of ours.
        ours: operators of which the model has nodes then.
        idle: optimizers that it does without.
    """
    products = fused_products(outline, taken={*blocks.changes, *kernels})
    # a result takes the place of an operand where onnxruntime knows that both have one size, and
    # of what our operators make it infers nothing
    needs_sizes = any(operator.in_place for operator in ours)
    says_less = idle_of_shapes(idle.fused) and may_be_changed(outline) and not needs_sizes
    without = outline.types if says_less else (0, 0)
    is_fused = bool(products) or without[0] < without[1]
    changes = {**blocks.changes, **products, **kernels}
    if not changes and not is_fused and not ours:
        return None
    domains = [*blocks.domains, *(operator.domain.encode() for operator in ours)]
    domains += [CONTRIBUTED] * bool(products)
    try:
        content = changed(outline, changes, *domains, constants=blocks.constants, without=without)
    except (ModelFileError, IndexError):  # onnxruntime says what is wrong with it
        return None
    return Form(content, idle.fused if is_fused else idle.plain, ours)
