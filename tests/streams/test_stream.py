"""Streams: every row once, in an order that follows from the seed, whoever reads which part."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from itertools import chain

import numpy as np
import pytest

from onnxtrain import optim
from onnxtrain.api import SaveCheckpoint, Trainer
from onnxtrain.data import Stream
from onnxtrain.data.order import Order, spans
from onnxtrain.distributed import share
from onnxtrain.errors import DataError, OnnxTrainWarning, StateError
from tests.runtime import handmade

from .shards import COLUMNS, MAPPED, WRITERS, add, npy, table, write_parquet

pytest.importorskip("pyarrow")
ROWS = 103


@pytest.fixture(scope="module")
def patterns(tmp_path_factory):
    made = {}
    for name, write in WRITERS.items():
        made[name] = write(tmp_path_factory.mktemp(name.replace(" ", "_")), ROWS)
    return made


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("onnxtrain.data.tar.SAMPLES", 7)
    monkeypatch.setattr("onnxtrain.data.csv_lines.CHUNK", 900)


def stream(patterns, name, **options):
    options = {"buffer_rows": 20, "interleave": 4, **options}
    return Stream(patterns[name], MAPPED.get(name), **options)


def rows_of(batches, epoch=0, skip=0):
    return [np.asarray(b[2]).astype(int).tolist() for b in batches.epoch(epoch, skip)]


@pytest.mark.parametrize("name", WRITERS)
def test_every_row_once_with_its_values(patterns, name):
    data, whole = stream(patterns, name), table(ROWS)
    assert data.rows == ROWS
    batches = data.batches(COLUMNS, 10, shuffle=True, seed=3)
    assert batches.size == 11
    seen = []
    for x, target, row in batches.epoch(0):
        at = row.astype(int)
        assert x.dtype == target.dtype == np.float32
        np.testing.assert_array_equal(x, whole["x"][at])
        np.testing.assert_array_equal(target, whole["target"][at])
        seen += at.tolist()
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(ROWS))
    assert rows_of(batches, 1) != rows_of(batches, 0)
    assert rows_of(data.batches(COLUMNS, 10, shuffle=True, seed=3)) == rows_of(batches)
    assert rows_of(data.batches(COLUMNS, 10, shuffle=True, seed=4)) != rows_of(batches)


@pytest.mark.parametrize("name", WRITERS)
def test_without_shuffle_the_order_is_that_of_the_files(patterns, name):
    batches = stream(patterns, name).batches(COLUMNS, 10)
    assert list(chain(*rows_of(batches))) == list(range(ROWS))
    dropped = stream(patterns, name).batches(COLUMNS, 10, drop_last=True)
    assert list(chain(*rows_of(dropped))) == list(range(100))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", WRITERS)
def test_going_on_in_the_middle(patterns, name, shuffle):
    batches = stream(patterns, name).batches(COLUMNS, 9, shuffle=shuffle, seed=1)
    whole = rows_of(batches, 2)
    for skip in (1, 5, len(whole)):
        assert rows_of(batches, 2, skip) == whole[skip:]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_processes_read_parts_of_the_same_batches(patterns, name, count):
    """Also behind a resume with another number of processes."""
    batches = stream(patterns, name).batches(COLUMNS, 10, shuffle=True, seed=5)
    whole = rows_of(batches)
    files = []
    own = [batches.part(rank, count, ordered=True) for rank in range(count)]
    together = list(zip(*(part.epoch(0, 3) for part in own)))
    assert len(together) == len(whole) - 3
    for expected, parts in zip(whole[3:], together, strict=True):
        assert {p.total for p in parts} == {len(expected)}
        assert [p.rows for p in parts] == [len(p[2]) if p else 0 for p in parts]
        assert sorted(r for p in parts for r in np.asarray(p[2] if p else []).tolist()) == sorted(
            expected
        )
        files.append([p.rows for p in parts])
    if count in (1, 2, 4) and batches.order.lanes == 4:
        assert np.ptp(files, axis=1).max() <= 4 / count, "as many rows as lanes differ by"


def test_each_process_reads_its_own_chunks(patterns, monkeypatch):
    data = stream(patterns, "parquet")
    batches = data.batches(COLUMNS, 10, shuffle=True, seed=5)
    opened, whole, read = [], data.blocks, []
    monkeypatch.setattr(data, "blocks", lambda c, w: opened.append(c) or whole(c, w))
    for rank in range(2):
        opened.clear()
        for _ in batches.part(rank, 2, ordered=True).epoch(0):
            pass
        read.append(set(opened))
    both = read[0] & read[1]
    assert len(both) <= 3, "those that are cut by the ends of four lanes"
    assert read[0] | read[1] == set(data.chunks)


def test_more_processes_than_places_share_all_rows(tmp_path):
    data = Stream(write_parquet(tmp_path, 30, files=2, group=50), interleave=8)
    batches = data.batches(COLUMNS, 10, shuffle=True)
    with pytest.warns(OnnxTrainWarning, match="read from 2 places, and there are 3"):
        assert batches.part(0, 3, ordered=True) is None
    assert data.batches(COLUMNS, 10).part(0, 2, ordered=True) is None  # the order of the files
    assert data.batches(COLUMNS, 10).part(0, 2, ordered=False) is not None  # to evaluate


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8])
def test_lanes_cover_all_rows(lanes):
    order = Order([3, 1, 4, 1, 5, 9, 2, 6], lanes, 2, True, 1)
    seen = []
    for lane in range(lanes):
        mine = [(p.chunk, r) for p in spans(order, 0, lane, 0) for r in range(p.start, p.stop)]
        start, stop = share(order.total, lane, lanes)
        assert len(mine) == stop - start == order.lane_rows(lane, order.total)
        for skip in range(len(mine)):
            rest = [
                (p.chunk, r) for p in spans(order, 0, lane, skip) for r in range(p.start, p.stop)
            ]
            assert rest == mine[skip:]
        seen += mine
    assert len(seen) == len(set(seen)) == order.total
    for position in range(order.total):
        assert sum(order.lane_rows(lane, position) for lane in range(lanes)) == position


# --- with a Trainer -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return handmade.write(tmp_path_factory.mktemp("artifacts"), optimizer=optim.adamw())


def trainer(artifacts, **options):
    return Trainer(artifacts.train, artifacts.optimizer, artifacts.checkpoint, artifacts.eval)


def fit(trainer, data, epochs=3, **options):
    return trainer.fit(data, epochs, 8, seed=2, progress=False, **options)


def weights(trainer):
    return {n: p.data.copy() for n, p in trainer.state.parameters}


@pytest.mark.parametrize("name", WRITERS)
def test_a_training_goes_on_in_the_middle_of_an_epoch(artifacts, patterns, name, tmp_path):
    inputs = list(MAPPED[name].items())[:2] if name in MAPPED else None
    data = Stream(patterns[name], dict(inputs) if inputs else None, buffer_rows=16, interleave=3)
    whole = trainer(artifacts)
    history = fit(whole, data, validation_data=data)
    saved = tmp_path / "run"
    first = trainer(artifacts)
    fit(first, data, epochs=2, callbacks=[SaveCheckpoint(saved, every_steps=17)])
    again = Trainer(artifacts.train, artifacts.optimizer, saved, artifacts.eval)
    assert again._resumable["batch"] == 4  # 13 batches an epoch
    assert again._resumable["data"]["rows"] == ROWS
    resumed = fit(again, data, validation_data=data, resume="auto")
    for key, value in weights(whole).items():
        assert np.array_equal(weights(again)[key], value), key
    assert resumed["loss"] == history["loss"]


def test_other_data_or_another_order_are_refused(artifacts, patterns, tmp_path):
    data = Stream(patterns["parquet"], ["x", "target"], buffer_rows=16)
    fit(trainer(artifacts), data, 1, callbacks=[SaveCheckpoint(tmp_path / "run", every_steps=5)])
    other = Stream(write_parquet(tmp_path, 90), ["x", "target"], buffer_rows=16)
    cases = {
        "other files|90": other,
        "buffer_rows": Stream(patterns["parquet"], ["x", "target"], buffer_rows=99),
        "interleave|buffer_rows": Stream(patterns["parquet"], ["x", "target"], interleave=2),
    }
    for reason, changed in cases.items():
        again = Trainer(artifacts.train, artifacts.optimizer, tmp_path / "run", artifacts.eval)
        with pytest.raises(StateError, match=reason):
            fit(again, changed, resume=True)


def test_resume_auto_begins_where_there_is_nothing(artifacts, patterns, tmp_path):
    data = Stream(patterns["parquet"], ["x", "target"])
    fresh = Trainer.from_directory(artifacts.directory, latest=tmp_path / "run")
    fit(fresh, data, 1, resume="auto", callbacks=[SaveCheckpoint(tmp_path / "run")])
    again = Trainer.from_directory(artifacts.directory, latest=tmp_path / "run")
    assert len(fit(again, data, 3, resume="auto")["loss"]) == 3
    assert again.step == 3 * 13
    with pytest.raises(ValueError, match="'auto', not 'yes'"):
        fit(again, data, 3, resume="yes")


def test_predictions_come_in_the_order_of_the_files(artifacts, patterns):
    data = Stream(patterns["arrow"], ["x"])
    whole = trainer(artifacts)
    expected = whole.predict(table(ROWS)["x"], 16)
    np.testing.assert_array_equal(whole.predict(data, 16), expected)


# --- what columns become --------------------------------------------------------------------------


def test_map_makes_the_inputs(patterns):
    data = Stream(patterns["parquet"], map=lambda block: {"double": 2 * block["x"]})
    (first, *_) = data.batches(["double"], 4).epoch(0)
    np.testing.assert_array_equal(first[0], 2 * table(ROWS)["x"][:4])


def test_an_error_in_map_names_the_row(patterns):
    def refuse(block):
        if (block["row"] == 40).any():
            raise ValueError("no such row, please")
        return block

    data = Stream(patterns["parquet"], map=refuse)
    with pytest.raises(DataError, match=r"1\.parquet, row 6: ValueError: no such row, please"):
        list(data.batches(["x"], 16).epoch(0))


def test_images_and_numbers_of_samples(tmp_path):
    image = pytest.importorskip("PIL.Image")
    import io
    import tarfile

    pixels = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    png = io.BytesIO()
    image.fromarray(pixels).save(png, "PNG")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for key in range(3):
            add(archive, f"{key}.png", png.getvalue())
            add(archive, f"{key}.json", b"[1, 2.5]")
            add(archive, f"{key}.txt", b"a cat")
    data = Stream(tmp_path / "a.tar", {"image": "png", "label": "json", "text": "txt"})
    ((images, labels, text),) = data.batches(["image", "label", "text"], 8).epoch(0)
    assert images.shape == (3, 5, 5, 3)
    np.testing.assert_array_equal(images[1], pixels)
    np.testing.assert_array_equal(labels, np.array([[1, 2.5]] * 3, np.float32))
    assert text.tolist() == ["a cat"] * 3
    own = Stream(tmp_path / "a.tar", decode=lambda s: {"size": np.int64(len(s["png"]))})
    ((sizes,),) = own.batches(["size"], 8).epoch(0)
    assert sizes.tolist() == [len(png.getvalue())] * 3


def test_tensors_and_gaps(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 2, 3))
    gaps = pa.array([1.0, None, 3.0, 4.0])
    parquet.write_table(pa.table({"t": tensor, "gap": gaps}), tmp_path / "a.parquet")
    ((t, gap),) = Stream(tmp_path / "a.parquet").batches(["t", "gap"], 4).epoch(0)
    assert t.shape == (4, 2, 3)
    assert np.isnan(gap[1])


PROBLEMS = {
    "no such files": (lambda p: "nothing-*.tar", {}, "nothing has such a name"),
    "mixed": (lambda p: [p["tar"], p["csv"]], {}, "different kinds"),
    "unknown": (lambda p: "a.txt", {}, "cannot be streamed"),
    "a missing column": (lambda p: p["parquet"], {"columns": ["z"]}, "has no column 'z'"),
    "a missing input": (lambda p: p["arrow"], {}, "has no column 'z'"),
    "a small limit": (lambda p: p["tar"], {"columns": ["x.npy"], "largest_chunk": 9}, "9 are read"),
    "a small limit of parquet": (
        lambda p: p["parquet"], {"columns": ["x"], "largest_chunk": 9}, "smaller row groups",
    ),
    "a small limit of arrow": (
        lambda p: p["arrow"], {"columns": ["x"], "largest_chunk": 9}, "smaller batches",
    ),
    "no buffer": (lambda p: p["tar"], {"buffer_rows": 0}, "buffer_rows must be"),
    "decode of a table": (lambda p: p["csv"], {"decode": dict}, "map="),
    "braces": (lambda p: "a{9..3}.tar", {}, "from 9 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(patterns, name):
    files, options, reason = PROBLEMS[name]
    with pytest.raises(DataError, match=reason):
        list(Stream(files(patterns), **options).batches(["z"], 4).epoch(0))


def test_problems_of_content(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    cases = {
        "has 1 values in row 0 and 2 in row 1": {"x": [[1.0], [1.0, 2.0]]},
        "no value in row 1": {"x": [1, None]},
    }
    for reason, columns in cases.items():
        parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=reason):
            list(Stream(tmp_path / "a.parquet").batches(["x"], 4).epoch(0))
    (tmp_path / "b.csv").write_text("x\n" + "1\n" * 1000 + "no\n")
    with pytest.raises(DataError, match=r"'no' in row 1000"):
        list(Stream(tmp_path / "b.csv").batches(["x"], 2000).epoch(0))
    (tmp_path / "c.csv").write_text("x,y\n1,2\n3\n")
    with pytest.raises(DataError, match=r"Row 1 .* has 1 cells"):
        list(Stream(tmp_path / "c.csv").batches(["x"], 4).epoch(0))


# --- memory ---------------------------------------------------------------------------------------

MEASURED = """
    import resource, sys
    import numpy as np
    from onnxtrain.data import Stream

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    few, many = (Stream(p, buffer_rows=int(sys.argv[1]), interleave=4) for p in sys.argv[2:])
    used = []
    for data in (few, many):
        rows = sum(len(x) for (x,) in data.batches(["x"], 100, shuffle=True).epoch(0))
        assert rows == data.rows
        used.append(peak())
    print(*used, few.rows, many.rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
@pytest.mark.parametrize("form", ["parquet", "arrow", "tar"])
def test_memory_does_not_grow_with_the_data(tmp_path, form):
    """20 MB and 240 MB of rows, with 4 MB of them in memory."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    paths = []
    for name, files in (("few", 2), ("many", 24)):
        folder = tmp_path / name
        folder.mkdir()
        first = folder / f"0.{form}"
        shape = (500, 5000) if form == "tar" else (5000, 500)
        rows = np.random.default_rng(0).random(shape, np.float32)
        if form == "tar":
            import tarfile

            with tarfile.open(first, "w") as archive:
                for number, row in enumerate(rows):
                    add(archive, f"{number}.x", npy(row))
        else:
            values = pa.FixedSizeListArray.from_arrays(rows.reshape(-1), 500)
            whole = pa.table({"x": values})
            if form == "arrow":
                with pa.ipc.new_file(str(first), whole.schema) as writer:
                    writer.write_table(whole, max_chunksize=1000)
            else:
                parquet.write_table(whole, first, row_group_size=5000, use_dictionary=False)
        for number in range(1, files):
            (folder / f"{number}.{form}").hardlink_to(first)
        paths.append(str(folder / f"*.{form}"))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURED), str(4 * shape[0] // 10), *paths],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    few, many, few_rows, many_rows = map(float, done.stdout.split())
    assert (few_rows, many_rows) == (2 * shape[0], 24 * shape[0])
    assert many - few < 20, "megabytes, for 220 more of data"
