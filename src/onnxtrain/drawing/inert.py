"""Names out of files, made harmless before they are shown.

A stranger's model may have names that a terminal obeys (escape sequences), that SVG must not hold
(control characters) or that turn the direction of writing round and so read as others.
"""

from __future__ import annotations

import re

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029\ud800-\udfff\ufffe\uffff]"  # other line ends, and what no file may hold
)


def inert(text: str) -> str:
    r"""Text in which everything that a terminal, SVG or HTML would act upon is spelled out.

    Example:
        >>> inert("w\x1b[2J")
        'w\\x1b[2J'
    """
    return _ACTIVE.sub(lambda match: _spelled(ord(match[0])), text)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
