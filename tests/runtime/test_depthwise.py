"""The weights' gradient of few channels, each with its own kernel: one node of ours in sessions."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtrain.operators import BLOCKED
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion import library, operators
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session import blocked, devices
from onnxtrain.runtime.session.own_nodes import Node

from .test_blocked import Case, gradient_model, run, without_marks

Array = np.ndarray[Any, Any]

needs_numba = pytest.mark.skipif(not library.is_available(), reason="there is no numba")
needs_blocks = pytest.mark.skipif(
    blocked.block_size() < 8, reason="this build of onnxruntime has no blocked layout"
)

Pads = tuple[int, int, int, int]
GEOMETRIES: dict[str, tuple[tuple[int, int, int, int], tuple[int, int], tuple[int, int], Pads]] = {
    "three by three": ((3, 8, 9, 7), (3, 3), (1, 1), (1, 1, 1, 1)),
    "no padding": ((2, 5, 8, 8), (3, 3), (1, 1), (0, 0, 0, 0)),
    "uneven padding": ((2, 3, 6, 5), (3, 2), (1, 1), (2, 0, 1, 3)),
    "dilation": ((4, 4, 11, 12), (3, 4), (3, 2), (3, 1, 2, 0)),
    "more padding than kernel": ((2, 2, 3, 2), (2, 2), (1, 1), (4, 3, 2, 5)),
    "one row": ((5, 4, 1, 17), (1, 5), (1, 1), (0, 2, 0, 2)),
    "one column": ((5, 4, 17, 1), (7, 1), (1, 1), (3, 0, 3, 0)),
    "one pixel": ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    "several lines of images": ((70, 3, 10, 10), (3, 3), (1, 1), (1, 1, 1, 1)),
    "an image longer than a line": ((2, 2, 60, 70), (5, 5), (1, 1), (2, 2, 2, 2)),
    "no images": ((0, 3, 5, 5), (3, 3), (1, 1), (1, 1, 1, 1)),
    "no channels": ((2, 0, 5, 5), (3, 3), (1, 1), (1, 1, 1, 1)),
    "an image without pixels": ((2, 3, 0, 5), (3, 3), (1, 1), (2, 1, 2, 1)),
}


def wanted(
    image: Array, signal: Array, kernel: tuple[int, int], dilations: tuple[int, int], pads: Pads
) -> Array:
    """The sums in double precision, of pixels alone: what is around images counts for nothing."""
    (rows, columns), (down, along) = signal.shape[2:], dilations
    result = np.zeros((image.shape[1], 1, *kernel))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * down - pads[0], j * along - pads[1]
            ys = slice(max(0, top), max(0, min(image.shape[2], top + rows)))
            xs = slice(max(0, left), max(0, min(image.shape[3], left + columns)))
            seen = image[:, :, ys, xs].astype(np.float64)
            below, behind = max(0, -top), max(0, -left)
            part = signal[:, :, below : below + seen.shape[2], behind : behind + seen.shape[3]]
            result[:, 0, i, j] = (seen * part).sum((0, 2, 3))
    return result


def numbers_of(kernel: tuple[int, int], dilations: tuple[int, int], pads: Pads) -> tuple[int, ...]:
    axes = zip(kernel, dilations, pads[:2], pads[2:])
    return tuple(number for axis in axes for number in axis)


def computed(image: Array, signal: Array, numbers: tuple[int, ...], threads: int = 1) -> Array:
    """What the node gives."""
    operator = operators.DEPTHWISE_WEIGHTS
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", list("NCHW")), ("d", list("MDIJ")), ("w", list("OPKL")))
    ]
    ours = onnx.NodeProto.FromString(Node(operator, ("x", "d"), ("w",), numbers).encode())
    graph = helper.make_graph([ours], "g", values[:2], values[2:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(operator.domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = devices.session_options(threads=threads)
    assert library.register(options, [operator])
    session = devices.create_session(model.SerializeToString(), options)
    (result,) = session.run(None, {"x": image, "d": signal})
    return np.asarray(result)


def operands(
    shape: tuple[int, ...], kernel: tuple[int, int], dilations: tuple[int, int], pads: Pads
) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    windows = [
        size + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis]
        for axis, size in enumerate(shape[2:])
    ]
    image, signal = (rng.standard_normal(s) for s in (shape, (*shape[:2], *windows)))
    return image.astype(np.float32), signal.astype(np.float32)


@needs_numba
@pytest.mark.parametrize("name", GEOMETRIES)
def test_sums_are_those_of_double_precision(name: str) -> None:
    shape, *geometry = GEOMETRIES[name]
    image, signal = operands(shape, *geometry)
    numbers, expected = numbers_of(*geometry), wanted(image, signal, *geometry)
    one, two = (computed(image, signal, numbers, threads) for threads in (1, 2))
    np.testing.assert_allclose(one, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(one, two)


@needs_numba
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (1, 2, 3, 4), (2, 1, 8, 6)])
@pytest.mark.parametrize("operand", ["image", "signal"])
def test_what_is_no_number_goes_where_a_window_has_it(
    odd: float, place: tuple[int, int, int, int], operand: str
) -> None:
    shape, *geometry = GEOMETRIES["three by three"]
    image, signal = operands(shape, *geometry)
    (image if operand == "image" else signal)[place] = odd
    expected = wanted(image, signal, *geometry)
    actual = computed(image, signal, numbers_of(*geometry))
    assert not np.isfinite(expected).all()
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


@needs_numba
@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 5, 5), (2, 3, 5, 4)),
        ((2, 3, 5, 5), (2, 3, 6, 5)),
        ((2, 3, 5, 5), (2, 2, 5, 5)),
        ((2, 3, 5, 5), (1, 3, 5, 5)),
        ((2, 3, 0, 0), (2, 3, 0, 0)),
    ],
)
def test_a_signal_of_other_windows_is_an_error(shapes: tuple[tuple[int, ...], ...]) -> None:
    image, signal = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(Exception, match="do not have the shapes"):
        computed(image, signal, numbers_of((3, 3), (1, 1), (1, 1, 1, 1)))


@pytest.mark.parametrize("text", [
    "", "3 1 1 1", "3 1 1 1 3 1 1", "3 1 1 1 3 1 1 1 1", "0 1 1 1 3 1 1 1", "3 0 1 1 3 1 1 1",
    "3 1 1 1 3 1 -1 1", "3 1 1 1 3 1 1 x", "3 1 1 1 2000 1 1 1", "3 1 1 1 3 5000 1 1",
])  # fmt: skip
def test_a_bad_description_is_refused(text: str) -> None:
    with pytest.raises(ProgramError):
        operators.DEPTHWISE_WEIGHTS.parse(text)


def has_node(model: bytes) -> bool:
    outline = Outline.of(model)
    assert outline is not None
    changes = blocked.blocked_nodes(outline, kernels=True).changes
    return operators.DEPTHWISE_WEIGHTS in operators.mentioned(changes)


FEW = Case(4, 4, 4, (9, 7), images=3)
FORMS = {
    "open batch": (FEW, True),
    "known batch": (replace(FEW, open_batch=False), True),
    "an open image, which is computed again": (replace(FEW, open_image=True), True),
    "dilation": (replace(FEW, dilations=(2, 1), pads=(2, 1, 2, 1)), True),
    "uneven padding": (replace(FEW, pads=(2, 0, 1, 2)), True),
    "stride": (replace(FEW, image=(8, 9), strides=(2, 2), convolutions=1), False),
    "more than half of a block": (replace(FEW, channels=12, filters=12, group=12), False),
}
"""Whether a session has the node."""


@needs_numba
@needs_blocks
@pytest.mark.parametrize("name", FORMS)
def test_sessions_have_the_node_for_few_channels(name: str) -> None:
    case, is_ours = FORMS[name]
    standard, feeds = gradient_model(case)
    assert has_node(standard) == is_ours
    expected = run(without_marks(standard), feeds)
    for actual, value in zip(run(standard, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, value, rtol=2e-4, atol=2e-4)


@needs_numba
@needs_blocks
def test_without_kernels_blocks_are_written() -> None:
    standard, _ = gradient_model(FEW)
    outline = Outline.of(standard)
    assert outline is not None
    assert not operators.mentioned(blocked.blocked_nodes(outline).changes)
    assert outline.mentions(BLOCKED.encode())


@needs_numba
@needs_blocks
def test_only_the_first_kernel_of_an_operator_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones are there in microseconds; what would tell of them is a thread for each."""
    standard, _ = gradient_model(FEW)
    devices.open_session(standard)
    told = list[str]()

    def preparing(what: str) -> Any:
        told.append(what)
        return nullcontext()

    monkeypatch.setattr(library, "preparing", preparing)
    kernels_before = library.kernel_count()
    devices.open_session(standard)
    assert library.kernel_count() > kernels_before
    assert not told
