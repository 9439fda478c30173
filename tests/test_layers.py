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
OFFLINE = {*COMPILER, "losses", "onnxblock", "artifacts", "gradient_check", "summary"}
DEVICE = {"errors", "runtime", "api"}
EVERYWHERE = {"errors", "hyper", "operators", "preparing"}
"""What went wrong, which numbers make sense, facts about operators, what takes long: these import
nothing else."""

ALLOWED = {
    "__init__": {
        "api", "artifacts", "compile", "errors", "extend", "gradient_check", "lora", "losses",
        "onnxblock", "optim", "quant", "schedulers", "summary", "text", "training",
        "training_info", "transfer",
    },
    "__main__": {"cli"},
    "errors": set(),
    "hyper": {"errors"},
    "operators": set(),
    "preparing": set(),
    "graph": {"errors", "runtime"},  # of the latter files only: see below
    "normalize": {"errors", "graph", "autodiff"},
    "autodiff": {"errors", "graph", "plugins"},
    "passes": {"errors", "graph", "autodiff"},
    "optim": {"errors", "graph", "passes"},
    "compile": {*STAGES, "optim"},
    "extend": {"autodiff", "graph", "errors"},
    "gradient_check": {*COMPILER, "runtime"},
    "summary": COMPILER,
    "runtime": {"errors", "compat.ort", "distributed"},
    "api": {"errors", "runtime"},
    "schedulers": {"runtime"},
    "losses": {"errors", "graph"},
    "onnxblock": {*COMPILER, "losses", "runtime"},
    "artifacts": {*COMPILER, "losses", "onnxblock", "runtime"},
    "lora": {*STAGES, "runtime"},
    "training_info": {*COMPILER, "losses", "onnxblock", "runtime"},
    "text": {"errors", "graph", "runtime"},
    "quant": {*STAGES, "lora", "runtime"},
    "distillation": {"errors", "graph", "normalize"},
    "transfer": {"errors", "graph", "lora", "normalize", "runtime", "text"},
    "data": {"errors", "runtime"},
    "drawing": set(),
    "plugins": {"errors"},
    "signing": {"errors"},
    "loggers": {"errors", "plugins", "runtime"},
    "tuning": {"errors", "runtime"},
    "training": {"compat.ort"},
    "compat": {"errors", "compat.ort"},
    "compat.ort": {*OFFLINE, *DEVICE, "compat", "extend", "torch"},
    "compat.onnxcustom": {*OFFLINE, *DEVICE, "compat", "compat.ort", "sklearn", "drawing"},
    "torch": {*OFFLINE, *DEVICE, "compat", "compat.ort"},
    "sklearn": {*OFFLINE, *DEVICE, "compat", "compat.ort", "compat.onnxcustom"},
    "distributed": DEVICE,
    "flower": {*OFFLINE, *DEVICE},
    "serve": {*OFFLINE, *DEVICE, "data"},
    "cli": {
        *OFFLINE, *DEVICE, "__init__", "compat", "compat.ort", "data", "distributed", "serve",
        "distillation", "extend", "drawing", "lora", "quant", "text", "training_info", "plugins",
        "loggers", "transfer", "tuning", "signing",
    },
}  # fmt: skip
"""Package → packages of onnxtrain that it may import (its own is always allowed)."""


ONNX = {"numpy", "onnx", "onnx_ir"}
OUTSIDE = {
    "__init__": set(),
    "__main__": set(),
    "errors": set(),
    "hyper": set(),
    "operators": set(),
    "preparing": set(),
    "graph": {*ONNX, "google"},
    "normalize": ONNX,
    "autodiff": {"numpy", "onnx_ir"},
    "passes": ONNX,
    "optim": {"numpy", "onnx_ir"},
    "losses": ONNX,
    "compile": ONNX,
    "extend": set(),
    "gradient_check": {*ONNX, "onnxruntime"},
    "summary": ONNX,
    "runtime": {"numpy", "onnxruntime", "flatbuffers", "numba", "llvmlite"},
    "api": set(),
    "schedulers": set(),
    "onnxblock": ONNX,
    "artifacts": {*ONNX, "onnxruntime"},
    "lora": {*ONNX, "onnxruntime"},
    "training_info": ONNX,
    "text": {*ONNX, "tokenizers", "pyarrow"},
    "quant": {*ONNX, "onnxruntime"},
    "distillation": ONNX,
    "transfer": ONNX,
    "data": {"numpy", "pyarrow", "PIL"},
    "plugins": set(),
    "signing": {"model_signing"},
    "loggers": {"tensorboardX", "mlflow", "wandb"},
    "tuning": {"optuna"},
    "training": set(),
    "compat": {"onnxruntime"},
    "compat.ort": {*ONNX, "onnxruntime", "torch", "h5py"},
    "compat.onnxcustom": {*ONNX, "onnxruntime", "sklearn", "tqdm"},
    "drawing": {"numpy", "onnx", "PIL"},
    "torch": {*ONNX, "onnxruntime", "onnxscript", "torch"},
    "sklearn": {*ONNX, "onnxruntime", "sklearn"},
    "distributed": {"numpy", "mpi4py", "torch", "ray"},
    "flower": {"numpy", "flwr"},
    "serve": {"numpy"},
    "cli": {
        "numpy", "onnx", "onnxruntime", "click", "rich", "PIL", "torch", "tensorboardX", "yaml",
        "pyarrow",
    },
}  # fmt: skip
"""Package → packages from outside that it may import, optional ones included."""


def package_of(parts: tuple[str, ...]) -> str:
    """The package that a module belongs to; compat is two of them."""
    if parts[0] == "compat" and len(parts) > 1 and parts[1] in {"ort", "onnxcustom"}:
        return ".".join(parts[:2])
    return parts[0]


def imported_by_name(node: ast.AST) -> str:
    """The module in ``import_module("…")``; "" for other nodes, and where a table gives the name.

    Such tables are compat's, the commands' and the front door's.
    """
    if not isinstance(node, ast.Call) or not node.args:
        return ""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    given = node.args[0]
    known = called == "import_module" and isinstance(given, ast.Constant)
    return str(given.value) if known else ""


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
        elif given := imported_by_name(node):
            names = [tuple(given.split("."))]
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
        extra = imports_of(path) - ALLOWED[package] - {package, *EVERYWHERE}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


FILES = {"atomic", "external", "growth", "readfile", "sound"}
"""Modules of the runtime that know files and nothing of models being run."""


def test_graph_shares_the_files_of_the_runtime_only() -> None:
    for path in (ROOT / "graph").glob("*.py"):
        used = set(re.findall(r"from \.\.runtime(?:\.files)?(?:\.(\w+))? import", path.read_text()))
        assert used <= FILES, f"{path.name} imports {sorted(used - FILES)} of the runtime"


def outside_imports(path: Path) -> set[str]:
    """Packages from outside, the standard library apart, that a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module or "")
        elif given := imported_by_name(node):
            names.add(given)
    tops = {name.partition(".")[0] for name in names}
    return tops - sys.stdlib_module_names - {"onnxtrain", "__future__"}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_each_package_needs_only_what_the_table_says(package: str) -> None:
    for path in files_of(package):
        extra = outside_imports(path) - OUTSIDE[package]
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


LIGHT = {
    "__init__",
    "columns",
    "compiler_code",
    "library",
    "machine_code",
    "opcodes",
    "operators",
    "program",
    "stub",
}
"""Modules of `runtime/fusion` that can be imported without numba; the others are kernels."""


def test_numba_is_imported_where_it_is_optional() -> None:
    """The device half runs without it: nothing imports it, or a kernel, at its top."""
    kernels = {p.stem for p in (ROOT / "runtime" / "fusion").glob("*.py")} - LIGHT
    assert kernels
    for path in files_of("runtime"):
        if path.parent.name == "fusion" and path.stem in kernels:
            continue
        imports = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import)]
        origins = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
        modules = {alias.name for node in imports for alias in node.names}
        modules |= {node.module or "" for node in origins}
        tops = {name.partition(".")[0] for name in modules}
        assert not tops & {"numba", "llvmlite"}, path
        behind = {m.rpartition(".")[2] for m in modules if "fusion" in m.split(".")}
        if path.parent.name == "fusion":
            behind |= {node.module or "" for node in origins if node.level == 1}
        assert not behind & kernels, path


SUBGRAPH_RULES = {"control_flow.py", "loop.py", "scan.py", "sequence.py"}
"""Rules of operators with bodies build graphs, not formulas."""


def test_rules_build_with_the_builder() -> None:
    for path in (ROOT / "autodiff" / "rules").glob("*.py"):
        if path.name in SUBGRAPH_RULES:
            continue
        text = path.read_text()
        used = set(re.findall(r"\bir\.(\w+)\(", text))
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


@pytest.mark.parametrize(
    "module", ["onnxtrain", "onnxtrain.errors", "onnxtrain.api", "onnxtrain.schedulers"]
)
def test_light_imports(module: str) -> None:
    heavy = "{'onnx', 'onnx_ir', 'torch', 'sklearn'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def users_of(*names: str) -> set[str]:
    """Files that call, or derive a class from, something whose name ends like one of these."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for used in (
            [node.func]
            if isinstance(node, ast.Call)
            else node.bases
            if isinstance(node, ast.ClassDef)
            else []
        )
        if ast.unparse(used).endswith(names)
    }


def test_one_place_creates_sessions() -> None:
    """Threads, options and providers are decided in one file; TrainingSession looks like one.

    What native.py makes is asked for its options, or tells what a build can do.
    """
    assert users_of("InferenceSession") == {
        "runtime/session/devices.py",
        "runtime/session/native.py",
        "compat/ort/session.py",
    }


def test_there_is_one_binding_class() -> None:
    """Bindings of onnxruntime are made for `Binding` only; all others are built from it."""
    assert users_of("SessionIOBinding", ".io_binding") == {
        "runtime/session/native.py",
        "runtime/session/cut_session.py",  # one for each piece of a long model
        "compat/ort/binding.py",  # what the user of a TrainingSession binds to
        "compat/ort/session.py",  # gives it out
    }
