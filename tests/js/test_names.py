"""Hostile names on the served page, in a real browser: they are text there too."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtrain import optim
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.serve import Server, Site

from . import tools

pytestmark = pytest.mark.slow
TAG = '<img src=x onerror="globalThis.owned = 1"><script>alert(1)</script>'
CODES = "\x1b[2J\x1b[31m\x07\u202e"  # no semicolon: the names are cells of a table too
NAME = f"../../{TAG}{CODES}"
CLASSES = [f"{letter}{TAG}{CODES}" for letter in "abc"]
SIDE = 6
"""Of the images; those of the page's own digits have another size."""


def model() -> onnx.ModelProto:
    """x: N×36 → scores: N×3, with hostile names everywhere."""
    x, w, scores = (f"{letter}{NAME}" for letter in "xws")
    weights = np.random.default_rng(0).standard_normal((SIDE * SIDE, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", [x, w], [scores], name=NAME)],
        NAME,
        [helper.make_tensor_value_info(x, 1, ["N", SIDE * SIDE])],
        [helper.make_tensor_value_info(scores, 1, ["N", 3])],
        [numpy_helper.from_array(weights, w)],
        doc_string=NAME,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=NAME)


def table(columns: int) -> str:
    """Rows of numbers, and the name of a class in the last column."""
    rng = np.random.default_rng(1)
    head = [*(f"{n}{NAME}" for n in range(columns)), f"y{NAME}"]
    rows = [[*rng.random(columns).round(3), CLASSES[n % 3]] for n in range(30)]
    return "\n".join(",".join(map(str, row)) for row in (head, *rows))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    modules, chromium = tools.modules(), tools.chromium()
    folder = tmp_path_factory.mktemp("names") / TAG.replace("/", "")
    folder.mkdir()
    generate_artifacts(
        model(), requires_grad=[f"w{NAME}"], loss=LossType.CrossEntropyLoss,
        optimizer=optim.sgd(), artifact_directory=folder, browser=True,
    )  # fmt: skip
    rows, broken = table(SIDE * SIDE), table(SIDE)
    with Server(Site(folder)) as server:
        (told,) = tools.run_node("names.mjs", modules, chromium, server.url, NAME, rows, broken)
    return told


def test_nothing_ran_and_no_element_came_of_a_name(report):
    assert report["owned"] is None
    assert report["strange"] == []
    assert report["problems"] == []


def test_names_are_shown_as_they_are(report):
    """The test above would hold for a page that shows none."""
    folder = TAG.replace("/", "")
    assert folder in report["title"]
    assert folder in report["summary"]
    assert TAG in report["complaint"]
    assert TAG in report["data"]
    assert TAG in report["answer"]
    assert report["bars"].count(TAG) == 3
    assert all(TAG in name for name in report["classes"])


def test_downloads_have_names_of_ours(report):
    assert report["download"] == "trained.onnx"
