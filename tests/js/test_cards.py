"""The page with pictures of one's own, the camera, and a language model with its adapter."""

import re
import zipfile

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxtrain import lora, optim, text
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.serve import Server, Site
from tests.text.models import TEXTS, tokenizer_json

from . import tools
from .language import base_model, byte_pairs, trained, write

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.slow

COLOURS = {"blue": (0, 0, 255), "red": (255, 0, 0)}
PICTURES = 12


def colour_model():
    """Three classes of pictures of 8×8 pixels, one of which has a name already."""
    text_ = """g (float[N, 3, 8, 8] x) => (float[N, 3] y) {
        m = GlobalAveragePool (x)
        f = Flatten (m)
        y = Gemm (f, w, b)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text_}')
    for name, shape in (("w", (3, 3)), ("b", (3,))):
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, np.float32), name))
    metadata = {
        "class_names": '["zero", "red", "two"]',
        "image_mean": "[0.5]",
        "image_std": "[0.5]",
    }
    onnx.helper.set_model_props(model, metadata)
    return model


def write_pictures(folder):
    image = pytest.importorskip("PIL.Image")
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(PICTURES):
            shade = tuple(max(0, c - 8 * i) for c in colour)
            image.new("RGB", (20 + i, 16), shade).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    (folder / "images").mkdir()
    generate_artifacts(
        colour_model(), loss=LossType.CrossEntropyLoss, optimizer=optim.adamw(),
        artifact_directory=folder / "images", browser=True,
    )  # fmt: skip
    write_pictures(folder / "pictures")
    (folder / "notes.png").write_bytes(b"no picture")
    base = base_model(folder / "lm.onnx")
    write(base, folder / "lm")
    byte_pairs(folder / "lm" / "tokenizer.json")
    other = write(base_model(folder / "other.onnx", seed=5), folder / "other")
    lora.save_onnx_adapter(trained(other), folder / "other.onnx_adapter")
    tokenizer_json(folder / "wordlevel.json")
    (folder / "own.txt").write_text("\n".join(TEXTS * 6))
    with (folder / "huge.txt").open("wb") as file:
        file.truncate(100_000_000)  # takes no room on the disk
    modules, chromium = tools.modules(), tools.chromium()
    images, language = Site(folder / "images"), Site(folder / "lm", name="Small decoder")
    with Server(images) as first, Server(language) as second:
        (found,) = tools.run_node("cards.mjs", modules, chromium, first.url, second.url, folder)
    return folder, base, found


def test_nothing_goes_wrong_unseen(report):
    assert report[2]["problems"] == []


def test_colours_follow_the_system_and_the_switch(report):
    images = report[2]["images"]
    assert images["dark"] == "rgb(20, 23, 28)"
    assert images["light"] == images["remembered"] == "rgb(244, 245, 247)"


def test_nothing_sticks_out_at_the_width_of_a_phone(report):
    for found in (
        report[2]["images"]["narrow"],
        report[2]["images"]["narrowAgain"],
        report[2]["language"]["narrow"],
    ):
        assert found == {"scroll": 0, "wide": []}


def test_the_provider_is_told(report):
    images = report[2]["images"]
    assert re.fullmatch(r"Runs on: CPU \(WebAssembly\), \d threads?", images["provider"])
    assert images["reason"] == "No WebGPU: this server has no build of it (--ort-dir)"


def test_pictures_of_folders_are_learned(report):
    images = report[2]["images"]
    assert images["names"] == ["zero", "red", "two"]
    assert images["dropLoose"].startswith("Drop pictures on a class, or folders")
    assert images["added"] == "24 pictures added."
    assert images["counts"] == ["12 images", "12 images", "0 images"]
    assert images["renamed"] == ["blue", "red", "two"]
    assert "These cannot be read: notes.png" in images["unreadable"]
    assert images["data"] == "Your images: 19 examples to train on, 5 held out."
    assert images["accuracy"] == "100.0 %"


def test_the_camera_takes_pictures_and_is_shown_classes(report):
    images = report[2]["images"]
    assert images["captured"] == "3 images"
    assert images["sees"] in {"It sees blue.", "It sees red.", "It sees two."}
    assert images["cameraOff"] is True


def test_a_text_is_learned(report):
    language = report[2]["language"]
    assert language["hidden"] == []
    assert "64 trainable numbers, AdamW" in language["summary"]
    assert language["tokenizer"] == "Tokenizer: 300 tokens."
    assert language["adapter"] == "LoRA adapter of rank 2 beside 2 layers: only it is trained."
    assert re.search(r"tokens: \d+ rows of 16 to train on, \d+ held out", language["text"])
    start, end = map(float, re.findall(r"(?:from|to) ([\d.]+) at", language["curve"]))
    assert end < start
    assert language["quality"][0] == "Perplexity"
    assert float(language["quality"][1]) > 1
    assert language["before"].startswith(language["prompt"])
    assert language["before"] != language["after"]


def test_python_goes_on_with_the_downloaded_adapter(report):
    folder, base, found = report
    with zipfile.ZipFile(folder / "adapter.zip") as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    tokenizer = text.load_tokenizer(folder / "lm" / "tokenizer.json")
    inputs = text.LanguageInputs.of(text.without_cache(base))
    prompt = found["language"]["prompt"]
    for adapter in (
        lora.load_onnx_adapter(folder / "adapter.onnx_adapter"),
        lora.load_peft(folder / "adapter"),
    ):
        merged = text.without_cache(lora.merge(base, adapter))
        session = ort.InferenceSession(merged.SerializeToString())
        written = text.generate(
            lambda feeds, session=session: session.run(["logits"], feeds)[0],
            inputs, tokenizer, prompt, 8,
        )  # fmt: skip
        assert found["language"]["after"] == prompt + written
    assert found["language"]["again"] == found["language"]["after"]


def test_what_does_not_belong_there_is_named(report):
    language = report[2]["language"]
    assert "made for another base" in language["other"]
    assert 'tokenizer.json has the model "WordLevel"' in language["words"]
    assert language["huge"].startswith("huge.txt has 100 MB; the page takes 16 MB.")
    assert language["loaded"] == "adapter.zip: goes on from this adapter."


def test_webgpu_is_offered_told_and_used(tmp_path):
    """On a software device: that it computes is shown here, and not how fast."""
    generate_artifacts(
        colour_model(), loss=LossType.CrossEntropyLoss, optimizer=optim.adamw(),
        artifact_directory=tmp_path, browser=True,
    )  # fmt: skip
    images = np.random.default_rng(0).random((8, 3, 8, 8), np.float32)
    np.savez(tmp_path / "data.npz", x=images, labels=np.arange(8) % 3)
    dist = tools.modules() / "node_modules" / "onnxruntime-web" / "dist"
    with Server(Site(tmp_path, runtime=dist)) as server:
        (found,) = tools.run_node(
            "gpu.mjs", tools.modules(), tools.chromium(), server.url, tmp_path / "data.npz"
        )
    provider, reason = found["first"]
    assert provider.startswith("Runs on: CPU (WebAssembly)")
    if reason == "WebGPU finds no graphics device":
        pytest.skip("Chromium offers no WebGPU adapter")
    assert "WebGPU has only a software device" in reason
    assert found["offered"] == ["CPU (WebAssembly)", "GPU (WebGPU)"]
    assert found["second"].startswith("Runs on: WebGPU on a software device, ")
    assert found["stopped"] == "Stopped after 1 step."
    assert found["loss"] == pytest.approx(np.log(3), abs=1e-3)
