"""Text to numbers and back: a tokenizer.json, or an object that somebody has already."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import MissingPackageError, TextError
from ..runtime.files.readfile import read_regular

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
LARGEST = 2**28
"""Bytes of a tokenizer.json; the largest that are published have some thirty million."""

USUAL = {
    "eos": ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>",
            "[SEP]", "<|end|>"),
    "bos": ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[CLS]"),
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"),
}  # fmt: skip
"""What special tokens are called where nothing says so."""


class Tokenizer:
    """A tokenizer of the package ``tokenizers``, with the numbers of its special tokens.

    Args:
        backend: a ``tokenizers.Tokenizer``.
        special: names of the special tokens, "eos", "bos" and "pad"; those that are left out are
            looked for under their usual names.
        where: where it comes from, for messages.

    Attributes:
        eos_id: number of the token that ends a text; None if there is none.
        bos_id: of the one that begins it; likewise.
        pad_id: what rows are filled up with: it is masked, so any number does.
        size: one more than the largest number.
    """

    def __init__(
        self, backend: Any, special: dict[str, str] | None = None, where: str = "The tokenizer"
    ) -> None:
        self.backend, self.where = backend, where
        self._special = special or {}
        self.eos_id, self.bos_id = self._id_of("eos"), self._id_of("bos")
        pad = self._id_of("pad")
        self.pad_id = next((i for i in (pad, self.eos_id) if i is not None), 0)
        self.size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if not self.size:
            raise TextError(f"{where} has no tokens at all.")

    def _id_of(self, role: str) -> int | None:
        named = self._special.get(role)
        for token in (named,) if named else USUAL[role]:
            number = self.backend.token_to_id(token)
            if number is not None:
                return int(number)
        return None

    def encode(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """The numbers of each text, with the tokenizer's special tokens only where asked."""
        for index, text in enumerate(texts):
            if not text.isascii():
                _check_text(text, index)
        try:
            encoded = self.backend.encode_batch(list(texts), add_special_tokens=special)
        except BaseException as error:
            raise _refused(error, f"{self.where} cannot encode the text") from error
        return [list(one.ids) for one in encoded]

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of some numbers, special tokens left out."""
        return str(self.backend.decode([int(n) for n in numbers], skip_special_tokens=True))


def load_tokenizer(source: Any) -> Tokenizer:
    """A tokenizer from a file, a folder, or an object.

    Args:
        source: a ``tokenizer.json``, a folder that has one, a ``tokenizers.Tokenizer``, a fast
            tokenizer of transformers, or a `Tokenizer`.

    Raises:
        TextError: it cannot be read.
        MissingPackageError: files need the package tokenizers.
    """
    if isinstance(source, Tokenizer):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _from_file(Path(source))
    backend = getattr(source, "backend_tokenizer", source)  # of transformers
    if not hasattr(backend, "encode_batch") or not hasattr(backend, "token_to_id"):
        raise TextError(
            f"A tokenizer is a tokenizer.json or an object of the package tokenizers, not "
            f"{type(source).__name__}. Slow tokenizers of transformers have no such file: use the "
            "fast one."
        )
    names = {role: getattr(source, f"{role}_token", None) for role in USUAL}
    return Tokenizer(backend, {k: v for k, v in names.items() if isinstance(v, str)})


def _from_file(path: Path) -> Tokenizer:
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        hint = (
            " A tokenizer.model of sentencepiece has to be converted first: transformers' "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) writes a tokenizer.json."
            if path.is_dir() and list(path.glob("*.model"))
            else ""
        )
        raise TextError(f"There is no tokenizer file {str(file)!r}.{hint}")
    try:
        from tokenizers import Tokenizer as Backend
    except ImportError:
        raise MissingPackageError("tokenizers", f"Reading {str(file)!r}", "text") from None
    content = read_regular(file, TextError, LARGEST)
    try:
        backend = Backend.from_buffer(content)
    except BaseException as error:
        raise _refused(error, f"{str(file)!r} cannot be read as a tokenizer.json") from error
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, _special_tokens(file.with_name(CONFIG)), str(file))


def _refused(error: BaseException, what: str) -> BaseException:
    """Our error for one of the tokenizers package, whose panics are no `Exception`."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        reason = " ".join(str(error).split())[:300]
        return TextError(f"{what} ({reason or type(error).__name__}).")
    return error


def _special_tokens(file: Path) -> dict[str, str]:
    """What a tokenizer_config.json beside the tokenizer calls its special tokens."""
    if not file.is_file():
        return {}
    try:
        config = json.loads(read_regular(file, TextError, LARGEST))
    except (ValueError, RecursionError) as error:
        raise TextError(f"{str(file)!r} is not valid JSON: {error}.") from error
    names: dict[str, str] = {}
    for role in USUAL:
        token = config.get(f"{role}_token") if isinstance(config, dict) else None
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            names[role] = token
    return names


def _check_text(text: str, index: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"Text {index} holds half of a character at place {error.start} (a lone surrogate, as "
            'JSON writes it: "\\ud800"), which UTF-8 does not have. Remove it.'
        ) from None
