"""``onnxtrain train --data 'shards/*'``: data that are read while the model is trained."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain.api import CheckpointState
from tests.streams.shards import add, npy

from .models import HEAD, blobs, classifier

pa = pytest.importorskip("pyarrow")
TRAIN = ("train", "model.onnx", "--loss", "cross_entropy", "--batch-size", "16", "--lr", "0.05")


def tables(folder: str = "shards", labels=None, files: int = 3) -> str:
    from pyarrow import parquet

    Path(folder).mkdir()
    x, numbers = blobs(120)
    labels = numbers if labels is None else np.array(labels)[numbers]
    for number, rows in enumerate(np.array_split(np.arange(len(x)), files)):
        columns = {f"f{i}": x[rows, i].astype(np.float64) for i in range(4)}
        whole = pa.table({**columns, "labels": labels[rows]})
        parquet.write_table(whole, f"{folder}/{number}.parquet", row_group_size=13)
    return f"{folder}/*.parquet"


def history(folder="run"):
    return json.loads(Path(folder, "history.json").read_text())


def weights(folder):
    state = CheckpointState.load_checkpoint(Path(folder, "checkpoint"))
    return {n: p.data.copy() for n, p in state.parameters}


def test_parquet_shards(run):
    classifier()
    pattern = tables()
    arguments = (*TRAIN, "--data", pattern, "--val", pattern, "--schedule", "cosine")
    done = run(*arguments, "--output", "run", "--epochs", "4")
    assert done.code == 0, done.err
    assert "120 rows, read while training" in done.err
    assert history()["val_accuracy"][-1] > 0.9
    assert "120 rows from" in Path("run/report.html").read_text()


def test_a_broken_off_run_goes_on_where_it_was(run):
    """A row that cannot be used ends the run; mended, it goes on in the middle of the epoch."""
    from pyarrow import parquet

    classifier()
    pattern = tables()
    whole = (*TRAIN, "--data", pattern, "--epochs", "2", "--buffer-rows", "32")
    assert run(*whole, "--output", "whole").code == 0
    sound = parquet.read_table("shards/2.parquet")
    values = sound.column("f2").to_pylist()
    values[17] = float("nan")
    damaged = sound.set_column(2, "f2", pa.array(values))
    parquet.write_table(damaged, "shards/2.parquet", row_group_size=13)
    done = run(*whole, "--output", "run")
    assert done.code == 1
    assert "2.parquet, row 17" in done.err
    assert "NaN or infinite values in 1 row" in done.err
    assert "--resume --output run" in done.err
    parquet.write_table(sound, "shards/2.parquet", row_group_size=13)
    done = run(*whole, "--output", "run", "--resume")
    assert done.code == 0, done.err
    for name, value in weights("whole").items():
        assert np.array_equal(weights("run")[name], value), name


def test_text_labels_of_all_files_are_classes(run):
    classifier()
    pattern = tables(labels=["cat", "dog", "eel"])
    done = run(*TRAIN, "--data", pattern, "--output", "run", "--epochs", "2")
    assert done.code == 0, done.err
    assert json.loads(Path("run/classes.json").read_text()) == ["cat", "dog", "eel"]


def picture_model():
    model = onnx.parser.parse_model(
        HEAD + "g (float[N, 3, 8, 8] image) => (float[N, 2] scores) <int64[2] s = {-1, 192}>"
        "{ f = Reshape(image, s) scores = MatMul(f, w) }"
    )
    w = np.random.default_rng(0).normal(size=(192, 2)).astype(np.float32) / 20
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    onnx.save(model, "model.onnx")


def test_tar_shards_of_pictures(run):
    image = pytest.importorskip("PIL.Image")
    picture_model()
    rng = np.random.default_rng(1)
    for shard in range(2):
        with tarfile.open(f"train-{shard}.tar", "w") as archive:
            for number in range(24):
                label = number % 2
                pixels = rng.integers(0, 80, (10 + number % 3, 9, 3), np.uint8)
                pixels[..., label] += 150
                png = io.BytesIO()
                image.fromarray(pixels).save(png, "PNG")
                add(archive, f"{shard}/{number:03d}.png", png.getvalue())
                add(archive, f"{shard}/{number:03d}.cls", str(label).encode())
    pattern = "train-{0..1}.tar"
    done = run(*TRAIN, "--data", pattern, "--val", pattern, "--output", "run", "--epochs", "6")
    assert done.code == 0, done.err
    assert history()["val_accuracy"][-1] > 0.9


def test_samples_of_arrays_and_one_file_with_stream(run):
    classifier()
    x, labels = blobs(60)
    with tarfile.open("a.tar", "w") as archive:
        for number, (row, label) in enumerate(zip(x, labels)):
            add(archive, f"{number}.x.npy", npy(row))
            add(archive, f"{number}.labels.cls", str(label).encode())
    assert run(*TRAIN, "--data", "a.tar", "--output", "a", "--epochs", "2").code == 0
    lines = ["f0,f1,f2,f3,kind"]
    lines += [",".join([*map(str, row), f"k{label}"]) for row, label in zip(x, labels)]
    Path("b.csv").write_text("\n".join(lines) + "\n")
    done = run(*TRAIN, "--data", "b.csv", "--stream", "--output", "b", "--epochs", "2")
    assert done.code == 0, done.err
    assert "The target is the column 'kind'" in done.err
    assert json.loads(Path("b/classes.json").read_text()) == ["k0", "k1", "k2"]


def test_auto_resume(run):
    """The same command begins, goes on, and begins again where no checkpoint was written."""
    classifier()
    command = (*TRAIN, "--data", tables(), "--output", "run", "--auto-resume")
    assert run(*command, "--epochs", "1", "--save-every", "3").code == 0
    done = run(*command, "--epochs", "3", "--save-every", "3")
    assert done.code == 0
    assert "Going on with the run in run" in done.err
    assert len(history()["loss"]) == 3
    Path("run/checkpoint").unlink()
    assert run(*command, "--epochs", "1").code == 0
    assert len(history()["loss"]) == 1


MISTAKES = {
    "--auto-resume needs --output": ("--data", "shards/*.parquet", "--auto-resume"),
    "--categorical needs all values": ("--data", "shards/*.parquet", "--categorical", "f1"),
    "--standardize needs arrays": ("--data", "shards/*.parquet", "--standardize", "inputs"),
    "needs arrays; batches need": ("--data", "shards/*.parquet", "--val", "0.1"),
    "no column or array 'z'": ("--data", "shards/*.parquet", "--target", "z"),
    "--stream reads": ("--data", "x.npz", "--stream"),
    "nothing has such a name": ("--data", "none/*.parquet"),
    "--buffer-rows is 0": ("--data", "shards/*.parquet", "--buffer-rows", "0"),
    "'f9'": ("--data", "shards/*.parquet", "--features", "f1,f9"),
    "3 classes, 0 to 2": ("--data", "many/*.parquet"),
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_mistakes(run, reason):
    classifier()
    tables()
    tables("many", labels=[0, 1, 7])
    done = run(*TRAIN, *MISTAKES[reason])
    assert done.code == 1
    assert reason in " ".join(done.err.split()), done.err
    assert not Path("runs").exists(), "nothing is written before the data are looked at"
