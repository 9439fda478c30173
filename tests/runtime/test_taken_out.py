"""Large weights are not in the bytes that a session is made of; its numbers are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest
from onnx import TensorProto

import onnxtrain
from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import ModelFileError
from onnxtrain.operators import KERNEL
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion.library import is_available, kernel_count
from onnxtrain.runtime.session import cutting, devices, taken_out
from onnxtrain.runtime.session.options import PREPACKING, entry_of
from tests.passes.test_late_weights import ROWS, nbits

Array = np.ndarray[Any, Any]
SIZE = 64
RNG = np.random.default_rng(0)
BITS = {
    TensorProto.FLOAT: 32, TensorProto.DOUBLE: 64, TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16, TensorProto.INT64: 64, TensorProto.INT32: 32, TensorProto.INT8: 8,
    TensorProto.UINT8: 8, TensorProto.BOOL: 8, TensorProto.UINT4: 4, TensorProto.INT4: 4,
    TensorProto.FLOAT8E4M3FN: 8,
}  # fmt: skip
CODES = {TensorProto.UINT4, TensorProto.INT4}


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_out, "LEAST_MODEL", 0)
    monkeypatch.setattr(taken_out, "LEAST_WEIGHT", 128)


def weight_of(kind: int, shape: tuple[int, ...] = (SIZE, SIZE + 2)) -> TensorProto:
    """Bytes that are a number in every type."""
    count = int(np.prod(shape)) * BITS[kind] // 8
    raw = RNG.integers(0, 2 if kind == TensorProto.BOOL else 60, count, np.uint8)
    return TensorProto(name="w", data_type=kind, dims=shape, raw_data=raw.tobytes())


def model_of(weight: TensorProto, *more: TensorProto, padding: int = 0) -> bytes:
    """The rows of a weight that are asked for, as floats."""
    nodes = [
        oh.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT),
        oh.make_node("Gather", ["f", "rows"], ["y"]),
    ]
    if weight.data_type in CODES:
        nodes = [
            oh.make_node("Mul", ["scale", "one"], ["gate"]),
            oh.make_node("DequantizeLinear", ["w", "gate"], ["f"]),
            oh.make_node("Gather", ["f", "rows"], ["y"]),
        ]
    inputs = [
        oh.make_tensor_value_info("rows", TensorProto.INT64, ["N"]),
        oh.make_tensor_value_info("one", TensorProto.FLOAT, []),
    ]
    scale = onh.from_array(np.float32(0.5), "scale")
    graph = oh.make_graph(
        nodes, "g" * (1 + padding), inputs,
        [oh.make_tensor_value_info("y", TensorProto.FLOAT, None)], [weight, *more, scale],
    )  # fmt: skip
    imports = [oh.make_opsetid("", 21)]
    return bytes(oh.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())


FEEDS = {"rows": np.array([3, 0, SIZE - 1]), "one": np.float32(1)[...]}


def lean_of(model: bytes) -> taken_out.Lean | None:
    outline = Outline.of(model)
    return None if outline is None else taken_out.taken_out(outline)


def rows_of(session: Any) -> Array:
    result: Array = session.run(["y"], FEEDS)[0]
    return result


@pytest.mark.parametrize("padding", range(8))
@pytest.mark.parametrize("kind", BITS, ids=[TensorProto.DataType.Name(kind) for kind in BITS])
def test_every_type_wherever_it_lies(kind: int, padding: int) -> None:
    """Bytes of a model begin anywhere; those of floats are copied to where floats may be."""
    model = model_of(weight_of(kind), padding=padding)
    lean = lean_of(model)
    assert lean is not None
    assert lean.size == SIZE * (SIZE + 2) * BITS[kind] // 8
    assert len(lean.content) < len(model) - lean.size + 200
    whole = onnxruntime.InferenceSession(model)
    np.testing.assert_array_equal(rows_of(devices.open_session(model)), rows_of(whole))


def test_a_session_reads_the_bytes_of_the_caller() -> None:
    data = np.zeros(SIZE, np.uint8)
    for kind in (TensorProto.UINT4, TensorProto.UINT8):
        value = taken_out.value_of(data, kind, [SIZE * 8 // BITS[kind]])
        assert value.data_ptr() == data.ctypes.data
    lean = lean_of(model_of(weight_of(TensorProto.UINT4)))
    assert lean is not None
    options = lean.options_with(devices.session_options())
    (value,) = lean.add_weights(options, lean.content)
    assert value.tensor_size_in_bytes() == lean.size


def changed(change: Callable[[TensorProto], None]) -> TensorProto:
    weight = weight_of(TensorProto.FLOAT)
    change(weight)
    return weight


def as_floats(weight: TensorProto) -> None:
    weight.float_data[:] = onh.to_array(weight).ravel()
    weight.ClearField("raw_data")


def in_a_file(weight: TensorProto) -> None:
    weight.data_location = TensorProto.EXTERNAL


def shorter(weight: TensorProto) -> None:
    weight.raw_data = weight.raw_data[:-4]


def of_another_shape(*dims: int) -> Callable[[TensorProto], None]:
    def change(weight: TensorProto) -> None:
        weight.dims[:] = dims

    return change


LEFT = {
    "numbers that are not bytes": changed(as_floats),
    "said to be in a file": changed(in_a_file),
    "too short": changed(shorter),
    "of another size": changed(of_another_shape(SIZE, 2**40)),
    "of a negative size": changed(of_another_shape(-SIZE, -SIZE - 2)),
    "of more sizes than there can be": changed(of_another_shape(*[1] * 80, SIZE, SIZE + 2)),
    "of text": TensorProto(name="w", data_type=TensorProto.STRING, dims=[200], raw_data=b"a" * 200),
    "small": weight_of(TensorProto.FLOAT, (2, 2)),
}


@pytest.mark.parametrize("form", LEFT)
def test_what_is_not_plain_stays(form: str) -> None:
    assert lean_of(model_of(LEFT[form])) is None


def test_two_of_one_name_stay() -> None:
    weight = weight_of(TensorProto.FLOAT)
    assert lean_of(model_of(weight, weight)) is None


def test_bytes_in_two_places_stay() -> None:
    model = onnx.load_from_string(model_of(weight_of(TensorProto.FLOAT)))
    twice = model.graph.initializer[0].SerializeToString() + b"\x4a\x80\x01" + bytes(128)
    model.graph.initializer[0].ParseFromString(b"")
    content = model.SerializeToString().replace(b"\x2a\x00", b"\x2a" + varint(len(twice)) + twice)
    assert lean_of(content) is None


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


def test_what_may_be_fed_stays() -> None:
    """An initializer that is an input, too, is a default."""
    model = onnx.load_from_string(model_of(weight_of(TensorProto.FLOAT)))
    shape = [SIZE, SIZE + 2]
    model.graph.input.append(oh.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    content = model.SerializeToString()
    assert lean_of(content) is None
    other = np.ones(shape, np.float32)
    fed = devices.open_session(content).run(["y"], {**FEEDS, "w": other})[0]
    np.testing.assert_array_equal(fed, other[FEEDS["rows"]])


@pytest.mark.parametrize("cut", [1, 10, 100, 2000, 8000])
def test_a_damaged_model_is_for_onnxruntime_to_judge(cut: int) -> None:
    model = model_of(weight_of(TensorProto.UINT8))[:-cut]
    with pytest.raises(Exception, match=r"(?i)protobuf|pars|model"):
        devices.open_session(model)


def test_no_file_stands_behind_the_name() -> None:
    """The name is another one each time, and what names a file by itself gets none of the bytes."""
    lean, again = (lean_of(model_of(weight_of(TensorProto.FLOAT))) for _ in range(2))
    assert lean is not None
    assert again is not None
    with pytest.raises(Exception, match=r"(?i)external|file"):
        onnxruntime.InferenceSession(lean.content)
    with pytest.raises(Exception, match=r"(?i)external|file"):
        devices.create_session(lean.content, lean=again)


@pytest.mark.parametrize(("key", "value"), [("offset", 2**62), ("offset", 10**6), ("length", 4)])
def test_a_place_that_is_not_that_of_the_weight_is_an_error(key: str, value: int) -> None:
    lean = lean_of(model_of(weight_of(TensorProto.FLOAT)))
    assert lean is not None
    model = onnx.ModelProto.FromString(lean.content)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == key:
            entry.value = str(value)
    with pytest.raises((ModelFileError, ValueError)):
        lean.add_weights(onnxruntime.SessionOptions(), model.SerializeToString())


def test_options_of_a_user_stay_as_they_are() -> None:
    """A second model with weights of the same names has its own."""
    given = onnxruntime.SessionOptions()
    given.add_session_config_entry("session.set_denormal_as_zero", "1")
    models = [model_of(weight_of(TensorProto.FLOAT)) for _ in range(2)]
    for model in models:
        session = devices.open_session(model, devices.session_options(given))
        expected = rows_of(onnxruntime.InferenceSession(model))
        np.testing.assert_array_equal(rows_of(session), expected)
        np.testing.assert_array_equal(rows_of(onnxruntime.InferenceSession(model, given)), expected)
    with pytest.raises(RuntimeError):
        given.get_session_config_entry(PREPACKING)


def test_what_cannot_be_lent_is_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that cannot be copied, or an onnxruntime that copies what it is lent."""
    model = model_of(weight_of(TensorProto.FLOAT))
    expected = rows_of(onnxruntime.InferenceSession(model))
    monkeypatch.setattr(taken_out, "copy_of", lambda _: None)
    np.testing.assert_array_equal(rows_of(devices.open_session(model)), expected)


def test_many_bytes_are_not_laid_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As weights beside a model are not."""
    model = model_of(weight_of(TensorProto.FLOAT))
    seen = list[str | None]()
    for limit in (2**29, 1):
        monkeypatch.setattr(devices, "MANY_CONSTANTS", limit)
        options = devices.open_session(model).get_session_options()
        seen.append(entry_of(options, PREPACKING))
    assert seen == [None, "1"]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in pieces"])
def test_gradients_of_weights_of_few_bits(
    bits: int, zeros: bool, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_cut:
        monkeypatch.setattr(cutting, "MANY_NODES", 4)
        monkeypatch.setattr(cutting, "NODES_OF_A_PIECE", 4)
    model, weight = nbits(530, 520, bits=bits, zeros=zeros)
    gradient_model = onnxtrain.differentiate(model, wrt=["x"], of="loss").SerializeToString()
    x = RNG.normal(size=(ROWS, 530)).astype(np.float32)
    y, dx = devices.open_session(gradient_model).run(["y", "x_grad"], {"x": x})
    np.testing.assert_allclose(y, x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, x @ weight @ weight.T, rtol=1e-4, atol=1e-3)


def folder_of(place: Path, bits: int, *, is_external: bool) -> Path:
    """Artifacts of a layer of few bits, frozen, and one of floats."""
    model, _ = nbits(544, 520, bits=bits)
    model.graph.initializer.append(
        onh.from_array(RNG.normal(size=(520, 3)).astype(np.float32), "head")
    )
    layer = oh.make_node("MatMul", ["y", "head"], ["z"])
    model.graph.node.insert(1, layer)
    model.graph.output[1].CopyFrom(oh.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 3]))
    del model.graph.node[2:], model.graph.output[0]
    path = place / "model.onnx"
    onnx.save(model, path, save_as_external_data=is_external, location="weights", size_threshold=0)
    artifacts.generate_artifacts(
        path, requires_grad=["head"], loss=artifacts.LossType.MSELoss, artifact_directory=place
    )
    return place


def steps_of(folder: Path, source: Callable[[Path], Any] = lambda path: path) -> list[Any]:
    """A loss, its gradient, and what the eval model says."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    names = ("training_model.onnx", "eval_model.onnx")
    module = Module(*[source(folder / names[0]), state, source(folder / names[1])])
    x = np.random.default_rng(1).normal(size=(ROWS, 544)).astype(np.float32)
    target = np.ones((ROWS, 3), np.float32)
    loss = module(x, target)
    gradient = np.array(state.parameters["head"].grad)
    module.eval()
    return [loss, gradient, module(x, target)]


@pytest.mark.parametrize("is_external", [False, True], ids=["in the file", "beside it"])
@pytest.mark.parametrize("bits", [4, 8])
def test_steps_are_those_of_the_whole_model(
    bits: int, is_external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a path, and from bytes where the weights are inside."""
    folder = folder_of(tmp_path, bits, is_external=is_external)
    ways = [steps_of(folder)]
    if not is_external:
        ways.append(steps_of(folder, Path.read_bytes))
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    monkeypatch.setattr(taken_out, "LEAST_MODEL", 2**40)
    expected = steps_of(folder)
    for way in ways:
        for actual, wanted in zip(way, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def test_a_file_that_is_replaced_after_it_was_read_changes_nothing(tmp_path: Path) -> None:
    """The session reads the bytes that were read then; nobody opens the file again."""
    folder = folder_of(tmp_path, 4, is_external=False)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    path = folder / "training_model.onnx"
    module = Module(path, state)
    x, target = np.ones((ROWS, 544), np.float32), np.ones((ROWS, 3), np.float32)
    before = module(x, target)
    path.write_bytes(b"")
    np.testing.assert_array_equal(module(x, target), before)


LOAD = """
import sys
from pathlib import Path
import numpy as np
from onnxtrain.runtime.fusion.library import is_available, kernel_count
from onnxtrain.runtime.session.devices import open_session

def peak():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1])

small = open_session(Path(sys.argv[2]).read_bytes())  # what any session takes
model, before = Path(sys.argv[1]).read_bytes(), peak()
session = open_session(model)
print(peak() - before, kernel_count())
"""


def blocks_of_four_bits(path: Path, blocks: int) -> None:
    """Floats of so many blocks of 64 numbers, which a kernel makes."""
    sizes, kind = {"c": [blocks, 64], "z": [blocks]}, TensorProto.UINT4
    tensors = [onh.from_array(np.array([-1, 640]), "shape")]
    for name, dims in sizes.items():
        raw = bytes(int(np.prod(dims)) // 2)
        tensors.append(TensorProto(name=name, data_type=kind, dims=dims, raw_data=raw))
    nodes = [
        oh.make_node("Expand", ["one", "count"], ["s"]),
        oh.make_node("DequantizeLinear", ["c", "s", "z"], ["f"], axis=0),
        oh.make_node("Reshape", ["f", "shape"], ["y"], doc_string=KERNEL),
    ]
    inputs = [
        oh.make_tensor_value_info("count", TensorProto.INT64, [1]),
        oh.make_tensor_value_info("one", TensorProto.FLOAT, []),
    ]
    outputs = [oh.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = oh.make_graph(nodes, "g", inputs, outputs, tensors)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_weights_are_there_once_more_at_most(tmp_path: Path) -> None:
    """While onnxruntime makes a session it has a copy of what it is lent; edits have none.

    Of 78 MB inside of a model: 78 more at the peak, and 156 where they stay inside.
    """
    paths = [tmp_path / "large.onnx", tmp_path / "small.onnx"]
    for path, blocks in zip(paths, (2_400_000, 20), strict=True):
        blocks_of_four_bits(path, blocks)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, paths)],
        check=True, capture_output=True, text=True, env={**os.environ, "ONNXTRAIN_QUIET": "1"},
    )  # fmt: skip
    more, kernels = map(int, done.stdout.split())
    assert more * 1024 < 1.3 * paths[0].stat().st_size
    assert kernels == 2 * is_available()


@pytest.mark.skipif(not is_available(), reason="there is no numba, or no Linux")
def test_a_model_of_that_size_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels were left out of models with many bytes, which are few now."""
    monkeypatch.setattr("onnxtrain.runtime.session.kernels.LONGEST", 2**17)
    model, _ = nbits(1024, 1024)
    gradient_model = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    for node in gradient_model.graph.node:
        if node.op_type == "Reshape":
            node.doc_string = KERNEL
    before = kernel_count()
    devices.open_session(gradient_model.SerializeToString())
    assert kernel_count() > before


TRAIN = """
import sys
from pathlib import Path
from onnxtrain.runtime.session.devices import open_session

def resident():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1])

open_session(Path(sys.argv[2]).read_bytes())  # what any session takes
model = Path(sys.argv[1]).read_bytes()
before = resident()
session = open_session(model)
print(resident() - before)
"""


def frozen_layers(path: Path, width: int, count: int) -> None:
    """Products with constants, each of which onnxruntime lays out for itself."""
    sizes = [width, width]
    # a byte more each time in the name, so that the numbers lie everywhere
    weights = [
        TensorProto(
            name="w" * (1 + number), data_type=TensorProto.FLOAT, dims=sizes,
            raw_data=RNG.normal(size=sizes).astype(np.float32).tobytes(),
        )
        for number in range(count)
    ]  # fmt: skip
    nodes = [
        oh.make_node("MatMul", [f"x{number}", weight.name], [f"x{number + 1}"])
        for number, weight in enumerate(weights)
    ]
    values = [
        oh.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, ["N", width])
        for number in (0, count)
    ]
    graph = oh.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_floats_are_there_once_beside_the_callers(tmp_path: Path) -> None:
    """As onnxruntime has laid them out; there was a copy of ours besides."""
    paths = [tmp_path / "large.onnx", tmp_path / "small.onnx"]
    for path, width in zip(paths, (1024, 16), strict=True):
        frozen_layers(path, width, 16)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *map(str, paths)],
        check=True, capture_output=True, text=True, env={**os.environ, "ONNXTRAIN_QUIET": "1"},
    )  # fmt: skip
    assert int(done.stdout) * 1024 < 1.3 * paths[0].stat().st_size
