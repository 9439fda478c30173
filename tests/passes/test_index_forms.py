"""`x[i, j]` in forms that take whole rows: same values and gradients, and where it stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxtrain import differentiate

HEAD = '<ir_version: 8, opset_import: ["": 18]> '
OPEN = """g (float[{x}] x, int64[{i}] i, int64[{j}] j) => (float[{y}] y)
    <int64[1] last = {{-1}}, int64[{rank}] sizes = {{{tuples}}}> {{ {turn}
    a = Expand(i, sizes) b = Unsqueeze(a, last) c = Expand(j, sizes) d = Unsqueeze(c, last)
    t = Concat<axis = -1>(b, d) y = GatherND({of}, t) }}"""


def text(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def indexed(
    x: tuple[int, ...],
    i: tuple[int, ...],
    j: tuple[int, ...],
    perm: tuple[int, ...] | None = None,
) -> onnx.ModelProto:
    """``transpose(x, perm)[i, j]`` with indices that are fed."""
    tuples = np.broadcast_shapes(i, j)
    order = perm or range(len(x))
    y = (*tuples, *[x[a] for a in order][2:])
    turn = f"z = Transpose<perm = {list(perm)}>(x)" if perm else ""
    return onnx.parser.parse_model(
        HEAD
        + OPEN.format(
            x=text(x), i=text(i), j=text(j), y=text(y), rank=len(tuples), tuples=text(tuples),
            turn=turn, of="z" if perm else "x",
        )
    )  # fmt: skip


def constant(
    x: tuple[int, ...], indices: np.ndarray, perm: tuple[int, ...] | None
) -> onnx.ModelProto:
    """``transpose(x, perm)`` at constant tuples."""
    depth, order = indices.shape[-1], perm or tuple(range(len(x)))
    y = (*indices.shape[:-1], *[x[a] for a in order][depth:])
    turn, of = (f"z = Transpose<perm = {list(perm)}>(x)", "z") if perm else ("", "x")
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[{text(x)}] x) => (float[{text(y)}] y) {{ {turn} y = GatherND({of}, t) }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(indices, "t"))
    return model


def types(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def check(model: onnx.ModelProto, indices: tuple, perm: tuple[int, ...] | None, **feeds) -> None:
    """Values and gradients by numpy."""
    graded = differentiate(model, wrt=["x"], vjp=True)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    perm = perm or tuple(range(x.ndim))
    expected = x.transpose(perm)[indices]
    dy = rng.standard_normal(expected.shape).astype(np.float32)
    session = onnxruntime.InferenceSession(graded.SerializeToString())
    y, dx = session.run(["y", "x_grad"], {"x": x, "y_grad": dy, **feeds})
    np.testing.assert_array_equal(y, expected)
    wanted = np.zeros_like(x)
    np.add.at(wanted.transpose(perm), indices, dy)
    np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-5)


APART = [
    ((5, 6), (7, 1), (1, 8), None), ((5, 6), (1, 7), (8, 1), None), ((5, 6), (7, 1), (8,), None),
    ((5, 6, 4), (7, 1), (1, 8), (1, 2, 0)), ((5, 6, 4), (1, 7), (8, 1), (2, 0, 1)),
    ((5, 6, 4), (1, 7), (1, 1), (2, 0, 1)), ((2, 3, 5, 6), (9, 1), (1, 4), (2, 3, 0, 1)),
    ((2, 3, 5, 6), (3, 1, 1), (1, 1, 4), (3, 2, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("x", "i", "j", "perm"), APART)
def test_indices_that_go_along_axes_of_their_own(x, i, j, perm):
    model, rng = indexed(x, i, j, perm), np.random.default_rng(1)
    assert "GatherND" not in types(differentiate(model, wrt=["x"], vjp=True))
    order = perm or range(len(x))
    rows, columns = (np.asarray(rng.integers(-x[a], x[a], s)) for a, s in zip(order, (i, j)))
    check(model, (rows, columns), perm, i=rows, j=columns)


def test_the_same_of_constants():
    rows, columns = np.broadcast_arrays(np.array([[2], [0], [-1]]), np.array([[1, 1, 3, -4]]))
    for perm in (None, (1, 2, 0), (2, 1, 0)):
        model = constant((5, 6, 4), np.stack([rows, columns], -1), perm)
        assert "GatherND" not in types(differentiate(model, wrt=["x"], vjp=True))
        check(model, (rows, columns), perm)


STAYS = [
    ((5, 6), (7,), (7,), None), ((5, 6), (7, 1), (7, 8), None), ((50, 60), (2, 1), (1, 3), None),
]  # fmt: skip


@pytest.mark.parametrize(("x", "i", "j", "perm"), STAYS)
def test_indices_that_go_together_or_take_little_stay(x, i, j, perm):
    model, rng = indexed(x, i, j, perm), np.random.default_rng(1)
    assert "GatherND" in types(differentiate(model, wrt=["x"], vjp=True))
    rows, columns = (np.asarray(rng.integers(-n, n, s)) for n, s in zip(x, (i, j)))
    check(model, (rows, columns), perm, i=rows, j=columns)


def test_a_size_that_may_be_repeated_stays():
    """An axis of unknown size could be one, and be repeated by Expand."""
    model = indexed((5, 6), (7, 1), (1, 8))
    for value in (model.graph.input[1], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    assert "GatherND" in types(differentiate(model, wrt=["x"], vjp=True))
    rows, columns = np.array([[3]]), np.arange(8)[None] % 6
    check(model, (np.repeat(rows, 7, 0), columns), None, i=rows, j=columns)


def test_one_index_needs_no_transposition_of_what_it_is_taken_from():
    model = onnx.parser.parse_model(
        HEAD
        + """g (float[n, 6, 4] x, int64[k] i) => (float[n, k, 4] y) <int64[1] last = {-1}> {
        z = Transpose<perm = [1, 0, 2]>(x) t = Unsqueeze(i, last) a = GatherND(z, t)
        y = Transpose<perm = [1, 0, 2]>(a) }"""
    )
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert not {"GatherND", "Transpose"} & {*types(graded)}
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    indices = np.array([3, -1, 3])
    check(model, (slice(None), indices), None, i=indices)


ZIPPED = [
    ((8, 9, 10, 7), [[0, 0], [-1, 1]], (1, 3, 0, 2)), ((8, 9, 10), [[7, 1], [7, 1]], (0, 2, 1)),
    ((40, 30), [[3, 5], [4, -2], [3, 5]], (1, 0)), ((8, 9, 10), [[[0, 1]], [[2, 3]]], (2, 0, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("x", "tuples", "perm"), ZIPPED)
def test_constant_tuples_that_take_little_are_read_where_they_lie(x, tuples, perm):
    indices = np.array(tuples)
    model = constant(x, indices, perm)
    graded = differentiate(model, wrt=["x"], vjp=True)
    assert not {"GatherND", "Transpose"} & {*types(graded)}
    check(model, tuple(np.moveaxis(indices, -1, 0)), perm)


def test_what_is_asked_for_and_what_is_out_of_range_stays():
    indices = np.array([[0, 0], [1, 2]])
    model = constant((8, 9, 10, 7), indices, (1, 3, 0, 2))
    assert "GatherND" in types(differentiate(model, wrt=["z"], of=["y"], vjp=True))
    model = constant((8, 9, 10, 7), np.array([[0, 0], [1, 7]]), (1, 3, 0, 2))
    assert "GatherND" in types(differentiate(model, wrt=["x"], vjp=True))
