"""What examples/language_model wrote adapts further in the page of `onnxtrain serve`."""

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from onnxtrain import lora, text
from onnxtrain.serve import Server, Site

from . import tools

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "language_model" / "train.py"
OWN = "The gardener waters the roses before the sun is up. The roses thank him with their scent.\n"


def test_the_artifacts_of_the_example_adapt_in_the_page(tmp_path):
    modules, chromium = tools.modules(), tools.chromium()
    command = [sys.executable, str(EXAMPLE), "--quick"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    made = tmp_path / "gpt"
    (tmp_path / "own.txt").write_text(OWN * 12)
    site = Site(made / "style", tokenizer=made / "tokenizer.json")
    with Server(site) as server:
        (found,) = tools.run_node("adapt.mjs", modules, chromium, server.url, tmp_path)
    assert found["problems"] == []
    start, end = map(float, re.findall(r"(?:from|to) ([\d.]+) at", found["curve"]))
    assert end < 0.9 * start, found
    # Python, with the adapter that the page handed out, writes on as the page did
    base = made / "trained.onnx"
    adapter = lora.load_onnx_adapter(tmp_path / "adapter.onnx_adapter")
    session = ort.InferenceSession(lora.merge(base, adapter).SerializeToString())
    written = text.generate(
        lambda feeds: session.run(["logits"], feeds)[0],
        text.LanguageInputs.of(base),
        text.load_tokenizer(made / "tokenizer.json"),
        found["prompt"],
        8,
    )
    assert found["after"] == found["prompt"] + written
