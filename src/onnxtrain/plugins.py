"""What other packages add: gradients, losses, optimizers, loggers and data, by entry points.

A package names an object in its ``pyproject.toml``, and onnxtrain finds it where it is installed:

    [project.entry-points."onnxtrain.losses"]
    my_loss = "my_package:MyLoss"

Nothing is imported before its name is asked for; only gradients are all imported, once, when a
model has an operator without a rule.
"""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from typing import Any, Literal, TypeAlias

from .errors import OnnxTrainError

Group: TypeAlias = Literal["gradients", "losses", "optimizers", "loggers", "data"]
GROUPS: tuple[Group, ...] = ("gradients", "losses", "optimizers", "loggers", "data")


class PluginError(OnnxTrainError, ImportError):
    """An entry point of another package cannot be used."""


def names(group: Group) -> list[str]:
    """Names of the entry points of a group, of all installed packages."""
    return sorted({point.name for point in _points(group)})


def load(group: Group, name: str) -> Any:
    """The object behind an entry point.

    Raises:
        PluginError: there is none of that name, several packages have one, or it cannot be
            imported.
    """
    points = [point for point in _points(group) if point.name == name]
    if not points:
        known = ", ".join(names(group)) or "none"
        raise PluginError(
            f"No installed package adds {name!r} to onnxtrain.{group}; there are: {known}."
        )
    if len({point.value for point in points}) > 1:
        owners = ", ".join(sorted(_owner(point) for point in points))
        raise PluginError(
            f"Several packages add {name!r} to onnxtrain.{group}: {owners}. Uninstall all but one."
        )
    try:
        return points[0].load()
    except Exception as error:
        raise PluginError(
            f"{name!r} of onnxtrain.{group}, which the package {_owner(points[0])} adds as "
            f"{points[0].value}, cannot be imported: {type(error).__name__}: {error}"
        ) from error


_imported: set[str] = set()
"""Groups of which everything was imported, or is being imported."""


def import_gradients() -> None:
    """Import all that adds gradients, once; a function among it is called."""
    if "gradients" in _imported:
        return
    _imported.add("gradients")
    for name in names("gradients"):
        added = load("gradients", name)
        if callable(added):
            added()


def _points(group: Group) -> list[metadata.EntryPoint]:
    return [point for point in _all(tuple(sys.path)) if point.group == f"onnxtrain.{group}"]


@functools.lru_cache(maxsize=4)
def _all(path: tuple[str, ...]) -> list[metadata.EntryPoint]:
    """Those of all groups, read once: hundreds of packages may be installed."""
    del path  # where they are looked for
    points = metadata.entry_points()
    return [point for group in GROUPS for point in points.select(group=f"onnxtrain.{group}")]


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
