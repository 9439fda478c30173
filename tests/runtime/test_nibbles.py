"""Weights of four bits become floats in a kernel, bit for bit as by the standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from onnx import TensorProto

import onnxtrain
from onnxtrain.operators import KERNEL
from onnxtrain.passes.kernels import mark_for_kernels
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.library import is_available, register
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session.devices import create_session, session_options
from onnxtrain.runtime.session.kernels import with_own_kernels
from tests.passes.test_late_weights import ROWS, nbits

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no numba, or no Linux")
Array = np.ndarray[Any, Any]
UINT4, INT4 = TensorProto.UINT4, TensorProto.INT4
SHAPES = [
    (5, 64, 32), (1, 32, 32), (7, 70, 32), (3, 33, 32), (64, 2730, 32), (130, 300, 2), (9, 31, 16),
    (2, 8, 8), (300, 128, 128), (0, 64, 32), (1, 1, 2),
]  # fmt: skip
"""Rows, numbers of a row that are kept, numbers of a block."""


def stored(numbers: Array, kind: int) -> bytes:
    """Two numbers in a byte, the first in the lower half; or each in a byte of its own."""
    if kind not in (UINT4, INT4):
        return numbers.astype(np.uint8).tobytes()
    even = np.append(numbers.ravel() & 15, [0] * (numbers.size % 2)).astype(np.uint8)
    return bytes(even[::2] | even[1::2] << 4)


def model_of(
    rows: int, width: int, block: int, kind: int, scales: Array | None = None, **changes: Any
) -> onnx.ModelProto:
    """A matrix from blocks; its scales come through a gate, as those of large weights do."""
    rng = np.random.default_rng(rows + width)
    length = -(-width // block) * block
    count = rows * length // block
    low = 0 if kind == UINT4 else -8
    codes, zeros = (rng.integers(low, low + 16, n) for n in ((count, block), (count,)))
    if scales is None:
        scales = rng.normal(size=count).astype(np.float32)
    shape = changes.get("shape", [-1, length])
    tensors = [
        oh.make_tensor("c", kind, [count, block], stored(codes, kind), raw=True),
        oh.make_tensor("z", kind, [count], stored(zeros, kind), raw=True),
        onh.from_array(np.array(shape), "shape"),
        *(onh.from_array(np.array([n]), name) for name, n in (("b", 0), ("a", 1))),
        onh.from_array(np.array([changes.get("end", width)]), "e"),
    ]
    is_cut = width != length
    nodes = [
        oh.make_node("DequantizeLinear", ["c", "s", "z"], ["f"], axis=changes.get("axis", 0)),
        oh.make_node("Reshape", ["f", "shape"], ["m" if is_cut else "y"]),
    ]
    if is_cut:
        nodes.append(oh.make_node("Slice", ["m", "b", "e", "a"], ["y"]))
    nodes[-1].doc_string = KERNEL
    inputs = [oh.make_tensor_value_info("s", TensorProto.FLOAT, ["count"])]
    outputs = [oh.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = oh.make_graph(nodes, "g", inputs, outputs, tensors)
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)


def scales_of(rows: int, width: int, block: int) -> Array:
    count = rows * -(-width // block)
    return np.random.default_rng(count).normal(size=count).astype(np.float32)


def operators_of(content: bytes) -> list[str]:
    outline = Outline.of(content)
    assert outline is not None
    changed = with_own_kernels(outline)
    return [n.op_type for n in onnx.load_from_string(changed or content).graph.node]


def both(
    content: bytes, scales: Array, monkeypatch: pytest.MonkeyPatch, threads: int = 1
) -> list[Array]:
    results = []
    for off in ("", "1"):
        monkeypatch.setenv("ONNXTRAIN_NO_FUSION", off)
        session = create_session(content, session_options(threads=threads))
        results.append(session.run(["y"], {"s": scales})[0])
    return results


@pytest.mark.parametrize("kind", [UINT4, INT4], ids=["unsigned", "signed"])
@pytest.mark.parametrize(("rows", "width", "block"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits(
    rows: int, width: int, block: int, kind: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = model_of(rows, width, block, kind).SerializeToString()
    assert operators_of(content) == [f"Nibbles{kind}"]
    ours, standard = both(content, scales_of(rows, width, block), monkeypatch, threads)
    assert ours.shape == (rows, width)
    np.testing.assert_array_equal(ours, standard)


def test_scales_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = scales_of(7, 70, 32)
    scales[:4] = np.nan, np.inf, -np.inf, 0.0
    content = model_of(7, 70, 32, UINT4).SerializeToString()
    np.testing.assert_array_equal(*both(content, scales, monkeypatch))


OTHERS = {
    "along the other axis": model_of(4, 4, 4, UINT4, axis=1),
    "three axes": model_of(4, 64, 32, UINT4, shape=[-1, 2, 32]),
    "rows that are said": model_of(4, 64, 32, UINT4, shape=[4, 64]),
    "an end that is counted from behind": model_of(4, 60, 32, UINT4, end=-4),
    "eight bits": model_of(4, 64, 32, TensorProto.UINT8),
}


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_stay(form: str) -> None:
    """A marked Slice that counts from behind is cut by the kernel of Pad instead."""
    content = OTHERS[form].SerializeToString()
    names = [n.op_type for n in OTHERS[form].graph.node]
    if form == "an end that is counted from behind":
        names = ["DequantizeLinear", "Reshape", "Pad"]
    assert operators_of(content) == names


def test_an_output_of_the_blocks_is_made_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(7, 70, 32, UINT4)
    model.graph.output.append(oh.make_tensor_value_info("m", TensorProto.FLOAT, None))
    content = model.SerializeToString()
    assert operators_of(content) == ["DequantizeLinear", "Reshape", "Nibbles21"]
    np.testing.assert_array_equal(*both(content, scales_of(7, 70, 32), monkeypatch))


@pytest.mark.parametrize("count", [13, 15, 0, 1])
def test_scales_of_another_number_are_an_error(count: int) -> None:
    session = create_session(model_of(7, 64, 32, UINT4).SerializeToString())
    with pytest.raises(Exception, match="shapes that its node was made for"):
        session.run(["y"], {"s": np.ones(count, np.float32)})


@pytest.mark.parametrize(
    "shape", [(8, 3), (7, 32), (8, 32, 1), (8,)], ids=["odd", "odd number", "three axes", "one"]
)
def test_codes_of_another_shape_are_an_error(shape: tuple[int, ...]) -> None:
    """What the kernel is given need not be what its node was written for."""
    node = oh.make_node("Nibbles21", ["c", "s", "z"], ["y"], domain="onnxtrain.Nibbles21")
    node.attribute.append(oh.make_attribute("numbers", "64 64 0"))
    count = int(np.prod(shape))
    tensors = [
        oh.make_tensor("c", UINT4, shape, bytes((count + 1) // 2), raw=True),
        oh.make_tensor("z", UINT4, shape[:1], bytes((shape[0] + 1) // 2), raw=True),
    ]
    inputs = [oh.make_tensor_value_info("s", TensorProto.FLOAT, ["n"])]
    outputs = [oh.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = oh.make_graph([node], "g", inputs, outputs, tensors)
    imports = [oh.make_opsetid("", 21), oh.make_opsetid("onnxtrain.Nibbles21", 1)]
    model = oh.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    options = session_options()
    assert register(options, [operators.NIBBLES[UINT4]])
    session = create_session(model, options)
    with pytest.raises(Exception, match="shapes that its node was made for"):
        session.run(["y"], {"s": np.ones(shape[0], np.float32)})


@pytest.mark.parametrize(
    "numbers", ["", "64", "64 64", "64 65 0", "64 0 0", "64 64 1", "64 64 0 0", "x 1 0"]
)
def test_bad_numbers_are_refused(numbers: str) -> None:
    with pytest.raises(ProgramError):
        operators.nibbles(numbers)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("width", [512, 530])
def test_the_pass_marks_what_becomes_floats(width: int, zeros: bool) -> None:
    """Of a gradient model: forwards and backwards, and the product is right."""
    model, weight = nbits(width, 520, zeros=zeros)
    differentiated = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    marked = mark_for_kernels(ir.from_proto(differentiated))
    content = ir.to_proto(marked).SerializeToString()
    assert operators_of(content).count("Nibbles21") == 2
    x = np.random.default_rng(1).normal(size=(ROWS, width)).astype(np.float32)
    y, dx = create_session(content).run(["y", "x_grad"], {"x": x})
    np.testing.assert_allclose(y, x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, x @ weight @ weight.T, rtol=1e-4, atol=1e-3)
