"""Options of ``train`` for data larger than memory and for jobs that are started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--stream", is_flag=True, help="Read the data while training, never all at once; see below."
    ),
    click.option(
        "--buffer-rows",
        type=int,
        default=8192,
        show_default=True,
        help="Rows of streamed data that are shuffled in memory.",
    ),
    click.option(
        "--interleave",
        type=int,
        default=8,
        show_default=True,
        help="Places of streamed data that are read side by side; processes share them.",
    ),
    click.option(
        "--save-every", type=int, help="Also write the checkpoint after every so many steps."
    ),
    click.option(
        "--auto-resume",
        is_flag=True,
        help="Go on with the run in --output if there is one, else begin: for jobs that a "
        "scheduler starts again.",
    ),
)


def cluster_options(function: F) -> F:
    """Add the options, in the order of the list."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function
