"""Files that a model names: one table of what is tried, run through every door.

The advisories of ONNX itself are rows: CVE-2022-25882, CVE-2024-27318, CVE-2025-51480,
CVE-2026-27489, CVE-2026-34445, CVE-2026-34446, CVE-2026-34447. CVE-2024-5187 (unpacking an archive)
and CVE-2024-27319 (a long message, the bomb "long names") are in `test_bombs`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.errors import ExternalDataError, MissingFileError, OnnxTrainError
from onnxtrain.graph import load
from onnxtrain.graph.io import save

from . import models
from .doors import DOORS, CommandError, Door

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")

SECRET = b"TOP SECRET BYTES"
assert len(SECRET) == models.VALUES.nbytes
Entries = list[tuple[str, str]]


@dataclass(frozen=True)
class Case:
    """What is tried: how the folder is prepared, what the tensor says, what the error says."""

    name: str
    make: Callable[[Path], Entries]
    match: str
    error: type[OnnxTrainError] = ExternalDataError


def at(location: str, **more: object) -> Entries:
    return [("location", location), *((k, str(v)) for k, v in more.items())]


def linked(target: str) -> Callable[[Path], Entries]:
    def make(folder: Path) -> Entries:
        (folder / "w.bin").symlink_to(target.replace("{}", str(folder.parent)))
        return at("w.bin")

    return make


def linked_folder(folder: Path) -> Entries:
    (folder / "sub").symlink_to(folder.parent)
    return at("sub/secret")


def hard_link(folder: Path) -> Entries:
    (folder / "w.bin").hardlink_to(folder.parent / "secret")
    return at("w.bin")


def pipe(folder: Path) -> Entries:
    os.mkfifo(folder / "w.bin")
    return at("w.bin")


def is_folder(folder: Path) -> Entries:
    (folder / "w.bin").mkdir()
    return at("w.bin")


def in_memory(folder: Path) -> Entries:
    """onnxruntime takes the offset for an address when the location has this name."""
    (folder / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (folder / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(64))
    return at("*/_ORT_MEM_ADDR_/*", offset=16, length=16)


def foreign_cache(folder: Path) -> Entries:
    """Looks like a cache of the hub, but the blob is a link out of it."""
    blob = folder.parent / "blobs" / ("a" * 64)
    blob.parent.mkdir()
    blob.symlink_to(folder.parent / "secret")
    (folder / "w.bin").symlink_to(blob)
    return at("w.bin")


def sound_file(entries: Entries) -> Callable[[Path], Entries]:
    def make(folder: Path) -> Entries:
        (folder / "w.bin").write_bytes(models.VALUES.tobytes())
        return entries

    return make


CASES = [
    Case("a parent folder: CVE-2022-25882", lambda _: at("../secret"), r"'\.\.'"),
    Case("the same, later: CVE-2024-27318", lambda _: at("sub/../../secret"), r"'\.\.'"),
    Case("with Windows' separators", lambda _: at("sub\\..\\..\\secret"), r"'\.\.'"),
    Case("an absolute path", lambda f: at(str(f.parent / "secret")), "absolute path"),
    Case("an absolute path of Windows", lambda _: at("C:\\secret"), "absolute path"),
    Case("a share of Windows", lambda _: at("\\\\host\\secret"), "absolute path"),
    Case("a link to a file: CVE-2026-34447", linked("{}/secret"), "outside the model's folder"),
    Case("a relative link", linked("../secret"), "outside the model's folder"),
    Case("a link in the path: CVE-2026-27489", linked_folder, "outside the model's folder"),
    Case("a hard link: CVE-2026-34446", hard_link, "hard links"),
    Case("a link that looks like a cache's", foreign_cache, "outside the model's folder"),
    Case("a link to itself", linked("w.bin"), "leads to itself"),
    Case("a link to nothing", linked("nothing"), "does not exist", MissingFileError),
    Case("a link to a device", linked("/dev/zero"), "outside the model's folder"),
    Case("a pipe", pipe, "not a regular file"),
    Case("a folder", is_folder, "not a regular file"),
    Case("the folder itself", lambda _: at("."), "not a regular file"),
    Case("no file", lambda _: at("w.bin"), "does not exist", MissingFileError),
    Case("an empty name", lambda _: at(""), "not the name of a file"),
    Case("a zero byte in the name", lambda _: at("w.bin\0"), "zero byte"),
    Case("a name of 5,000 letters", lambda _: at("n" * 5000), "cannot be opened"),
    Case("an address in memory", in_memory, "address in memory"),
    Case("beyond the end", sound_file(at("w.bin", offset=8)), "truncated"),
    Case("10^15 bytes: CVE-2026-34445", sound_file(at("w.bin", length=10**15)), "1000000000000000"),
    Case("2^64 + 16 bytes", sound_file(at("w.bin", length=2**64 + 16)), "not a number of bytes"),
    Case("an offset that wraps", sound_file(at("w.bin", offset=2**63 - 8)), "truncated"),
    Case("a negative offset", sound_file(at("w.bin", offset=-4)), "not a number of bytes"),
    Case("an offset in words", sound_file(at("w.bin", offset="four")), "not a number of bytes"),
    Case("another length", sound_file(at("w.bin", length=12)), "the tensor has 16"),
    Case("an attribute: CVE-2026-34445", sound_file(at("w.bin", __class__="x")), "unknown key"),
    Case("two locations", sound_file(at("w.bin") + at("../secret")), "twice"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy to spoil; the secret is in the folder above it."""
    (tmp_path / "secret").write_bytes(SECRET)
    copy = tmp_path / "folder"
    shutil.copytree(sound, copy)
    shutil.copy(copy / "training_model.onnx", copy / "sound.onnx")
    return copy


def spoil(folder: Path, entries: Entries, carrier: str = "initializer") -> None:
    """Make the constant of the models external; one training model stays sound."""
    untouched = (folder / "sound.onnx").read_bytes()
    models.write(folder, entries, carrier)
    (folder / "sound.onnx").write_bytes(untouched)


def assert_refused(door: Door, folder: Path, match: str, error: type[OnnxTrainError]) -> None:
    before = {p.name for p in folder.iterdir()}
    with pytest.raises((error, CommandError), match=match):
        door(folder)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name not in before:
            assert SECRET not in path.read_bytes(), f"{path.name} has the secret"
    assert (folder.parent / "secret").read_bytes() == SECRET


DEVICE_REASON = "Python only"
"""What has no folder, such as the models for a page, refuses every file, whatever it is."""


def expected(door: str, case: Case) -> tuple[str, type[OnnxTrainError]]:
    return (DEVICE_REASON, OnnxTrainError) if door == "serve" else (case.match, case.error)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_refused(case: Case, door: str, folder: Path) -> None:
    spoil(folder, case.make(folder))
    assert_refused(DOORS[door], folder, *expected(door, case))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("carrier", models.CARRIERS)
def test_refused_wherever_the_tensor_is(carrier: str, door: str, folder: Path) -> None:
    spoil(folder, at("../secret"), carrier)
    assert_refused(DOORS[door], folder, *expected(door, CASES[0]))


@pytest.mark.parametrize("part", ["algorithm", "initialization"])
def test_refused_in_training_info(part: str, folder: Path) -> None:
    """How a model is trained is a graph beside its own, with tensors of its own."""
    model = onnx.load(folder / "info.onnx")
    tensor = models.external(at("../secret"), "more")
    getattr(model.training_info[0], part).initializer.append(tensor)
    (folder / "info.onnx").write_bytes(model.SerializeToString())
    assert_refused(DOORS["training_info"], folder, CASES[0].match, CASES[0].error)


# --- what is accepted, as a control: the same doors, the same places ------------------------------


def in_folder(folder: Path) -> Entries:
    (folder / "w.bin").write_bytes(models.VALUES.tobytes())
    return at("w.bin", offset=0, length=16)


def below(folder: Path) -> Entries:
    (folder / "sub").mkdir()
    (folder / "sub" / "w.bin").write_bytes(b"...." + models.VALUES.tobytes())
    return at("sub/w.bin", offset=4, checksum="0" * 40)


def linked_inside(folder: Path) -> Entries:
    (folder / "w.bin").symlink_to("real.bin")
    (folder / "real.bin").write_bytes(models.VALUES.tobytes())
    return at("./w.bin")


TAKE_A_FOLDER = sorted({*DOORS} - {"serve"})
QUICK = sorted({*TAKE_A_FOLDER} - {"bench"})
NO_SPARSE = {"generate_artifacts", "artifacts", "train"}
"""Artifacts have no place for sparse initializers."""
ACCEPTED = {"a file": in_folder, "below": below, "a link that stays inside": linked_inside}


@pytest.mark.parametrize("door", QUICK)
@pytest.mark.parametrize("layout", ACCEPTED)
def test_accepted(layout: str, door: str, folder: Path) -> None:
    spoil(folder, ACCEPTED[layout](folder))
    DOORS[door](folder)


@pytest.mark.parametrize("door", QUICK)
@pytest.mark.parametrize("carrier", models.CARRIERS)
def test_accepted_wherever_the_tensor_is(carrier: str, door: str, folder: Path) -> None:
    spoil(folder, in_folder(folder), carrier)
    if carrier == "sparse" and door in NO_SPARSE:
        pytest.skip("sparse initializers are not for artifacts")
    DOORS[door](folder)


@pytest.mark.parametrize("door", ["export", "export as external data", "differentiate"])
@pytest.mark.parametrize("carrier", models.CARRIERS)
def test_what_was_read_is_written(carrier: str, door: str, folder: Path, tmp_path: Path) -> None:
    """The new model has the data: it works in another folder, with the old one gone."""
    spoil(folder, in_folder(folder), carrier)
    DOORS[door](folder)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in folder.glob("out.onnx*"):
        shutil.move(path, moved)
    if carrier == "initializer" and door == "differentiate":  # stays beside the output, referred to
        shutil.copy(folder / "w.bin", moved)
    shutil.rmtree(folder)
    session = onnxruntime.InferenceSession(moved / "out.onnx", providers=["CPUExecutionProvider"])
    x = models.RNG.standard_normal((2, 4)).astype(np.float32)
    (y,) = session.run(["y"], {"x": x})
    np.testing.assert_allclose(y, (x * models.VALUES) @ models.W, rtol=1e-5)


@pytest.fixture
def snapshot(folder: Path, tmp_path: Path) -> Path:
    """The folder as the hub's cache keeps it: every file a link to a blob."""
    repository = tmp_path / "hub" / "models--someone--net"
    snapshot = repository / "snapshots" / "0123abc" / "onnx"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    spoil(folder, in_folder(folder))
    for number, path in enumerate(sorted(folder.iterdir())):
        blob = repository / "blobs" / f"{number:064x}"
        path.rename(blob)
        (snapshot / path.name).symlink_to(f"../../../blobs/{blob.name}")
    return snapshot


@pytest.mark.parametrize("door", TAKE_A_FOLDER)
def test_a_snapshot_of_the_hub_is_accepted(door: str, snapshot: Path) -> None:
    DOORS[door](snapshot)


@pytest.mark.parametrize("location", ["../../../refs/main", "w.bin"])
def test_a_snapshot_reads_blobs_only(location: str, snapshot: Path) -> None:
    repository = snapshot.parents[2]
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_bytes(SECRET)
    (snapshot / "w.bin").unlink()
    (snapshot / "w.bin").symlink_to("../../../refs/main")
    model = models.forward()
    models.as_initializer(model, models.external(at(location)))
    (snapshot / "new.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExternalDataError):
        load(snapshot / "new.onnx")


@pytest.mark.parametrize("form", ["bytes", "proto", "ir"])
def test_a_model_without_a_file_names_none(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one in the current folder, which is where others would look."""
    import onnx_ir as ir

    spoil(folder, in_folder(folder))
    monkeypatch.chdir(folder)
    content = (folder / "model.onnx").read_bytes()
    proto = onnx.load_from_string(content)
    model = {"bytes": content, "proto": proto, "ir": ir.from_proto(proto)}[form]
    with pytest.raises(ExternalDataError, match="as a path"):
        onnxtrain.differentiate(model)


def test_a_small_model_does_not_grow(folder: Path) -> None:
    """A thousand constants in attributes, all the same megabytes of one file."""
    (folder / "w.bin").write_bytes(bytes(2**22))
    model = models.forward()
    for number in range(1000):
        tensor = models.external(at("w.bin"), shape=(2**20,))
        node = onnx.helper.make_node("Constant", [], [f"c{number}"], value=tensor)
        model.graph.node.append(node)
    path = folder / "many.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ExternalDataError, match="over and over"):
        load(path)


# --- writing: CVE-2025-51480 ----------------------------------------------------------------------


TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda trap, victim: trap.symlink_to(victim),
    "a hard link": lambda trap, victim: trap.hardlink_to(victim),
}


@pytest.mark.parametrize("name", ["out.onnx", "out.onnx.data", ".out.onnx.tmp"])
@pytest.mark.parametrize("trap", TRAPS)
def test_nothing_is_written_through_a_link(trap: str, name: str, folder: Path) -> None:
    victim = folder.parent / "secret"
    TRAPS[trap](folder / name, victim)
    save(load(folder / "model.onnx"), folder / "out.onnx", external_data=True)
    assert victim.read_bytes() == SECRET
    DOORS["export as external data"](folder)
    assert victim.read_bytes() == SECRET
    onnxruntime.InferenceSession(folder / "out.onnx", providers=["CPUExecutionProvider"])


WRITERS = ("differentiate", "lora", "teacher", "generate_artifacts", "export", "draw",
           "export as external data", "artifacts", "export command", "train")  # fmt: skip


@pytest.mark.parametrize("door", WRITERS)
@pytest.mark.parametrize("trap", TRAPS)
def test_no_door_writes_through_a_link(trap: str, door: str, folder: Path, tmp_path: Path) -> None:
    """Whatever a door would write, with a link to the secret in its place before."""
    twin = tmp_path / "twin"
    shutil.copytree(folder, twin)
    before = {p.stat().st_ino for p in twin.rglob("*")}
    DOORS[door](twin)
    written = [p for p in twin.rglob("*") if p.is_file() and p.stat().st_ino not in before]
    assert written
    victim = folder.parent / "secret"
    for path in written:
        place = folder / path.relative_to(twin)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        TRAPS[trap](place, victim)
    with contextlib.suppress(OnnxTrainError):  # a folder that is not empty may be refused
        DOORS[door](folder)
    assert victim.read_bytes() == SECRET


@pytest.mark.parametrize("name", ["../w", "/w", "a/../../w", "w\0"])
def test_names_of_tensors_are_no_paths(name: str, folder: Path) -> None:
    """Weights go to one file that is named after the model, whatever they are called."""
    model = models.forward()
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            tensor.name = name.replace("\0", "")
            next(n for n in model.graph.node if n.name == "product").input[1] = tensor.name
    target = folder / "made"
    target.mkdir()
    save(load(model), target / "out.onnx", external_data=True)
    assert {p.name for p in target.iterdir()} == {"out.onnx", "out.onnx.data"}
