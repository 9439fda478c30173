"""The same table for JavaScript: a model there has no folder, so it may name no file at all.

What decides which bytes become a model is device.json, which comes with the artifacts.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.js import tools

from . import bombs, models
from .limits import MEGABYTES, SECONDS
from .test_external_data import CASES, SECRET, Case

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")

Attack = Callable[[Path], None]


def described(folder: Path, change: Callable[[dict], None]) -> None:
    """Change device.json, as its maker could."""
    path = folder / "device.json"
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def whole_models(folder: Path, carrier: str, case: Case) -> None:
    """Both models external, and taken as they are."""
    models.write(folder, case.make(folder), carrier)
    taken_whole(folder)


def taken_whole(folder: Path) -> None:
    """Let device.json say that both models are taken as they are."""
    sizes = {n: (folder / n).stat().st_size for n in ("training_model.onnx", "eval_model.onnx")}

    def change(facts: dict) -> None:
        facts["files"] = sizes
        for model in facts["models"].values():
            if model["file"]:
                model["pieces"] = [[0, sizes[model["file"]]]]

    described(folder, change)


def other_file(name: str) -> Attack:
    """Have the export read a file outside the folder."""

    def attack(folder: Path) -> None:
        (folder / "sub").mkdir()

        def change(facts: dict) -> None:
            export = {**facts["models"]["export"], "file": name, "pieces": [[0, len(SECRET)]]}
            facts["files"][name] = len(SECRET)
            facts["models"] = {"train": facts["models"]["train"], "export": export}

        described(folder, change)

    return attack


def linked(put: Callable[[Path, Path], None]) -> Attack:
    """The eval model is a link to a file outside the folder."""

    def attack(folder: Path) -> None:
        other_file("eval_model.onnx")(folder)
        (folder / "eval_model.onnx").unlink()
        put(folder / "eval_model.onnx", folder.parent / "secret")

    return attack


ATTACKS: dict[str, tuple[Attack, str]] = {
    **{
        f"{case.name} ({carrier})": (
            lambda f, case=case, carrier=carrier: whole_models(f, carrier, case),
            "Python only",
        )
        for case in CASES
        for carrier in (models.CARRIERS if case is CASES[0] else ["initializer"])
    },
    "device.json names a file above": (other_file("../secret"), "not the name of a file"),
    "the same through a folder": (other_file("sub/../../secret"), "not the name of a file"),
    "the folder above": (other_file(".."), "not the name of a file"),
    "the eval model is a link": (linked(lambda a, b: a.symlink_to(b)), "out of its directory"),
    "the eval model is a hard link": (linked(lambda a, b: a.hardlink_to(b)), "hard links"),
    "the eval model is a pipe": (linked(lambda a, _: os.mkfifo(a)), "not a regular file"),
    "the eval model is a link to itself": (
        linked(lambda a, _: a.symlink_to(a.name)), "cannot be opened",
    ),
    "the folder is a file": (lambda f: _file_instead(f), "cannot be opened"),
    "device.json is not JSON": (lambda f: _write(f, "{"), "device.json"),
    "device.json is a list": (lambda f: _write(f, "[]"), "device.json"),
    "device.json is nested": (lambda f: _write(f, "[" * 100_000), "device.json"),
    "device.json has no models": (
        lambda f: described(f, lambda facts: facts.pop("models")), "device.json",
    ),
}  # fmt: skip


def _file_instead(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def _write(folder: Path, text: str) -> None:
    (folder / "device.json").write_text(text)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What Node says to each, all in one process."""
    modules = tools.modules()
    sound = models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")
    folders = {"control": sound}
    for name, (attack, _) in ATTACKS.items():
        parent = tmp_path_factory.mktemp("attack")
        (parent / "secret").write_bytes(SECRET)
        folders[name] = parent / "folder"
        shutil.copytree(sound, folders[name])
        attack(folders[name])
    found = tools.run_node("hostile.mjs", tools.LIBRARY, modules, *folders.values())
    return dict(zip(folders, found, strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_refused(name: str, answers: dict[str, dict]) -> None:
    answer = answers[name]
    assert SECRET.decode() not in answer.get("bytes", "")
    assert answer.get("isOurs"), answer
    assert ATTACKS[name][1] in answer["message"]


REFUSED = {
    "doubling functions": "1610612739 nodes",
    "recursive function": "calls itself",
    "nested branches": "nested more than 64 deep",
    "nested types": "cannot load",
    **dict.fromkeys(
        (
            "huge constant",
            "huge constant of integers",
            "huge einsum",
            "huge resize",
            "huge expand",
            "huge tile of integers",
            "huge range",
            "doubling concat",
            "broadcast integers",
        ),
        "makes a constant of",
    ),
    "negative dimension": "shape that none can have",
    "impossible shape": "shape that none can have",
    "too many dimensions": "shape that none can have",
    "two kinds of data": "its values twice",
    "too little data": "makes a constant of 1099511627776 numbers",
    "sparse of terabytes": "cannot load",
    "sparse out of range": "cannot load",
    "two dropouts": "not acyclic",
    "long names": "cannot load",
    "long varint": "damaged",
    "many empty fields": "No graph",
}
"""Bombs that are not even loaded; of the others onnxruntime makes a session and runs nothing."""


@pytest.fixture(scope="module")
def bombed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What Node says to each bomb, behind a sound folder that shows what loading costs anyway."""
    modules = tools.modules()
    sound = models.sound_folder(tmp_path_factory.mktemp("sound") / "folder")
    folders = {"control": sound}
    for bomb in bombs.BOMBS:
        folders[bomb] = tmp_path_factory.mktemp("bomb") / "folder"
        shutil.copytree(sound, folders[bomb])
        for name in ("training_model.onnx", "eval_model.onnx"):
            (folders[bomb] / name).write_bytes(bombs.content(bomb))
        taken_whole(folders[bomb])
    told = tools.run_node("hostile.mjs", tools.LIBRARY, modules, *folders.values())
    return dict(zip(folders, told, strict=True))


@pytest.mark.parametrize("bomb", sorted(bombs.BOMBS))
def test_bombs(bomb: str, bombed: dict[str, dict]) -> None:
    answer = bombed[bomb]
    assert answer["seconds"] < SECONDS
    assert answer["megabytes"] < MEGABYTES
    assert ("isOurs" in answer) == (bomb in REFUSED)
    assert answer.get("isOurs", True), answer
    assert REFUSED.get(bomb, "") in answer.get("message", "")


def test_sound_artifacts_are_loaded(answers: dict[str, dict]) -> None:
    assert len(answers["control"]["bytes"]) > 100


def test_the_word_location_is_no_reason(tmp_path: Path) -> None:
    """A node or value may be called so."""
    folder = models.sound_folder(tmp_path / "folder", node_name="location")
    assert b"location" in (folder / "training_model.onnx").read_bytes()
    (answer,) = tools.run_node("hostile.mjs", tools.LIBRARY, tools.modules(), folder)
    assert "bytes" in answer
