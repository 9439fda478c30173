"""Likely mistakes: each is named, comes with a way out, ends with code 1 and leaves nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest

from onnxtrain import losses, optim
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.cli.output import readable

from .models import HEAD, blobs, classifier, regressor, save, tree, write_csv, write_npz

TRAIN = ("train", "model.onnx", "--data", "train.npz", "--loss", "cross_entropy", "--epochs", "1")
X, LABELS = blobs()


class Mistake(NamedTuple):
    """What is prepared, what is typed, and what the message must say: the mistake and the fix."""

    prepare: Callable[[], object]
    arguments: tuple[str, ...]
    says: tuple[str, ...]


def both(**changed: object) -> Callable[[], object]:
    """A classifier and its data, with something wrong in the data."""

    def prepare() -> None:
        classifier()
        write_npz(**changed)

    return prepare


def with_model(make: Callable[[], object]) -> Callable[[], object]:
    """Another model under the usual name, with good data."""

    def prepare() -> None:
        write_npz()
        make()

    return prepare


def table(columns: dict[str, list[object]], model: Callable[..., object] = regressor) -> object:
    def prepare() -> None:
        model("model.onnx")
        write_csv("data.csv", columns)

    return prepare


def pictures(*names: str) -> Callable[[], object]:
    """A classifier, and files that are called images."""

    def prepare() -> None:
        classifier()
        for name in names:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()

    return prepare


def own_artifacts(folder: str) -> None:
    model = classifier()
    Path(folder).mkdir()
    generate_artifacts(
        model, loss=losses.CrossEntropyLoss(), optimizer=optim.sgd(), artifact_directory=folder
    )


def quantised() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (int32[N, 4] x) => (int32[N, 3] y) <int32[4, 3] w ="
        "{1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) }"
    )
    onnx.save(model, "model.onnx")


def nan_at(row: int) -> np.ndarray:
    x = X.copy()
    x[row, 2] = np.nan
    return x


NUMBERS = [0.1, 0.2, 0.3, 0.4]
HOUSES = {"rooms": [1, 2, 3, 4], "area": NUMBERS, "age": NUMBERS, "price": NUMBERS}
CSV = ("train", "model.onnx", "--data", "data.csv", "--loss", "mse")
NO_GRADIENT = (
    "g (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
    "{ h = MatMul(x, w) y = Floor(h) }"
)
TEXT_MODEL = (
    "g (string[N] words, float[N, 4] x) => (float[N, 3] y)"
    "<float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { y = MatMul(x, w) n = Identity(words) }"
)

STRANGE = (
    "g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 2, 3, 4}>"
    "{ h = Mul(x, w) y = mine.Strange(h) }"
)
CONTRADICTION = "g (float[N, 4] x) => (float[N, 3] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }"
LOOKUP = (
    f"g (int64[N] x) => (float[N, 3] y) <float[9, 3] w = {{{','.join('1' * 27)}}}>"
    "{ y = Gather(w, x) }"
)

MISTAKES = {
    "missing model": Mistake(
        write_npz, ("train", "modle.onnx", *TRAIN[2:]), ("no model file 'modle.onnx'",)
    ),
    "not a model": Mistake(
        with_model(lambda: Path("model.onnx").write_text("hello")), TRAIN, ("not an ONNX model",)
    ),
    "missing data": Mistake(
        classifier, TRAIN, ("no data file 'train.npz'", "Data are an .npz file")
    ),
    "wrong column": Mistake(
        table(HOUSES),
        (*CSV, "--target", "prize"),
        ("no column or array 'prize'", "Did you mean 'price'?"),
    ),
    "text in a feature": Mistake(
        table({**HOUSES, "age": ["new", "old", "old", "new"]}),
        CSV,
        ("Column 'age'", "holds text", "--features"),
    ),
    "a slip among numbers": Mistake(
        table({**HOUSES, "age": ["12", "", "l5", "30"]}),
        CSV,
        ("Column 'age'", "'l5' in row 3", "1 of its 4 cells"),
    ),
    "text as a number": Mistake(
        table({**HOUSES, "price": ["low", "high", "low", "high"]}),
        CSV,
        ("the target holds text ('low')", "--loss cross_entropy"),
    ),
    "numbers as classes": Mistake(
        both(labels=LABELS + 0.5), TRAIN, ("holds 0.5", "class numbers", "--loss mse")
    ),
    "one class of images": Mistake(
        pictures("imgs/cat/1.png"),
        ("train", "model.onnx", "--data", "imgs/cat", "--loss", "cross_entropy"),
        ("images of one class", "give its parent, 'imgs'"),
    ),
    "too many folders": Mistake(
        pictures(*(f"imgs/c{i}/1.png" for i in range(5))),
        ("train", "model.onnx", "--data", "imgs", "--loss", "cross_entropy"),
        ("5 classes", "the model has 3", "fewer folders"),
    ),
    "the user's own function fails": Mistake(
        lambda: (classifier(), Path("broken_data.py").write_text("def f():\n    return 1 / 0\n")),
        ("train", "model.onnx", "--data", "broken_data:f", "--loss", "cross_entropy"),
        ("raised ZeroDivisionError in broken_data.py, line 2", "your own code"),
    ),
    "ragged csv": Mistake(
        lambda: (regressor("model.onnx"), Path("data.csv").write_text("a,b,c,d\n1,2,3,4\n1,2\n")),
        CSV,
        ("Line 3", "2 cells", "4 columns"),
    ),
    "csv without a head": Mistake(
        lambda: (regressor("model.onnx"), Path("data.csv").write_text("1,2,3,4\n5,6,7,8\n")),
        CSV,
        ("first line", "names of its columns"),
    ),
    "no float parameters": Mistake(
        with_model(quantised), TRAIN, ("no float", "extract_model")
    ),
    "no parameters at all": Mistake(
        with_model(lambda: save("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")),
        TRAIN,
        ("no float parameters", "weights as initializers"),
    ),
    "unknown loss": Mistake(
        both(), (*TRAIN, "--loss", "crossentropy"), ("'crossentropy'", "mean 'cross_entropy'")
    ),
    "unknown optimizer": Mistake(
        both(), (*TRAIN, "--optimizer", "adamx"), ("'adamx'", "Choose from: adamw, adam")
    ),
    "unknown schedule": Mistake(
        both(), (*TRAIN, "--schedule", "cosin"), ("'cosin'", "mean 'cosine'")
    ),
    "unknown metric": Mistake(both(), (*TRAIN, "--metric", "f2"), ("'f2'", "Choose from")),
    "label out of range": Mistake(
        both(labels=LABELS * 2), TRAIN, ("from 0 to 4", "3 classes", "first is row 2")
    ),
    "labels from 1": Mistake(both(labels=LABELS + 1), TRAIN, ("count from 1", "subtract 1")),
    "negative label": Mistake(both(labels=LABELS - 1), TRAIN, ("from -1", "--ignore-index -1")),
    "unequal lengths": Mistake(
        both(labels=LABELS[:100]), TRAIN, ("'x' has 120", "'labels' has 100", "Every row")
    ),
    "short line behind an empty one": Mistake(
        lambda: (
            classifier(),
            Path("short.csv").write_text("a,b,c,d,y\n1,2,3,4,0\n\n1,2,3,4\n"),
        ),
        ("train", "model.onnx", "--data", "short.csv", "--loss", "cross_entropy"),
        ("Line 4", "4 cells"),
    ),
    "unknown value to watch": Mistake(
        both(),
        (*TRAIN, "--val", "0.2", "--keep", "best", "--monitor", "val_acuracy"),
        ("'val_acuracy'", "mean 'val_accuracy'"),
    ),
    "watching without validation": Mistake(
        both(), (*TRAIN, "--early-stopping", "2", "--monitor", "val_loss"), ("give --val",)
    ),
    "nothing to watch for": Mistake(
        both(), (*TRAIN, "--monitor", "loss"), ("--keep best or --early-stopping",)
    ),
    "own artifacts to convert": Mistake(
        lambda: own_artifacts("art"),
        ("convert", "art", "new"),
        ("onnxtrain wrote", "use them as they are"),
    ),
    "fixed batch": Mistake(
        with_model(lambda: classifier(batch="8")), TRAIN, ("exactly 8", "--batch-size 8")
    ),
    "NaN in the data": Mistake(
        both(x=nan_at(7)), TRAIN, ("NaN or infinite values in 1 row", "row 7", "fill the values")
    ),
    "wrong size": Mistake(
        both(x=X[:, :3]), TRAIN, ("size 3 on axis 1", "the model takes 4")
    ),
    "wrong rank": Mistake(
        both(x=X[:, :, None]), TRAIN, ("3 dimensions", "takes 2: N×4", "reshape")
    ),
    "inputs with one axis": Mistake(
        both(x=X[:, 0]), TRAIN, ("has 1 dimension, ", "takes 2: N×4", "reshape")
    ),
    "text for numbers": Mistake(
        both(x=X.astype(str)), TRAIN, ("holds text", "takes float32", "Convert it")
    ),
    "fractions for integers": Mistake(
        lambda: (
            save(LOOKUP),
            write_npz(x=X[:, 0]),
        ),
        TRAIN,
        ("fractions", "takes int64", "Round or encode"),
    ),
    "missing input": Mistake(
        lambda: (classifier(), write_npz(x=None, images=X, weights=X)),
        TRAIN,
        ("no array 'x'", "'images', 'weights'", "Rename"),
    ),
    "which is the target": Mistake(
        lambda: (classifier(), write_npz(labels=None, a=LABELS, b=LABELS)),
        TRAIN,
        ("which array holds the targets", "--target"),
    ),
    "freezing everything": Mistake(
        both(), (*TRAIN, "--freeze", "*"), ("freezes all 3 parameters", "Freeze fewer")
    ),
    "freezing nothing": Mistake(
        both(), (*TRAIN, "--freeze", "encoder.*"), ("matches no parameter", "enc_w")
    ),
    "nothing to resume": Mistake(
        both(), (*TRAIN, "--resume"), ("nothing to resume", "Leave --resume out")
    ),
    "output is a file": Mistake(
        both(), (*TRAIN, "--output", "train.npz"), ("is a file", "name of a folder")
    ),
    "output below a file": Mistake(
        both(), (*TRAIN, "--output", "train.npz/run"), ("cannot be made", "Choose another")
    ),
    "bad key in the configuration": Mistake(
        lambda: (both()(), Path("run.toml").write_text("batchsize = 16\n")),
        (*TRAIN, "--config", "run.toml"),
        ("'batchsize'", "no option", "mean 'batch_size'", "Keys are"),
    ),
    "bad value in the configuration": Mistake(
        lambda: (both()(), Path("run.toml").write_text('batch_size = "many"\n')),
        (*TRAIN, "--config", "run.toml"),
        ("batch_size is 'many'", "type int"),
    ),
    "negative learning rate": Mistake(
        both(), (*TRAIN, "--lr", "-0.1"), ("--lr is -0.1", "positive")
    ),
    "batch size 0": Mistake(
        both(), (*TRAIN, "--batch-size", "0"), ("--batch-size is 0", "at least 1")
    ),
    "empty data": Mistake(
        both(x=X[:0], labels=LABELS[:0]), TRAIN, ("holds no rows", "at least one")
    ),
    "pickled data": Mistake(
        both(x=np.array([{}] * 120, dtype=object)), TRAIN, ("cannot be read", "numpy.savez")
    ),
    "model with text": Mistake(
        with_model(lambda: save(TEXT_MODEL)), TRAIN, ("'words' is of type string", "Cut the model")
    ),
    "no gradient path": Mistake(
        with_model(lambda: save(NO_GRADIENT)),
        TRAIN,
        ("No parameter", "no differentiable path", "--loss-output"),
    ),
    "unknown operator": Mistake(
        with_model(lambda: save(STRANGE, head=HEAD.replace("]", ', "mine": 1]'))),
        TRAIN,
        ("mine::Strange", "blocked", "--loss-output"),
    ),
    "contradiction in the model": Mistake(
        with_model(lambda: save(CONTRADICTION)), TRAIN, ("is not valid", "differ in dimension 1")
    ),
    "index out of range": Mistake(
        lambda: (save(LOOKUP), write_npz(x=np.arange(120))),
        TRAIN,
        ("fails on the first rows", "onnxtrain inspect"),
    ),
    "training what has no gradient": Mistake(
        with_model(lambda: save(NO_GRADIENT)),
        (*TRAIN, "--train", "w"),
        ("'w' cannot be trained", "no differentiable path"),
    ),
    "one array": Mistake(
        lambda: (classifier(), np.save("x.npy", X)),
        ("train", "model.onnx", "--data", "x.npy", "--loss", "cross_entropy"),
        ("one array", "x.npy,y.npy"),
    ),
    "momentum for adam": Mistake(
        both(), (*TRAIN, "--momentum", "0.9"), ("adamw has no momentum", "--momentum out")
    ),
    "warm-up longer than the run": Mistake(
        both(), (*TRAIN, "--warmup", "1000"), ("only 4", "more --epochs")
    ),
    "no such function": Mistake(
        classifier,
        ("train", "model.onnx", "--data", "nowhere:data", "--loss", "mse"),
        ("nowhere", "neither a file nor a module"),
    ),
    "folder without images": Mistake(
        lambda: (classifier(), Path("images").mkdir()),
        ("train", "model.onnx", "--data", "images", "--loss", "cross_entropy"),
        ("holds no images", "one folder per class"),
    ),
    "divided by nothing": Mistake(
        both(), (*TRAIN, "--val", "1.5"), ("no file and no share",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name, run, folder):
    mistake = MISTAKES[name]
    mistake.prepare()
    before = tree(folder)
    result = run(*mistake.arguments)
    assert result.code == 1, result
    assert result.out == ""
    for words in mistake.says:
        assert words in result.err
    assert result.err.startswith("Error: ")
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert tree(folder) == before


def test_corrupt_checkpoint(run, folder):
    both()()
    assert run(*TRAIN, "--output", "out").code == 0
    for damage in (b"", b"rubbish", Path("out/checkpoint").read_bytes()[:-40]):
        Path("out/checkpoint").write_bytes(damage)
        before = tree(folder)
        result = run(*TRAIN, "--output", "out", "--resume")
        assert result.code == 1
        assert "checkpoint" in result.err
        assert "without --resume" in result.err
        assert tree(folder) == before


def test_resume_with_another_model(run):
    both()()
    assert run(*TRAIN, "--output", "out").code == 0
    classifier("other.onnx", classes=5)
    result = run("train", "other.onnx", *TRAIN[2:], "--output", "out", "--resume")
    assert result.code == 1
    assert "trained another model" in result.err
    assert "model.onnx" in result.err


def test_resume_with_other_settings(run):
    both()()
    assert run(*TRAIN, "--output", "out").code == 0
    result = run(*TRAIN, "--output", "out", "--resume", "--optimizer", "sgd")
    assert result.code == 1
    assert "--optimizer adamw" in result.err


def test_second_run_in_the_same_folder(run, folder):
    both()()
    assert run(*TRAIN, "--output", "out").code == 0
    before = {p: p.stat().st_mtime_ns for p in Path("out").rglob("*")}
    result = run(*TRAIN, "--output", "out")
    assert result.code == 1
    assert "--overwrite" in result.err
    assert before == {p: p.stat().st_mtime_ns for p in Path("out").rglob("*")}
    assert run(*TRAIN, "--output", "out", "--overwrite").code == 0


def test_folder_that_is_no_run_is_left_alone(run):
    both()()
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("dear")
    result = run(*TRAIN, "--output", "mine", "--overwrite")
    assert result.code == 1
    assert "not empty" in result.err
    assert Path("mine/letter.txt").read_text() == "dear"


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write everywhere"
)
def test_folder_that_is_not_writable(run):
    both()()
    Path("closed").mkdir(mode=0o500)
    result = run(*TRAIN, "--output", "closed/out")
    assert result.code == 1
    assert "not writable" in result.err


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder nobody can write to")
def test_folder_that_nobody_can_write_to(run, folder):
    both()()
    before = tree(folder)
    result = run(*TRAIN, "--output", "/proc/run")
    assert result.code == 1
    assert "not writable" in result.err
    assert "Choose another --output" in result.err
    assert tree(folder) == before


def test_divergence(run):
    both(x=X * 1e19)()
    result = run(*TRAIN, "--lr", "1e30", "--optimizer", "sgd", "--output", "out")
    assert result.code == 1
    assert "diverged" in result.err
    assert "smaller --lr" in result.err


def test_debug_shows_the_traceback(run):
    result = run("inspect", "nothing.onnx", "--debug")
    assert result.code == 1
    assert "Traceback" in result.err
    assert "no model file 'nothing.onnx'" in result.err


@pytest.mark.parametrize(
    "arguments",
    [("train", "model.onnx"), ("trian",), ("train", "model.onnx", "--speed", "9"), ("inspect",)],
)
def test_wrong_usage(run, arguments):
    result = run(*arguments)
    assert result.code == 2
    assert "Usage: " in result.err
    assert json.dumps(result.out) == '""'


def test_a_name_of_a_million_letters_is_cut() -> None:
    """Terminals and pages wrap it for seconds, and nobody reads it."""
    short = readable(f"Error: node {'n' * 10**6} is there, \x1b[31mand {'m' * 999} stays")
    assert len(short) < 3000
    assert "n…n" in short
    assert "m" * 999 in short
    assert "\x1b" not in short
