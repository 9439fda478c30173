"""Tables: compressed, with categories, standardised; what the model that is written knows of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from .models import blobs, classifier, save, write_csv

COLOURS = np.array(["red", "green", "blue"])
EFFECT = {"red": 500.0, "green": -200.0, "blue": 0.0}


def session(path):
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def linear(width, path="model.onnx"):
    """x: N×width → y: N×1."""
    zeros = ", ".join(["0.01"] * width)
    return save(
        f"g (float[N, {width}] x) => (float[N, 1] y) <float[{width}, 1] w = {{{zeros}}},"
        " float[1] b = {0}> { h = MatMul(x, w) y = Add(h, b) }",
        path,
    )


def houses(rows=200, seed=0, path="houses.csv"):
    """Prices that follow from the size and the colour, in large numbers."""
    rng = np.random.default_rng(seed)
    area = rng.uniform(500, 3000, rows).round(2)
    colour = rng.choice(COLOURS, rows)
    price = 40 * area + np.array([EFFECT[c] for c in colour]) + 10_000
    write_csv(path, {"area": area, "colour": colour, "price": price})
    return area.astype(np.float32), colour, price.astype(np.float32)


TRAIN = (
    "train", "model.onnx", "--output", "out", "--loss", "mse", "--lr", "0.1", "--schedule",
    "linear", "--batch-size", "5", "--epochs", "4",
)  # fmt: skip


def test_standardised_inside_the_model(run):
    linear(1)
    area, _, price = houses()
    result = run(*TRAIN, "--data", "houses.csv", "--features", "area", "--standardize", "both",
                 "--val", "houses.csv", "--metric", "mae")  # fmt: skip
    assert result.code == 0, result.err
    (predicted,) = session("out/model.onnx").run(None, {"x": area[:, None]})
    spread = price - price.mean()
    assert 1 - np.square(predicted[:, 0] - price).sum() / np.square(spread).sum() > 0.999
    history = json.loads(Path("out/history.json").read_text())
    exact = np.abs(predicted[:, 0] - price).mean()  # in the units of the data
    assert history["val_mae"][-1] == pytest.approx(exact, rel=1e-3)
    assert history["loss"][-1] < 0.01  # in deviations
    trained = onnx.load("out/model.onnx")
    assert [v.name for v in trained.graph.input] == ["x"]
    assert [v.name for v in trained.graph.output] == ["y"]
    again = run(*TRAIN[:-1], "5", "--data", "houses.csv", "--features", "area", "--val",
                "houses.csv", "--metric", "mae", "--standardize", "both", "--resume")  # fmt: skip
    assert again.code == 0, again.err
    houses(seed=5)
    again = run(*TRAIN[:-1], "6", "--data", "houses.csv", "--features", "area", "--val",
                "houses.csv", "--metric", "mae", "--standardize", "both", "--resume")  # fmt: skip
    assert again.code == 1
    assert "other data" in again.err


def test_categories_and_a_model_that_takes_the_columns(run):
    linear(4)
    area, colour, price = houses()
    write_csv("val.csv", {"area": [1000.0], "colour": ["mauve"], "price": [50_000]})
    result = run(*TRAIN, "--data", "houses.csv", "--categorical", "auto", "--standardize", "both",
                 "--val", "val.csv")  # fmt: skip
    assert result.code == 0, result.err
    assert "1 row with no known colour: 'mauve' is not in the training data" in result.err
    hot = (colour[:, None] == np.array(["blue", "green", "red"])).astype(np.float32)
    encoded = np.concatenate([area[:, None], hot], axis=1)
    (plain,) = session("out/model.onnx").run(None, {"x": encoded})
    table = session("out/table.onnx")
    assert [i.name for i in table.get_inputs()] == ["area", "colour"]
    columns = {"area": area[:, None], "colour": colour[:, None].astype(object)}
    (by_column,) = table.run(["y"], columns)
    assert np.array_equal(plain, by_column)
    errors = np.abs(by_column[:, 0] - price)
    assert errors.mean() < 200  # the colours make up to 500
    mauve = {"area": area[:1, None], "colour": np.array([["mauve"]], object)}
    encoded[0, 1:] = 0
    (expected,) = session("out/model.onnx").run(None, {"x": encoded[:1]})
    assert np.array_equal(table.run(["y"], mauve)[0], expected)


def test_whole_numbers_as_categories(run):
    classifier()
    _, labels = blobs(60)
    write_csv("t.csv", {"kind": (labels * 7).tolist(), "size": [1.5] * 60, "y": labels.tolist()})
    arguments = ("--data", "t.csv", "--loss", "cross_entropy", "--output", "out", "--lr", "0.05")
    result = run("train", "model.onnx", *arguments, "--categorical", "kind", "--batch-size", "4")
    assert result.code == 0, result.err
    columns = {"kind": labels[:, None] * 7, "size": np.full((60, 1), 1.5, np.float32)}
    (scores,) = session("out/table.onnx").run(None, columns)
    assert (scores.argmax(axis=1) == labels).mean() > 0.9


def test_compressed_csv_is_read_like_the_other(run):
    classifier()
    x, labels = blobs(40)
    write_csv("t.csv", {**{f"f{i}": x[:, i] for i in range(4)}, "label": labels})
    Path("t.csv.gz").write_bytes(gzip.compress(Path("t.csv").read_bytes()))
    arguments = ("--loss", "cross_entropy", "--epochs", "2")
    for name in ("t.csv", "t.csv.gz"):
        assert (
            run("train", "model.onnx", "--data", name, *arguments, "--output", name[2:]).code == 0
        )
    plain, packed = (Path(n, "history.json").read_text() for n in ("csv", "csv.gz"))
    assert plain == packed


def test_class_names_are_in_the_metadata(run):
    classifier()
    x, labels = blobs(30)
    names = np.array(["ant", "bee", "cat"])[labels]
    write_csv("t.csv", {**{f"f{i}": x[:, i] for i in range(4)}, "label": names})
    arguments = ("--data", "t.csv", "--loss", "cross_entropy", "--epochs", "1", "--output", "out")
    assert run("train", "model.onnx", *arguments).code == 0
    known = session("out/model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(known["class_names"]) == ["ant", "bee", "cat"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), ("'colour'", "holds text", "--categorical colour")),
        (("--categorical", "color"), ("'color'", "area, colour")),
        (("--categorical", "area,colour"), ("'area'", "fractions")),
        (("--categorical", "colour"), ("make 4 numbers", "takes 1", "colour 3")),
        (("--features", "area", "--standardize", "all"), ("'all'", "both")),
    ],
)
def test_mistakes(run, arguments, says):
    linear(1)
    houses()
    result = run(*TRAIN, "--data", "houses.csv", *arguments)
    assert result.code == 1
    for words in says:
        assert words in result.err
    assert not Path("out").exists()


def test_class_numbers_are_not_scaled(run):
    classifier()
    x, labels = blobs(12)
    np.savez("t.npz", x=x, labels=labels)
    arguments = ("--data", "t.npz", "--loss", "cross_entropy", "--standardize", "both")
    result = run("train", "model.onnx", *arguments)
    assert result.code == 1
    assert "not for cross_entropy. Use --standardize inputs" in result.err


def test_a_compressed_bomb_is_refused(run, monkeypatch):
    from onnxtrain.cli import arrays

    monkeypatch.setattr(arrays, "ALLOWED_BYTES", 2**16)
    monkeypatch.setattr("onnxtrain.runtime.files.readfile.ALLOWED_BYTES", 2**16)
    classifier()
    Path("t.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 2**18))
    result = run("train", "model.onnx", "--data", "t.csv.gz", "--loss", "cross_entropy")
    assert result.code == 1
    assert "how bombs are made" in result.err
