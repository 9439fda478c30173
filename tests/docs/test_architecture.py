"""docs/architecture.md: its files exist, its walks are what happens, its picture is up to date."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxtrain
from onnxtrain import losses, optim
from onnxtrain.api import SaveCheckpoint
from tests.docs.models import blobs, classifier

ROOT = Path(__file__).resolve().parents[2]
SRC = Path(onnxtrain.__file__).resolve().parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def walks() -> dict[str, list[str]]:
    """Heading → the files of its numbered list."""
    parts = re.split(r"^### (.+)\n", PAGE, flags=re.MULTILINE)[1:]
    return {
        title: re.findall(r"^\d+\. `([^`]+)`", body, flags=re.MULTILINE)
        for title, body in zip(parts[::2], parts[1::2])
    }


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.py|[\w/]+/)`", PAGE))
    assert len(named) > 40
    missing = {n for n in named if not (SRC / n).exists() and not (ROOT / n).exists()}
    # parts of runtime/ are named without it, in the row of the table that lists them
    assert missing <= {f"{part.name}/" for part in (SRC / "runtime").iterdir()}


def test_every_folder_is_in_the_table() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+)/`", "\n".join(rows)))
    folders = {p.name for p in SRC.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders <= named


def test_every_module_beside_the_folders_is_named() -> None:
    modules = {p.name for p in SRC.glob("*.py") if not p.name.startswith("__")}
    assert not {name for name in modules if f"`{name}`" not in PAGE}


def test_classes_of_the_engine_are_where_the_table_says() -> None:
    section = PAGE.partition("## The engine")[2].partition("\n## ")[0]
    cells = re.findall(r"((?:`\w+`(?:, )?)+) \(`([\w/]+\.py)`\)", section)
    named = [(n, path) for names, path in cells for n in re.findall(r"\w+", names)]
    assert len(named) > 10
    for name, path in named:
        module = importlib.import_module(f"onnxtrain.{path.removesuffix('.py').replace('/', '.')}")
        assert hasattr(module, name), f"{path} has no {name}"


def test_the_map_of_contributing_names_every_folder() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## The map")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:src/onnxtrain/)?(\w+)/`", section))
    folders = {p.name for p in SRC.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert folders == named


def entered(call: Callable[[], Any]) -> list[str]:
    """Files of the package whose functions a call enters, in order; no file twice in a row."""
    order: list[str] = []
    files: dict[str, str] = {}  # what the interpreter calls a file → its path in the package

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and frame.f_code.co_name != "<module>" and "onnxtrain" in name:
            if name not in files:
                path = Path(name).resolve()
                inside = path.is_relative_to(SRC)
                files[name] = path.relative_to(SRC).as_posix() if inside else ""
            if files[name] and order[-1:] != [files[name]]:
                order.append(files[name])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return order


def with_loss(path: str) -> None:
    """The classifier of the pages, with a cross entropy as its first output."""
    model = onnx.load(path)
    onnx_loss = onnx.helper.make_node(
        "SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], reduction="mean"
    )
    model.graph.node.append(onnx_loss)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, ["N"])
    )
    loss = onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    model.graph.output.insert(0, loss)
    onnx.save(model, path)


def differentiate() -> Callable[[], Any]:
    classifier("model.onnx")
    with_loss("model.onnx")
    return lambda: onnxtrain.differentiate("model.onnx", wrt=["fc1.weight"], of="loss")


def generate(**options: Any) -> Callable[[], Any]:
    classifier("model.onnx")
    Path("artifacts").mkdir()
    loss, optimizer = losses.CrossEntropyLoss(), optim.adamw()
    return lambda: onnxtrain.generate_artifacts(
        "model.onnx", loss=loss, optimizer=optimizer, artifact_directory="artifacts", **options
    )


def step() -> Callable[[], Any]:
    generate()()
    state = onnxtrain.CheckpointState.load_checkpoint("artifacts/checkpoint")
    model = onnxtrain.Module("artifacts/training_model.onnx", state)
    optimizer = onnxtrain.Optimizer("artifacts/optimizer_model.onnx", model)
    x, labels = blobs(8)

    def both() -> None:
        model(x, labels)
        optimizer.step()

    return both


def fit() -> Callable[[], Any]:
    generate(step_model=True)()

    def schedule(optimizer: Any) -> Any:
        return onnxtrain.schedulers.CosineAnnealingLR(optimizer, 10)

    trainer = onnxtrain.Trainer.from_directory(
        "artifacts", metrics=["accuracy"], scheduler=schedule
    )
    data = blobs(64)
    saves = [SaveCheckpoint("c")]
    return lambda: trainer.fit(data, validation_data=data, callbacks=saves, progress=False)


def ortmodule() -> Callable[[], Any]:
    torch = pytest.importorskip("torch")
    from onnxtrain.torch import ORTModule

    layers = [torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)]
    module = ORTModule(torch.nn.Sequential(*layers), exporter="torchscript")
    return lambda: module(torch.ones(2, 3)).sum().backward()


CALLS = {
    "`differentiate(": differentiate,
    "`generate_artifacts(": generate,
    "`model(": step,
    "`trainer.fit(": fit,
    "`ORTModule(": ortmodule,
}


@pytest.mark.parametrize("title", walks())
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's older exporter says so of itself
def test_a_walk_is_what_happens(title: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = walks()[title]
    (start,) = [s for s in CALLS if title.startswith(s)]
    for file in files:
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        importlib.import_module(f"onnxtrain.{module}")
    happened = entered(CALLS[start]())
    ahead = iter(happened)
    missed = next((file for file in files if file not in ahead), None)  # takes up to each file
    assert missed is None, f"{missed} does not come next; the call goes through\n" + "\n".join(
        dict.fromkeys(happened)
    )


def test_there_are_five_walks() -> None:
    assert len(walks()) == len(CALLS) == 5


def test_the_picture_is_what_the_script_draws() -> None:
    path = ROOT / "tools" / "make_architecture_figure.py"
    spec = importlib.util.spec_from_file_location("architecture_figure", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.TARGET.read_text(encoding="utf-8") == script.figure().svg()
    text = script.TARGET.read_text(encoding="utf-8")
    for folder in re.findall(r">([a-z]+)/(?: ·|<)", text):
        places = [SRC / folder, SRC / "runtime" / folder, ROOT / folder]
        assert any(p.is_dir() for p in places), f"the picture shows {folder}/"
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    shown = [(box, name.rstrip("…, ")) for box, names in script.FRONT_ENDS for name in names]
    for box, names in ((b, n) for b, n in shown if b != "cli/"):
        homes = ["onnxtrain", "onnxtrain.training", "onnxtrain.torch"]
        homes += [f"onnxtrain.{folder}" for folder in re.findall(r"(\w+)/", box)]
        modules = [importlib.import_module(home) for home in homes]
        for name in names.split(", "):
            assert any(hasattr(m, name) for m in modules), f"the picture shows {name} in {box}"
