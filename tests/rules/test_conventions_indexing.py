"""Conventions of indexing and movement, against PyTorch; and sums that must not lose anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

import onnxtrain

from .harness import run_ort


def gradients(
    op: str, inputs: dict[str, Any], wrt: list[str], *, outputs: int = 1, **attrs: Any
) -> list[np.ndarray]:
    """Gradients of the sum of an operator's first output times 1, 2, 3, …, by onnxruntime."""
    names = list(inputs)
    results = [f"y{i}" for i in range(outputs)]
    feeds = {n: np.asarray(a) for n, a in inputs.items()}
    nodes = [
        helper.make_node(op, names, results, **attrs),
        helper.make_node("Reshape", ["y0", "flat"], ["line"]),
        helper.make_node("Size", ["y0"], ["size"]),
        helper.make_node("Range", ["zero", "size", "one"], ["number"]),
        helper.make_node("Cast", ["number"], ["weight"], to=1),
        helper.make_node("Add", ["weight", "first"], ["weights"]),
        helper.make_node("Mul", ["line", "weights"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "convention",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_tensor_value_info("loss", 1, [])],
        [
            numpy_helper.from_array(np.array([-1]), "flat"),
            numpy_helper.from_array(np.array(0), "zero"),
            numpy_helper.from_array(np.array(1), "one"),
            numpy_helper.from_array(np.array(1, np.float32), "first"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    result = onnxtrain.differentiate(model, wrt=wrt, of="loss")
    return run_ort(result, feeds)[1:]


def torch_gradients(y: torch.Tensor, *leaves: torch.Tensor) -> list[np.ndarray]:
    flat = y.reshape(-1)
    (flat * torch.arange(1, flat.numel() + 1)).sum().backward()
    return [leaf.grad.numpy() for leaf in leaves]


def leaf(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


@pytest.mark.parametrize(("reduction", "name"), [("max", "amax"), ("min", "amin")])
def test_scatter_shares_the_gradient_among_equals(reduction: str, name: str) -> None:
    data, updates = [[1.0, 2.0, 3.0]], [[2.0, 2.0, 3.0, 0.0, 1.0]]
    indices = [[1, 1, 2, 0, 0]]
    d, u = leaf(data), leaf(updates)
    expected = torch_gradients(d.scatter_reduce(1, torch.tensor(indices), u, name), d, u)
    got = gradients(
        "ScatterElements",
        {"d": np.float32(data), "i": np.int64(indices), "u": np.float32(updates)},
        ["d", "u"],
        axis=1,
        reduction=reduction,
    )
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_scatter_product_with_zeros() -> None:
    data, updates = [2.0, 3.0, 0.0, 5.0], [0.0, 4.0, 0.0, 0.0, 2.0, 0.5]
    indices = [0, 0, 1, 1, 2, 3]
    d, u = leaf(data), leaf(updates)
    expected = torch_gradients(d.scatter_reduce(0, torch.tensor(indices), u, "prod"), d, u)
    arrays = {"d": np.float32(data), "i": np.int64(indices), "u": np.float32(updates)}
    by_element = gradients("ScatterElements", arrays, ["d", "u"], reduction="mul")
    arrays["i"] = arrays["i"][:, None]
    by_tuple = gradients("ScatterND", arrays, ["d", "u"], reduction="mul")
    for a, b, c in zip(by_element, by_tuple, expected):
        np.testing.assert_allclose(a, c, rtol=1e-6)
        np.testing.assert_allclose(b, c, rtol=1e-6)


def test_top_k_of_equal_elements_follows_the_returned_indices() -> None:
    x = np.float32([[1, 3, 3, 3, 0]])
    (dx,) = gradients("TopK", {"x": x, "k": np.int64([2])}, ["x"], outputs=2)
    np.testing.assert_array_equal(dx, [[0, 1, 2, 0, 0]])  # onnxruntime returns the first ones


def test_unique_gives_the_gradient_to_the_first_of_equals() -> None:
    (dx,) = gradients("Unique", {"x": np.float32([2, 1, 2, 1])}, ["x"])
    np.testing.assert_array_equal(dx, [2, 1, 0, 0])


def test_range_like_torch() -> None:
    start, step = leaf(0.5), leaf(0.25)
    expected = torch_gradients(start + step * torch.arange(4), start, step)
    inputs = {"s": np.float32(0.5), "l": np.float32(1.4), "d": np.float32(0.25)}
    np.testing.assert_allclose(gradients("Range", inputs, ["s", "d"]), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_like_torch(mode: str) -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 5)).astype(np.float32)
    name = {"edge": "replicate", "wrap": "circular"}.get(mode, mode)
    t = leaf(x)
    expected = torch_gradients(torch.nn.functional.pad(t, (2, 3), mode=name), t)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)],
            "pad",
            [helper.make_tensor_value_info("x", 1, ["N", 2, 5])],
            [helper.make_tensor_value_info("y", 1, ["N", 2, 10])],
            [numpy_helper.from_array(np.array([0, 0, 2, 0, 0, 3]), "pads")],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=10,
    )
    result = onnxtrain.differentiate(model, wrt=["x"], vjp=True)
    assert all(n.op_type not in ("ScatterElements", "ScatterND") for n in result.graph.node)
    dy = np.arange(1, 21, dtype=np.float32).reshape(1, 2, 10)
    np.testing.assert_allclose(run_ort(result, {"x": x, "y_grad": dy})[1], expected[0], rtol=1e-6)


@pytest.mark.parametrize("width", [1, 4, 64])
@pytest.mark.parametrize("rows", [3, 5000])
def test_embedding_gradient_loses_nothing_on_several_threads(rows: int, width: int) -> None:
    """Whole numbers add exactly, so one lost contribution shows."""
    rng = np.random.default_rng(0)
    indices = np.minimum(rng.zipf(1.3, 20000) - 1, rows - 1)
    dy = rng.integers(-3, 4, (indices.size, width)).astype(np.float32)
    expected = np.zeros((rows, width), np.float32)
    np.add.at(expected, indices, dy)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gather", ["table", "ids"], ["y"])],
            "embedding",
            [
                helper.make_tensor_value_info("table", 1, [rows, width]),
                helper.make_tensor_value_info("ids", 7, ["N"]),
            ],
            [helper.make_tensor_value_info("y", 1, ["N", width])],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    result = onnxtrain.differentiate(model, wrt=["table"], vjp=True)
    onnx.checker.check_model(result, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 4
    session = ort.InferenceSession(
        result.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {"table": expected, "ids": indices, "y_grad": dy}
    for _ in range(20):
        np.testing.assert_array_equal(session.run(["table_grad"], feeds)[0], expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("token", [0, 7, 19])
@pytest.mark.parametrize("shape", [(40, 9), ("V", "D")])
def test_one_bad_token_spoils_its_own_row_only(
    bad: float, token: int, shape: tuple[int | str, int | str]
) -> None:
    """Rows are summed one after the other, sorted; a NaN must not reach those behind it."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 40, 20)
    seed = rng.uniform(-1, 1, (20, 9)).astype(np.float32)
    expected = np.zeros((40, 9), np.float32)
    seed[token, 4] = bad
    np.add.at(expected, tokens, seed)
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{shape[0]}, {shape[1]}] w, int64[n] i) => (float[n, {shape[1]}] y)
        {{ y = Gather(w, i) }}
    """)
    gradient = onnxtrain.differentiate(model, wrt=["w"], vjp=True)
    feeds = {"w": np.zeros((40, 9), np.float32), "i": tokens, "y_grad": seed}
    _, found = run_ort(gradient, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# --- positions that are written twice ------------------------------------------------------------

INDICES = {
    "ScatterElements": np.array([[0, 3], [-1, 3], [3, 1]]),
    "ScatterND": np.array([[-1], [3], [0]]),
}
"""Into rows of a 4 × 2 table; −1 and 3 are the same row."""
ADD_AT = {"add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at}
COLUMNS = np.broadcast_to(np.arange(2), (3, 2))


def scattered(rows: np.ndarray, reduction: str, data: np.ndarray, updates: np.ndarray) -> float:
    """What `gradients` differentiates, in float64; without a reduction the last update stays."""
    y = data.copy()
    if reduction == "none":
        for row, column, update in zip(rows.flat, COLUMNS.flat, updates.flat):
            y[row, column] = update
    else:
        ADD_AT[reduction](y, (rows, COLUMNS), updates)
    return float(np.sum(y.reshape(-1) * np.arange(1, y.size + 1)))


def differences(function: Any, *arrays: np.ndarray, step: float = 1e-6) -> list[np.ndarray]:
    """Central differences of a function of arrays, element by element."""
    results = [np.zeros_like(a) for a in arrays]
    for number, result in enumerate(results):
        for place in np.ndindex(result.shape):
            ends = []
            for moved in (step, -step):
                point = [a.copy() for a in arrays]
                point[number][place] += moved
                ends.append(function(*point))
            result[place] = (ends[0] - ends[1]) / (2 * step)
    return results


@pytest.mark.parametrize("reduction", ["none", *ADD_AT])
@pytest.mark.parametrize("op", INDICES)
def test_positions_that_are_written_twice(op: str, reduction: str) -> None:
    """As docs/conventions.md says: exact with a reduction, and without one no derivative."""
    rng = np.random.default_rng(0)
    table = rng.permutation(np.linspace(-1.5, 1.7, 14)).astype(np.float32)
    data, updates = table[:8].reshape(4, 2), table[8:].reshape(3, 2)
    indices = INDICES[op]
    rows = np.broadcast_to(indices % 4, (3, 2))
    inputs = {"data": data, "indices": indices, "updates": updates}
    ddata, dupdates = gradients(op, inputs, ["data", "updates"], reduction=reduction)
    exact = differences(
        lambda *arrays: scattered(rows, reduction, *arrays),
        data.astype(np.float64), updates.astype(np.float64),
    )  # fmt: skip
    np.testing.assert_allclose(ddata, exact[0], rtol=1e-5, atol=1e-6)
    if reduction != "none":
        np.testing.assert_allclose(dupdates, exact[1], rtol=1e-5, atol=1e-6)
        return
    weights = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(dupdates, weights[rows, COLUMNS])  # written or overwritten
    stays = np.abs(exact[1]) > 0.5
    np.testing.assert_allclose(dupdates[stays], exact[1][stays], rtol=1e-5)
    assert np.count_nonzero(stays) == len({*zip(rows.flat, COLUMNS.flat)}) < updates.size
