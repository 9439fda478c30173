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
        dtypes: element types by name.
        length: tokens per row, where the model takes no other number.
    """

    tokens: str
    mask: str | None
    positions: str | None
    types: str | None
    dtypes: Mapping[str, np.dtype[Any]]
    length: int | None

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
            for role, names in (("mask", MASKS), ("positions", POSITIONS), ("types", TYPES))
        }
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
                raise TextError(
                    f"The model's input {name!r} has {len(dims or ())} dimensions; tokens, masks "
                    "and positions of a batch have two."
                )
        dtypes = {n: v.dtype.numpy() for n, v in named.items() if v.dtype is not None}
        return cls(tokens, roles["mask"], roles["positions"], roles["types"], dtypes,
                   _length(named[tokens]))  # fmt: skip

    def feeds(self, tokens: Array, mask: Array) -> dict[str, Array]:
        """Arrays by name for rows of tokens.

        Args:
            tokens: [rows, length].
            mask: the same, 1 where a token is. Positions count those only, so that a row has the
                same ones on whichever side it is filled up.
        """
        counted = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        roles = {
            self.tokens: tokens,
            self.mask: mask,
            self.positions: counted,
            self.types: np.zeros_like(tokens),
        }
        return {
            name: np.ascontiguousarray(array.astype(self.dtypes[name]))
            for name, array in roles.items()
            if name is not None
        }


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
