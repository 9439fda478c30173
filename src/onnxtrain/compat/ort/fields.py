"""Objects with a fixed list of attributes, where a misspelt one is an error at once."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any


class Fields:
    """Base of dataclasses that refuse attributes they do not have, and say which was meant."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in {f.name for f in dataclasses.fields(self)}:  # type: ignore[arg-type]
            raise AttributeError(self._unknown(name))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        known = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        close = difflib.get_close_matches(name, known, 1, 0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        return f"{type(self).__name__} has no attribute {name!r}.{hint}"
