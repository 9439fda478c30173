"""The environment of a list: torch, onnxruntime, onnxtrain, and what the list says it needs."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

from benchmarks.environments import environment

LISTS = Path(__file__).parent / "lists"
BASE = ["-e", ".[torch]", "onnxruntime==1.31.1", "torch==2.13.0"]


def python_of(name: str, extra: list[str]) -> str:
    """Python of the environment, made when it is not there.

    The variable `ONNXTRAIN_CONFORMANCE_PYTHON` names one that exists already.
    """
    given = os.environ.get("ONNXTRAIN_CONFORMANCE_PYTHON", "")
    return given or environment(f"list-{name}", sys.executable, [*BASE, *extra])


def lists() -> dict[str, list[str]]:
    """The lists by name, with their packages; other modules of the folder are their helpers."""
    known = {path.stem: packages(path) for path in sorted(LISTS.glob("*.py"))}
    return {name: needs for name, needs in known.items() if needs is not None}


def packages(path: Path) -> list[str] | None:
    """`PACKAGES` of a list, read without importing it: its imports need the environment."""
    for statement in ast.parse(path.read_text("utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="PACKAGES")], value=value):
                return [str(p) for p in ast.literal_eval(value)]
            case ast.AnnAssign(target=ast.Name(id="PACKAGES"), value=ast.expr() as value):
                return [str(p) for p in ast.literal_eval(value)]
    return None
