"""What README, CONTRIBUTING and docstrings say of the structure is so.

Who imports whom, and what from outside, is in `test_layers`; the numbers of docs/ops.md in
`test_docs_ops`; the list of public names in `api/test_snapshot`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
from pathlib import Path

import click
import pytest

import onnxtrain
from onnxtrain import errors, passes
from onnxtrain.cli import app

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "onnxtrain"
README, CONTRIBUTING = (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))


def modules() -> list[str]:
    """Every module of the package but the programs."""
    walked = pkgutil.walk_packages(onnxtrain.__path__, "onnxtrain.", onerror=lambda name: None)
    return [m.name for m in walked if not m.name.endswith("__main__") and ".site." not in m.name]


def exceptions() -> dict[str, type[BaseException]]:
    """The exception classes that the package defines; those behind a missing extra are left out."""
    found: dict[str, type[BaseException]] = {}
    for name in modules():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for _, value in inspect.getmembers(module, inspect.isclass):
            if issubclass(value, BaseException) and value.__module__ == name:
                found[f"{name}.{value.__qualname__}"] = value
    return found


SIGNALS = {
    "onnxtrain.cli.progress.InterruptedRunError",  # Ctrl-C, from the loop to the command
    "onnxtrain.cli.torch_twin.NoTwinError",  # bench shows a dash instead of PyTorch's time
    "onnxtrain.normalize.polynomial.UnknownError",  # a size that has no formula stays unknown
}
"""Exceptions that are caught where they are raised; no user sees them."""


def test_every_exception_is_an_onnxtrain_error_and_a_built_in_one() -> None:
    found = exceptions()
    has_torch = importlib.util.find_spec("torch") is not None
    behind_torch = set() if has_torch else {"onnxtrain.cli.torch_twin.NoTwinError"}
    assert set(found) >= SIGNALS - behind_torch
    assert len(found) > 30
    for name, kind in found.items():
        if name in SIGNALS or kind is errors.OnnxTrainError:
            continue
        if issubclass(kind, Warning | KeyboardInterrupt):  # the second: SIGTERM as Ctrl-C
            continue
        assert issubclass(kind, errors.OnnxTrainError), name
        known = {b for b in vars(builtins).values() if inspect.isclass(b)}
        fits = [
            b for b in kind.__mro__ if b in known and b not in (Exception, BaseException, object)
        ]
        assert fits or issubclass(kind, click.ClickException), f"{name} is no built-in exception"


def test_signals_are_caught_inside() -> None:
    for name in SIGNALS:
        module, _, kind = name.rpartition(".")
        folder = SRC.joinpath(*module.split(".")[1:]).parent
        text = "\n".join(p.read_text() for p in folder.glob("*.py"))
        assert re.search(rf"except [\w., (]*\b{kind}\b", text), f"nobody catches {name}"


def test_one_file_per_command() -> None:
    """A command is a module of its name, and no other module has one."""
    with_commands = [
        path.stem
        for path in (SRC / "cli").glob("*.py")
        if re.search(r"^@click.command", path.read_text(), re.MULTILINE)
    ]
    assert sorted(with_commands) == sorted(app.COMMANDS.values())
    assert all(name.replace("-", "_") == module for name, module in app.COMMANDS.items())


def test_readme_names_commands_and_extras_that_exist() -> None:
    text = README.read_text()
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    assert set(re.findall(r"^onnxtrain (\w+)", blocks, re.MULTILINE)) <= set(app.COMMANDS)
    others = re.search(r"There are also (.*?): `onnxtrain", text, re.DOTALL)
    assert others is not None
    assert set(re.findall(r"`(\w+)`", others[1])) <= set(app.COMMANDS)
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"onnxtrain\[(\w+)\]", text)
    assert len(extras) >= 2
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_readme_counts_the_operators_right() -> None:
    """The same numbers as in the generated page."""
    page = (ROOT / "docs" / "ops.md").read_text()
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in page.splitlines()]
    states = [c[3] for c in cells if len(c) == 6 and c[1] == "ai.onnx"]
    text = README.read_text()
    said = re.search(
        r"all (\d+) of ai.onnx: (\d+) have a gradient rule, (\d+) stop .*?, (\d+) are rewritten",
        text,
    )
    assert said is not None
    rule, stops = (sum(s.startswith(word) for s in states) for word in ("rule", "stops"))
    want = [len(states), rule, stops, len(states) - rule - stops]
    assert [int(n) for n in said.groups()] == want


def test_there_is_no_compiled_extension() -> None:
    tails = {p.suffix for p in SRC.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert not tails & {".so", ".pyd", ".dll", ".dylib", ".pyx", ".c", ".cc", ".cpp", ".cu", ".rs"}


@pytest.mark.parametrize("page", [README, CONTRIBUTING], ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """In backticks: a path of the repository, of src/onnxtrain/, or a folder there."""
    named = re.findall(r"`([\w/]+(?:\.(?:py|md|toml|yml|yaml|txt|svg)|/))`", page.read_text())
    assert len(named) > 3
    for name in named:
        places = [ROOT / name, SRC / name, SRC / "autodiff" / name]
        assert any(p.exists() for p in places), f"{page.name} names {name}"


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_pages_name_files_that_exist() -> None:
    """Paths with a folder, in backticks: of the repository, of the package or of an example."""
    named = 0
    for page in PAGES:
        for name in re.findall(r"`([\w-]+(?:/[\w-]+)+\.\w+)`", page.read_text()):
            if name.endswith((".py", ".md", ".ts", ".mjs", ".toml", ".yml")):
                named += 1
                places = [ROOT / name, *SRC.rglob(name), *ROOT.glob(f"examples/*/{name}")]
                assert any(p.exists() for p in places), f"{page.name} names {name}"
    assert named > 60


def resolves(name: str) -> bool:
    """Whether ``onnxtrain.a.b`` is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages_name_modules_that_exist(page: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    pytest.importorskip("flwr")
    for name in sorted(set(re.findall(r"`(onnxtrain(?:\.\w+)+)", page.read_text()))):
        assert resolves(name), f"{page.name} names {name}"


def test_passes_say_what_they_gain() -> None:
    """Each is in a list once, has a name and a line; the lists are what compile.py runs."""
    steps = [*passes.BEFORE, *passes.AFTER]
    assert len({s.name for s in steps}) == len(steps)
    for step in steps:
        assert step.gains
        assert "\n" not in step.gains
    loops = [
        ast.unparse(node.iter)
        for node in ast.walk(ast.parse((SRC / "compile.py").read_text()))
        if isinstance(node, ast.For) and "trace.run" in ast.unparse(node)
    ]
    assert set(loops) == {"BEFORE", "AFTER"}


def test_the_walk_does_not_look_at_single_operators() -> None:
    """Rules are formulas of their operators; the walk treats all operators alike."""
    text = (SRC / "autodiff" / "walk.py").read_text()
    compared = re.findall(r'op_type (?:==|in|not in|!=) [({"][^)}]*', text)
    assert not compared


def test_front_ends_are_not_imported_by_the_stages() -> None:
    """Nothing that a stage or the runtime needs lies in a front end."""
    from tests.test_layers import ALLOWED

    front = {"torch", "sklearn", "cli", "flower", "serve", "compat.onnxcustom"}
    stages = ["graph", "normalize", "autodiff", "passes", "optim", "compile", "artifacts"]
    for package in [*stages, "runtime", "api", "onnxblock"]:
        assert not ALLOWED[package] & front, package


def test_the_version_is_written_once() -> None:
    """In Python; JavaScript's and the changelog's are the same, or a release is half made."""
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'path = "src/onnxtrain/__init__.py"' in project
    assert not re.search(r"^version = ", project, re.MULTILINE)
    package = json.loads((ROOT / "js" / "package.json").read_text())
    assert package["version"] == onnxtrain.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1].startswith(onnxtrain.__version__)
