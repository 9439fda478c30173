"""What the commands print: results on stdout, progress and problems on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..drawing.inert import inert
from ..errors import OnnxTrainError

WIDTH_WITHOUT_TERMINAL = 120
LONGEST_WORD = 1000
"""Letters of a name that are printed: of a million, only what a file is hostile with."""
LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD},}}")


class UserError(OnnxTrainError, click.ClickException):
    """A mistake in what the user gave: one paragraph that names it and the way out."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)


@dataclass
class Output:
    """Where the commands print, and how much.

    Colours and moving bars appear on a terminal only; ``NO_COLOR`` is respected.
    """

    quiet: bool = False
    debug: bool = False
    live: Console | None = None
    """What a progress bar is drawn on: lines go there too, and appear above it."""

    @property
    def out(self) -> Console:
        """Results."""
        return _console(sys.stdout)

    @property
    def err(self) -> Console:
        """Progress, and everything that is not a result."""
        return self.live or _console(sys.stderr)

    def say(self, text: str, style: str | None = None) -> None:
        """One line about what happens; nothing with ``--quiet``."""
        if not self.quiet:
            self.err.print(
                readable(text), style=style, markup=False, highlight=False, soft_wrap=True
            )

    def show(self, text: str) -> None:
        """A result as plain text."""
        self.out.print(inert(text), markup=False, highlight=False, soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], right: str = ""
    ) -> None:
        """A result as a table.

        Args:
            title: above it.
            columns: headings.
            rows: cells; anything that has a str().
            right: headings of the columns that are aligned to the right, separated by commas.
        """
        table = Table(title=_plain(title) or None, title_justify="left", box=None, pad_edge=False)
        for column in columns:
            justify: Any = "right" if column in right.split(",") else "left"
            table.add_column(_plain(column), justify=justify, overflow="fold", header_style="bold")
        for row in rows:
            table.add_row(*(_plain(cell) for cell in row))
        self.out.print(table, highlight=False)


def readable(text: str) -> str:
    """What may stand in a line of a message: no control codes, and long words without middle."""
    return LONG_WORD.sub(lambda word: f"{word[0][:400]}…{word[0][-100:]}", inert(text))


def _console(stream: Any) -> Console:
    width = None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, emoji=False)


def _plain(cell: Any) -> str:
    from rich.markup import escape

    return escape(readable(str(cell)))


def current() -> Output:
    """The output of the command that is running."""
    context = click.get_current_context(silent=True)
    output = context.find_object(Output) if context is not None else None
    return output if output is not None else Output()


def count(number: int, what: str) -> str:
    """A number with its noun: 1 row, 1,234 rows."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def size(bytes_: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if bytes_ < 1024:
            return f"{bytes_:.0f} {unit}" if unit == "B" else f"{bytes_:.1f} {unit}"
        bytes_ /= 1024
    return f"{bytes_:.2f} GiB"


def names_in(text: str | None) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def one_of(value: str, known: Iterable[str], option: str) -> str:
    """`value` if it is known, else an error that lists what is and names the nearest."""
    import difflib

    names = list(known)
    if value in names:
        return value
    close = difflib.get_close_matches(value, names, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UserError(f"{option} {value!r} is not known.{hint} Choose from: {', '.join(names)}.")
