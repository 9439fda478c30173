"""The environment of a list: torch, onnxruntime, onnxtrain, and what the list says it needs."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

from benchmarks.environments import environment

BASE = ["-e", ".[torch]", "onnxruntime==1.31.1", "torch==2.13.0"]


def python_of(name: str, extra: list[str]) -> str:
    """Python of the environment, made when it is not there.

    The variable `ONNXTRAIN_CONFORMANCE_PYTHON` names one that exists already.
    """
    given = os.environ.get("ONNXTRAIN_CONFORMANCE_PYTHON", "")
    return given or environment(f"list-{name}", sys.executable, [*BASE, *extra])


def packages(path: Path) -> list[str]:
    """`PACKAGES` of a list, read without importing it: its imports need the environment."""
    for statement in ast.parse(path.read_text("utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "PACKAGES" for t in targets):
            return [str(p) for p in ast.literal_eval(statement.value)]  # type: ignore[attr-defined]
    raise ValueError(f"{path.name} has no literal PACKAGES = [...].")
