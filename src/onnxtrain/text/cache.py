"""A decoder without its cache: training sees whole texts at once, and nothing before them."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..errors import TextError, model_errors
from ..graph import ModelLike, OpBuilder, Tensor, load
from ..graph.edit import become, replace_outputs
from ..graph.io import deliver
from ..graph.tensor import dims_of
from .inputs import PRESENT, SET, LanguageInputs, is_cache

OPTIONAL = {
    "GroupQueryAttention": (3, 4),
    "MultiHeadAttention": (6, 7),
    "Attention": (4, 5),
}
"""Operators and the inputs that may be left out where there is nothing in the cache. The one of
onnxruntime takes both in the first of them."""


def without_cache(
    model: ModelLike, *, output: str | os.PathLike[str] | None = None
) -> onnx.ModelProto:
    """A decoder whose cache is empty for good: its inputs are gone, and the outputs that fill it.

    What is left computes the scores of whole texts. Parameters keep their names, so what was
    learned goes back into the original with `with_weights`.

    Args:
        model: as optimum, onnxruntime-genai or others exported it; it is not changed.
        output: also write the model to this path; weights that lie beside it stay there.
    """
    decoder = remove_cache(model)
    return deliver(decoder, output)


@model_errors("Taking the cache out of the model")
def remove_cache(model: ModelLike) -> ir.Model:
    """The same as `without_cache`, weights left where they are."""
    decoder = load(model)
    graph = decoder.graph
    scores = [o for o in graph.outputs if not PRESENT.match(o.name or "")]
    if not scores:
        raise TextError("All outputs of the model belong to its cache: it has no scores.")
    replace_outputs(decoder, scores)
    caches = [v for v in graph.inputs if is_cache(v)]
    settings = [v for v in graph.inputs if v.name in SET]
    if caches or settings:
        empty = _Empty(decoder, LanguageInputs.of(decoder).tokens)
        for value in caches:
            empty.remove_cache(value)
        for value in settings:
            empty.answer(value)
        empty.finish()
    RemoveUnusedNodesPass()(decoder)
    _forget_shapes_of_constants(decoder)
    return decoder


def _forget_shapes_of_constants(model: ir.Model) -> None:
    """A constant's value says what it is; onnxruntime-genai notes vectors of one as numbers."""
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and not node.outputs[0].is_graph_output():
            node.outputs[0].type = node.outputs[0].shape = None


class _Empty:
    """Puts nothing in the place of a cache."""

    def __init__(self, model: ir.Model, tokens: str) -> None:
        self.graph, self.op = model.graph, OpBuilder.on(model)
        self.op.scope = "empty_cache"
        self.model = model
        self.tokens = self.op.tensor(next(v for v in model.graph.inputs if v.name == tokens))
        self._batch: Tensor | None = None

    def remove_cache(self, value: ir.Value) -> None:
        """Take the input out where it may be absent; anything else reads a tensor of no length."""
        for node, index in tuple(value.uses()):
            if index in OPTIONAL.get(node.op_type, ()):
                node.replace_input_with(index, None)
            elif node.op_type == "Concat" and not node.domain and len(node.inputs) == 2:
                other = node.inputs[1 - index]
                assert other is not None
                become(node, "Identity", other)
        if value.uses():
            value.replace_all_uses_with(self._of_no_length(value).value)
        self.graph.inputs.remove(value)

    def _of_no_length(self, value: ir.Value) -> Tensor:
        """Zeros in the shape of the input, with open dimensions other than the batch being 0."""
        dims = dims_of(value)
        if dims is None or value.dtype is None:
            raise TextError(f"The cache input {value.name!r} of the model has no type or shape.")
        op = self.op
        batch = next((i for i, d in enumerate(dims) if _is_batch(d)), None)
        if batch is None:
            batch = next((i for i, d in enumerate(dims) if not isinstance(d, int)), None)
        sizes = [d if isinstance(d, int) else 0 for d in dims]
        if len(dims) > 3 and 0 not in [s for i, s in enumerate(sizes) if i != batch]:
            raise TextError(
                f"The cache input {value.name!r} has a fixed length {tuple(dims)}: it cannot be "
                "left empty. Export the model with a cache of open length."
            )
        if batch is None:
            shape = op.const(np.array(sizes, np.int64))
        else:
            before, after = (
                np.array(sizes[:batch], np.int64),
                np.array(sizes[batch + 1 :], np.int64),
            )
            parts = [op.const(before), self._rows(), op.const(after)]
            shape = op.Concat(*(p for p, n in zip(parts, (batch, 1, len(after))) if n), axis=0)
        return op.full(shape, 0.0, value.dtype)

    def _rows(self) -> Tensor:
        if self._batch is None:
            self._batch = self.op.Slice(self.op.Shape(self.tokens), [0], [1])
        return self._batch

    def answer(self, value: ir.Value) -> None:
        """Nothing is in the cache; the total length is that of the tokens."""
        op = self.op
        dtype = value.dtype or ir.DataType.INT64
        dims = [d if isinstance(d, int) else 1 for d in dims_of(value) or ()]
        if value.name == "total_sequence_length":
            length = op.Cast(op.Gather(op.Shape(self.tokens), np.array(1), axis=0), to=dtype)
            new = op.Reshape(length, dims) if dims else length
        else:
            new = op.const(np.zeros(dims, dtype.numpy()), dtype)
        value.replace_all_uses_with(new.value)
        self.graph.inputs.remove(value)

    def finish(self) -> None:
        """Put the nodes at the beginning, where only inputs are needed."""
        first = self.graph[0]
        self.op.place(self.graph, before=first)
        self.op.register_constants(self.graph)


def _is_batch(dim: object) -> bool:
    return not isinstance(dim, int) and "batch" in str(dim)
