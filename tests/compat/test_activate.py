"""Activating, deactivating, running scripts; and that a real training build is left alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state

from onnxtrain import api, compat, onnxblock
from onnxtrain.compat.aliases import COMPOSED, PYBIND, SAME
from onnxtrain.compat.finder import resolve

SCRIPT = """
import sys
from onnxruntime.training.api import Module
print(Module.__module__, sys.argv[1:], __name__)
"""


@pytest.fixture
def active() -> Iterator[None]:
    with compat.activated():
        yield


def _snapshot() -> tuple[object, ...]:
    return (
        set(sys.modules),
        list(sys.meta_path),
        dict(vars(onnxruntime)),
        dict(vars(_pybind_state)),
        set(dir(onnxruntime.RunOptions)),
    )


def test_nothing_is_there_before() -> None:
    assert not compat.is_active()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("onnxruntime.training")
    assert not hasattr(onnxruntime, "TrainingSession")


def test_everything_is_restored() -> None:
    for name in SAME.values():
        importlib.import_module(name)
    before = _snapshot()
    specs = {name: sys.modules[name].__spec__ for name in SAME.values()}
    compat.activate()
    compat.activate()  # a second time does nothing
    assert len(sys.meta_path) == len(before[1]) + 1  # type: ignore[arg-type]
    for name in (*SAME, *COMPOSED):
        importlib.import_module(name)
    import onnxruntime.training

    onnxruntime.RunOptions().training_mode = True
    compat.deactivate()
    compat.deactivate()
    after = _snapshot()
    assert not {n for n in after[0] if n in COMPOSED or n in SAME}  # type: ignore[attr-defined]
    assert after[1:] == before[1:]
    for name, spec in specs.items():
        assert sys.modules[name].__spec__ is spec
    assert not hasattr(_pybind_state, "TrainingAgent")


@pytest.mark.usefixtures("active")
def test_shared_modules_are_the_same_object() -> None:
    from onnxruntime.training import onnxblock as old
    from onnxruntime.training.onnxblock import model_accessor

    assert old is onnxblock
    assert model_accessor is importlib.import_module("onnxtrain.onnxblock.model_accessor")


@pytest.mark.usefixtures("active")
def test_names_and_star_import() -> None:
    names: dict[str, object] = {}
    exec("from onnxruntime.training.api import *", names)
    assert names["Module"] is api.Module
    module = importlib.import_module("onnxruntime.training.api")
    assert "Module" in dir(module)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.usefixtures("active")
def test_run_options_training_mode() -> None:
    options, other = onnxruntime.RunOptions(), onnxruntime.RunOptions()
    assert options.training_mode is False
    options.training_mode = True
    assert options.training_mode is True
    assert other.training_mode is False


@pytest.mark.usefixtures("active")
def test_own_names_of_onnxruntime_come_first() -> None:
    stock = _pybind_state.OrtValueVector
    assert stock.__module__.startswith("onnxruntime")
    missing = [n for n in PYBIND if not hasattr(_pybind_state, n)]
    assert missing == []


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ImportError, match=r"old\.Name would be onnxtrain\.nothing:Name"):
        resolve("old.Name", "onnxtrain.nothing:Name")
    with pytest.raises(ImportError, match="does not have"):
        resolve("old.Name", ("onnxtrain.api:Nothing", "onnxtrain.sklearn.*:Nothing"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "no_such_package", None)
    with pytest.raises(ImportError, match="pip install no_such_package"):
        resolve("old.Name", "no_such_package:Name")


def test_a_real_training_build_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "onnxruntime"
    (package / "training").mkdir(parents=True)
    (package / "__init__.py").touch()
    code = "import onnxtrain.compat as c\ntry: c.activate()\nexcept RuntimeError as e: print(e)"
    done = _python(["-c", code], {"PYTHONPATH": str(tmp_path)})
    assert "training build of onnxruntime is installed" in done.stdout
    done = _python(["-m", "onnxtrain.compat", "-c", "1"], {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr


def _python(
    arguments: list[str], more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ONNXTRAIN_COMPAT"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False,
        env={**environment, **(more or {})},
    )  # fmt: skip


def test_run_a_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 5\n")
    script = tmp_path / "script.py"
    script.write_text(f"{SCRIPT}\nimport beside\nprint(beside.value)\n")
    done = _python(["-m", "onnxtrain.compat", str(script), "a", "--b"])
    assert done.stdout.split("\n")[:2] == [
        "onnxtrain.runtime.step.module ['a', '--b'] __main__",
        "5",
    ], done.stderr


def test_run_code_and_module(tmp_path: Path) -> None:
    done = _python(["-m", "onnxtrain.compat", "-c", SCRIPT, "x"])
    assert done.stdout == "onnxtrain.runtime.step.module ['x'] __main__\n", done.stderr
    (tmp_path / "mod.py").write_text(SCRIPT)
    done = _python(["-m", "onnxtrain.compat", "-m", "mod", "y"], {"PYTHONPATH": str(tmp_path)})
    assert done.stdout == "onnxtrain.runtime.step.module ['y'] __main__\n", done.stderr


def test_wrong_arguments_of_the_runner() -> None:
    assert _python(["-m", "onnxtrain.compat"]).returncode == 2
    assert _python(["-m", "onnxtrain.compat", "-m"]).returncode == 2
    missing = _python(["-m", "onnxtrain.compat", "nowhere.py"])
    assert missing.returncode == 1
    assert "no script 'nowhere.py'" in missing.stderr


def test_processes_that_a_script_starts() -> None:
    child = "[sys.executable, '-c', 'import onnxruntime.training']"
    code = f"import subprocess, sys; sys.exit(subprocess.call({child}))"
    assert _python(["-m", "onnxtrain.compat", "-c", code]).returncode == 0


def test_environment_variable_through_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.hidden_ran = True\n")
    path = os.pathsep.join((compat.SITE, str(tmp_path)))
    code = "import onnxruntime.training; print(hidden_ran)"
    done = _python(["-c", code], {"PYTHONPATH": path, "ONNXTRAIN_COMPAT": "1"})
    assert done.stdout == "True\n", done.stderr
    done = _python(["-c", code], {"PYTHONPATH": path, "ONNXTRAIN_COMPAT": "0"})
    assert "No module named 'onnxruntime.training'" in done.stderr


def test_activate_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNXTRAIN_COMPAT", raising=False)
    assert not compat.activate_from_environment()
    monkeypatch.setenv("ONNXTRAIN_COMPAT", "1")
    try:
        assert compat.activate_from_environment()
        assert compat.is_active()
    finally:
        compat.deactivate()
