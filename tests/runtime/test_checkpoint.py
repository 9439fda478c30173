"""Checkpoint files: round trips, damage, and being killed while writing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onnxtrain.errors import CheckpointError, OnnxTrainError
from onnxtrain.runtime.files import atomic, tensorfile
from onnxtrain.runtime.files.dtypes import BY_CODE
from onnxtrain.runtime.state.checkpoint_state import (
    CheckpointState,
    OptimizerState,
)


def make_state(seed=0):
    rng = np.random.default_rng(seed)
    state = CheckpointState.from_arrays(
        {"w": rng.normal(size=(3, 5)).astype("f4"), "b/1": rng.normal(size=5).astype("f4")},
        {
            "table": np.arange(4, dtype=np.int64),
            "empty": np.zeros((0, 3), np.float32),
            "flag": np.array([True, False]),
            "scalar": np.array(2.5),
        },
    )
    optimizer = OptimizerState("AdamW", 7, 0.0125)
    for kind in ("first_order_moments", "second_order_moments"):
        optimizer.states[kind] = state.training_state.trainable.like()
        optimizer.states[kind].view("w")[...] = rng.normal(size=(3, 5))
    state.training_state.optimizer = optimizer
    state.training_state.scheduler = {"scheduler": "StepLR", "count": 3}
    state.training_state.random.seed, state.training_state.random.generation = 11, 2
    for name, value in {"epoch": 3, "loss": 0.25, "best": float("inf"), "note": "héllo"}.items():
        state.properties[name] = value
    return state


def assert_same(a, b, optimizer=True):
    assert a.training_state.names() == b.training_state.names()
    for store, other in zip(a.training_state.stores(), b.training_state.stores()):
        assert store.specs == other.specs
        for name in store:
            assert np.array_equal(store.view(name), other.view(name))
    assert dict(a.properties) == dict(b.properties)
    if optimizer:
        assert (a.training_state.optimizer.step, a.training_state.optimizer.learning_rate) == (
            b.training_state.optimizer.step, b.training_state.optimizer.learning_rate,
        )  # fmt: skip


def test_round_trip(tmp_path):
    state, path = make_state(), tmp_path / "c"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    loaded = CheckpointState.load_checkpoint(path)
    assert_same(state, loaded)
    assert loaded.training_state.scheduler == state.training_state.scheduler
    assert loaded.training_state.random == state.training_state.random
    assert loaded.training_state.optimizer.name == "AdamW"
    assert os.listdir(tmp_path) == ["c"]
    CheckpointState.save_checkpoint(state, path)
    assert CheckpointState.load_checkpoint(path).training_state.optimizer is None


def test_safetensors_reads_it(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    state, path = make_state(), tmp_path / "c"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    tensors = safetensors.load_file(path)
    assert np.array_equal(tensors["param/w"], state.parameters["w"].data)
    assert tensors["param/scalar"].shape == ()
    assert tensors["param/table"].dtype == np.int64
    arrays = {"a": np.arange(3, dtype=np.int8), "b": np.ones((2, 2), np.float64)}
    safetensors.save_file(arrays, tmp_path / "foreign", metadata={"format": "np"})
    read, metadata = tensorfile.load(tmp_path / "foreign")
    assert metadata == {"format": "np"}
    assert all(np.array_equal(read[n], arrays[n]) for n in arrays)
    with pytest.raises(CheckpointError, match="not an onnxtrain checkpoint"):
        CheckpointState.load_checkpoint(tmp_path / "foreign")


def test_nominal_round_trip(tmp_path):
    state = CheckpointState.nominal(["w", "b"], ["f"])
    for form in ("ortt", "odtc"):
        CheckpointState.save_checkpoint(state, tmp_path / form, format=form)
        loaded = CheckpointState.load_checkpoint(tmp_path / form)
        assert loaded.is_nominal
        assert sorted(loaded.training_state.names()[0]) == ["b", "w"]


def test_bfloat16_is_carried_as_bits(tmp_path):
    bits = np.array([0x3F80, 0x4000], np.uint16)
    tensorfile.write(tmp_path / "c", {"x": bits}, {}, {"x": BY_CODE["BF16"]})
    with tensorfile.open_checkpoint(tmp_path / "c") as file:
        header = tensorfile.read_header(file, "c")
    assert header.entries["x"].spec.type.code == "BF16"


# --- onnxruntime-training's format ---------------------------------------------------------------


def test_odtc_round_trip(tmp_path):
    state, path = make_state(), tmp_path / "c"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True, format="odtc")
    assert path.read_bytes()[4:8] == b"ODTC"
    loaded = CheckpointState.load_checkpoint(path)
    assert loaded.training_state.optimizer.step == 7
    assert np.float32(loaded.training_state.optimizer.learning_rate) == np.float32(0.0125)
    for name, parameter in state.parameters:
        assert np.array_equal(loaded.parameters[name].data, parameter.data)
    moments = loaded.training_state.optimizer.states["first_order_moments"]
    assert np.array_equal(
        moments.view("w"), state.training_state.optimizer.states["first_order_moments"].view("w")
    )
    assert dict(loaded.properties) == dict(state.properties)
    with pytest.raises(ValueError, match="format"):
        CheckpointState.save_checkpoint(state, path, format="other")


def test_file_written_by_onnxruntime_training():
    """It loaded a file of ours and wrote this one (release 1.19.2)."""
    path = Path(__file__).parent / "data" / "onnxruntime_training_1.19.2.ckpt"
    loaded, state = CheckpointState.load_checkpoint(path), make_state()
    assert dict(loaded.properties) == dict(state.properties)
    for name, parameter in state.parameters:
        assert np.array_equal(loaded.parameters[name].data, parameter.data)
        assert loaded.parameters[name].requires_grad == parameter.requires_grad
    for kind, store in state.training_state.optimizer.states.items():
        found = loaded.training_state.optimizer.states[kind]
        assert all(np.array_equal(found.view(n), store.view(n)) for n in store)
    assert loaded.training_state.optimizer.step == 7


def test_reading_the_old_format_does_not_import_torch():
    """onnxruntime's package around the format does, where it is installed: seconds, a gigabyte."""
    pytest.importorskip("torch")
    path = Path(__file__).parent / "data" / "onnxruntime_training_1.19.2.ckpt"
    code = (
        "import sys; from onnxtrain.runtime.state.checkpoint_state import CheckpointState; "
        f"CheckpointState.load_checkpoint({str(path)!r}); print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_odtc_external_data(tmp_path):
    from onnxtrain.runtime.files import odtc

    state, path = make_state(), tmp_path / "c"
    odtc.save(state.training_state, path, True, external_above=0)
    assert (tmp_path / "c.data").exists()
    loaded = CheckpointState.load_checkpoint(path)
    for name, parameter in state.parameters:
        assert np.array_equal(loaded.parameters[name].data, parameter.data)
    (tmp_path / "c.data").write_bytes(b"1234")
    with pytest.raises(CheckpointError, match="beyond the file"):
        CheckpointState.load_checkpoint(path)
    (tmp_path / "c.data").unlink()
    with pytest.raises(FileNotFoundError, match="keeps its data"):
        CheckpointState.load_checkpoint(path)


def test_odtc_version_1_and_unknown_versions(tmp_path, monkeypatch):
    from onnxtrain.runtime.files import odtc

    state, path = make_state(), tmp_path / "c"
    monkeypatch.setattr(odtc, "VERSION", 1)
    odtc.save(state.training_state, path, False)
    monkeypatch.undo()
    loaded = CheckpointState.load_checkpoint(path)
    assert np.array_equal(loaded.parameters["w"].data, state.parameters["w"].data)
    monkeypatch.setattr(odtc, "VERSION", 9)
    odtc.save(state.training_state, path, False)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="version 9"):
        CheckpointState.load_checkpoint(path)


def test_damaged_odtc(tmp_path):
    state, path = make_state(), tmp_path / "c"
    CheckpointState.save_checkpoint(state, path, True, format="odtc")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        bad = bytearray(data[: rng.integers(8, len(data) + 1)])
        for at in rng.integers(8, len(bad), 3) if len(bad) > 8 else []:
            bad[at] = rng.integers(0, 256)
        path.write_bytes(bad)
        with contextlib.suppress(OnnxTrainError, FileNotFoundError):
            CheckpointState.load_checkpoint(path)


# --- damaged files -------------------------------------------------------------------------------


def header_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


META = {
    "format": "onnxtrain", "version": "1", "trainable": '["w"]', "frozen": "[]",
    "nominal": "false", "random": "{}", "properties": "{}",
}  # fmt: skip
GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def with_meta(**changes):
    return {"__metadata__": {**META, **changes}, "param/w": GOOD}


BAD_FILES = {
    "empty": (b"", b"", None, "bytes"),
    "huge header": (b"{}", b"", 1 << 60, "header would have"),
    "truncated header": (b"{}", b"", 500, "truncated"),
    "not json": (b"\xff\xfe{}....", b"", None, "not JSON"),
    "not an object": (b"[1, 2]", b"", None, "not a JSON object"),
    "duplicate keys": (b'{"a": 1, "a": 2}', b"", None, "twice"),
    "deep json": (b"[" * 100_000, b"", None, "not JSON"),
    "nan": (b'{"a": NaN}', b"", None, "not JSON"),
    "metadata not strings": ({"__metadata__": {"a": 1}}, b"", None, "not strings"),
    "truncated data": (with_meta(), b"1234", None, "truncated"),
    "too much data": (with_meta(), b"123456789", None, "describes 8 bytes"),
    "overlap": ({"a": GOOD, "b": {**GOOD, "data_offsets": [4, 12]}}, bytes(12), None, "overlap"),
    "gap": ({"a": GOOD, "b": {**GOOD, "data_offsets": [12, 20]}}, bytes(20), None, "gap"),
    "negative offset": ({"a": {**GOOD, "data_offsets": [-8, 0]}}, b"", None, "offsets"),
    "bool shape": ({"a": {**GOOD, "shape": [True]}}, bytes(8), None, "shape"),
    "negative shape": ({"a": {**GOOD, "shape": [-2]}}, bytes(8), None, "shape"),
    "huge shape": ({"a": {**GOOD, "shape": [2**62, 0]}}, bytes(8), None, "shape"),
    "size and shape": ({"a": {**GOOD, "shape": [3]}}, bytes(8), None, "bytes for"),
    "unknown dtype": ({"a": {**GOOD, "dtype": "F31"}}, bytes(8), None, "unknown type"),
    "dtype list": ({"a": {**GOOD, "dtype": []}}, bytes(8), None, "unknown type"),
    "missing field": ({"a": {"dtype": "F32"}}, bytes(8), None, "not complete"),
    "wrong version": (with_meta(version="2"), bytes(8), None, "version '2'"),
    "listed, not there": (with_meta(trainable='["w","v"]'), bytes(8), None, "'v'"),
    "listed twice": (with_meta(trainable='["w","w"]'), bytes(8), None, "twice"),
    "names not strings": (with_meta(trainable="[1]"), bytes(8), None, "names"),
    "names not json": (with_meta(trainable="[1"), bytes(8), None, "trainable"),
    "tensor of nothing": (with_meta(trainable="[]"), bytes(8), None, "belongs to no parameter"),
    "bad random": (with_meta(random='{"seed": -1}'), bytes(8), None, "random"),
    "bad property": (with_meta(properties='{"a": [1]}'), bytes(8), None, "Property"),
    "bad rate": (with_meta(optimizer='{"learning_rate": "x"}'), bytes(8), None, "learning rate"),
    "bad step": (with_meta(optimizer='{"step": -1}'), bytes(8), None, "optimizer"),
    "bad bool": (
        {
            "__metadata__": META,
            "param/w": {"dtype": "BOOL", "shape": [2], "data_offsets": [0, 2]},
        },
        b"\x01\x07",
        None,
        "boolean",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_damaged_file(tmp_path, name):
    header, data, length, message = BAD_FILES[name]
    path = tmp_path / "bad"
    if name == "empty":
        path.write_bytes(b"")
    else:
        header_file(path, header, data, length)
    with pytest.raises(CheckpointError, match=message):
        CheckpointState.load_checkpoint(path)


def test_good_minimal_file_is_read(tmp_path):
    """The table above must fail for its own reason, not because its base is wrong."""
    path = header_file(tmp_path / "good", with_meta(), np.array([1, 2], "f4").tobytes())
    assert CheckpointState.load_checkpoint(path).parameters["w"].data.tolist() == [1, 2]


def test_random_damage_never_crashes(tmp_path):
    state, path = make_state(), tmp_path / "c"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    data = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(300):
        bad = bytearray(data[: rng.integers(0, len(data) + 1)])
        for at in rng.integers(0, max(1, min(len(bad), 900)), 3):
            if at < len(bad):
                bad[at] = rng.integers(0, 256)
        path.write_bytes(bad)
        with contextlib.suppress(OnnxTrainError):
            CheckpointState.load_checkpoint(path)


def test_missing_directory_and_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        CheckpointState.load_checkpoint(tmp_path / "none")
    with pytest.raises(IsADirectoryError, match=r"1\.16"):
        CheckpointState.load_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        CheckpointState.save_checkpoint(make_state(), tmp_path / "no" / "c")
    with pytest.raises(IsADirectoryError, match="path of a file"):
        CheckpointState.save_checkpoint(make_state(), tmp_path)


# --- atomic writing ------------------------------------------------------------------------------


def test_read_only_directory(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="not writable"):
        CheckpointState.save_checkpoint(make_state(), tmp_path / "c")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_while_writing_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "c"
    old = make_state(0)
    CheckpointState.save_checkpoint(old, path, True)

    def fail(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, call, fail)
    with pytest.raises(OSError, match="No space"):
        CheckpointState.save_checkpoint(make_state(1), path, True)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["c"]
    assert_same(CheckpointState.load_checkpoint(path), old)


WRITER = """
import sys
import numpy as np
from onnxtrain.runtime.state.checkpoint_state import CheckpointState
number = int(sys.argv[2])
while True:
    number += 1
    values = np.full(200_000, number, np.float32)
    state = CheckpointState.from_arrays({"w": values})
    state.properties["number"] = number
    CheckpointState.save_checkpoint(state, sys.argv[1])
    print("ready", flush=True)
"""


def test_killed_while_writing(tmp_path):
    """Killed at any moment, the checkpoint is the old one or the new one, and complete."""
    path = tmp_path / "c"
    CheckpointState.save_checkpoint(
        CheckpointState.from_arrays({"w": np.zeros(200_000, np.float32)}), path
    )
    rng = np.random.default_rng(0)
    for start in range(0, 8000, 1000):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start)], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.1 * rng.random())
        finally:
            process.kill()
            process.communicate()
        state = CheckpointState.load_checkpoint(path)
        values = state.parameters["w"].data
        assert (values == values[0]).all()
        assert start < values[0] == state.properties["number"]
