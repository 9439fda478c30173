"""ORTMODULE_CACHE_DIR: what was exported once is read again, and a bad file does no harm."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.helper
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import (  # noqa: E402
    DebugOptions,
    LogLevel,
    ORTModule,
    export_cache,
)
from onnxtrain.torch.export_cache import CACHE_VARIABLE, MAGIC  # noqa: E402
from onnxtrain.torch.size_rules import from_json  # noqa: E402

Edit = Callable[[dict[str, Any], onnx.ModelProto], None]


class Net(nn.Module):
    """Tied weights, a statistic, a place that no gradient passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.second(torch.tanh(self.first(x))))
        return y, y * x.detach()


class BySize(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 3:
            return x * 2
        return x - 1


class ByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x - 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "exports"))
    return tmp_path / "exports"


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every export."""
    export, calls = torch.onnx.export, list[int]()

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return export(*args, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", counted)
    return calls


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def check_step(net: nn.Module, rows: int = 5) -> None:
    """A call and its gradients are torch's."""
    plain, wrapped = net, ORTModule(_copy(net), exporter="torchscript")
    x = torch.randn(rows, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    for module, given in ((plain, x), (wrapped, y)):
        a, b = module(given)
        (a.pow(3).sum() + b.sum()).backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, y.grad, atol=2e-3)
    pairs = zip(plain.named_parameters(), wrapped.named_parameters())
    for (name, expected), (_, actual) in pairs:
        assert torch.allclose(expected.grad, actual.grad, atol=2e-3), name
    assert torch.allclose(plain.norm.running_mean, wrapped.norm.running_mean, atol=1e-6)


def _copy(net: nn.Module) -> nn.Module:
    copied = Net()
    copied.load_state_dict(net.state_dict())
    return copied


def test_an_equal_module_is_not_exported_again(folder: Path, exports: list[int]) -> None:
    check_step(Net())
    assert len(exports) == 1
    weights = Net()
    check_step(weights)
    check_step(Net(), rows=7)
    check_step(Net().double().float())
    assert len(exports) == 1
    content = entry(folder).read_bytes()
    assert weights.first.bias.detach().numpy().tobytes() not in content  # no weights in it


def test_no_folder_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    check_step(Net())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_sizes_that_take_another_branch(folder: Path, exports: list[int], exporter: str) -> None:
    rows_of_calls = (5, 2, 5, 6)
    for rows in rows_of_calls:
        x = torch.randn(rows, 4)
        assert torch.equal(ORTModule(BySize(), exporter=exporter)(x), BySize()(x))
    by_branch, by_size = 2, len(set(rows_of_calls))  # tracing cannot say what it assumed
    assert len(exports) == (by_branch if exporter == "dynamo" else by_size)


def test_exact_sizes_are_found_among_many(
    folder: Path, exports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_cache, "ENTRIES", 1)
    for _ in range(2):
        for rows in (4, 5, 6):
            ORTModule(BySize(), exporter="torchscript")(torch.randn(rows, 4))
    assert len(exports) == 3


def test_what_depends_on_values_is_not_kept(folder: Path) -> None:
    with pytest.warns(UserWarning, match="reads values"):
        ORTModule(ByValue())(torch.ones(2, 2))
    assert not list(folder.glob("*"))


CALL = """
import torch
from onnxtrain.torch import ORTModule
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
net.kinds = {"a", "b", "c", "d"}
ORTModule(net, exporter="torchscript")(torch.ones(1, 2)).sum().backward()
"""


def test_another_process_reads_it(folder: Path) -> None:
    exec(CALL, {})
    assert entry(folder).is_file()
    program = f"import torch\ntorch.onnx.export = None\n{CALL}"
    subprocess.run([sys.executable, "-c", program], check=True)


# --- bad files ------------------------------------------------------------------------------------


def rewrite(path: Path, edit: Edit) -> None:
    """Change an entry as somebody would who knows its form."""
    body = path.read_bytes()[len(MAGIC) + 32 :]
    (length,) = struct.unpack_from("<I", body)
    head = json.loads(body[4 : 4 + length])
    model = onnx.load_from_string(body[4 + length :])
    edit(head, model)
    text = json.dumps(head).encode()
    body = struct.pack("<I", len(text)) + text + model.SerializeToString()
    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)


def other_files(head: dict[str, Any], model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer.add(name="x", data_type=1, dims=[4], data_location=1)
    tensor.external_data.add(key="location", value="../../etc/passwd")


def own_weights(head: dict[str, Any], model: onnx.ModelProto) -> None:
    name = head["names"]["inner.first.bias"]
    model.graph.initializer.append(onnx.helper.make_tensor(name, 1, [4], [0.0] * 4))


def swapped_weights(head: dict[str, Any], model: onnx.ModelProto) -> None:
    head["names"]["inner.first.bias"] = "inner.second.bias"


def fewer_outputs(head: dict[str, Any], model: onnx.ModelProto) -> None:
    head["outputs"].pop()
    model.graph.output.pop()


def other_outputs(head: dict[str, Any], model: onnx.ModelProto) -> None:
    head["outputs"][0] = "nobody"


def more_inputs(head: dict[str, Any], model: onnx.ModelProto) -> None:
    model.graph.input.append(onnx.helper.make_tensor_value_info("more", 1, [4]))
    head["inputs"].append("more")


def other_type(head: dict[str, Any], model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64


def huge(head: dict[str, Any], model: onnx.ModelProto) -> None:
    model.graph.initializer.add(name="x", data_type=1, dims=[2**40])


def numbers_for_names(head: dict[str, Any], model: onnx.ModelProto) -> None:
    head["barriers"] = [1, 2]


def rule(value: Any) -> Edit:
    def edit(head: dict[str, Any], model: onnx.ModelProto) -> None:
        head["sizes"] = value

    edit.__name__ = f"rule {str(value)[:20]}"
    return edit


def more_fields(head: dict[str, Any], model: onnx.ModelProto) -> None:
    head["more"] = 1


EDITS = [
    other_files, own_weights, swapped_weights, fewer_outputs, other_outputs, more_inputs,
    other_type, huge, numbers_for_names, more_fields, rule("none"), rule({"only": 3}),
    rule({"only": [["a"]]}), rule({"dims": 3, "ranges": {}}), rule({"dims": [], "ranges": 3}),
    rule({"dims": [], "ranges": {"s": [-1, True]}}),
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_entry_that_is_not_of_this_module_is_written_anew(
    edit: Edit, folder: Path, exports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    check_step(Net())
    before = entry(folder).read_bytes()
    rewrite(entry(folder), edit)
    check_step(Net())
    assert len(exports) == 2
    assert "is exported again" in caplog.text
    assert entry(folder).read_bytes() == before


def test_a_damaged_entry_is_written_anew(
    folder: Path, exports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    check_step(Net())
    path = entry(folder)
    before = path.read_bytes()
    middle = len(before) // 2
    flipped = before[:middle] + bytes([before[middle] ^ 1]) + before[middle + 1 :]
    deep = b"[" * 100_000
    body = struct.pack("<I", len(deep)) + deep
    nested = MAGIC + hashlib.sha256(body).digest() + body
    too_long = MAGIC + hashlib.sha256(b"\xff" * 8).digest() + b"\xff" * 8
    for data in (b"", b"onnx", before[:-1], before[:60], flipped, nested, too_long):
        caplog.clear()
        path.write_bytes(data)
        check_step(Net())
        assert "is damaged" in caplog.text
        assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_in_the_place_of_an_entry(folder: Path, exports: list[int]) -> None:
    check_step(Net())
    path = entry(folder)
    path.unlink()
    os.mkfifo(path)
    check_step(Net())
    assert len(exports) == 2


@pytest.mark.skipif(os.name != "posix", reason="about permissions")
def test_a_folder_of_others_is_not_used(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    check_step(Net())
    assert "others may write" in caplog.text
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    check_step(Net())
    assert "cannot be kept" in caplog.text


def test_a_module_without_a_fingerprint_is_exported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    net = nn.Linear(2, 2)
    net.values = (i for i in range(3))
    ORTModule(net, DebugOptions(LogLevel.INFO), exporter="torchscript")(torch.ones(1, 2))
    ORTModule(nn.ReLU())  # as quiet as before
    assert "values cannot be read" in caplog.text
    assert not list(folder.iterdir())


def test_rules_are_read_as_they_were_written() -> None:
    rule = from_json({"dims": ["s", None, "s"], "ranges": {"s": [2, None]}})
    assert rule([[2, 7], [2]])
    assert not rule([[2, 7], [3]])
    assert not rule([[1, 7], [1]])
