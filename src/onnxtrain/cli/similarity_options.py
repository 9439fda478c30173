"""The options of ``--task sentence-similarity``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
SIMILARITY = "sentence-similarity"


def similarity_options(command: F) -> F:
    """Add the options to a command."""
    for option in (
        click.option("--matryoshka", help="Lengths that vectors can be cut to, as 256,128,64."),
        click.option(
            "--margin",
            type=float,
            default=5.0,
            show_default=True,
            help="Of the loss triplet: by how much the positive is nearer.",
        ),
        click.option(
            "--scale",
            type=float,
            default=20.0,
            show_default=True,
            help="Of cosines, in the losses multiple_negatives_ranking and cosent.",
        ),
        click.option(
            "--pooling",
            default="auto",
            show_default=True,
            help="Vectors of texts: mean or cls of their tokens, none if the model gives them.",
        ),
    ):
        command = option(command)
    return command
