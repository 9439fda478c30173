"""`--new-head`: a photo model learns the classes of a folder; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from tests.transfer.models import gemm, parsed, softmax

from .models import blobs, classifier

Image = pytest.importorskip("PIL.Image")
COLOURS = {"blue": (30, 40, 200), "green": (20, 190, 40), "red": (210, 30, 20)}
QUICK = ("--epochs", "8", "--lr", "0.1", "--batch-size", "8", "--mean", "0.5", "--std", "0.25")


def pictures(rows: int = 6, names=COLOURS, where: str = "photos") -> None:
    """Images whose classes are their colours."""
    rng = np.random.default_rng(0)
    for name in names:
        Path(where, name).mkdir(parents=True)
        for i in range(rows):
            pixels = np.array(COLOURS[name]) + rng.integers(-20, 20, (12, 10, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(f"{where}/{name}/{i}.png")


def photo_model(path: str = "photo.onnx", make=gemm) -> dict[str, np.ndarray]:
    model = make()
    onnx.save(model, path)
    return weights(path)


def weights(path: str) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def history(folder: str) -> dict[str, list[float]]:
    return json.loads(Path(folder, "history.json").read_text())


def test_one_line(run) -> None:
    """Classes of the folder, everything else frozen, five metrics, the best epoch's model."""
    before = photo_model(make=softmax)
    pictures()
    result = run("train", "photo.onnx", "--data", "photos", "--new-head", *QUICK, "--output", "a")
    assert result.code == 0, result.err
    said = " ".join(result.err.split())
    assert "the classifier w (6 → 5) is replaced by one for 3 classes: blue, green, red" in said
    assert "features are computed once" in said
    values = history("a")
    names = {"val_accuracy", "val_f1", "val_precision", "val_recall", "val_auc", "val_loss"}
    assert names <= set(values)
    assert values["val_accuracy"][-1] == 1.0
    session = ort.InferenceSession("a/model.onnx", providers=["CPUExecutionProvider"])
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["class_names"]) == ["blue", "green", "red"]
    assert json.loads(known["image_mean"]) == [0.5]
    image = np.asarray(Image.open("photos/red/0.png").resize((8, 8)), np.float32)
    pixels = ((image / 255 - 0.5) / 0.25).transpose(2, 0, 1)[None].astype(np.float32)
    (probabilities,) = session.run(None, {"x": pixels})
    assert probabilities.shape == (1, 3)
    assert probabilities.argmax() == 2
    assert probabilities.sum() == pytest.approx(1.0, abs=1e-5)
    after = weights("a/model.onnx")
    assert all(np.array_equal(after[n], before[n]) for n in ("c_w", "c_b"))
    assert {"model.onnx", "best", "report.html", "classes.json"} <= {
        p.name for p in Path("a").iterdir()
    }
    assert "data:image/png" in Path("a/report.html").read_text()
    # the whole model is in the artifacts as well: what was learned can be exported from there
    assert run("export", "a/best", "--artifacts", "a/artifacts", "-o", "again.onnx").code == 0
    (again,) = ort.InferenceSession("again.onnx").run(None, {"x": pixels})
    np.testing.assert_allclose(again, probabilities, rtol=1e-5, atol=1e-6)


def test_once_or_in_every_step_it_is_the_same(run) -> None:
    """--training-mode train lets the whole model run in every step; it has nothing to switch on."""
    photo_model()
    pictures()
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", *QUICK, "--metric", "accuracy")
    assert run(*line, "--output", "once").code == 0
    assert run(*line, "--output", "always", "--training-mode", "train").code == 0
    for name, values in history("always").items():
        np.testing.assert_allclose(history("once")[name], values, rtol=1e-4)
    assert {p.name for p in Path("once").iterdir()} - {
        p.name for p in Path("always").iterdir()
    } == {"head_artifacts"}


def test_images_change_and_layers_thaw(run) -> None:
    before = photo_model()
    pictures()
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", *QUICK)
    result = run(*line, "--unfreeze", "c_w", "--augment", "flip,crop,colour", "--output", "a")
    assert result.code == 0, result.err
    assert "features are computed once" not in result.err
    after = weights("a/model.onnx")
    assert not np.array_equal(after["c_w"], before["c_w"])
    assert np.array_equal(after["c_b"], before["c_b"])


def test_a_run_resumes(run) -> None:
    photo_model()
    pictures()
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", *QUICK[2:])
    assert run(*line, "--epochs", "3", "--output", "whole").code == 0
    assert run(*line, "--epochs", "2", "--output", "parts").code == 0
    assert run(*line, "--epochs", "3", "--output", "parts", "--resume").code == 0
    assert history("whole") == history("parts")
    result = run(*line, "--epochs", "3", "--output", "parts", "--resume", "--unfreeze", "c_w")
    assert "--unfreeze" in result.err


def test_early_stopping_is_on_and_can_be_said_otherwise(run) -> None:
    photo_model()
    pictures(4)
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", "--lr", "1e-9")
    assert run(*line, "--metric", "accuracy", "--output", "a").code == 0
    assert len(history("a")["loss"]) < 20
    Path("run.toml").write_text('new_head = true\nepochs = 2\nval = "photos"\nmetric = ["auc"]\n')
    result = run("train", "photo.onnx", "--data", "photos", "--config", "run.toml", "--output", "b")
    assert result.code == 0, result.err
    assert len(history("b")["loss"]) == 2
    assert "val_auc" in history("b")
    assert "val_f1" not in history("b")


def test_arrays_and_tables_have_classes_too(run) -> None:
    classifier("model.onnx", classes=7)
    x, labels = blobs()
    np.savez("train.npz", x=x, labels=labels)
    result = run("train", "model.onnx", "--data", "train.npz", "--new-head", "--epochs", "3",
                 "--lr", "0.05", "--output", "a")  # fmt: skip
    assert result.code == 0, result.err
    assert onnx.load("a/model.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3
    names = np.array(["small", "large"])[labels % 2]
    lines = ["a,b,c,d,size", *(f"{','.join(map(str, r))},{n}" for r, n in zip(x, names))]
    Path("t.csv").write_text("\n".join(lines))
    result = run("train", "model.onnx", "--data", "t.csv", "--new-head", "--epochs", "1",
                 "--target", "size", "--output", "b")  # fmt: skip
    assert result.code == 0, result.err
    assert json.loads(Path("b/classes.json").read_text()) == ["large", "small"]


def test_how_images_are_scaled_comes_from_the_model(run) -> None:
    """From its first nodes, or from the file that Hugging Face's libraries write beside it."""
    pictures(3)
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", "--epochs", "1")
    model = gemm()
    model.graph.node[0].input[0] = "scaled"
    model.graph.node.insert(0, onnx.helper.make_node("Div", ["x", "white"], ["scaled"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(255), "white"))
    onnx.save(model, "photo.onnx")
    result = run(*line, "--output", "front")
    assert result.code == 0, result.err
    assert json.loads(metadata("front")["image_std"]) == [1 / 255]
    photo_model()
    result = run(*line, "--output", "nothing")
    assert "does not say how its images are scaled" in " ".join(result.err.split())
    config = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
              "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5],
              "size": {"height": 8, "width": 8}}  # fmt: skip
    Path("preprocessor_config.json").write_text(json.dumps(config))
    result = run(*line, "--output", "file")
    assert "does not say" not in result.err
    np.testing.assert_allclose(json.loads(metadata("file")["image_mean"]), [0.1, 0.2, 0.3])
    Path("preprocessor_config.json").unlink()
    timm = {"pretrained_cfg": {"mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2],
                               "input_size": [3, 8, 8]}}  # fmt: skip
    Path("config.json").write_text(json.dumps(timm))
    assert run(*line, "--output", "timm", "--std", "0.9").code == 0
    assert json.loads(metadata("timm")["image_mean"]) == [0.4, 0.4, 0.4]
    assert json.loads(metadata("timm")["image_std"]) == [0.9]  # what is said wins
    Path("config.json").write_text("{")
    result = run(*line, "--output", "broken")
    assert result.code == 1
    assert "config.json is not valid JSON" in " ".join(result.err.split())


def metadata(folder: str) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load(f"{folder}/model.onnx").metadata_props}


def test_a_model_of_one_image_is_trained_in_batches(run) -> None:
    """The frozen part runs image by image, the classifier on any number of rows."""
    model = gemm()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, "photo.onnx")
    pictures(3)
    result = run("train", "photo.onnx", "--data", "photos", "--new-head", *QUICK, "--output", "a")
    assert result.code == 0, result.err


TWO = (
    "g (float[N, 3, 8, 8] x) => (float[N, 5] a, float[N, 4] b)"
    "{ f = Flatten (x) a = MatMul (f, wa) b = MatMul (f, wb) }"
)


def test_one_of_several_outputs(run) -> None:
    onnx.save(parsed(TWO, {"wa": (192, 5), "wb": (192, 4)}), "photo.onnx")
    pictures(3)
    line = ("train", "photo.onnx", "--data", "photos", "--new-head", "--epochs", "1")
    result = run(*line)
    assert result.code == 1
    assert "--loss-output a" in " ".join(result.err.split())
    result = run(*line, "--loss-output", "b", "--output", "run")
    assert result.code == 0, result.err
    assert [o.name for o in onnx.load("run/model.onnx").graph.output] == ["b"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--train", "c_w"), "--unfreeze names what is trained"),
        (
            ("--unfreeze", "d_*"),
            "'d_*' matches no parameter that can be trained. The model has c_w",
        ),
        (("--loss", "mse"), "is for classes, and --loss is mse"),
        (("--standardize", "inputs"), "do not go together"),
        (("--teacher", "photo.onnx"), "--new-head and --teacher do not go together"),
        (("--loss-output", "z"), "no output named 'z'"),
        (("--metric", "accuracy,f2"), "'f2' is not known"),
        (("--val", "other"), "The classes differ"),
    ],
)
def test_mistakes(run, options, says) -> None:
    photo_model()
    pictures(2)
    pictures(2, ("red", "blue"), "other")
    result = run("train", "photo.onnx", "--data", "photos", "--new-head", *options)
    assert result.code == 1
    assert says in " ".join(result.err.split())
    assert not Path("runs").exists()


def test_more_mistakes(run) -> None:
    photo_model()
    pictures(2, ("red",), "one")
    result = run("train", "photo.onnx", "--data", "one", "--new-head")
    assert "one has 1 class (red), and a classifier needs two or more" in " ".join(
        result.err.split()
    )
    pictures(1, ("red", "blue"), "few")
    result = run("train", "photo.onnx", "--data", "few", "--new-head")
    assert "every class has one row only" in " ".join(result.err.split())
    Path("few/green").mkdir()
    result = run("train", "photo.onnx", "--data", "few", "--new-head")
    assert "'green' in few holds no images" in " ".join(result.err.split())
    result = run("train", "photo.onnx", "--data", "few", "--unfreeze", "*", "--loss", "mse")
    assert "--unfreeze goes with --new-head" in " ".join(result.err.split())
    result = run("lora", "photo.onnx", "--data", "few", "--new-head")
    assert "an option of onnxtrain train" in " ".join(result.err.split())
    onnx.save(
        parsed("g (float[N, 3, 8, 8] x) => (float[N, 192] y) { y = Flatten (x) }", {}), "f.onnx"
    )
    pictures(2, ("red", "blue"), "two")
    result = run("train", "f.onnx", "--data", "two", "--new-head")
    assert "comes from Flatten (an input of the model)" in " ".join(result.err.split())
