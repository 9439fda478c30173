"""Packed texts that do not see each other: attention within the texts of a row only."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import TextError, model_errors
from ..graph import ModelLike, OpBuilder, Tensor, load
from ..graph.infer import infer_shapes
from ..graph.io import deliver
from ..graph.nodes import rank_of
from ..graph.tensor import dims_of
from .inputs import DOCUMENTS, MASKS, is_cache

FAR = {ir.DataType.FLOAT: -1e9, ir.DataType.DOUBLE: -1e9, ir.DataType.FLOAT16: -1e4,
       ir.DataType.BFLOAT16: -1e9}  # fmt: skip
"""Added to a score whose weight is to be 0."""
FUSED = {"Attention": 3, "MultiHeadAttention": 5, "GroupQueryAttention": 10}
"""Attention as one operator: which operand takes a mask for each pair of tokens."""
PASSING = frozenset({"Cast", "Dropout", "Identity", "Where"})
"""What may stand between the weights of attention and the product with the values."""
OPSET = 13


def separate_documents(
    model: ModelLike, *, output: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """A decoder that takes several texts in a row without letting them see each other.

    It has one more input, ``documents`` [batch, length]: the number of the text that each token
    belongs to. Attention between different ones has weight 0. A mask of pairs (three or four
    dimensions) that the model takes as input is computed from it instead. Parameters keep their
    names, so what was learned goes back into the original with `with_weights`.

    Args:
        model: as it came, or after `without_cache`; it is not changed.
        output: also write the model to this path; weights that lie beside it stay there.

    Raises:
        TextError: the model takes no positions, which begin anew in each text; or its attention is
            in no form in which a mask can be put.
    """
    separated = separated_model(model)
    return deliver(separated, output)


@model_errors("Keeping packed texts apart")
def separated_model(model: ModelLike) -> ir.Model:
    """The same as `separate_documents`, weights left where they are."""
    decoder = load(model)
    graph = decoder.graph
    if decoder.opset_imports.get("", 1) < OPSET:
        raise _refused(f"that takes opset {OPSET}, and the model has an older one")
    if any(v.name == DOCUMENTS for v in graph.inputs):
        return decoder
    if any(is_cache(v) for v in graph.inputs):
        raise _refused("the model has a cache, which text.without_cache takes out")
    pairs = next((v for v in graph.inputs if v.name in MASKS and len(dims_of(v) or ()) > 2), None)
    op = OpBuilder.on(decoder)
    op.scope = DOCUMENTS
    documents = ir.Value(
        name=DOCUMENTS, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(["batch", "length"])
    )
    masks = _Masks(op, op.tensor(documents))
    changes = [masks.replaces(pairs)] if pairs is not None else _changes(decoder, masks)
    _check_positions(graph)
    masks.place(graph)
    for change in changes:
        change()
    graph.inputs.append(documents)
    op.register_constants(graph, mark=True)
    return decoder


def _check_positions(graph: ir.Graph) -> None:
    if any(v.name == "position_ids" for v in graph.inputs):
        return
    attention = [n for n in graph if n.op_type in FUSED or n.op_type == "Softmax"]
    rotary = [n.attributes.get("do_rotary") for n in attention if n.op_type in FUSED]
    if (
        rotary
        and len(rotary) == len(attention)
        and all(r is not None and r.as_int() for r in rotary)
    ):
        return  # they count distances between tokens, which are the same wherever a text begins
    raise _refused("the model takes no position_ids, and positions have to begin anew in each text")


def _refused(reason: str) -> TextError:
    return TextError(f"Texts in one row cannot be kept apart: {reason}.")


class _Masks:
    """Masks of pairs of tokens, each computed once for all layers."""

    def __init__(self, op: OpBuilder, documents: Tensor) -> None:
        self.op, self.documents = op, documents
        axes = (np.array([1, 3]), np.array([1, 2]))
        self.same = op.Equal(*(op.Unsqueeze(documents, a) for a in axes))
        self._biases: dict[ir.DataType, Tensor] = {}
        self._sums: dict[ir.Value, ir.Value] = {}
        """Masks of the model that all layers share, with the bias added."""

    def bias(self, dtype: ir.DataType) -> Tensor:
        """[batch, 1, length, length]: 0 within a text, far below 0 elsewhere."""
        if dtype not in self._biases:
            zero, far = self.op.const(0.0, dtype), self.op.const(FAR.get(dtype, -1e9), dtype)
            self._biases[dtype] = self.op.Where(self.same, zero, far)
        return self._biases[dtype]

    def replaces(self, mask: ir.Value) -> Callable[[], None]:
        """Compute a mask that was an input: 1 or True, or 0 to be added, where a token is seen."""
        op, dtype, rank = self.op, mask.dtype or ir.DataType.FLOAT, len(dims_of(mask) or ())
        size = op.Shape(self.documents, start=1, end=2) if op.opset >= 15 else op.Slice(
            op.Shape(self.documents), np.array([1]), np.array([2])
        )  # fmt: skip
        length = op.Squeeze(size, np.array([0]))
        place = op.Range(np.array(0), length, np.array(1))
        earlier = op.LessOrEqual(op.Unsqueeze(place, np.array([0])), op.Unsqueeze(
            place, np.array([1])))  # fmt: skip
        seen = op.And(self.same, earlier)
        if dtype.is_floating_point():
            lowest = float(np.finfo(dtype.numpy()).min) if dtype != ir.DataType.BFLOAT16 else -3e38
            new = op.Where(seen, op.const(0.0, dtype), op.const(lowest, dtype))
        else:
            new = seen if dtype == ir.DataType.BOOL else op.Cast(seen, to=dtype)
        if rank == 3:
            new = op.Squeeze(new, np.array([1]))

        def change() -> None:
            graph = mask.graph
            mask.replace_all_uses_with(new.value)
            assert graph is not None
            graph.inputs.remove(mask)

        return change

    def before_softmax(self, node: ir.Node) -> Callable[[], None]:
        """Add the bias to the scores of an attention."""
        scores = node.inputs[0]
        assert scores is not None
        scores.type = scores.type or ir.TensorType(ir.DataType.FLOAT)
        bias = self.bias(scores.dtype or ir.DataType.FLOAT)
        masked = scores.producer()
        if masked is not None and masked.op_type == "Add":
            shared = max((v for v in masked.inputs if v), key=lambda v: len(v.uses()))
            if len(shared.uses()) > 1:
                return lambda: self._on_mask(masked, shared, bias)

        def change() -> None:
            sum_ = self.op.tensor(scores) + bias
            sum_.value.shape = scores.shape
            self.op.place(node.graph, before=node)  # type: ignore[arg-type]
            node.replace_input_with(0, sum_.value)

        return change

    def _on_mask(self, node: ir.Node, mask: ir.Value, bias: Tensor) -> None:
        """Add the bias to a mask that several layers add to their scores, once for all."""
        if mask not in self._sums:
            mask.type = mask.type or bias.value.type
            self._sums[mask] = (self.op.tensor(mask) + bias).value
            self.op.place(node.graph, before=node)  # type: ignore[arg-type]
        node.replace_input_with(list(node.inputs).index(mask), self._sums[mask])

    def into(self, node: ir.Node) -> Callable[[], None]:
        """Give the bias to an operator that is an attention, beside the mask that it has."""
        place, query = FUSED[node.op_type], node.inputs[0]
        dtype = (query.dtype if query is not None else None) or ir.DataType.FLOAT
        old = node.inputs[place] if len(node.inputs) > place else None
        is_flag = old is not None and old.dtype == ir.DataType.BOOL
        bias = self.same if is_flag else self.bias(dtype)

        def change() -> None:
            new = bias
            if old is not None:
                mask = self.op.tensor(old)
                new = self.op.And(mask, bias) if is_flag else mask + bias
                self.op.place(node.graph, before=node)  # type: ignore[arg-type]
            node.resize_inputs(max(place + 1, len(node.inputs)))
            node.replace_input_with(place, new.value)

        return change

    def place(self, graph: ir.Graph) -> None:
        """Put the masks before everything else."""
        self.op.place(graph, before=graph[0])


def _changes(model: ir.Model, masks: _Masks) -> list[Callable[[], None]]:
    """What is to be done to each attention of a model."""
    nodes = list(model.graph)
    candidates = [n for n in nodes if n.op_type == "Softmax" and _weighs_values(n)]
    if any(rank_of(n.inputs[0]) is None for n in candidates):
        ranks = _ranks(model)
        known = {n: ranks.get(n.inputs[0].name if n.inputs[0] else "") for n in candidates}
    else:
        known = {n: rank_of(n.inputs[0]) for n in candidates}
    changes = []
    for node in nodes:
        if node.op_type in FUSED:
            changes.append(masks.into(node))
        elif node in known:
            if known[node] != 4:
                raise _refused(
                    f"the scores of {node.name!r} have {known[node] or 'an unknown number of'} "
                    "dimensions, and attention has four: batch, heads, length and length"
                )
            changes.append(masks.before_softmax(node))
    if not changes:
        raise _refused("the model has no attention in a form that is known")
    return changes


def _ranks(model: ir.Model) -> dict[str | None, int]:
    """Numbers of dimensions that only inference tells."""
    inferred = infer_shapes(model.clone())
    values = [o for n in inferred.graph for o in n.outputs]
    return {v.name: len(v.shape) for v in values if v.shape is not None}


def _weighs_values(node: ir.Node) -> bool:
    """Whether a Softmax gives the weights of an attention: a product with values reads them."""
    axis = node.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, 3):
        return False
    reached, todo = set[ir.Node](), [node]
    while todo:
        for reader, place in todo.pop().outputs[0].uses():
            if reader.op_type == "MatMul" and place == 0:
                return True
            if reader.op_type in PASSING and reader not in reached:
                reached.add(reader)
                todo.append(reader)
    return False
