"""dev.py and .pre-commit-config.yaml run what CONTRIBUTING says they run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def dev(monkeypatch) -> ModuleType:
    """The script, with programs and environments recorded instead of run."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ran = []

    def run(*arguments: str) -> int:
        module.ran.append(arguments)
        return 0

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "set_up", lambda *_: None)
    return module


@pytest.mark.parametrize("options", [[], ["--fast"], ["--coverage"], ["--fast", "tests/graph"]])
def test_every_run_lints_and_checks_types(dev, options) -> None:
    assert dev.test(options) == 0
    assert [step[1] for step in dev.ran] == ["ruff", "ruff", "mypy", "pytest"]


@pytest.mark.parametrize(
    ("version", "said"), [((3, 10), ()), ((3, 11, 7), ()), ((3, 13), ("--python-version", "3.13"))]
)
def test_types_are_read_as_those_of_a_python_that_numpy_has_types_for(
    dev, monkeypatch, version, said
) -> None:
    monkeypatch.setattr(dev.sys, "version_info", version)
    dev.test([])
    assert next(step for step in dev.ran if step[1] == "mypy")[2:] == said


def test_fast_runs_the_list_unless_something_else_is_named(dev) -> None:
    dev.test(["--fast"])
    assert dev.ran[-1][-len(dev.FAST) :] == dev.FAST
    dev.test(["--fast", "tests/graph", "-x"])
    assert "tests/graph" in dev.ran[-1]
    assert not set(dev.FAST) - {"tests/graph"} & set(dev.ran[-1])
    assert "not slow" in dev.ran[-1]
    dev.test(["--fast", "tests/graph/test_io.py::test_one"])
    assert dev.FAST[0] not in dev.ran[-1]
    dev.test(["--fast", "-p", "no:cacheprovider", "-k", "Softmax"])
    assert dev.ran[-1][-len(dev.FAST) :] == dev.FAST, "an option's value names no tests"
    dev.test(["tests/graph"])
    assert "not slow" not in dev.ran[-1]


def test_docs_builds_the_site_with_warnings_as_errors(dev) -> None:
    assert dev.docs([]) == 0
    assert dev.ran[-1][:4] == ("-m", "mkdocs", "build", "--strict")
    dev.ran.clear()
    assert dev.docs(["--check"]) == 0
    assert all(step[-1] == "--check" for step in dev.ran[:-1]), "nothing is written"


def test_the_fast_list_has_some_of_every_part(dev) -> None:
    for path in dev.FAST:
        assert (ROOT / path).exists(), path
    parts = {Path(p).parts[1] for p in dev.FAST if len(Path(p).parts) > 1}
    folders = {p.name for p in (ROOT / "tests").iterdir() if (p / "__init__.py").is_file()}
    minutes = {"bench", "docs", "end_to_end", "examples", "hostile"}
    assert folders - parts == minutes


@pytest.mark.parametrize("versions", ["lowest", "newest"])
def test_other_versions_have_an_environment_of_their_own(dev, monkeypatch, tmp_path, versions):
    called: list[list[str]] = []
    monkeypatch.setattr(dev, "create", lambda environment: None)
    monkeypatch.setattr(dev, "install", lambda environment, packages: None)
    monkeypatch.setattr(dev.subprocess, "check_output", lambda command, **_: b"numpy==1\n")
    monkeypatch.setattr(dev.subprocess, "call", lambda command, **_: called.append(command) or 7)
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev.sys, "version_info", (3, 10))
    (tmp_path / f".venv-{versions}").mkdir()
    assert dev.test([f"--{versions}", "tests/graph"]) == 7
    assert not dev.ran
    ((python, *arguments),) = called
    assert f".venv-{versions}" in python
    assert arguments[:2] == ["-m", "pytest"]
    assert arguments[-1] == "tests/graph"


def test_the_lowest_versions_have_no_packages_for_new_pythons(dev, monkeypatch, capsys) -> None:
    monkeypatch.setattr(dev.sys, "version_info", (3, 13))
    assert dev.test(["--lowest"]) == 2
    assert "3.10 to 3.12" in capsys.readouterr().err


def test_without_torch_leaves_out_what_needs_it(dev, monkeypatch, tmp_path) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(dev, "VENV", tmp_path)
    monkeypatch.setattr(dev, "create", lambda environment: None)
    monkeypatch.setattr(dev, "set_up", lambda name, requirements: asked.append(requirements))
    monkeypatch.setenv("ONNXTRAIN_LEFT_OUT", "")
    assert dev.test(["--fast", "--without-torch", "tests/graph"]) == 0
    left = [Requirement(line) for line in packages_of(Path(asked[0][1]))]
    names = {requirement.name for requirement in left}
    assert {"onnxruntime", "pytest", "onnxscript"} <= names
    assert not names & set(dev.NEEDS_TORCH)
    every = {Requirement(line).name for line in packages_of(ROOT / "requirements-test.txt")}
    assert every - names == set(dev.NEEDS_TORCH)
    assert os.environ["ONNXTRAIN_LEFT_OUT"].split() == list(dev.NEEDS_TORCH)
    assert [step[1] for step in dev.ran] == ["ruff", "ruff", "pytest"], "mypy reads torch's types"
    assert "--without-torch" not in dev.ran[-1]


def packages_of(requirements: Path) -> list[str]:
    """The lines of a file for pip, without its comments."""
    lines = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
    return [line for line in lines if line]


TORCHLESS = """
def test_imports_it_late():
    import nowhere_to_be_found.part

def test_fails_for_another_reason():
    import nowhere_else

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("left_out", "outcome"),
    [("nowhere_to_be_found", "1 failed, 1 passed, 2 skipped"), ("", "2 failed, 1 passed, 1 error")],
)
def test_only_what_was_left_out_on_purpose_is_skipped(tmp_path, left_out, outcome) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_late.py").write_text(TORCHLESS)
    (tmp_path / "test_early.py").write_text("import nowhere_to_be_found\n")
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    variables = {**os.environ, "ONNXTRAIN_LEFT_OUT": left_out, "PYTHONPATH": paths}
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options = ["--continue-on-collection-errors", "--rootdir", str(tmp_path), str(tmp_path)]
    ran = subprocess.run([*call, *options], env=variables, capture_output=True, text=True)
    assert outcome in ran.stdout, ran.stdout + ran.stderr


def test_the_first_failure_ends_the_run(dev, monkeypatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(dev, "run", lambda *step: ran.append(step[1]) or 1)
    assert dev.test([]) == 1
    assert ran == ["ruff"]


def test_usage_names_the_commands(dev, monkeypatch, capsys) -> None:
    monkeypatch.setattr(dev.sys, "argv", ["dev.py", "tset"])
    assert dev.main() == 2
    said = capsys.readouterr().err
    for command in ("demo", "test", "api", "docs", "bench", "python"):
        assert command in said
        assert f"dev.py {command}" in (dev.__doc__ or "")


def test_asked_for_help_a_command_only_explains(dev, monkeypatch, capsys) -> None:
    for command in dev.EXPLAINED_HERE:
        monkeypatch.setattr(dev.sys, "argv", ["dev.py", command, "--help"])
        assert dev.main() == 0
        assert f"dev.py {command}" in capsys.readouterr().out
    assert not dev.ran


def test_an_environment_that_fails_is_a_row_of_the_matrix(dev, monkeypatch, capsys) -> None:
    monkeypatch.setattr(dev, "installed", lambda version: version if version == "3.12" else None)
    monkeypatch.setattr(dev.subprocess, "call", lambda call, **_: int("--lowest" in call))
    assert dev.matrix([]) == 1
    rows = dict(re.split("  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["Python 3.12"].startswith("passed")
    assert rows["Python 3.13"] == "not installed"
    assert rows["lowest"].startswith("failed")
    assert rows["newest"].startswith("passed")


def test_rows_of_the_matrix_can_be_named(dev, monkeypatch, tmp_path) -> None:
    calls: list[list[str]] = []
    for row in ("3.12", "newest", "3.13"):
        (tmp_path / f".venv-{row}").mkdir()
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "installed", lambda version: f"python{version}")
    monkeypatch.setattr(dev.subprocess, "call", lambda call, **_: calls.append(call) or 0)
    assert dev.matrix(["newest", "3.12", "--fast", "--tidy", "-n0"]) == 0
    assert [call[2:] for call in calls] == [
        ["test", "--fast", "-n0"],
        ["test", "--newest", "--fast", "-n0"],
    ]
    assert calls[0][0] == "python3.12"
    assert [p.name for p in tmp_path.iterdir()] == [".venv-3.13"], "tidied, the others left alone"


def python_that(folder: Path, version: str, *, starts: bool) -> Path:
    """A program by the name of a Python, which starts or does not."""
    folder.mkdir(parents=True)
    program = folder / f"python{version}"
    program.write_text(f"#!/bin/sh\nexit {0 if starts else 127}\n")
    program.chmod(0o755)
    return program


@pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")
def test_a_python_of_pyenv_is_installed(dev, monkeypatch, tmp_path) -> None:
    """Its command on the path does not start in a folder that has not chosen this version."""
    shim = python_that(tmp_path / "shims", "3.12", starts=False)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert dev.installed("3.12") is None
    python_that(tmp_path / "versions/3.12.9/bin", "3.12", starts=True)
    newest = python_that(tmp_path / "versions/3.12.10/bin", "3.12", starts=True)
    assert dev.installed("3.12") == str(newest)
    assert dev.installed("3.1") is None
    shim.write_text("#!/bin/sh\nexit 0\n")
    assert dev.installed("3.12") == str(shim), "what the path has comes first"


def test_pre_commit_takes_the_tools_of_the_tests(dev) -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    for hook, start in zip(hooks, (("ruff", "format"), ("ruff", "check"), ("mypy",)), strict=True):
        program, script, command, *arguments = hook["entry"].split()
        assert (program, script, command) == ("python3", "dev.py", "python")
        assert dev.python(arguments) == 0
        assert dev.ran[-1][: 1 + len(start)] == ("-m", *start)
