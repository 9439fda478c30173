"""Dependencies point one way, and the device half stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "onnxtrain"

STAGES = {"errors", "graph", "normalize", "autodiff", "passes"}
COMPILER = {*STAGES, "optim", "compile"}
OFFLINE = {*COMPILER, "onnxblock", "artifacts", "check", "summary"}
DEVICE = {"errors", "runtime", "api"}

ALLOWED = {
    "__init__": {"compile", "check", "compat.ort"},
    "__main__": {"cli"},
    "errors": set(),
    "hyper": {"errors"},
    "graph": {"errors"},
    "normalize": {"errors", "graph", "autodiff"},
    "autodiff": {"errors", "graph"},
    "passes": {"errors", "graph", "autodiff"},
    "optim": {"errors", "graph", "passes"},
    "compile": {*STAGES, "optim"},
    "extend": {"autodiff", "graph", "errors"},
    "check": COMPILER,
    "summary": COMPILER,
    "runtime": {"errors", "compat.ort", "distributed"},
    "api": {"errors", "runtime"},
    "onnxblock": {*COMPILER, "runtime"},
    "artifacts": {*COMPILER, "onnxblock", "runtime"},
    "data": set(),
    "training": {"compat.ort"},
    "compat": {"errors", "compat.ort"},
    "compat.ort": {*OFFLINE, *DEVICE, "compat", "extend", "torch"},
    "compat.onnxcustom": {*OFFLINE, *DEVICE, "compat", "compat.ort", "sklearn", "cli"},
    "torch": {*OFFLINE, *DEVICE, "compat", "compat.ort"},
    "sklearn": {*OFFLINE, *DEVICE, "compat", "compat.ort", "compat.onnxcustom"},
    "distributed": DEVICE,
    "flower": {*OFFLINE, *DEVICE},
    "serve": {*OFFLINE, *DEVICE, "data"},
    "cli": {
        *OFFLINE, *DEVICE, "__init__", "compat", "compat.ort", "data", "distributed", "serve",
        "extend",
    },
}  # fmt: skip
"""Package → packages of onnxtrain that it may import (its own is always allowed)."""


def package_of(parts: tuple[str, ...]) -> str:
    """The package that a module belongs to; compat is two of them."""
    if parts[0] == "compat" and len(parts) > 1 and parts[1] in {"ort", "onnxcustom"}:
        return ".".join(parts[:2])
    return parts[0]


def imports_of(path: Path) -> set[str]:
    """Packages of onnxtrain that a file imports, inside functions and by name too."""
    package = path.relative_to(ROOT.parent).with_suffix("").parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else ()
            full = (*base, *(node.module or "").split("."))
            names = [full] if node.module else [(*base, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            given = node.args[0] if node.args else None
            if not isinstance(given, ast.Constant):
                continue  # names that a table gives; those tables are compat's and the front door's
            names = [tuple(str(given.value).split("."))]
        else:
            continue
        for name in names:
            if name[0] == "onnxtrain" and len(name) > 1:
                found.add(package_of(name[1:]))
    return {
        n for n in found if (ROOT / n.replace(".", "/")).is_dir() or (ROOT / f"{n}.py").exists()
    }


def files_of(package: str) -> list[Path]:
    """The modules of a package."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if package_of(parts) == package:
            found.append(path)
    return found


def test_every_package_is_in_the_table() -> None:
    packages = {package_of(p.relative_to(ROOT).with_suffix("").parts) for p in ROOT.rglob("*.py")}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    for path in files_of(package):
        extra = imports_of(path) - ALLOWED[package] - {package}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


SUBGRAPH_RULES = {"control_flow.py", "loop.py", "scan.py", "sequence.py"}
"""Rules of operators with bodies build graphs, not formulas."""


def test_rules_build_with_the_builder() -> None:
    for path in (ROOT / "autodiff" / "rules").glob("*.py"):
        if path.name in SUBGRAPH_RULES:
            continue
        text = path.read_text()
        used = set(re.findall(r"\bir\.(\w+)", text))
        built = used & {"Node", "Graph", "Model", "Function"}
        assert not built, f"{path.name} builds {sorted(built)} by hand; the builder does that"


SPINE = {"differentiate_model", "expand_functions", "select_early", "layers_in_columns"}


def test_one_spine() -> None:
    """Only compile.py wires the stages; others ask it."""
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if parts[0] in {"compile.py", "autodiff", "passes", "summary.py"}:
            continue
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not names & SPINE, f"{'/'.join(parts)} wires {sorted(names & SPINE)} itself"


@pytest.mark.parametrize("module", ["onnxtrain", "onnxtrain.errors", "onnxtrain.api"])
def test_light_imports(module: str) -> None:
    heavy = "{'onnx', 'onnx_ir', 'torch', 'sklearn'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
