"""What a language model takes: which input is what, and what is fed to each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..errors import TextError
from ..graph import ModelLike, load
from ..graph.tensor import Dim, dims_of

Array = npt.NDArray[Any]
TOKENS = ("input_ids", "tokens", "token_ids", "ids", "input")
MASKS, POSITIONS, TYPES = ("attention_mask",), ("position_ids",), ("token_type_ids", "segment_ids")
DOCUMENTS = "documents"
"""The input that `separate_documents` adds: which text of a row each token belongs to."""
CACHE = re.compile(r"past[._]?(key|value|conv|recurrent|\d)|past_key_values|cache[._]")
PRESENT = re.compile(r"present")
INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


def is_cache(value: ir.Value) -> bool:
    """Whether an input holds keys and values of tokens before."""
    is_float = value.dtype is None or value.dtype.is_floating_point()
    return is_float and CACHE.match(value.name or "") is not None


@dataclass(frozen=True)
class LanguageInputs:
    """The inputs of a language model, without its cache.

    Attributes:
        tokens: name of the input that takes the tokens' numbers.
        mask: of the one that is 1 where a token is and 0 where the row is filled up.
        positions: of the one that numbers the tokens of each row.
        types: of the one that tells first and second texts apart; all are the first.
        documents: of the one that tells the texts of a packed row apart, see `separate_documents`.
        dtypes: element types by name.
        length: tokens per row, where the model takes no other number.
    """

    tokens: str
    mask: str | None
    positions: str | None
    types: str | None
    dtypes: Mapping[str, np.dtype[Any]]
    length: int | None
    documents: str | None = None

    @classmethod
    def of(cls, model: ModelLike) -> LanguageInputs:
        """Find out by name, type and rank; raises `TextError` where something has no role.

        Args:
            model: as it came, or after `without_cache`.
        """
        values = [v for v in load(model).graph.inputs if not v.is_initializer()]
        values = [v for v in values if not is_cache(v) and v.name not in SET]
        named = {v.name or "": v for v in values}
        tokens = _tokens(named)
        roles = {
            role: next((n for n in names if n in named), None)
            for role, names in (
                ("mask", MASKS), ("positions", POSITIONS), ("types", TYPES),
                ("documents", (DOCUMENTS,)),
            )
        }  # fmt: skip
        rest = [n for n in named if n not in {tokens, *roles.values()}]
        if rest:
            raise TextError(
                f"The model takes {rest[0]!r}, and what to feed there is not known. Known are the "
                f"tokens ({', '.join(TOKENS[:2])}), {MASKS[0]}, {POSITIONS[0]}, {TYPES[0]} and a "
                "cache (past_key_values…). Give arrays of your own instead of text."
            )
        for name, value in named.items():
            dims = dims_of(value)
            if value.dtype is None or (dims is not None and len(dims) != 2):
                is_mask = " text.separate_documents computes a mask of pairs." * (name in MASKS)
                raise TextError(
                    f"The model's input {name!r} has {len(dims or ())} dimensions; tokens, masks "
                    f"and positions of a batch have two.{is_mask}"
                )
        dtypes = {n: v.dtype.numpy() for n, v in named.items() if v.dtype is not None}
        return cls(tokens, roles["mask"], roles["positions"], roles["types"], dtypes,
                   _length(named[tokens]), roles["documents"])  # fmt: skip

    def feeds(self, tokens: Array, mask: Array, documents: Array | None = None) -> dict[str, Array]:
        """Arrays by name for rows of tokens.

        Args:
            tokens: [rows, length].
            mask: the same, 1 where a token is. Positions count those only, so that a row has the
                same ones on whichever side it is filled up.
            documents: the same, the number of the text that each token belongs to, where a row has
                several that must not see each other; positions begin anew in each.

        Raises:
            TextError: there are such numbers, and the model takes none.
        """
        if documents is not None and self.documents is None:
            raise TextError(
                "The rows have several texts that must not see each other, and the model has no "
                "input for that: use text.separate_documents(model), or rows with separate=False."
            )
        texts = np.where(mask > 0, 0, -1) if documents is None else documents
        roles = {
            self.tokens: tokens,
            self.mask: mask,
            self.positions: _positions(mask, texts),
            self.types: np.zeros_like(tokens),
            self.documents: texts,
        }
        return {
            name: np.ascontiguousarray(array.astype(self.dtypes[name]))
            for name, array in roles.items()
            if name is not None
        }


def embedding_rows(model: ModelLike, inputs: LanguageInputs) -> int | None:
    """How many tokens a model has vectors for; None where that does not show.

    Args:
        model: any that takes tokens.
        inputs: what it takes.
    """
    graph = load(model).graph
    todo = [v for v in graph.inputs if v.name == inputs.tokens]
    while todo:
        for node, place in todo.pop().uses():
            table = node.inputs[0] if node.op_type == "Gather" and place == 1 else None
            if table is not None and table.const_value is not None:
                sizes = table.const_value.shape.numpy()
                return int(sizes[0]) if len(sizes) == 2 else None
            if node.op_type in {"Cast", "Identity", "Reshape"} and place == 0:
                todo.append(node.outputs[0])
    return None


def _positions(mask: Array, documents: Array) -> Array:
    """Tokens before each one in its text; 0 where a row is filled up."""
    counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    begins = np.zeros(documents.shape, bool)
    begins[:, 1:] = (documents[:, 1:] != documents[:, :-1]) & (mask[:, 1:] > 0)
    first = np.maximum.accumulate(np.where(begins, counted, 0), axis=1)
    return np.asarray(counted - first)


SET = {"use_cache_branch", "past_sequence_length", "total_sequence_length", "num_logits_to_keep"}
"""Inputs that say how much of the cache is filled: `without_cache` answers them."""


def _tokens(named: Mapping[str, ir.Value]) -> str:
    for name in TOKENS:
        if name in named and named[name].dtype in INTEGERS:
            return name
    others = {*MASKS, *POSITIONS, *TYPES}
    whole = [n for n, v in named.items() if v.dtype in INTEGERS and n not in others]
    if len(whole) == 1:
        return whole[0]
    raise TextError(
        f"The model has no input for tokens: its inputs are {', '.join(named) or 'none'}, and "
        f"whole numbers under one of the names {', '.join(TOKENS)} are looked for."
    )


def _length(tokens: ir.Value) -> int | None:
    dims: list[Dim] | None = dims_of(tokens)  # type: ignore[assignment]
    last = dims[-1] if dims else None
    return last if isinstance(last, int) else None
