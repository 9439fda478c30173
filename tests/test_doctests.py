"""The examples in docstrings are right."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import onnxtrain

OPTIONAL = {"torch", "sklearn", "skl2onnx", "mpi4py", "numba", "flwr", "PIL", "pyarrow"}
SKIP = {"onnxtrain.__main__", "onnxtrain.compat.__main__"}  # these are programs
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(
        onnxtrain.__path__,
        "onnxtrain.",
        onerror=lambda name: None,  # a package that lacks an extra is listed, not entered
    )
    if m.name not in SKIP and ".site." not in m.name
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if missing in OPTIONAL or "not installed" in str(error):
            pytest.skip(f"needs {missing or error}")
        raise
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_there_are_examples_to_run():
    found = 0
    finder = doctest.DocTestFinder()
    for name in ("compile", "graph.block", "onnxblock.onnxblock", "artifacts.generate"):
        module = importlib.import_module(f"onnxtrain.{name}")
        found += sum(bool(t.examples) for t in finder.find(module))
    assert found >= 4
