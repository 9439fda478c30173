"""What torch's autograd knows and an exported graph does not: where no gradient passes.

Both exporters write `detach`, `no_grad` and the padding row of an embedding as if they were not
there. While a module is exported under `GradientMarks`, a zero is added to every value that no
gradient passes; the zero's name is found again in the graph, and the node that adds it is
differentiated as a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ..graph.edit import remove_nodes, replace_value
from ..graph.nodes import same_shape
from ..graph.subgraphs import node_protos
from . import diagonal_forms, index_forms, margin_forms
from .attention_forms import attention, may_hide_all
from .distance_forms import distances
from .loss_forms import cross_entropy, needs_another_form, reduction_of
from .movements import one_copy
from .pool_forms import AXES, divided

BARRIER = "onnxtrain_barrier_"
"""How the names of the zeros begin, and of the nodes that add them."""
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def zeros() -> dict[str, torch.Tensor]:
    """A zero of every type that has gradients, by name."""
    return {f"{BARRIER}{str(t).removeprefix('torch.')}": torch.zeros((), dtype=t) for t in TYPES}


class GradientMarks(TorchFunctionMode):
    """Marks what no gradient passes while torch calls a module.

    Args:
        zeros: what to add; a type that is not there is left unmarked.

    Attributes:
        count: how many operations were written in another form.
        refused: what the module does that no graph can, each a sentence's object.
    """

    def __init__(self, zeros: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.zeros = {zero.dtype: zero for zero in zeros.values()}
        self.count = 0
        self.refused: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        another = ANOTHER_FORM.get(func, func)
        if another is not func:
            result = another(self, *args, **(kwargs or {}))
        else:
            result = func(*args, **(kwargs or {}))
        if func is torch.Tensor.detach or not torch.is_grad_enabled():
            if isinstance(result, torch.Tensor):
                in_place = any(result is value for value in args)
                return result if in_place else self.stop(result)
            if isinstance(result, tuple):
                parts = [self.stop(r) if isinstance(r, torch.Tensor) else r for r in result]
                return type(result)(parts)  # a tuple, or one of torch.return_types
        return result

    def stop(self, value: torch.Tensor) -> torch.Tensor:
        """The same value, as a constant to the gradient."""
        zero = self.zeros.get(value.dtype)
        if zero is None:
            return value
        self.count += 1
        return value + zero


# --- embeddings -----------------------------------------------------------------------------------


def _embedding(
    marks: GradientMarks,
    indices: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """`functional.embedding`, its conditions on the gradient in the forward graph.

    The forward value is that of the plain lookup in both: padded positions take the row as a
    constant, and a frequency divides only the part (of value 0) that carries the gradient.
    """
    if max_norm is not None:
        marks.refused.append("the weight of an embedding (max_norm) in place")
    rows = functional.embedding(indices, weight, sparse=sparse)
    if scale_grad_by_freq:
        constant = marks.stop(rows)
        rows = constant + (rows - constant) / _occurrences(indices, weight).unsqueeze(-1)
    if padding_idx is not None:
        padded = _is_padding(indices, weight, padding_idx)
        rows = torch.where(padded.unsqueeze(-1), marks.stop(rows), rows)
    return rows


def _low_level_embedding(
    marks: GradientMarks,
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """`torch.embedding`, where -1 means no padding."""
    padding = None if padding_idx < 0 else padding_idx
    return _embedding(
        marks, indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
    )


def _is_padding(indices: torch.Tensor, weight: torch.Tensor, padding: int) -> torch.Tensor:
    return indices == (padding if padding >= 0 else weight.shape[0] + padding)


def _occurrences(indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """How often each index occurs among all of them, in the shape of the indices."""
    flat = indices.reshape(-1).to(torch.int64)
    none = torch.zeros(weight.shape[0], dtype=weight.dtype)
    counts = none.scatter_add(0, flat, torch.ones_like(flat, dtype=weight.dtype))
    return counts[indices]


def _embedding_bag(
    marks: GradientMarks,
    indices: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """`functional.embedding_bag` as a lookup and a reduction.

    Exporters write a loop that carries a sequence (dynamo), or refuse padding and give an empty
    bag's maximum as minus infinity (TorchScript).
    """
    marks.count += 1
    rows = _embedding(
        marks, indices, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
    )
    counted = None if padding_idx is None else ~_is_padding(indices, weight, padding_idx)
    if offsets is None:
        reduce = _reduced_by_axis
    else:
        bags, count, inside = _bags(indices, offsets, include_last_offset)
        if inside is not None:
            counted = inside if counted is None else counted & inside

        def reduce(rows: torch.Tensor, how: str) -> torch.Tensor:
            return _reduced_by_number(rows, how, bags, count)

    if mode == "max":
        largest = reduce(_where(counted, rows, -torch.inf), "amax")
        return torch.where(torch.isinf(largest), 0.0, largest)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    total = reduce(_where(counted, rows, 0.0), "sum")
    if mode == "sum":
        return total
    ones = torch.ones_like(indices, dtype=rows.dtype).unsqueeze(-1)
    return total / reduce(_where(counted, ones, 0.0), "sum").clamp(min=1.0)


def _where(counted: torch.Tensor | None, rows: torch.Tensor, otherwise: float) -> torch.Tensor:
    """Rows that count, all of them if nothing is said."""
    return rows if counted is None else torch.where(counted.unsqueeze(-1), rows, otherwise)


def _reduced_by_axis(rows: torch.Tensor, how: str) -> torch.Tensor:
    """Bags of equal length: one row of indices each."""
    return rows.amax(1) if how == "amax" else rows.sum(1)


def _bags(
    indices: torch.Tensor, offsets: torch.Tensor, with_last: bool
) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """For each index the number of its bag, how many bags there are, and which are in one.

    A bag's number is how many bags have begun until then, less one.
    """
    starts = offsets[:-1] if with_last else offsets
    begun = torch.zeros(indices.shape[0] + 1, dtype=torch.int64)  # empty bags may begin at the end
    begun = begun.scatter_add(0, starts.to(torch.int64), torch.ones_like(starts, dtype=torch.int64))
    bags = begun.cumsum(0)[:-1] - 1
    if not with_last:
        return bags, starts.shape[0], None
    return bags, starts.shape[0], torch.arange(indices.shape[0]) < offsets[-1]


def _reduced_by_number(
    rows: torch.Tensor, how: str, bags: torch.Tensor, count: int
) -> torch.Tensor:
    indices = bags.unsqueeze(1).expand(-1, rows.shape[1])
    start = torch.full((count, rows.shape[1]), -torch.inf if how == "amax" else 0.0)
    start = start.to(rows.dtype)
    if how == "amax":
        return start.scatter_reduce(0, indices, rows, "amax")
    return start.scatter_add(0, indices, rows)


# --- losses ---------------------------------------------------------------------------------------

IGNORED = -100
"""A class that no label can be, which is torch's own choice."""


def _ignoring(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A loss over class labels whose `ignore_index` may be computed, from a size say.

    In ONNX it is an attribute, so the labels are changed instead. Nor does ONNX know scores of a
    single sample, without an axis for it.
    """

    def another(
        marks: GradientMarks,
        scores: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: Any = IGNORED,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        if not isinstance(ignore_index, int):
            target = torch.where(target == ignore_index, IGNORED, target)
            ignore_index = IGNORED
        more = (weight, size_average, ignore_index, *args)
        if scores.dim() != 1:
            losses = function(scores, target, *more, **kwargs)
            if not losses.dim() or diagonal_forms.is_traced():
                return losses
            # the dynamo exporter takes these losses for one number where others read them
            marks.count += 1
            return losses + torch.zeros_like(target, dtype=losses.dtype)
        marks.count += 1
        return function(scores.unsqueeze(0), target.reshape(1), *more, **kwargs).reshape(())

    return another


def _cross_entropy(
    marks: GradientMarks,
    scores: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: Any = IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`functional.cross_entropy`, with what exporters leave out of it."""
    how = reduction_of(size_average, reduce, reduction)
    if not needs_another_form(target, label_smoothing):
        plain = _ignoring(functional.cross_entropy)
        return plain(marks, scores, target, weight, None, ignore_index, None, how)
    marks.count += 1
    if not isinstance(ignore_index, int):
        target = torch.where(target == ignore_index, IGNORED, target)
        ignore_index = IGNORED
    return cross_entropy(scores, target, weight, ignore_index, how, label_smoothing)


def _multi_margin(
    marks: GradientMarks,
    scores: torch.Tensor,
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`functional.multi_margin_loss`; exporters compare integers with all classes."""
    how = reduction_of(size_average, reduce, reduction)
    if p not in (1, 2) or not margin_forms.takes(scores, target):
        plain = functional.multi_margin_loss
        return plain(scores, target, p, margin, weight, reduction=how)
    marks.count += 1
    return margin_forms.multi_margin(scores, target, p, margin, weight, how)


def _multilabel_margin(
    marks: GradientMarks,
    scores: torch.Tensor,
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """`functional.multilabel_margin_loss`; exporters compare integers with all classes."""
    how = reduction_of(size_average, reduce, reduction)
    if not margin_forms.takes(scores, target):
        return functional.multilabel_margin_loss(scores, target, reduction=how)
    marks.count += 1
    return margin_forms.multilabel_margin(scores, target, how)


# --- extremes -------------------------------------------------------------------------------------


def _selecting(function: Callable[..., Any], argument: Callable[..., torch.Tensor]) -> Any:
    """`max` or `min` along an axis: the gradient goes to the element that was taken.

    Exporters write the reduction of `amax`, whose gradient is shared by all that are equal.
    """
    kind = torch.return_types.max if argument is torch.argmax else torch.return_types.min

    def another(marks: GradientMarks, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(("input", "dim", "keepdim"), args)), **kwargs}
        rows, dim, keep = named["input"], named.get("dim"), named.get("keepdim", False)
        if not isinstance(dim, int) or rows.dim() == 0 or not rows.is_floating_point():
            return function(*args, **kwargs)
        marks.count += 1
        indices = argument(rows, dim, keepdim=True)
        values = rows.gather(dim, indices)
        return kind((values, indices) if keep else (values.squeeze(dim), indices.squeeze(dim)))

    return another


# --- distances ------------------------------------------------------------------------------------


def _distances(marks: GradientMarks, *args: Any, **kwargs: Any) -> torch.Tensor:
    marks.count += 1
    return distances(*args, **kwargs)


# --- diagonals ------------------------------------------------------------------------------------


def _by_steps(form: Callable[..., torch.Tensor], function: Callable[..., torch.Tensor]) -> Any:
    def another(marks: GradientMarks, *args: Any, **kwargs: Any) -> torch.Tensor:
        x = args[0] if args else kwargs.get("input")
        if not diagonal_forms.takes(x):
            return function(*args, **kwargs)
        marks.count += 1
        named = {"x" if name == "input" else name: value for name, value in kwargs.items()}
        with one_copy():
            return form(*args, **named)

    return another


# --- activations ----------------------------------------------------------------------------------

LINEAR = 15.0
"""From where on a softplus in float32 is its operand, whatever threshold it is given."""


def _softplus(
    marks: GradientMarks, rows: torch.Tensor, beta: float = 1.0, threshold: float = 20.0
) -> torch.Tensor:
    """The TorchScript exporter leaves the threshold out."""
    result = functional.softplus(rows, beta, threshold)
    marks.count += threshold < LINEAR
    if threshold >= LINEAR or not diagonal_forms.is_traced():
        return result
    return torch.where(rows * beta > threshold, rows, result)


# --- attention ------------------------------------------------------------------------------------


def _attention(
    marks: GradientMarks,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """`functional.scaled_dot_product_attention`, with what exporters leave out of it.

    Masks of minus infinities need the other form from both exporters, so they count.
    """
    marks.count += may_hide_all(attn_mask) and attn_mask.is_floating_point()
    return attention(query, key, value, attn_mask, *args, **kwargs)


# --- pooling --------------------------------------------------------------------------------------


def _adaptive_average(
    function: Callable[..., torch.Tensor],
) -> Callable[..., torch.Tensor]:
    """Averages over windows of uneven sizes, as one matrix product per axis.

    Exporters write a sum of as many gathered slices as the largest window has elements (dynamo), or
    want to know all sizes (TorchScript).
    """

    def another(marks: GradientMarks, rows: torch.Tensor, output_size: Any) -> torch.Tensor:
        rank = SPATIAL[function]
        sizes = (output_size,) * rank if isinstance(output_size, int) else tuple(output_size)
        if all(size in (1, None) for size in sizes):
            return function(rows, output_size)
        marks.count += 1
        for axis, size in reversed(list(enumerate(sizes, start=-rank))):
            if size is not None:
                rows = _averaged(rows, axis, size)
        return rows

    return another


def _averaged(rows: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Average over windows along one axis, so that this many are left."""
    if size == 1:
        return rows.mean(axis, keepdim=True)
    windows = _windows(rows.shape[axis], size, rows.dtype)
    if axis == -1:
        return rows @ windows.t()
    if axis == -2:
        return windows @ rows
    # of a volume, whose planes are rows here: to turn a million elements took 2.8 ms
    return (windows @ rows.flatten(-2)).reshape(*rows.shape[:-3], size, *rows.shape[-2:])


def _windows(length: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A matrix that averages over windows: window i is floor(i·n/m) … ceil((i+1)·n/m)."""
    number, position = torch.arange(count), torch.arange(length)
    starts = (number * length).div(count, rounding_mode="floor").unsqueeze(1)
    ends = ((number + 1) * length + count - 1).div(count, rounding_mode="floor").unsqueeze(1)
    inside = (position >= starts) & (position < ends)
    return inside.to(dtype) / (ends - starts).to(dtype)


def _divided_average(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def another(marks: GradientMarks, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        settings = {**dict(zip((*names, "divisor_override"), args)), **kwargs}
        divisor = settings.pop("divisor_override", None)
        if divisor is None:
            return function(x, *args, **kwargs)
        marks.count += 1
        return divided(function, x, divisor, **settings)

    return another


SPATIAL: dict[Any, int] = {
    functional.adaptive_avg_pool1d: 1,
    functional.adaptive_avg_pool2d: 2,
    functional.adaptive_avg_pool3d: 3,
}
"""Pooling functions, and over how many axes they go."""

ADDING = (torch.index_add, torch.Tensor.index_add, torch.Tensor.index_add_)
REDUCING = (torch.scatter_reduce, torch.Tensor.scatter_reduce, torch.Tensor.scatter_reduce_)
DIAGONALS = (torch.diagonal, torch.diagonal_copy, torch.Tensor.diagonal)
EMBEDDINGS = (torch.diag_embed, torch.Tensor.diag_embed)

ANOTHER_FORM: dict[Any, Callable[..., Any]] = {
    **{function: _selecting(function, torch.argmax) for function in (torch.max, torch.Tensor.max)},
    **{function: _selecting(function, torch.argmin) for function in (torch.min, torch.Tensor.min)},
    **{function: _adaptive_average(function) for function in SPATIAL},
    **{function: _divided_average(function) for function in AXES},
    functional.scaled_dot_product_attention: _attention,
    functional.cross_entropy: _cross_entropy,
    functional.nll_loss: _ignoring(functional.nll_loss),
    functional.multi_margin_loss: _multi_margin,
    functional.multilabel_margin_loss: _multilabel_margin,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
    torch.embedding: _low_level_embedding,
    torch.cdist: _distances,
    torch.Tensor.__getitem__: index_forms.taken,
    functional.softplus: _softplus,
    **{function: index_forms.index_add(function) for function in ADDING},
    **{function: index_forms.scatter_reduce(function) for function in REDUCING},
    **{f: _by_steps(diagonal_forms.of_matrices, f) for f in DIAGONALS},
    **{f: _by_steps(diagonal_forms.embedded, f) for f in EMBEDDINGS},
    **{f: _by_steps(diagonal_forms.diag, f) for f in (torch.diag, torch.Tensor.diag)},
    **{f: _by_steps(diagonal_forms.trace, f) for f in (torch.trace, torch.Tensor.trace)},
}
"""Functions of torch that an export would get wrong, or not at all."""


# --- in the graph ---------------------------------------------------------------------------------


def name_barriers(proto: onnx.ModelProto) -> list[str]:
    """Name the nodes that no gradient passes, so that they can be told to the differentiation."""
    names = []
    for number, node in enumerate(node_protos(proto.graph.node)):
        if any(name.startswith(BARRIER) for name in node.input):
            node.name = f"{BARRIER}{number}"
            names.append(node.name)
    return names


def remove_barriers(model: ir.Model, names: Collection[str]) -> None:
    """Let what was marked pass as it is, and take out choices between a value and itself."""
    barriers = set(names)
    for node in list(model.graph.all_nodes()):
        if node.name not in barriers:
            continue
        operands = [v for v in node.inputs if v is not None]
        source = next(v for v in operands if not (v.name or "").startswith(BARRIER))
        readers = [user for user, _ in node.outputs[0].uses()]
        _replace(node, source)
        for reader in readers:
            if _chooses(reader, source) and same_shape(source, reader.outputs[0]):
                _replace(reader, source)


def _chooses(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node is a choice between a value and itself."""
    return node.op_type == "Where" and all(v is value for v in node.inputs[1:])


def _replace(node: ir.Node, value: ir.Value) -> None:
    """Put a value in the place of a node's result; the node goes, and what only it needed."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    makers = [v.producer() for v in node.inputs if v is not None]
    replace_value(graph, node.outputs[0], value)
    graph.remove(node, safe=True)
    for maker in makers:
        if maker is not None and maker.graph is graph:
            _remove_unread(graph, maker)


def _remove_unread(graph: ir.Graph, node: ir.Node) -> None:
    if any(o.uses() or o.is_graph_output() for o in node.outputs):
        return
    makers = [v.producer() for v in node.inputs if v is not None]
    remove_nodes(graph, [node])
    for maker in makers:
        if maker is not None and maker.graph is graph:
            _remove_unread(graph, maker)
