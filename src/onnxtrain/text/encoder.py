"""Sentence encoders: one vector per text, and several texts per row to compare them."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import TextError, model_errors
from ..graph import ModelLike, OpBuilder, Tensor, load
from ..graph.edit import replace_outputs
from ..graph.io import deliver
from ..graph.tensor import dims_of
from .inputs import LanguageInputs

Pooling = Literal["auto", "mean", "cls", "none"]
EMBEDDING = "sentence_embedding"
OPSET = 13
"""From here on sums have their axes as an input."""


@model_errors("Making a sentence encoder")
def sentence_encoder(
    model: ModelLike,
    texts: int = 1,
    *,
    pooling: Pooling = "auto",
    normalize: bool = False,
    output: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """An encoder that gives one vector per text.

    With several `texts` per row, inputs are [rows, texts, length], all go through the encoder in
    one run, and there is an output for each: ``sentence_embedding_0``, ``sentence_embedding_1`` …,
    in the order in which losses take them. Parameters keep their names, so that what was learned
    goes back into the original with `with_weights`.

    Args:
        model: of tokens, as optimum or others exported it; it is not changed.
        texts: how many a row has: 2 for pairs, 3 for triples.
        pooling: "mean" over the tokens that the mask has, "cls" for the first token, "none" if the
            model gives vectors already, "auto" to find out: vectors are taken as they are, and
            states of tokens are averaged.
        normalize: make vectors of length 1.
        output: also write the model to this path.
    """
    if texts < 1:
        raise TextError(f"texts is {texts}; a row has at least one.")
    encoder = load(model)
    if encoder.opset_imports.get("", 1) < OPSET:
        raise TextError(
            f"sentence_encoder needs opset {OPSET}, and the model has "
            f"{encoder.opset_imports.get('', 1)}. Raise it with "
            f"onnx.version_converter.convert_version(model, {OPSET})."
        )
    inputs = LanguageInputs.of(encoder)
    hidden, is_pooled = _choose_output(encoder, pooling)
    op = OpBuilder.on(encoder)
    op.scope = EMBEDDING
    vectors = op.tensor(hidden)
    if not is_pooled:
        vectors = _pooled(op, vectors, encoder, inputs, pooling)
    if normalize:
        square = op.ReduceSum(vectors * vectors, [1], keepdims=1)
        vectors = vectors / op.Sqrt(square + 1e-24)
    results = [vectors] if texts == 1 else _apart(op, vectors, texts, dims_of(hidden))
    names = [EMBEDDING] if texts == 1 else [f"{EMBEDDING}_{i}" for i in range(texts)]
    size = (dims_of(hidden) or [None])[-1]
    for name, result in zip(names, results):
        named = op.Identity(result).value
        named.name = name
        named.type, named.shape = hidden.type, ir.Shape(["rows", size])
    outputs = [node.outputs[0] for node in op.nodes if node.outputs[0].name in names]
    op.attach(encoder.graph, mark=True)
    replace_outputs(encoder, outputs)
    if texts > 1:
        _several(encoder, texts)
    return deliver(encoder, output)


def _choose_output(model: ir.Model, pooling: Pooling) -> tuple[ir.Value, bool]:
    """States of tokens or vectors of texts, and whether they are the latter."""
    if pooling not in {"auto", "mean", "cls", "none"}:
        raise TextError(f"pooling is 'auto', 'mean', 'cls' or 'none', not {pooling!r}.")
    ranks = {o: len(dims_of(o) or ()) for o in model.graph.outputs}
    vectors = [o for o, rank in ranks.items() if rank == 2]
    states = [o for o, rank in ranks.items() if rank == 3]
    named = [o for o in vectors if o.name == EMBEDDING]
    if pooling in {"auto", "none"} and (named or (vectors and (pooling == "none" or not states))):
        return (named or vectors)[0], True
    if not states or pooling == "none":
        listed = ", ".join(f"{o.name!r} {list(dims_of(o) or ())}" for o in model.graph.outputs)
        kind = "vectors [batch, size]" if pooling == "none" else "states [batch, length, size]"
        raise TextError(f"The model has no output with {kind} for pooling={pooling!r}: {listed}.")
    return states[0], False


def _pooled(
    op: OpBuilder, states: Tensor, model: ir.Model, inputs: LanguageInputs, pooling: Pooling
) -> Tensor:
    if pooling == "cls":
        return op.Gather(states, np.array(0), axis=1)
    if inputs.mask is None:
        length = op.Cast(op.Gather(op.Shape(states), np.array(1), axis=0), to=states.dtype)
        return op.ReduceSum(states, np.array([1]), keepdims=0) / length
    mask = op.tensor(next(v for v in model.graph.inputs if v.name == inputs.mask))
    real = op.Cast(op.Unsqueeze(mask, np.array([2])), to=states.dtype)
    total = op.ReduceSum(states * real, np.array([1]), keepdims=0)
    return total / op.Max(op.ReduceSum(real, np.array([1]), keepdims=0), 1e-9)


def _apart(
    op: OpBuilder, vectors: Tensor, texts: int, dims: tuple[object, ...] | None
) -> list[Tensor]:
    """The vectors of the first texts of all rows, of the second ones, and so on."""
    size = (dims or [None])[-1]
    if not isinstance(size, int):
        raise TextError("The size of the model's vectors is not known: give its output a shape.")
    together = op.Reshape(vectors, np.array([-1, texts, size]))
    return [op.Gather(together, np.array(i), axis=1) for i in range(texts)]


def _several(model: ir.Model, texts: int) -> None:
    """Inputs [rows, texts, length], read as [rows · texts, length]."""
    graph = model.graph
    op = OpBuilder.on(model)
    op.scope = "texts"
    for value in [v for v in graph.inputs if not v.is_initializer()]:
        dims = dims_of(value) or (None, None)
        new = ir.Value(name=value.name, type=value.type, shape=ir.Shape(["rows", texts, dims[1]]))
        length = op.Slice(op.Shape(op.tensor(new)), np.array([2]), np.array([3]))
        flat = op.Reshape(op.tensor(new), op.Concat(op.const(np.array([-1])), length, axis=0))
        flat.value.type, flat.value.shape = value.type, ir.Shape([None, dims[1]])
        value.replace_all_uses_with(flat.value)
        graph.inputs[graph.inputs.index(value)] = new
    op.attach(graph, before=graph[0])
