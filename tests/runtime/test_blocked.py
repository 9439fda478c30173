"""Sessions run trained convolutions in onnxruntime's blocked layout; the file has none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain.operators import BLOCKED
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.session import blocked, devices, edits

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    not blocked.block_size(), reason="this build of onnxruntime has no blocked layout"
)


@dataclass(frozen=True)
class Case:
    """A convolution: channels and filters, groups, image, and its attributes."""

    channels: int
    filters: int
    group: int
    image: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    images: int = 2
    open_batch: bool = True
    open_image: bool = False
    bias: bool = True
    convolutions: int = 2
    gradients: int = 1


CASES = {
    "depthwise": Case(8, 8, 8, (9, 7), images=3),
    "depthwise, eight images": Case(16, 16, 16, (6, 6), images=8),
    "depthwise, sixteen images": Case(20, 20, 20, (5, 5), (5, 5), pads=(2, 2, 2, 2), images=16),
    "depthwise, known batch": Case(12, 12, 12, (9, 7), images=3, open_batch=False),
    "depthwise, open image": Case(8, 8, 8, (9, 7), images=3, open_image=True),
    "depthwise, stride": Case(12, 12, 12, (8, 9), strides=(2, 2), convolutions=1),
    "depthwise, stride along one axis": Case(
        12, 12, 12, (9, 8), (3, 5), (2, 1), pads=(1, 2, 1, 2), convolutions=1
    ),
    "depthwise, dilation": Case(16, 16, 16, (12, 12), dilations=(2, 2), pads=(2, 2, 2, 2)),
    "depthwise, uneven padding": Case(8, 8, 8, (12, 13), pads=(2, 0, 1, 2), convolutions=2),
    "a block": Case(16, 32, 1, (10, 10), gradients=0),
    "parts of blocks": Case(24, 36, 1, (10, 10), gradients=0),
    "without a bias": Case(24, 36, 1, (10, 10), bias=False, gradients=0),
    "fewer channels than a block": Case(8, 8, 1, (40, 40)),
    "one channel": Case(1, 16, 1, (34, 36), convolutions=1),
    "large map": Case(20, 12, 1, (33, 40), images=3),
    "large map, stride": Case(20, 12, 1, (70, 66), strides=(2, 2), convolutions=1),
    "a first layer": Case(3, 16, 1, (70, 66), (7, 7), (2, 2), pads=(3, 3, 3, 3), convolutions=1),
    "points with a stride": Case(
        32, 32, 1, (8, 8), (1, 1), (2, 2), pads=(0, 0, 0, 0), convolutions=1, gradients=0
    ),
    "groups of blocks": Case(64, 64, 2, (8, 8), gradients=0),
    "uneven padding": Case(8, 16, 1, (12, 13), pads=(2, 0, 1, 2), gradients=0),
}
LEFT = {
    "channels that are no multiple of four": Case(18, 8, 1, (10, 10)),
    "filters that are no multiple of four": Case(16, 18, 1, (10, 10)),
    "small groups": Case(16, 16, 4, (10, 10)),
    "points": Case(16, 16, 1, (10, 10), (1, 1), pads=(0, 0, 0, 0)),
}


def gradient_model(case: Case) -> tuple[bytes, dict[str, Array]]:
    """Gradients of image, weights and bias, and what to feed."""
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    weights = {"w": floats(case.filters, case.channels // case.group, *case.kernel)}
    if case.bias:
        weights["b"] = floats(case.filters)
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node(
            "Conv", ["h", *weights], ["y"], group=case.group, kernel_shape=case.kernel,
            strides=case.strides, dilations=case.dilations, pads=case.pads,
        ),
    ]  # fmt: skip
    batch: Any = "N" if case.open_batch else case.images
    sizes: list[Any] = ["H", "W"] if case.open_image else [*case.image]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, case.channels, *sizes])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    built = onnxtrain.differentiate(model, wrt=["x", *weights], of="y", vjp=True)
    feeds = {"x": floats(case.images, case.channels, *case.image)}
    shape = devices.create_session(model.SerializeToString()).run(None, feeds)[0].shape
    return built.SerializeToString(), {**feeds, "y_grad": floats(*shape)}


def in_blocks(model: bytes) -> bytes | None:
    outline = Outline.of(model)
    assert outline is not None
    return blocked.in_blocks(outline)


def run(model: bytes, feeds: dict[str, Array], **options: Any) -> list[Array]:
    session = devices.create_session(model, devices.session_options(**options))
    outputs: list[Array] = session.run(None, feeds)
    return outputs


def roles(model: bytes) -> list[str]:
    nodes = onnx.load_from_string(model).graph.node
    return [n.doc_string.split()[2] for n in nodes if n.doc_string.startswith(BLOCKED)]


def without_marks(model: bytes, mark: str = "") -> bytes:
    bare = onnx.load_from_string(model)
    for node in bare.graph.node:
        if node.doc_string.startswith(mark):
            node.doc_string = ""
    content: bytes = bare.SerializeToString()
    return content


@pytest.mark.parametrize("name", CASES)
def test_blocks_give_the_same_numbers(name: str) -> None:
    case = CASES[name]
    standard, feeds = gradient_model(case)
    assert {n.domain for n in onnx.load_from_string(standard).graph.node} == {""}
    assert roles(standard).count("convolution") == case.convolutions
    assert roles(standard).count("weights") == case.gradients
    content = in_blocks(standard)
    assert content is not None
    nodes = onnx.load_from_string(content).graph.node
    used = [n for n in nodes if n.domain == blocked.NCHWC and n.op_type == "Conv"]
    assert len(used) + sum(n.op_type in ("If", "Scan") for n in nodes) == (
        case.convolutions + case.gradients
    )
    expected = run(without_marks(standard), feeds)
    for actual, wanted in zip(run(standard, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", LEFT)
def test_what_has_no_such_kernel_is_left_alone(name: str) -> None:
    standard, _ = gradient_model(LEFT[name])
    assert in_blocks(standard) is None


@pytest.mark.parametrize("name", ["depthwise, eight images", "large map", "parts of blocks"])
def test_threads_do_not_change_a_bit(name: str) -> None:
    standard, feeds = gradient_model(CASES[name])
    one, two = (run(standard, feeds, threads=count) for count in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_what_nobody_reads_any_more_is_not_computed() -> None:
    standard, _ = gradient_model(CASES["depthwise"])
    content = in_blocks(standard)
    assert content is not None
    before, after = (onnx.load_from_string(m).graph for m in (standard, content))
    read = {name for node in after.node for name in node.input} | {o.name for o in after.output}
    assert all(read.intersection(node.output) for node in after.node)
    assert "Gather" in {n.op_type for n in before.node}
    assert "MatMul" not in {n.op_type for n in after.node}


def test_a_value_that_somebody_else_reads_stays() -> None:
    standard, feeds = gradient_model(CASES["depthwise"])
    model = onnx.load_from_string(standard)
    reader = next(n for n in model.graph.node if n.doc_string.startswith(f"{BLOCKED} image"))
    model.graph.output.append(helper.make_tensor_value_info(reader.output[0], 1, None))
    content = model.SerializeToString()
    assert in_blocks(content) is not None
    expected = run(without_marks(content), feeds)
    for actual, wanted in zip(run(content, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


def test_a_body_that_reads_a_value_keeps_it() -> None:
    """Values of the old form may be read inside of an If."""
    standard, feeds = gradient_model(CASES["depthwise"])
    model = onnx.load_from_string(standard)
    reader = next(n for n in model.graph.node if n.doc_string.startswith(f"{BLOCKED} image"))
    branches = {}
    for branch in ("then_branch", "else_branch"):
        node = helper.make_node("Abs", [reader.output[0]], [branch])
        out = helper.make_tensor_value_info(branch, TensorProto.FLOAT, None)
        branches[branch] = helper.make_graph([node], branch, [], [out])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(helper.make_node("If", ["yes"], ["inner"], **branches))
    model.graph.output.append(helper.make_tensor_value_info("inner", TensorProto.FLOAT, None))
    content = model.SerializeToString()
    expected = run(without_marks(content), feeds)
    for actual, wanted in zip(run(content, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("filters", "channels", "group", "suits"),
    [
        (4, 3, 1, False), (8, 3, 1, False), (16, 3, 1, True), (8, 8, 1, True),
        (12, 10, 1, True), (16, 18, 1, False),
        (4, 1, 4, True), (6, 1, 6, False), (32, 16, 2, True), (16, 8, 2, False),
    ],
)  # fmt: skip
def test_blocks_that_would_be_more_than_half_empty_gain_nothing(
    filters: int, channels: int, group: int, suits: bool
) -> None:
    sizes = blocked.Convolution(filters, channels, 3, 3, group)
    assert sizes.suits(16) == suits
    assert blocked.Convolution(8, 3, 3, 3, 1).suits(8)
    assert blocked.Convolution(4, 4, 3, 3, 1).suits(8)


@pytest.mark.parametrize("role", ["image", "signal"])
def test_a_node_that_reads_another_value_by_now_tells_nothing(role: str) -> None:
    standard, feeds = gradient_model(CASES["depthwise"])
    model = onnx.load_from_string(standard)
    reader = next(n for n in model.graph.node if n.doc_string.startswith(f"{BLOCKED} {role}"))
    model.graph.node.insert(0, helper.make_node("Abs", ["x"], ["other"]))
    reader.input[0] = "other"
    content = model.SerializeToString()
    expected = run(without_marks(content), feeds)
    for actual, wanted in zip(run(content, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-4)


MARKS: dict[str, Callable[[str], str]] = {
    "no role": lambda _: BLOCKED,
    "an unknown role": lambda _: f"{BLOCKED} wheel 1 2",
    "too few numbers": lambda text: " ".join(text.split()[:4]),
    "no numbers": lambda text: " ".join(["x" if w.isdigit() else w for w in text.split()]),
    "below zero": lambda text: " ".join([f"-{w}" if w.isdigit() else w for w in text.split()]),
}


@pytest.mark.parametrize("damage", MARKS)
def test_a_mark_that_says_nothing_is_as_none(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")  # other marks are not looked at
    standard, feeds = gradient_model(CASES["depthwise"])
    model = onnx.load_from_string(standard)
    for node in model.graph.node:
        if node.doc_string.startswith((f"{BLOCKED} conv", f"{BLOCKED} weights")):
            node.doc_string = MARKS[damage](node.doc_string)
    content = model.SerializeToString()
    assert in_blocks(content) is None
    expected = run(without_marks(standard, BLOCKED), feeds)
    for actual, wanted in zip(run(content, feeds), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_a_build_without_the_layout_takes_the_standard_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    standard, feeds = gradient_model(CASES["depthwise"])
    expected = run(without_marks(standard, BLOCKED), feeds)
    monkeypatch.setattr(blocked, "NCHWC", "a.build.without")
    for actual, wanted in zip(run(standard, feeds), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    monkeypatch.setattr(blocked, "block_size", lambda: 0)
    assert in_blocks(standard) is None


def test_a_large_model_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    standard, _ = gradient_model(CASES["depthwise"])
    monkeypatch.setattr(blocked, "LONGEST", 1000)
    assert in_blocks(standard) is None


def test_names_of_the_model_are_not_taken() -> None:
    standard, feeds = gradient_model(CASES["depthwise"])
    model = onnx.load_from_string(standard)
    model.graph.node.append(helper.make_node("Abs", ["x"], ["blocked/1"]))
    model.graph.output.append(helper.make_tensor_value_info("blocked/1", 1, None))
    content = model.SerializeToString()
    assert in_blocks(content) is not None
    np.testing.assert_array_equal(run(content, feeds)[-1], np.abs(feeds["x"]))


def test_the_second_derivative_is_right() -> None:
    """Marks of a gradient that is differentiated again do not name nodes of the other one."""
    standard, feeds = gradient_model(CASES["depthwise"])
    inner = onnx.load_from_string(standard)
    inner.graph.node.append(helper.make_node("ReduceSumSquare", ["w_grad"], ["s"], keepdims=0))
    del inner.graph.output[:]
    inner.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, []))
    twice = onnxtrain.differentiate(inner, wrt=["x", "y_grad"], of="s").SerializeToString()
    expected = run(without_marks(twice), feeds)
    for actual, wanted in zip(run(twice, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-3, atol=1e-2)


def test_lengths_in_more_bytes_than_needed_are_left_to_onnxruntime() -> None:
    standard, _ = gradient_model(CASES["depthwise"])
    outline = Outline.of(standard)
    assert outline is not None
    begin, end = outline.graph
    size = end - begin
    head = edits.GRAPH_TAG + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F])
    start = standard.index(edits.GRAPH_TAG, begin - 5)
    longer = standard[:start] + head[:-1] + bytes([head[-1] | 0x80, 0]) + standard[begin:]
    assert in_blocks(longer) is None
