"""Modules that are importable under a second, older path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable


def also_at(package: str, home: str, names: Iterable[str]) -> None:
    """Let ``package.name`` be the module ``home.name``, the very same object, for each name."""
    for name in names:
        module = importlib.import_module(f"{home}.{name}")
        sys.modules[f"{package}.{name}"] = module
