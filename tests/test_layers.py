"""Dependencies point one way, and the device half stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "onnxtrain"

ALLOWED = {
    "errors": set(),
    "graph": {"errors"},
    "normalize": {"errors", "graph", "autodiff"},
    "autodiff": {"errors", "graph", "normalize"},
    "optimize": {"errors", "graph"},
    "runtime": {"errors"},
    "api": {"errors", "runtime"},
    "training": {
        "autodiff", "errors", "graph", "normalize", "onnxblock", "optim", "optimize", "pipeline",
        "runtime",
    },
}  # fmt: skip
"""Package → packages of onnxtrain that it may import (its own is always allowed)."""


def imports_of(path: Path) -> set[str]:
    """Top-level packages of onnxtrain that a file imports."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else ()
            full = (*base, *(node.module or "").split("."))
            names = [full] if node.module else [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        found |= {n[1] for n in names if n[0] == "onnxtrain" and len(n) > 1}
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    files = [ROOT / f"{package}.py"] if package == "errors" else (ROOT / package).rglob("*.py")
    for path in files:
        extra = imports_of(path) - ALLOWED[package] - {package}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


RECURRENT = {"recurrent.py", "recurrent_layer.py", "lstm.py", "gate_rows.py"}
SUBGRAPH_RULES = {"control_flow.py", "loop.py", "scan.py", "sequence.py", *RECURRENT}
"""Rules of operators with bodies build graphs, not formulas."""


def test_rules_build_with_the_builder() -> None:
    for path in (ROOT / "autodiff" / "rules").glob("*.py"):
        if path.name in SUBGRAPH_RULES:
            continue
        text = path.read_text()
        used = set(re.findall(r"\bir\.(\w+)", text))
        built = used & {"Node", "Graph", "Model", "Function"}
        assert not built, f"{path.name} builds {sorted(built)} by hand; the builder does that"


@pytest.mark.parametrize("module", ["onnxtrain", "onnxtrain.errors"])
def test_light_imports(module: str) -> None:
    heavy = "{'onnx', 'onnx_ir', 'torch', 'sklearn'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
