"""What a model says of itself in its metadata is a stranger's word: no key of ours breaks a door.

A note is used where it fits, refused by name where it matters, and else passed over. It can never
turn on anything: the note about onnxruntime's optimizers may name some to leave out, and those are
of a list of ours.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtrain.api import CheckpointState, Module
from onnxtrain.operators import TRANSPOSED
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session.optimizers import NOTED, idle_optimizers

from . import models
from .doors import enter
from .limits import call_all

KEY = "onnxtrain.idle_optimizers"
KEYS = (
    "onnxtrain.artifact", "onnxtrain.declared_outputs", "onnxtrain.gradients",
    KEY, "onnxtrain.labels", "onnxtrain.labels_are_checked",
    "onnxtrain.lora", "onnxtrain.optimizer", "onnxtrain.partition", "onnxtrain.qat",
    "onnxtrain.random", "class_names", "image_mean", "image_size",
)  # fmt: skip
"""What onnxtrain reads or writes."""
JUNK = {
    "no JSON": "{",
    "lists in lists": "[" * 5000,
    "another shape": json.dumps({"y": [7, 7], "parameters": ["y"], "version": 1e999}),
}
READERS = (
    "differentiate", "Module", "evaluate", "export", "lora", "training_info", "prepare qat",
    "new head", "serve", "inspect", "artifacts", "generate_artifacts",
)  # fmt: skip
"""Doors of which each reads a model in another way; the last one writes what others read."""


def noted(content: bytes, key: str, value: str) -> bytes:
    """A model with a note in the place of its own, and no shapes that would say more."""
    model = onnx.load_from_string(content)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    kept = [entry for entry in model.metadata_props if entry.key != key]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def _idle(content: bytes) -> list[str]:
    """What a session of a model leaves out."""
    return idle_optimizers(Outline.of(content))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")
    shutil.copy(folder / "training_model.onnx", folder / "sound.onnx")
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
@pytest.mark.parametrize("key", KEYS)
def test_every_door(key: str, sound: Path, tmp_path: Path) -> None:
    calls = []
    for number, junk in enumerate(JUNK.values()):
        folder = tmp_path / str(number)
        shutil.copytree(sound, folder)
        for path in folder.glob("*.onnx"):
            path.write_bytes(noted(path.read_bytes(), key, junk))
        calls += [(enter, (door, folder)) for door in READERS]
    outcomes = call_all(calls)
    failed = [
        f"{arguments}: {outcome.kind} {outcome.message}\n{outcome.place}"
        for (_, arguments), outcome in zip(calls, outcomes, strict=True)
        if outcome.kind not in ("ok", "refused")
    ]
    assert not failed, "\n".join(failed)


NOTES = {
    "what is on our list": (";".join(sorted(NOTED)), NOTED),
    "what is not": ("ConvAddFusion;LevelTwo;../../etc/passwd;\0", frozenset()),
    "separators": (";" * 100_000, frozenset()),
    "one long name": ("ConstantFolding" * 100_000, frozenset()),
    "another separator": ("ConstantFolding,TransposeOptimizer", frozenset()),
    "spaces around a name": (" ConstantFolding ;\nTransposeOptimizer", frozenset()),
}


@pytest.mark.parametrize("name", NOTES)
def test_idle_optimizers(name: str, sound: Path) -> None:
    """The note reaches the options of a session: only what it may name gets there."""
    note, used = NOTES[name]
    plain = noted((sound / "training_model.onnx").read_bytes(), KEY, "")
    told = noted(plain, KEY, note)
    assert set(_idle(told)) == {*_idle(plain), *used}
    state = CheckpointState.load_checkpoint(sound / "checkpoint")
    x = np.ones((2, 4), np.float32)
    losses = [Module(content, state)(x) for content in (plain, told)]
    np.testing.assert_equal(*losses)


def test_a_note_that_is_no_text(sound: Path) -> None:
    plain = noted((sound / "training_model.onnx").read_bytes(), KEY, "?" * 20)
    damaged = plain.replace(b"?" * 20, b"\xff\xfe" * 10)
    assert damaged != plain
    assert _idle(damaged) == _idle(plain)


def swapped(content: bytes) -> bytes:
    """The same, with two Transposes before every product that undo each other."""
    model = onnx.load_from_string(content)
    for number, node in enumerate([n for n in model.graph.node if n.op_type == "MatMul"]):
        around = [f"twice{number}", f"thrice{number}"]
        twice = [
            onnx.helper.make_node("Transpose", [a], [b], perm=[1, 0])
            for a, b in zip([node.input[0], around[0]], around)
        ]
        place = list(model.graph.node).index(node)
        node.input[0] = around[-1]
        for transpose in reversed(twice):
            model.graph.node.insert(place, transpose)
    return model.SerializeToString()


@pytest.mark.parametrize("change", [bytes, swapped])
def test_every_node_has_the_mark_of_products(change: Callable[[bytes], bytes], sound: Path) -> None:
    """Whoever writes the mark to where it does not belong changes no number."""
    model = onnx.load_from_string(change((sound / "training_model.onnx").read_bytes()))
    for node in model.graph.node:
        node.doc_string = TRANSPOSED
    state = CheckpointState.load_checkpoint(sound / "checkpoint")
    x = np.ones((2, 4), np.float32)
    contents = ((sound / "training_model.onnx").read_bytes(), model.SerializeToString())
    results = [Module(content, state)(x) for content in contents]
    for told, plain in zip(results[1], results[0]):
        np.testing.assert_allclose(told, plain, rtol=1e-6)
