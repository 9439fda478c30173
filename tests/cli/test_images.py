"""Folders of images: size, mean and deviation, changes at random, and the model's metadata."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxtrain.cli.images import AUGMENTATIONS, Augmentation, AugmentedBatches, ImageSettings

from .models import save

Image = pytest.importorskip("PIL.Image")
LOSS = ("--loss", "cross_entropy", "--epochs", "1", "--batch-size", "4")


def network(sides="H, W", channels=3):
    """Any size: mean of each channel, then scores."""
    weights = ", ".join(["0.1", "0.2"] * channels)
    save(
        f"g (float[N, {channels}, {sides}] x) => (float[N, 2] y)"
        f"<float[{channels}, 2] w = {{{weights}}}>"
        "{ p = GlobalAveragePool(x) f = Flatten(p) y = MatMul(f, w) }"
    )


def pictures(rows=6, size=(12, 10)):
    rng = np.random.default_rng(0)
    for name, base in (("dark", 30), ("light", 200)):
        Path("images", name).mkdir(parents=True)
        for i in range(rows):
            pixels = rng.integers(0, 50, (*size, 3)) + base
            Image.fromarray(pixels.astype(np.uint8)).save(f"images/{name}/{i}.png")


def metadata(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.get_modelmeta().custom_metadata_map


def test_size_mean_and_deviation(run):
    network()
    pictures()
    arguments = ("--data", "images", *LOSS, "--output", "out", "--image-size", "8x6")
    result = run("train", "model.onnx", *arguments, "--mean", "imagenet", "--std", "0.2,0.3,0.4")
    assert result.code == 0, result.err
    known = metadata("out/model.onnx")
    assert json.loads(known["image_size"]) == [8, 6]
    assert json.loads(known["image_mean"]) == [0.485, 0.456, 0.406]
    assert json.loads(known["image_std"]) == [0.2, 0.3, 0.4]
    assert json.loads(known["class_names"]) == ["dark", "light"]
    # the model that was written says how it takes images: the next run needs no options
    result = run("train", "out/model.onnx", "--data", "images", *LOSS, "--output", "more")
    assert result.code == 0, result.err
    again = metadata("more/model.onnx")
    assert all(again[name] == known[name] for name in ("image_size", "image_mean", "image_std"))


def test_numbers_are_as_said():
    settings = ImageSettings(None, (0.5, 0.25, 0.0), (0.5, 0.5, 2.0))
    pixels = np.full((1, 3, 2, 2), 1.0, np.float32)
    expected = np.array([1.0, 1.5, 0.5])
    assert np.allclose(settings.normalized(pixels, False)[0, :, 0, 0], expected)
    assert np.allclose(settings.normalized(pixels.transpose(0, 2, 3, 1), True)[0, 0, 0], expected)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("last", [False, True])
def test_images_change_and_stay_images(name, dtype, last):
    rng = np.random.default_rng(0)
    shape = (16, 9, 7, 3) if last else (16, 3, 9, 7)
    pixels = rng.integers(20, 200, shape).astype(np.uint8)
    settings = ImageSettings(None, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
    images = pixels if dtype == np.uint8 else settings.normalized(pixels / np.float32(255), last)
    images = images.astype(dtype)
    changed = Augmentation((name,), settings, last)(images, np.random.default_rng(1))
    assert changed.shape == images.shape
    assert changed.dtype == dtype
    assert not np.array_equal(changed, images)
    back = changed if dtype == np.uint8 else np.round((changed * _std(last) + _mean(last)) * 255)
    assert back.min() >= 0
    assert back.max() <= 255
    if name == "flip":
        axis = 2 if last else 3
        same = [np.allclose(a, b) for a, b in zip(changed, images)]
        mirrored = [np.allclose(a, b, atol=1e-5) for a, b in zip(changed, np.flip(images, axis))]
        assert all(a or b for a, b in zip(same, mirrored))
        assert 0 < sum(mirrored) < 16


def _mean(last):
    return np.array([0.4, 0.5, 0.6]).reshape((3,) if last else (1, 3, 1, 1))


def _std(last):
    return np.array([0.2, 0.3, 0.4]).reshape((3,) if last else (1, 3, 1, 1))


def test_what_is_drawn_follows_from_epoch_and_batch():
    images = np.random.default_rng(0).random((10, 1, 6, 6), np.float32)
    labels = np.arange(10)
    augmentation = Augmentation(("flip", "crop", "colour"), ImageSettings(), False)

    def batches(epoch, skip=0):
        source = AugmentedBatches([images, labels], 4, 3, False, augmentation)
        return [[a.copy() for a in batch] for batch in source.epoch(epoch, skip)]

    first, again, later = batches(0), batches(0), batches(1)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again))
    resumed = batches(0, skip=1)
    assert [np.array_equal(a[0], b[0]) for a, b in zip(first[1:], resumed)] == [True, True]
    assert not np.array_equal(first[0][0], later[0][0])
    assert sorted(np.concatenate([b[1] for b in first])) == list(range(10))


def test_an_augmented_run_resumes(run):
    network("12, 10")
    pictures()
    arguments = ("train", "model.onnx", "--data", "images", *LOSS[:2], "--batch-size", "4",
                 "--augment", "flip,colour", "--val", "0.2")  # fmt: skip
    assert run(*arguments, "--epochs", "2", "--output", "whole").code == 0
    assert run(*arguments, "--epochs", "1", "--output", "parts").code == 0
    assert run(*arguments, "--epochs", "2", "--output", "parts", "--resume").code == 0
    whole, parts = (json.loads(Path(f, "history.json").read_text()) for f in ("whole", "parts"))
    assert whole == parts


@pytest.mark.parametrize(
    ("sides", "options", "says"),
    [
        ("H, W", (), "choose one with --image-size"),
        ("12, 10", ("--image-size", "8"), "takes 12x10 only"),
        ("H, W", ("--image-size", "8x8x8"), "as in 224x320"),
        ("12, 10", ("--mean", "0.1,0.2"), "--mean has 2 numbers, and the images 3 channels"),
        ("12, 10", ("--std", "0"), "--std '0' is one number"),
        ("12, 10", ("--augment", "flipp"), "mean 'flip'"),
    ],
)
def test_mistakes(run, sides, options, says):
    network(sides)
    pictures(1)
    result = run("train", "model.onnx", "--data", "images", *LOSS, *options)
    assert result.code == 1
    assert says in result.err
    assert not Path("runs").exists()


def test_augment_needs_images(run):
    network("12, 10")
    np.savez("t.npz", x=np.zeros((4, 3, 12, 10), np.float32), labels=np.zeros(4, np.int64))
    result = run("train", "model.onnx", "--data", "t.npz", *LOSS, "--augment", "flip")
    assert "for folders of images" in result.err
