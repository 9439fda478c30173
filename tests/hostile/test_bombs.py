"""Small files that ask for much are refused by name, in under 2 s and 500 MB, in every door.

Each call has a process of its own, so that one that hangs or takes all memory is seen.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from . import bombs, models
from .doors import DOORS, enter, state_of
from .limits import MEGABYTES, SECONDS, Outcome, call_all, call_limited

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")

TERABYTES = "no machine can run this model"
REASONS = {
    "doubling functions": "1610612739 nodes",
    "recursive function": "calls itself",
    "nested branches": "not an ONNX model",
    "nested types": "not an ONNX model",
    "huge constant": TERABYTES,
    "huge constant of integers": TERABYTES,
    "huge einsum": TERABYTES,
    "huge resize": TERABYTES,
    "huge expand": TERABYTES,
    "huge tile of integers": TERABYTES,
    "huge range": TERABYTES,
    "doubling concat": TERABYTES,
    "broadcast integers": "",  # 75 GB: only a run can tell
    "negative dimension": "cannot be negative",
    "impossible shape": "no array can have",
    "too many dimensions": "no array can have",
    "two kinds of data": "has its values twice",
    "too little data": "The file is damaged",
    "sparse of terabytes": "sparse",
    "sparse out of range": "indices outside of it",
    "two dropouts": "cycle",
    "long names": "nnnnn",
    "long varint": "not an ONNX model",
    "many empty fields": "",
}
"""What the error says when a model is loaded; empty where loading it is not what costs."""


def assert_bounded(outcome: Outcome, reason: str = "", door: str = "") -> None:
    assert outcome.kind in ("ok", "refused"), f"{door}: {outcome.message}\n{outcome.place}"
    assert outcome.seconds < SECONDS, door
    assert outcome.megabytes < MEGABYTES, door
    assert reason in outcome.message, door
    assert outcome.kind == "refused" or not reason, door


def test_every_bomb_has_a_reason() -> None:
    assert REASONS.keys() == bombs.BOMBS.keys()


REFUSE = ("differentiate", "TrainingSession")
"""Doors that give the reason of the table."""
BOUNDED = ("generate_artifacts", "check_gradient", "inspect", "draw", "artifacts", "quantize")
"""Doors that may give another reason, or do without what is large."""
OF_ARTIFACTS = ("Module", "Module.eval", "evaluate", "export", "flower", "serve", "export command",
                "train", "lora", "training_info", "training-info", "teacher", "prepare qat",
                "new head")  # fmt: skip
"""Doors that take what `generate_artifacts` makes, or a model beside data."""
NO_DOORS = {
    "bench": "runs the model that train takes",
    "export as external data": "reads as export does",
    "onnxblock": "takes what onnx has parsed",
}


def test_every_door_is_tried() -> None:
    assert {*REFUSE, *BOUNDED, *OF_ARTIFACTS, *NO_DOORS} == DOORS.keys()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")


@pytest.mark.parametrize("bomb", bombs.BOMBS)
def test_models(bomb: str, tmp_path: Path) -> None:
    folders = {door: tmp_path / str(n) for n, door in enumerate((*REFUSE, *BOUNDED))}
    for folder in folders.values():
        folder.mkdir()
        (folder / "model.onnx").write_bytes(bombs.content(bomb))
    for door, outcome in entered(folders).items():
        assert_bounded(outcome, REASONS[bomb] if door in REFUSE else "", door)


@pytest.mark.parametrize("bomb", bombs.BOMBS)
def test_artifacts(bomb: str, sound: Path, tmp_path: Path) -> None:
    folders = {door: tmp_path / str(n) for n, door in enumerate(OF_ARTIFACTS)}
    for folder in folders.values():
        shutil.copytree(sound, folder)
        shutil.copy(folder / "training_model.onnx", folder / "sound.onnx")
        for name in ("training_model.onnx", "eval_model.onnx", "predict.onnx", "info.onnx"):
            (folder / name).write_bytes(bombs.content(bomb))
    for door, outcome in entered(folders).items():
        assert_bounded(outcome, "", door)


def test_types_of_outputs_are_no_reason_to_compute(sound: Path, tmp_path: Path) -> None:
    """A value that was no output is asked of onnxruntime, which folds constants if it may: 4 GB."""
    folder = tmp_path / "folder"
    shutil.copytree(sound, folder)
    (folder / "eval_model.onnx").write_bytes(bombs.doubling_concat(28).SerializeToString())
    outcome = call_limited(export_of, "f", folder)
    assert_bounded(outcome)
    assert outcome.kind == "ok", outcome.message


def export_of(output: str, folder: Path) -> object:
    """Write a value inside the eval model as the output of an inference model."""
    from onnxtrain.runtime.step.export import export

    state = state_of(folder).training_state
    return export(folder / "eval_model.onnx", state, folder / "out.onnx", [output])


def entered(folders: dict[str, Path]) -> dict[str, Outcome]:
    """What came of each door, called one after the other in one process."""
    outcomes = call_all([(enter, (door, folder)) for door, folder in folders.items()])
    return dict(zip(folders, outcomes, strict=True))


# --- data and other files -------------------------------------------------------------------------


def read_data(path: str) -> object:
    from onnxtrain.cli.sources import read

    return read(path)


def read_config(path: str) -> object:
    from onnxtrain.cli.settings import read_config as read
    from onnxtrain.cli.settings import typed

    return {name: typed(name, value, path) for name, value in read(path).items()}


def load_checkpoint(path: str) -> object:
    from onnxtrain.api import CheckpointState

    return CheckpointState.load_checkpoint(path)


def load_model(path: str) -> object:
    from onnxtrain.graph import load

    return load(path)


def load_module(path: str) -> object:
    from onnxtrain.runtime.files.onnxfile import ModelFile

    return ModelFile.load(path)


def zip_bomb(path: Path) -> None:
    """4 MB that unpack to 4 GB."""
    content = io.BytesIO()
    np.save(content, np.zeros(2**22, np.uint8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content.getvalue())
        archive.infolist()[0].file_size = 2**32  # what its directory says is what counts


def overlapping_zip(path: Path) -> None:
    """Two thousand members, all the same compressed bytes."""
    content = io.BytesIO()
    np.save(content, np.zeros(2**21, np.uint8))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x0.npy", content.getvalue())
        first = archive.infolist()[0]
        for number in range(1, 2000):
            entry = zipfile.ZipInfo(f"x{number}.npy")
            entry.compress_type, entry.CRC = first.compress_type, first.CRC
            entry.compress_size, entry.file_size = first.compress_size, first.file_size
            entry.header_offset = first.header_offset
            archive.filelist.append(entry)
            archive.NameToInfo[entry.filename] = entry


def huge_shape(path: Path, members: bool = False) -> None:
    """A header of 10¹⁵ numbers, and none of them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    )
    if members:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY" + header.getvalue()[6:])
    else:
        path.write_bytes(header.getvalue())


def huge_header() -> bytes:
    header = io.BytesIO()
    description = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def parquet_bomb(path: Path) -> None:
    """A dictionary of one value, and 300 million rows that are it."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2**22, np.int8)), pa.array([1.0]))
    table = pa.table({"x": rows})
    with parquet.ParquetWriter(path, table.schema) as writer:
        for _ in range(70):
            writer.write_table(table)


def laughs(path: Path) -> None:
    """Ten levels of lists, each ten times the one before."""
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    path.write_text("\n".join([*lines, "freeze: *a9"]) + "\n")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def odtc_bomb(path: Path) -> None:
    """Tables that all lead to the same 4 MB: a thousand tensors of them."""
    flatbuffers = pytest.importorskip("flatbuffers")
    from onnxtrain.runtime.files.odtc import IDENTIFIER, _table

    builder = flatbuffers.Builder(2**23)
    raw = builder.CreateNumpyVector(np.zeros(2**22, np.uint8))
    dims = builder.CreateNumpyVector(np.array([2**20], np.int64))
    tensors = []
    for number in range(1000):
        name = builder.CreateString(f"w{number}")
        tensor = _table("Tensor")
        tensor.Start(builder)
        tensor.AddName(builder, name)
        tensor.AddDims(builder, dims)
        tensor.AddDataType(builder, 1)
        tensor.AddRawData(builder, raw)
        tensors.append(tensor.End(builder))
    builder.StartVector(4, len(tensors), 4)
    for tensor in reversed(tensors):
        builder.PrependUOffsetTRelative(tensor)
    vector = builder.EndVector()
    state = _table("ModuleState")
    state.Start(builder)
    state.AddRequiresGradParams(builder, vector)
    module = state.End(builder)
    checkpoint = _table("Checkpoint")
    checkpoint.Start(builder)
    checkpoint.AddVersion(builder, 1)
    checkpoint.AddModuleState(builder, module)
    builder.Finish(checkpoint.End(builder), file_identifier=IDENTIFIER)
    path.write_bytes(bytes(builder.Output()))


def long_header(path: Path) -> None:
    path.write_bytes((10**15).to_bytes(8, "little") + b"{}")


def stream(path: str) -> object:
    from onnxtrain.data import Stream

    data = Stream(path, map=lambda block: {"x": next(iter(block.values()))})
    return next(data.batches(["x"], 4, shuffle=True).epoch(0))


def small_limit(path: str) -> object:
    """As `stream`, of one column, where the row groups are above the limit and the column not."""
    from onnxtrain.data import Stream

    data = Stream(path, columns={"x": "x"}, largest_chunk=1500)
    return next(data.batches(["x"], 4, shuffle=True).epoch(0))


def damaged_column(path: Path) -> None:
    """The schema says that x has no gaps, and the entry of its column counts them.

    pyarrow 26 ends the process when it is asked for that entry; older ones have no such count.
    """
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"x": np.arange(100), "y": np.arange(100) * 7})
    parquet.write_table(table, path, compression=None)
    content, optional, required = path.read_bytes(), b"\x25\x02\x18\x01x", b"\x25\x00\x18\x01x"
    assert content.count(optional) == 1
    path.write_bytes(content.replace(optional, required))


def lengths_beyond_the_footer(path: Path) -> None:
    """A footer whose list of row groups says that it has 2³⁵ of them."""
    pytest.importorskip("pyarrow")
    damaged_column(path)
    content = path.read_bytes()
    groups = content.rindex(b"\x19\x1c\x19\x2c")  # a list of a struct, with a list of two
    path.write_bytes(content[:groups] + b"\x19\xfc\xff\xff\xff\xff\x7f" + content[groups + 7 :])


def tar_of(*members: tuple[str, bytes, bytes, int | None]) -> Callable[[Path], None]:
    """An archive of members: name, type, content, and the size that the header claims."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            for name, kind, content, size in members:
                info = tarfile.TarInfo(name)
                info.type, info.size = kind, len(content) if size is None else size
                info.linkname = "../../../etc/passwd" if kind in b"12" else ""
                file.write(info.tobuf(tarfile.GNU_FORMAT))
                file.write(content + bytes(-len(content) % 512))
            file.write(bytes(1024))

    return make


def arrow_claim(path: Path) -> None:
    """A message of 2³¹ - 1 bytes, and none of them."""
    path.write_bytes(b"ARROW1\0\0" + b"\xff" * 4 + (2**31 - 1).to_bytes(4, "little"))


def picture_bomb(path: Path) -> None:
    """20,000 × 20,000 points that are all the same."""
    image = pytest.importorskip("PIL.Image")
    (path / "cat").mkdir(parents=True)
    image.new("L", (20_000, 20_000)).save(path / "cat" / "1.png")


def impossible_shape(path: Path) -> None:
    """A directory of onnxruntime-training's with a tensor of no elements, and too large a shape."""
    path.mkdir()
    tensor = TensorProto(name="w", data_type=1, dims=[0, 2**62, 2**62]).SerializeToString()
    sequence = bytes([1, len(tensor)]) + tensor
    (path / "paramtrain_tensors.pbseq").write_bytes(sequence)


Row = tuple[str, Callable[[Path], None], Callable[[str], object], str]
FILES: dict[str, Row] = {
    "a zip bomb": ("d.npz", zip_bomb, read_data, "bombs"),
    "an overlapping zip": ("d.npz", overlapping_zip, read_data, "cannot be read|bombs"),
    "an npz of 10^15 numbers": ("d.npz", lambda p: huge_shape(p, True), read_data, "as an npz"),
    "an npy of 10^15 numbers": ("x.npy", huge_shape, read_data, "as a numpy array"),
    "a parquet bomb": ("d.parquet", parquet_bomb, read_data, "bombs"),
    "a billion laughs": ("c.yaml", laughs, read_config, "'a0'|a list"),
    "a pipe as csv": ("d.csv", pipe, read_data, "a pipe or a device"),
    "a device as csv": ("d.csv", device, read_data, "a pipe or a device"),
    "a pipe as npz": ("d.npz", pipe, read_data, "a pipe or a device"),
    "a device as npz": ("d.npz", device, read_data, "a pipe or a device"),
    "a pipe as npy": ("x.npy", pipe, read_data, "a pipe or a device"),
    "a device as parquet": ("d.parquet", device, read_data, "a pipe or a device"),
    "a pipe as configuration": ("c.toml", pipe, read_config, "a pipe or a device"),
    "a device as configuration": ("c.yaml", device, read_config, "a pipe or a device"),
    "a pipe as checkpoint": ("checkpoint", pipe, load_checkpoint, "a pipe or a device"),
    "a device as checkpoint": ("checkpoint", device, load_checkpoint, "a pipe or a device"),
    "a pipe as model": ("m.onnx", pipe, load_model, "a pipe or a device"),
    "a device as model": ("m.onnx", device, load_model, "a pipe or a device"),
    "a pipe as artifact": ("m.onnx", pipe, load_module, "a pipe or a device"),
    "a device as artifact": ("m.onnx", device, load_module, "a pipe or a device"),
    "an old checkpoint that grows": ("checkpoint", odtc_bomb, load_checkpoint, "same bytes"),
    "an old directory of an impossible shape": ("old", impossible_shape, load_checkpoint, "shape"),
    "a pipe as tar": ("d.tar", pipe, stream, "a pipe or a device"),
    "a device as arrow": ("d.arrow", device, stream, "a pipe or a device"),
    "a pipe as streamed parquet": ("d.parquet", pipe, stream, "a pipe or a device"),
    "a device as streamed csv": ("d.csv", device, stream, "a pipe or a device"),
    "a tar member of 8 GB": (
        "d.tar",
        tar_of(("a.x", b"0", b"few", 2**33 - 1)),
        stream,
        "is cut off",
    ),
    "a tar member of 2^80 bytes": (
        "d.tar",
        tar_of(("a.x", b"0", b"few", 2**80)),
        stream,
        "cut off",
    ),
    "a name of a tar member of 1 MB": (
        "d.tar",
        tar_of(("././@LongLink", b"L", b"x" * 2**20, None)),
        stream,
        "1048576 bytes",
    ),
    "a tar member outside": ("d.tar", tar_of(("../x.npy", b"0", b"1", None)), stream, "outside"),
    "an absolute tar member": ("d.tar", tar_of(("/x.npy", b"0", b"1", None)), stream, "outside"),
    "a link in a tar": ("d.tar", tar_of(("a.x", b"2", b"", None)), stream, "has a link"),
    "a hard link in a tar": ("d.tar", tar_of(("a.x", b"1", b"", None)), stream, "has a link"),
    "a device in a tar": ("d.tar", tar_of(("a.x", b"3", b"", None)), stream, "a device"),
    "a pipe in a tar": ("d.tar", tar_of(("a.x", b"6", b"", None)), stream, "a device or the like"),
    "pickled samples": ("d.tar", tar_of(("a.pkl", b"0", b"cos", None)), stream, "pickled"),
    "an npy of 10^15 numbers in a tar": (
        "d.tar",
        lambda p: tar_of(("a.npy", b"0", huge_header(), None))(p),
        stream,
        "be read",
    ),
    "a damaged column of a parquet": ("d.parquet", damaged_column, stream, "as parquet"),
    "a damaged column of a large row group": (
        "d.parquet",
        damaged_column,
        small_limit,
        "as parquet",
    ),
    "a parquet of 2^35 row groups": (
        "d.parquet",
        lengths_beyond_the_footer,
        small_limit,
        "as parquet",
    ),
    "an arrow message of 2^31 bytes": ("d.arrow", arrow_claim, stream, "bytes follow"),
    "a csv line without end": (
        "d.csv",
        lambda p: p.write_bytes(b"a,b\n" + b"1" * 2**25),
        stream,
        "has no end",
    ),
    "csv quotes without end": (
        "d.csv",
        lambda p: p.write_bytes(b'a,b\n"' + b"1\n" * 2**24),
        stream,
        "no end|not closed",
    ),
    "a header of 10^15 bytes": ("checkpoint", long_header, load_checkpoint, "1000000000000000"),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    file, make, door, reason = FILES[name]
    path = tmp_path / file
    make(path)
    argument = f"{path},{path}" if file.endswith(".npy") else str(path)
    outcome = call_limited(door, argument)
    assert_bounded(outcome)
    assert outcome.kind == "refused"
    assert any(part in outcome.message for part in reason.split("|")), outcome.message


def test_a_streamed_parquet_bomb_is_read_in_small_parts(tmp_path: Path) -> None:
    """300 million equal rows: nobody unpacks more of them than the buffer takes."""
    parquet_bomb(tmp_path / "d.parquet")
    outcome = call_limited(stream, str(tmp_path / "d.parquet"))
    assert_bounded(outcome)


def load_pictures(path: str) -> object:
    from onnxtrain.cli.match import load_pictures as load
    from onnxtrain.cli.sources import read
    from onnxtrain.summary import ValueSummary

    return load(read(path), ValueSummary("x", "float32", ("N", 1, 8, 8)))  # type: ignore[arg-type]


def test_a_picture_of_400_million_points(tmp_path: Path) -> None:
    picture_bomb(tmp_path / "pictures")
    outcome = call_limited(load_pictures, str(tmp_path / "pictures"))
    assert_bounded(outcome, "as an image")


def test_members_of_an_archive_stay_where_they_are(tmp_path: Path) -> None:
    """CVE-2024-5187 was about unpacking an archive; nothing here writes its members."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    content = io.BytesIO()
    np.save(content, np.ones(3))
    with zipfile.ZipFile(folder / "d.npz", "w") as archive:
        archive.writestr("../../evil.npy", content.getvalue())
    before = sorted(tmp_path.rglob("*"))
    assert list(read_data(str(folder / "d.npz")).arrays) == ["../../evil"]  # type: ignore[attr-defined]
    assert sorted(tmp_path.rglob("*")) == before
