"""Products of matrices by a kernel of our own: which ones, and that the numbers are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain.graph.io import load
from onnxtrain.operators import BIASED, KERNEL, OR_KERNEL, TRANSPOSED
from onnxtrain.passes.kernels import mark_for_kernels
from onnxtrain.passes.transposed import mark_transposed
from onnxtrain.runtime.fusion import operators
from onnxtrain.runtime.fusion.gemm import LARGEST_SHARED, LONGEST_BLOCK
from onnxtrain.runtime.fusion.program import ProgramError
from onnxtrain.runtime.session.kernels import has_tiles

from .test_kernels import both_ways, marked, operators_of, parsed, run

pytestmark = pytest.mark.skipif(not has_tiles(), reason="there is no numba, no Linux or no AVX-512")

SIZES = [
    (1, 1, 1), (3, 5, 7), (14, 32, 16), (15, 33, 17), (1, 700, 400), (700, 1, LONGEST_BLOCK + 1),
    (130, 70, 2 * LONGEST_BLOCK + 1), (257, 511, 1000), (64, 100, 1), (33, 1000, 50), (29, 40, 0),
    (0, 5, 6), (6, 0, 5), (40, 300, LARGEST_SHARED // 300 + 5000),
]  # fmt: skip
"""Rows, columns, and how many numbers are summed: around tiles, parts, blocks and rounds."""
TURNED = [(0, 0), (0, 1), (1, 0), (1, 1)]


def operands(
    m: int, n: int, k: int, turned: tuple[int, int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    flat = (x.T if flag else x for x, flag in zip((a, b), turned))
    first, second = (np.ascontiguousarray(x, np.float32) for x in flat)
    return first, second


def gemm(turned: tuple[int, int], added: str = "", more: str = "") -> bytes:
    text = f"""g (float[A, B] a, float[C, D] b{", float[" + added + "] c" if added else ""})
        => (float[E, F] y) {{ y = Gemm<transA = {turned[0]}, transB = {turned[1]}{more}>
        (a, b{", c" if added else ""}) }}"""
    return marked(parsed(text), "Gemm")


def expected(
    a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], turned: tuple[int, int]
) -> np.ndarray[Any, Any]:
    first, second = (x.T if flag else x for x, flag in zip((a, b), turned))
    return first.astype(np.float64) @ second.astype(np.float64)


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("size", SIZES)
def test_products(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int, int], turned: tuple[int, int]
) -> None:
    a, b = operands(*size, turned)
    content = gemm(turned)
    assert operators_of(content) == ["Product"]
    (ours,), (plain,) = both_ways(monkeypatch, content, {"a": a, "b": b})
    assert ours.shape == plain.shape
    right, digits = expected(a, b, turned), 5e-6 * max(1, size[2]) ** 0.5
    np.testing.assert_allclose(ours, right, rtol=1e-5, atol=digits)


@pytest.mark.parametrize("dims", [(70,), (1, 70), (130, 70)])
@pytest.mark.parametrize("steps", [40, 900])
def test_what_is_added(monkeypatch: pytest.MonkeyPatch, dims: tuple[int, ...], steps: int) -> None:
    a, b = operands(130, 70, steps, (0, 1))
    c = np.random.default_rng(1).standard_normal(dims).astype(np.float32)
    content = gemm((0, 1), ", ".join("PQ"[: len(dims)]))
    (ours,), _ = both_ways(monkeypatch, content, {"a": a, "b": b, "c": c})
    np.testing.assert_allclose(ours, expected(a, b, (0, 1)) + c, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(5, 300), (2, 3, 300), (2, 3, 4, 300), (0, 3, 300)])
def test_a_left_operand_of_more_axes(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, (300, 65)))
    axes = ", ".join("PQRS"[: len(shape)])
    text = f"g (float[{axes}] a, float[C, D] b) => (float[] y) {{ y = MatMul(a, b) }}"
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (ours,), (plain,) = both_ways(monkeypatch, marked(model, "MatMul"), {"a": a, "b": b})
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def test_infinities_and_nan_go_where_they_belong() -> None:
    a, b = operands(40, 50, 60, (0, 0))
    a[3, 5], a[7, 5], b[:, 9] = np.inf, np.nan, 1.0
    (ours,) = run(gemm((0, 0)), {"a": a, "b": b})
    assert np.isnan(ours[7]).all()
    assert np.isinf(ours[3]).all()
    assert np.isfinite(np.delete(ours, [3, 7], axis=0)).all()


@pytest.mark.parametrize("more", [", alpha = 2.0", ", beta = 0.5"])
def test_factors_are_left_to_onnxruntime(more: str) -> None:
    assert operators_of(gemm((0, 0), "P", more)) == ["Gemm"]


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        ((4, 5), (6, 7), None),
        ((4, 5), (5, 7), (4, 1)),
        ((4, 5), (5, 7), (3, 7)),
        ((4, 5), (5, 7), (6,)),
    ],
)
def test_sizes_that_do_not_fit_are_an_error(a: Any, b: Any, c: Any) -> None:
    feeds = {"a": np.zeros(a, np.float32), "b": np.zeros(b, np.float32)}
    content = gemm((0, 0), "" if c is None else ", ".join("PQ"[: len(c)]))
    if c is not None:
        feeds["c"] = np.zeros(c, np.float32)
    with pytest.raises(Exception, match="do not have the shapes"):
        run(content, feeds)


@pytest.mark.parametrize("numbers", ["", "1 1", "0 0 2", "0 2 0", "-1 0 0", "x 0 0", "0 0 0 0"])
def test_bad_numbers_are_refused(numbers: str) -> None:
    with pytest.raises(ProgramError):
        operators.GEMM.parse(numbers)


# --- which products -------------------------------------------------------------------------------


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def marks(a: str, b: str, operator: str, more: str = "") -> set[str]:
    """Of all products of a graph."""
    text = f"g (float[{a}] a, float[{b}] b{more}) => (float[] y) {{ {operator} }}"
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    graph = mark_for_kernels(mark_transposed(load(inferred(model))))
    return {n.doc_string or "" for n in graph.graph if n.op_type in ("Gemm", "MatMul")}


OF_WEIGHTS = "y = Gemm<transA = 1>(a, b)"
FORWARD = "t = Transpose<perm = [1, 0]>(b) y = MatMul(a, t)"
LAYER = f"g (float[N, 32, 1024] a, float[256, 1024] b) => (float[N, 32, 256] y) {{{FORWARD}}}"
CHOSEN = {
    "gradient of weights": ("512, 256", "512, 128", OF_WEIGHTS, KERNEL),
    "few rows": ("64, 256", "64, 128", OF_WEIGHTS, ""),
    "an unknown number of rows": ("N, 256", "N, 128", OF_WEIGHTS, ""),
    "a small result": ("512, 128", "512, 128", OF_WEIGHTS, ""),
    "a narrow result": ("512, 8000", "512, 10", OF_WEIGHTS, ""),
    "both turned": ("512, 256", "128, 512", "y = Gemm<transA = 1, transB = 1>(a, b)", ""),
    "rows 4 KiB apart": ("N, 32, 1024", "1024, 256", "y = MatMul(a, b)", KERNEL),
    "rows 12 KiB apart": ("N, 32, 3072", "3072, 768", "y = MatMul(a, b)", KERNEL),
    "the same in a batch that may be one": ("N, 1024", "1024, 256", "y = MatMul(a, b)", ""),
    "rows of another length": ("N, 32, 1000", "1000, 256", "y = MatMul(a, b)", ""),
    "a large result": ("512, 256", "256, 8000", "y = MatMul(a, b)", KERNEL),
    "a result that is likely large": ("N, 128, 256", "256, 1024", "y = MatMul(a, b)", KERNEL),
    "a batch of products": ("8, 64, 1024", "8, 1024, 64", "y = MatMul(a, b)", ""),
    "a layer": ("N, 32, 1024", "256, 1024", FORWARD, TRANSPOSED + OR_KERNEL),
    "a small layer": ("N, 32, 512", "256, 512", FORWARD, TRANSPOSED),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOSEN)
def test_products_are_marked_where_ours_is_the_faster_one(case: str) -> None:
    a, b, operator, mark = CHOSEN[case]
    assert marks(a, b, operator) == {mark}


def test_marks_are_the_same_the_second_time() -> None:
    model = parsed(LAYER)
    graph = mark_for_kernels(mark_for_kernels(mark_transposed(load(inferred(model)))))
    assert {n.doc_string for n in graph.graph} == {TRANSPOSED, TRANSPOSED + OR_KERNEL}


@pytest.mark.parametrize(("bias", "mark"), [("8000", KERNEL), ("512, 1", ""), ("1, 8000", KERNEL)])
def test_a_bias_is_a_row(bias: str, mark: str) -> None:
    operator = "y = Gemm<transB = 1>(a, b, c)"
    assert marks("512, 256", "8000, 256", operator, f", float[{bias}] c") == {mark}


def test_a_bias_that_was_added_may_go_into_the_kernel() -> None:
    model = load(parsed(
        "g (float[512, 256] a, float[8000, 256] b, float[8000] c) => (float[512, 8000] y)"
        "{ y = Gemm<transB = 1>(a, b, c) }"
    ))  # fmt: skip
    for node in model.graph:
        node.doc_string = BIASED
    assert {n.doc_string for n in mark_for_kernels(model).graph} == {KERNEL}


def test_a_layer_with_a_transposed_weight_is_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parsed(LAYER)
    for node in model.graph.node:
        node.doc_string = TRANSPOSED + OR_KERNEL * (node.op_type == "MatMul")
    content = model.SerializeToString()
    assert operators_of(content) == ["Product"]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((3, 32, 1024), (256, 1024)))
    (ours,), (plain,) = both_ways(monkeypatch, content, {"a": a, "b": b})
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-3)


def test_a_product_that_others_scale_stays_as_it_is() -> None:
    operator = "t = Transpose<perm = [1, 0]>(b) p = MatMul(a, t) y = Mul(p, f)"
    text = f"""g (float[N, 32, 1024] a, float[256, 1024] b) => (float[N, 32, 256] y)
        <float f = {{0.5}}> {{ {operator} }}"""
    model = load(parsed(text))
    graph = mark_for_kernels(mark_transposed(model)).graph
    assert OR_KERNEL not in "".join(n.doc_string or "" for n in graph)


def test_onnx_has_no_operator_of_ours_in_the_file() -> None:
    content = gemm((1, 0))
    assert {n.op_type for n in onnx.load_from_string(content).graph.node} == {"Gemm"}
