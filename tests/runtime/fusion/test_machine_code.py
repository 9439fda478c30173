"""Machine code that is kept between processes: what is not sound is compiled again."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxtrain.runtime.fusion import machine_code, stub
from onnxtrain.runtime.fusion.machine_code import DIGEST, SUFFIX, Store

from .support import needs_kernel

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
CODE = b"some machine code"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "code"


def file_of(folder: Path) -> Path:
    (path,) = folder.glob(f"*{SUFFIX}")
    return path


def test_code_is_found_by_program_and_target(folder: Path) -> None:
    store = Store(folder, "a processor")
    assert store.read("1 2 3") is None
    store.write("1 2 3", CODE)
    assert store.read("1 2 3") == Store(folder, "a processor").read("1 2 3") == CODE
    assert store.read("1 2 4") is None
    assert Store(folder, "another one").read("1 2 3") is None


def test_other_sources_have_other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(folder, "a processor").write("1 2 3", CODE)
    monkeypatch.setattr(machine_code, "_state_of_sources", lambda: "changed")
    assert Store(folder, "a processor").read("1 2 3") is None


@pytest.mark.parametrize("size", [0, 5, DIGEST, DIGEST + 3])
def test_a_file_that_is_cut_short_is_not_read(folder: Path, size: int) -> None:
    store = Store(folder, "")
    store.write("1", CODE)
    path = file_of(folder)
    path.write_bytes(path.read_bytes()[:size])
    assert store.read("1") is None


def test_a_file_with_another_bit_is_not_read(folder: Path) -> None:
    store = Store(folder, "")
    store.write("1", CODE)
    path = file_of(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert store.read("1") is None
    store.write("1", CODE)
    assert store.read("1") == CODE


def test_what_others_can_write_is_not_read(folder: Path) -> None:
    store = Store(folder, "")
    store.write("1", CODE)
    file_of(folder).chmod(0o666)
    assert store.read("1") is None
    file_of(folder).chmod(0o600)
    folder.chmod(0o777)
    assert store.read("1") is None
    store.write("2", CODE)
    assert len(list(folder.iterdir())) == 1
    folder.chmod(0o700)
    assert store.read("1") == CODE


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    for folder in (None, occupied, occupied / "below"):
        store = Store(folder, "")
        store.write("1", CODE)
        assert store.read("1") is None


def test_a_folder_does_not_grow_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "MOST_FILES", 2)
    store = Store(folder, "")
    for program in "123":
        store.write(program, CODE)
    assert [store.read(program) for program in "123"] == [CODE, CODE, None]


@needs_kernel
def test_the_second_process_finds_what_the_first_has_compiled(tmp_path: Path) -> None:
    """And computes the same with it."""
    script = """
import pathlib, sys
import numpy as np
from llvmlite import binding
from onnxtrain.runtime.fusion import machine_code, stub
machine_code.folder = lambda: pathlib.Path(sys.argv[1])
from tests.runtime.fusion.support import program_of, session_of
emitted = []
emit = binding.TargetMachine.emit_object
binding.TargetMachine.emit_object = lambda *a: emitted.append(1) or emit(*a)
program, inputs = program_of([("Tanh", "t", ["x"]), ("Mul", "y", ["t", "x"])], ["y"])
x = np.linspace(-2, 2, 40, dtype=np.float32)
(y,) = session_of(program.text(), inputs, ["y"]).run(None, {"x": x})
np.testing.assert_allclose(y, np.tanh(x) * x, rtol=1e-5, atol=1e-6)
print(len(emitted))
"""
    command = [sys.executable, "-c", script, str(tmp_path / "code")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [subprocess.check_output(command, env=environment, text=True) for _ in range(2)]
    assert [printed.strip() for printed in runs] == ["1", "0"]


@pytest.mark.skipif(stub.machine() is None, reason="there are such libraries on Linux only")
def test_functions_that_return_constants() -> None:
    constants = [0, 1, 7, 2**31 - 1, 2**63 - 1]
    library = stub.Library(0, constants)
    answers = [ctypes.CFUNCTYPE(ctypes.c_int64)(place)() for place in library.functions]
    assert answers == constants


def test_constants_as_instructions() -> None:
    assert stub.constant(stub.X86_64, 258)[-9:] == (258).to_bytes(8, "little") + b"\xc3"
    assert stub.constant(stub.AARCH64, 258)[-8:] == (258).to_bytes(8, "little")
    for number in (stub.X86_64, stub.AARCH64):
        assert len(stub.jump(number, 2**63)) <= stub.SLOT
        assert len(stub.constant(number, 2**63)) <= stub.SLOT


def test_what_numba_keeps_is_forgotten_when_any_source_changes(tmp_path: Path) -> None:
    """numba itself looks at the file of the function alone: constants come from others."""
    package, kept = tmp_path, tmp_path / "__pycache__" / "loops.block-3.py311.nbi"
    for name in ("loops.py", "sizes.py"):
        (package / name).write_text("SIZE = 4")
    machine_code.forget_stale(package)
    kept.write_bytes(b"index")
    machine_code.forget_stale(package)
    assert kept.exists()
    (package / "sizes.py").write_text("SIZE = 8")
    machine_code.forget_stale(package)
    assert not kept.exists()
    kept.write_bytes(b"index")
    machine_code.forget_stale(package)
    assert kept.exists()


def test_where_nobody_may_write_nothing_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    kept = tmp_path / "__pycache__" / "loops.block-3.py311.nbi"
    kept.write_bytes(b"index")
    (tmp_path / "__pycache__").chmod(0o777)  # others can: what lies there is not ours to judge
    machine_code.forget_stale(tmp_path)
    machine_code.forget_stale(tmp_path / "there is no such folder")
    assert kept.exists()
