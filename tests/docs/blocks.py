"""Code blocks of a Markdown page, and how to run them.

All Python blocks of a page run in order, in one namespace and one empty folder, as for a reader
who types them in. A comment on the line before a block changes that:

    <!-- skip: why it cannot run here -->      not run
    <!-- needs: torch, skl2onnx -->            the rest of the page runs only with these packages
    <!-- raises: NoGradientError -->           this error is expected
    <!-- fresh -->                             a new namespace starts here
    <!-- output -->                            before a text block: what the block above printed,
                                               the error's type and message at the end
    <!-- setup ... -->                         code that is run and not shown

The same comments are understood in README.md and CONTRIBUTING.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<rest>.*)$")
COMMENT = re.compile(
    r"^ *<!-- *(?P<word>skip|needs|raises|fresh|output)(?:: *(?P<value>.*?))? *-->$"
)
SETUP = re.compile(r"^ *<!-- setup *$")
PYTHON = ("python", "py")


@dataclass(frozen=True)
class Block:
    """A fenced block: its text, where it begins, and the comments before it."""

    language: str
    code: str
    line: int
    marks: Mapping[str, str]


def read_blocks(path: Path) -> list[Block]:
    """All fenced blocks and hidden set-up code of a page."""
    return list(_blocks(path.read_text(encoding="utf-8").splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    marks: dict[str, str] = {}
    at = 0
    while at < len(lines):
        comment, fence = COMMENT.match(lines[at]), FENCE.match(lines[at])
        if comment:
            marks[comment["word"]] = comment["value"] or ""
        elif SETUP.match(lines[at]):
            end = _find(lines, at + 1, "-->")
            yield Block("python", "\n".join(lines[at + 1 : end]), at + 2, marks)
            at, marks = end, {}
        elif fence:
            end = _find(lines, at + 1, "```")
            indent = len(fence["indent"])
            code = "\n".join(line[indent:] for line in lines[at + 1 : end])
            yield Block(fence["language"], code, at + 2, marks)
            at, marks = end, {}
        elif lines[at].strip():
            marks = {}
        at += 1


def _find(lines: list[str], start: int, closing: str) -> int:
    for at in range(start, len(lines)):
        if lines[at].strip() == closing:
            return at
    raise ValueError(f"line {start}: the block is never closed with {closing}")


def run_page(path: Path, scope: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the Python blocks of a page in the current folder; gives the namespace they leave.

    Args:
        path: the page.
        scope: names that the page takes for granted.
    """
    given = dict(scope or {})
    names: dict[str, Any] = {"__name__": "__main__", **given}
    printed = ""
    for block in read_blocks(path):
        if "needs" in block.marks:
            _require(block.marks["needs"])
        if "output" in block.marks:
            assert printed.rstrip() == block.code.rstrip(), (
                f"{path.name}:{block.line}: the page shows another output than the code above has: "
                f"{printed!r}"
            )
        if block.language not in PYTHON or "skip" in block.marks:
            continue
        if "fresh" in block.marks:
            names = {"__name__": "__main__", **given}
        printed = _run(block, path, names)
    return names


def _run(block: Block, path: Path, names: dict[str, Any]) -> str:
    # Blank lines before the code, so that a traceback shows the line of the page.
    code = compile("\n" * (block.line - 1) + block.code, str(path), "exec", dont_inherit=True)
    out = io.StringIO()
    expected = block.marks.get("raises")
    caught: Exception | None = None
    with contextlib.redirect_stdout(out):
        try:
            exec(code, names)
        except Exception as error:
            if expected is None:
                raise
            caught = error
            print(f"{type(error).__name__}: {error}")
    where = f"{path.name}:{block.line}"
    assert expected is None or caught is not None, f"{where}: no {expected} was raised"
    kinds = [kind.__name__ for kind in type(caught).__mro__]
    assert expected is None or expected in kinds, f"{where}: {caught!r} is no {expected}"
    return out.getvalue()


def _require(packages: str) -> None:
    missing = [p for p in re.split(r"[ ,]+", packages) if importlib.util.find_spec(p) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
