"""Rows of a table that are taken, weighted and added up by number, in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxtrain
from onnxtrain.passes.partition import partition
from onnxtrain.runtime.fusion.library import is_available
from tests.runtime.test_kernels import both_ways, marked, operators_of, parsed, run

pytestmark = pytest.mark.skipif(not is_available(), reason="there is no numba, or no Linux")

SHAPES = [
    ("[200,64]", "[900]", None, 5), ("[200,64]", "[900]", "[900]", 300),
    ("[9,3]", "[40]", "[1]", 4), ("[9,3]", "[1]", "[40]", 4),
    ("[9,3]", "[]", "[40]", 4), ("[9,3]", "[40]", "[]", 4),
    ("[50]", "[40,3]", None, 4), ("[50]", "[40,3]", "[40]", 4), ("[5,40,3]", "[]", "[40]", 4),
    ("[9,8]", "[0]", "[0]", 4), ("[1,1]", "[3]", "[3]", 1),
    ("[3000,700]", "[2500]", "[2500]", 2000),
]  # fmt: skip
"""Table, which rows are taken, weights, and rows of the result."""


def sizes_of(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.strip("[]").split(",") if n)


def taking(table: str, taken: str, weights: str | None, count: int, axis: int = -1) -> bytes:
    """A graph as exporters write it, with marks."""
    width = (sizes_of(taken) + sizes_of(table)[1:])[-1]
    w = "" if weights is None else f", float{weights} w"
    weigh = "source = Mul(read, weight)" if weights is None else "source = Mul(weight, read)"
    made = "source = Identity(read)" if weights is None else f"weight = Unsqueeze(w, one) {weigh}"
    name = "read" if weights is None else "source"
    model = parsed(f"""g (float{table} x, int64{taken} i, int64[N] bags{w}) => (float[C,W] y)
        <float zero = {{0}}, int64[2] shape = {{{count},{width}}}, int64[1] one = {{{axis}}},
         int64[1] column = {{1}}, int64[2] repeated = {{1,{width}}}> {{
        read = Gather(x, i)
        {"" if weights is None else made}
        start = Expand(zero, shape)
        numbers = Unsqueeze(bags, column)
        spread = Expand(numbers, repeated)
        y = ScatterElements<axis = 0, reduction = "add">(start, spread, {name})
    }}""")
    return marked(model, "ScatterElements")


def feeds_of(table: str, taken: str, weights: str | None, count: int) -> dict[str, Any]:
    rng, length = np.random.default_rng(0), sizes_of(table)[0]
    lead = (sizes_of(taken) + sizes_of(table)[1:])[:-1]
    tokens = max([*lead, *(sizes_of(weights) if weights else ())], default=1)
    tokens = 0 if 0 in lead else tokens
    feeds: dict[str, Any] = {
        "x": rng.standard_normal(sizes_of(table)).astype(np.float32),
        "i": rng.integers(-length, length, sizes_of(taken)),
        "bags": rng.integers(-count, count, tokens),
    }
    if weights is not None:
        feeds["w"] = rng.standard_normal(sizes_of(weights)).astype(np.float32)
    return feeds


def expected(feeds: dict[str, Any], count: int) -> np.ndarray[Any, Any]:
    rows = np.take(feeds["x"].astype(np.float64), feeds["i"], axis=0)
    rows = rows * feeds["w"][..., None] if "w" in feeds else rows
    sums = np.zeros((count, rows.shape[-1]))
    np.add.at(sums, feeds["bags"], rows)
    return sums


@pytest.mark.parametrize(("table", "taken", "weights", "count"), SHAPES)
def test_rows_that_are_taken(
    monkeypatch: pytest.MonkeyPatch, table: str, taken: str, weights: str | None, count: int
) -> None:
    content = taking(table, taken, weights, count)
    name = "AddTakenRows" if weights is None else "AddWeightedRows"
    assert operators_of(content) == [name]
    feeds = feeds_of(table, taken, weights, count)
    (ours,), (plain,) = both_ways(monkeypatch, content, feeds)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours, expected(feeds, count), rtol=1e-4, atol=1e-5)


def test_what_is_no_number_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = feeds_of("[9,3]", "[40]", "[40]", 4)
    feeds["x"][3, 1], feeds["x"][5, 0], feeds["w"][7] = np.nan, np.inf, 0
    (ours,), (plain,) = both_ways(monkeypatch, taking("[9,3]", "[40]", "[40]", 4), feeds)
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["i", "bags"])
@pytest.mark.parametrize("index", [2000, -2001, 2**62, -(2**63)])
@pytest.mark.parametrize("weights", [None, "[2500]"])
def test_an_index_out_of_range_is_an_error(weights: str | None, index: int, name: str) -> None:
    case = ("[2000,70]", "[2500]", weights, 2000)
    feeds = feeds_of(*case)
    feeds[name][1234] = index
    for threads in (1, 2):
        with pytest.raises(Exception, match="out of range"):
            run(taking(*case), feeds, threads)


@pytest.mark.parametrize(("weights", "numbers"), [(3, 40), (40, 39)])
def test_sizes_that_do_not_fit_are_an_error(weights: int, numbers: int) -> None:
    feeds = feeds_of("[9,3]", "[40]", "[40]", 4)
    feeds |= {"w": feeds["w"][:weights], "bags": feeds["bags"][:numbers]}
    with pytest.raises(Exception, match="do not have the shapes"):
        run(taking("[9,3]", "[40]", "[M]", 4), feeds)


def test_parts_of_rows_stay_a_scatter() -> None:
    """Indices of fewer columns than the result has add to a part of its rows."""
    content = taking("[9,3]", "[40]", None, 4)
    wider = parsed("g (float[1] x) => (float[1] y) { y = Identity(x) }")
    wider.ParseFromString(content)
    shape = next(c for c in wider.graph.initializer if c.name == "shape")
    shape.ClearField("int64_data")
    shape.raw_data = np.array([4, 7]).tobytes()
    assert "AddTakenRows" not in operators_of(wider.SerializeToString())
    assert "AddRows" not in operators_of(wider.SerializeToString())


BAG = """g (float[{rows},{width}] x, int64[N] i, int64[N,1] bags, float[N] w)
    => (float[8,{width}] y)
    <float zero = {{0}}, int64[2] shape = {{8,{width}}}, int64[1] one = {{1}}> {{
    read = Gather(x, i)
    weight = Unsqueeze(w, one)
    source = Mul(read, weight)
    start = Expand(zero, shape)
    sizes = Shape(source)
    spread = Expand(bags, sizes)
    y = ScatterElements<axis = 0, reduction = "add">(start, spread, source)
}}"""


@pytest.mark.parametrize(("rows", "width", "tokens"), [(100, 64, 700), (2000, 16, 60), (40, 9, 0)])
def test_gradient(monkeypatch: pytest.MonkeyPatch, rows: int, width: int, tokens: int) -> None:
    """That of the table is the same sum, and rows are read whole for that of the weights."""
    model = parsed(BAG.format(rows=rows, width=width))
    both = onnxtrain.differentiate(model, wrt=["x", "w"], vjp=True)
    assert not any(node.op_type == "GatherElements" for node in both.graph.node)
    half = partition(both, ["y_grad"], ["x_grad", "w_grad"])
    content = marked(half.backward, "ScatterND", "ScatterElements")
    assert "AddWeightedRows" in operators_of(content)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((rows, width)), rng.standard_normal(tokens)
    i, bags = rng.integers(-rows, rows, tokens), rng.integers(-8, 8, (tokens, 1))
    dy = rng.standard_normal((8, width))
    values = {"x": x, "w": w, "y_grad": dy, "read": x[i], "weight": w[:, None]}
    known = {k: v.astype(np.float32) for k, v in values.items()} | {"i": i, "bags": bags}
    feeds = {v.name: known[v.name] for v in half.backward.graph.input}
    ours, _ = both_ways(monkeypatch, content, feeds)
    dx = np.zeros((rows, width))
    np.add.at(dx, i, dy[bags[:, 0]] * w[:, None])
    np.testing.assert_allclose(ours[0], dx, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours[1], (dy[bags[:, 0]] * x[i]).sum(1), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_parts_of_rows_reads_single_numbers() -> None:
    """A Gather would read the columns, too, that nothing was added to."""
    model = parsed("""g (float[4,3] x, int64[5,1] i, float[5,2] u) => (float[4,3] y)
        <int64[2] sizes = {5,2}> {
        spread = Expand(i, sizes)
        y = ScatterElements<axis = 0, reduction = "add">(x, spread, u)
    }""")
    both = onnxtrain.differentiate(model, wrt=["u"], vjp=True)
    assert "GatherElements" in [node.op_type for node in both.graph.node]
