"""Every test works in an empty folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from onnxtrain.cli import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    return call
