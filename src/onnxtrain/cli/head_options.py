"""The options of ``--new-head``, and what it means for the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

PRESETS: Mapping[str, Any] = {
    "loss": "cross_entropy",
    "val": "0.2",
    "epochs": 20,
    "early_stopping": 5,
    "metric": "accuracy,f1,precision,recall,auc",
}
"""What options are with ``--new-head`` where the user says nothing else."""


def head_options(command: F) -> F:
    """Add the options to a command."""
    for option in (
        click.option(
            "--unfreeze",
            multiple=True,
            help="With --new-head: parameters to train beside it, e.g. 'layer4.*', '*' for all.",
        ),
        click.option(
            "--new-head",
            is_flag=True,
            help="Replace the classifier by one for the classes of the data, and train that only.",
        ),
    ):
        command = option(command)
    return command
