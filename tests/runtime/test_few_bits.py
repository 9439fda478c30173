"""Sessions carry out products with weights of four bits by MatMulNBits; the file has none of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.files.wire import Message
from onnxtrain.runtime.session import devices, few_bits
from onnxtrain.runtime.session.options import PREPACKING
from tests.passes.test_late_weights import FORMS, ROWS, nbits

Array = np.ndarray[Any, Any]
TAKEN = {
    "4 bits": lambda: nbits(512, 520),
    "4 bits with zero points": lambda: nbits(512, 520, zeros=True),
    "4 bits, an odd number of blocks": lambda: nbits(544, 520),
    "4 bits, blocks of 16": lambda: nbits(512, 520, block=16),
}
LEFT = {
    **{name: form for name, form in FORMS.items() if not name.startswith("4 bits")},
    "4 bits, odd rows of zero points": lambda: nbits(544, 520, zeros=True),
    "4 bits, blocks that are not full": lambda: nbits(530, 520),
    "a small weight": lambda: nbits(512, 64),
}


def gradient_of(model: onnx.ModelProto) -> bytes:
    return onnxtrain.differentiate(model, wrt=["x"], of="loss").SerializeToString()


def operators(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(model).graph.node}


def results(session: Any, width: int) -> list[Array]:
    x = np.random.default_rng(1).normal(size=(ROWS, width)).astype(np.float32)
    values: list[Array] = session.run(["y", "x_grad"], {"x": x})
    return values


def with_kernels(model: bytes, options: Any) -> bytes:
    """What a session is given; nothing if that is the model itself."""
    outline = Outline.of(model)
    return b"" if outline is None else few_bits.with_kernels(outline, options) or b""


@pytest.mark.parametrize("form", TAKEN)
def test_the_kernel_gives_the_same_numbers(form: str) -> None:
    model, weight = TAKEN[form]()
    standard = gradient_of(model)
    assert "MatMulNBits" not in operators(standard)
    native = with_kernels(standard, devices.session_options())
    assert "MatMulNBits" in operators(native)
    expected = results(devices.create_session(standard), weight.shape[0])
    for actual, wanted in zip(
        results(devices.create_session(native), weight.shape[0]), expected, strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def test_threads_do_not_change_a_bit() -> None:
    model, weight = nbits(512, 520, zeros=True)
    gradient_model = gradient_of(model)
    options = [devices.session_options(threads=count) for count in (1, 2)]
    one, two = (results(devices.open_session(gradient_model, o), weight.shape[0]) for o in options)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("form", LEFT)
def test_what_has_no_such_kernel_is_left_alone(form: str) -> None:
    standard = gradient_of(LEFT[form]()[0])
    assert not with_kernels(standard, devices.session_options())


def test_weights_beside_the_model_stay_there(tmp_path: Path) -> None:
    model, weight = nbits(512, 520)
    standard = gradient_of(model)
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.load_from_string(standard), path, save_as_external_data=True, location="model.data"
    )
    content = path.read_bytes()
    options = devices.session_options(folder=str(tmp_path))
    native = with_kernels(content, options)
    assert "MatMulNBits" in operators_beside(native)
    assert len(native) < len(content) + 2000
    expected = results(devices.create_session(standard), weight.shape[0])
    for actual, wanted in zip(
        results(devices.open_session(content, options), weight.shape[0]), expected, strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def operators_beside(model: bytes) -> set[str]:
    return {node.op_type for node in onnx.ModelProto.FromString(model).graph.node}


def test_no_copies_of_large_constants() -> None:
    standard = gradient_of(nbits(512, 520)[0])
    options = devices.session_options(entries={PREPACKING: "1"})
    assert not with_kernels(standard, options)


def test_a_model_with_many_bytes_inside_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_bits, "MOST_BYTES", 1000)
    standard = gradient_of(nbits(512, 520)[0])
    assert not with_kernels(standard, devices.session_options())


def test_a_runtime_without_the_kernel_takes_the_standard_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, weight = nbits(512, 520)
    monkeypatch.setattr(few_bits, "MS", "a.build.without")
    session = devices.open_session(gradient_of(model))
    y, _ = results(session, weight.shape[0])
    assert y.shape == (ROWS, 520)


def test_what_the_weight_is_turned_into_matters() -> None:
    """A Transpose that turns nothing is no transposed weight."""
    model, _ = nbits(512, 512)
    graph_model = onnx.load_from_string(gradient_of(model))
    for node in graph_model.graph.node:
        if node.op_type == "Transpose":
            node.attribute[0].ints[:] = [0, 1]
    changed = graph_model.SerializeToString()
    assert not with_kernels(changed, devices.session_options())


@pytest.mark.parametrize("length", [50, 400, 2000])
def test_a_damaged_model_is_for_onnxruntime_to_judge(length: int) -> None:
    standard = gradient_of(nbits(512, 520)[0])
    damaged = standard[:-length]
    assert not with_kernels(damaged, devices.session_options())
    with pytest.raises(Exception, match=r"(?i)pars|protobuf|load"):
        onnxruntime.InferenceSession(damaged)


def test_a_product_of_nothing_is_for_onnxruntime_to_judge() -> None:
    model = onnx.load_from_string(gradient_of(nbits(512, 520)[0]))
    model.graph.node.insert(0, onnx.helper.make_node("MatMul", [], ["of_nothing"]))
    native = with_kernels(model.SerializeToString(), devices.session_options())
    assert "MatMulNBits" in operators(native)


def test_a_type_that_cannot_be_read_is_for_onnxruntime_to_judge() -> None:
    """The constants and the nodes can be read, so that the product was taken."""
    file = Message.parse(gradient_of(nbits(512, 520)[0]))
    (output, *_) = file.message(7).messages(12)
    output.replace(2, [b"\x0a\xff"])
    damaged = file.encode()
    assert not with_kernels(damaged, devices.session_options())
