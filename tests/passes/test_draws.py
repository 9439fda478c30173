"""Random operators from a counter: the right distribution, and the same numbers everywhere."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.errors import ModelError
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.contract import RANDOM_INPUT
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up
from onnxtrain.passes.bits import number
from onnxtrain.passes.draws import draw_from_counter, draws_from_counter

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]


class Drawn:
    """A rewritten model, run with a seed and a counter."""

    def __init__(self, text: str, threads: int = 1, level: Any = None, model: Any = None) -> None:
        source = model or onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18]> g {text}'
        )
        loaded = clean_up(draw_from_counter(normalize(load(source))))
        self.proto = to_proto(loaded)
        if model is None:
            onnx.checker.check_model(self.proto, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if level is not None:
            options.graph_optimization_level = level
        self.session = onnxruntime.InferenceSession(self.proto.SerializeToString(), options)

    def __call__(self, seed: int = 0, counter: int = 0, **feeds: Array) -> list[Array]:
        words = np.array([seed, counter], np.int64)
        return list(self.session.run(None, {**feeds, RANDOM_INPUT: words}))


def dropout(shape: str, ratio: float = 0.3, kind: str = "float") -> str:
    """Two Dropouts side by side."""
    outputs = f"{kind}[{shape}] y, bool[{shape}] m, {kind}[{shape}] y2, bool[{shape}] m2"
    return f"""({kind}[{shape}] x) => ({outputs}) <float r = {{{ratio}}}, bool on = {{1}}> {{
        [one] y, m = Dropout(x, r, on)
        [two] y2, m2 = Dropout(x, r, on)
    }}"""


# --- quality --------------------------------------------------------------------------------------


def standard(mask: Array, keep: float) -> Array:
    """A mask with mean 0 and variance 1."""
    return (mask - keep) / math.sqrt(keep * (1 - keep))


def sigmas(products: Array) -> float:
    """How far the mean of independent values with variance 1 is from 0."""
    return float(products.sum() / math.sqrt(products.size))


def statistics(mask: Array, keep: float) -> dict[str, float]:
    """Deviations, in units of their spread, of what must be zero for independent elements."""
    s = standard(mask, keep)
    found = {
        "mean": sigmas(s),
        "right": sigmas(s[:, 1:] * s[:, :-1]),
        "second right": sigmas(s[:, 2:] * s[:, :-2]),
        "below": sigmas(s[1:] * s[:-1]),
        "second below": sigmas(s[2:] * s[:-2]),
        "diagonal": sigmas(s[1:, 1:] * s[:-1, :-1]),
        "other diagonal": sigmas(s[1:, :-1] * s[:-1, 1:]),
        "three in a row": sigmas(s[:, 2:] * s[:, 1:-1] * s[:, :-2]),
        "three in a column": sigmas(s[2:] * s[1:-1] * s[:-2]),
        "square": sigmas(s[1:, 1:] * s[:-1, :-1] * s[1:, :-1] * s[:-1, 1:]),
    }
    for name, axis in (("rows", 1), ("columns", 0)):
        sums = s.sum(axis) / math.sqrt(s.shape[axis])
        found[name] = float((sums**2 - 1).sum() / math.sqrt(2 * sums.size))
    for name, table in (("patterns of rows", mask), ("patterns of columns", mask.T)):
        found[name] = patterns(table, keep)
    return found


def patterns(mask: Array, keep: float, width: int = 6) -> float:
    """A chi-square test over all patterns of neighbours, as a number with mean 0 and variance 1."""
    whole = mask[:, : mask.shape[1] // width * width].reshape(-1, width).astype(int)
    codes = whole @ (1 << np.arange(width))
    ones = np.array([bin(i).count("1") for i in range(1 << width)])
    expected = codes.size * keep**ones * (1 - keep) ** (width - ones)
    counts = np.bincount(codes, minlength=1 << width)
    enough = expected > 5
    chi = float((((counts - expected) ** 2) / expected)[enough].sum())
    freedom = int(enough.sum()) - 1
    return (chi - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("shape", [(512, 512), (64, 1024), (4096, 24), (9, 9, 40, 40)], ids=str)
def test_masks_have_the_statistics_of_independent_draws(
    shape: tuple[int, ...], ratio: float
) -> None:
    """28 statistics on 6 masks each; the largest of that many is beyond 5 once in 10,000 runs."""
    drawn = Drawn(dropout(", ".join(["N", *map(str, shape[1:])]), ratio))
    x = np.ones(shape, np.float32)
    keep = 1 - float(np.float32(ratio))
    worst: dict[str, float] = {}
    masks = []
    for step in range(6):
        _, mask, _, other = drawn(step % 2, step, x=x)
        table = mask.reshape(-1, shape[-1])
        masks.append(standard(table, keep))
        found = statistics(table, keep)
        found["nodes"] = sigmas(masks[-1] * standard(other.reshape(table.shape), keep))
        for name, value in found.items():
            worst[name] = max(worst.get(name, 0.0), abs(value))
    for a in range(6):
        for b in range(a):
            worst[f"steps {a} and {b}"] = abs(sigmas(masks[a] * masks[b]))
    assert all(value < 5.0 for value in worst.values()), worst


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_masks_have_no_hidden_direction(ratio: float) -> None:
    """The largest singular value of a square of independent numbers is 2·√n, and little more."""
    size = 600
    drawn = Drawn(dropout("N, M", ratio))
    for step in range(3):
        _, mask, *_ = drawn(7, step, x=np.ones((size, size), np.float32))
        values = np.linalg.svd(standard(mask, 1 - ratio), compute_uv=False)
        assert 1.95 < values[0] / math.sqrt(size) < 2.06


def test_rows_and_columns_are_all_different() -> None:
    drawn = Drawn(dropout("N, 512", 0.5))
    _, mask, _, other = drawn(1, 1, x=np.ones((5000, 512), np.float32))
    for table in (mask, mask.T, np.concatenate([mask, other])):
        assert len(np.unique(np.packbits(table, axis=1), axis=0)) == len(table)


def test_seeds_counters_and_nodes_give_other_masks() -> None:
    drawn = Drawn(dropout("N, 64"))
    x = np.ones((32, 64), np.float32)
    seen = set()
    pairs = [(0, 0), (0, 1), (1, 0), (1, 1), (-1, 0), (2**62, 0), (-(2**63), 5), (0, 2**40), (5, 3)]
    for seed, counter in pairs:
        _, mask, _, other = drawn(seed, counter, x=x)
        seen |= {mask.tobytes(), other.tobytes()}
        again = drawn(seed, counter, x=x)
        assert np.array_equal(again[1], mask)
    assert len(seen) == 2 * len(pairs)


# --- the same numbers everywhere ------------------------------------------------------------------


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def halved(value: int) -> int:
    return int(math.copysign(abs(value) >> 32, value))


def mixed(value: int, label: str) -> int:
    return wrapped((value ^ halved(value)) * (number(f"onnxtrain/{label}") | 1))


def int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def factor(label: str) -> int:
    return number(f"onnxtrain/{label}") | 1


def expected_integer(seed: int, counter: int, name: str, row: int, column: int) -> int:
    """What `bits.py` says, in Python's integers."""
    key = mixed(wrapped(number(name) + seed * factor("seed")), "seed/mix")
    key = mixed(wrapped(key + counter * factor("counter")), "counter/mix")
    of_row = mixed(wrapped(row * factor("row") + key), "row/mix")
    of_column = wrapped(column * factor("column") + factor("column/last"))
    of_column = mixed(mixed(of_column, "column/mix"), "column/last")
    c = int32(halved(of_column) * (int32(of_column) + halved(key)))
    return int32(halved(of_row) * c + int32(of_row))


def test_integers_are_those_of_the_definition() -> None:
    drawn = Drawn("(double[N, 70] x) => (double[N, 70] y) { [u] y = RandomUniformLike(x) }")
    for seed, counter in ((0, 0), (12345, 678), (-(2**63), 2**50)):
        (y,) = drawn(seed, counter, x=np.zeros((5, 70)))
        for row, column in ((0, 0), (0, 69), (4, 0), (3, 33)):
            integer = expected_integer(seed, counter, "u", row, column)
            assert y[row, column] == integer * 2.0**-32 + 0.5


def test_masks_stay_the_same_from_release_to_release() -> None:
    """Whoever changes this changes the masks of all checkpoints that are resumed."""
    _, mask, *_ = Drawn(dropout("N, 100"))(1, 2, x=np.ones((50, 100), np.float32))
    assert hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:16] == "092cf2c2028cc549"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_threads_and_optimizations_change_nothing(threads: int, level: str) -> None:
    text = dropout("N, 7, 300")
    x = np.random.default_rng(0).normal(size=(40, 7, 300)).astype(np.float32)
    chosen = getattr(onnxruntime.GraphOptimizationLevel, level)
    for a, b in zip(Drawn(text)(3, 4, x=x), Drawn(text, threads, chosen)(3, 4, x=x)):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    "shapes", [("N, 100", "6, 100"), ("N, M, 64", "3, 2, 64"), ("A, B", "6, C")]
)
def test_open_and_known_sizes_draw_alike(shapes: tuple[str, str]) -> None:
    sizes = [int(d) if d.isdigit() else {"C": 9, "B": 9}[d] for d in shapes[1].split(", ")]
    x = np.ones(sizes, np.float32)
    first, second = (Drawn(dropout(shape))(x=x) for shape in shapes)
    assert np.array_equal(first[1], second[1])


def test_a_longer_batch_begins_like_a_shorter_one() -> None:
    drawn = Drawn(dropout("N, 100"))
    short, long = (drawn(x=np.ones((n, 100), np.float32))[1] for n in (5, 50))
    assert np.array_equal(short, long[:5])


# --- Dropout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("float", "f4"), ("double", "f8"), ("float16", "f2")])
@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.75])
def test_what_is_kept_is_scaled_exactly(kind: str, dtype: str, ratio: float) -> None:
    drawn = Drawn(dropout("N, 50", ratio, kind))
    x = np.random.default_rng(1).normal(size=(20, 50)).astype(dtype)
    y, mask, *_ = drawn(x=x)
    scale = np.dtype(dtype).type(1 / (1 - float(np.float32(ratio))))
    assert y.dtype == x.dtype
    assert np.array_equal(y, np.where(mask, x * scale, 0))


def runtime(ratio: str = "float") -> str:
    return f"""(float[N, 64] x, {ratio} r, bool on) => (float[N, 64] y, bool[N, 64] m) {{
        [one] y, m = Dropout(x, r, on)
    }}"""


@pytest.mark.parametrize("kind", ["float", "double"])
def test_ratio_and_mode_at_run_time(kind: str) -> None:
    drawn, dtype = Drawn(runtime(kind)), np.float32 if kind == "float" else np.float64
    x = np.random.default_rng(1).normal(size=(200, 64)).astype(np.float32)
    on, off = np.array(True), np.array(False)
    for ratio in (0.1, 0.5, 0.9):
        fixed = Drawn(dropout("N, 64", ratio))(3, 1, x=x)
        y, mask = drawn(3, 1, x=x, r=np.array(ratio, dtype), on=on)
        if kind == "float":
            assert np.array_equal(mask, fixed[1])
            np.testing.assert_allclose(y, fixed[0], rtol=2e-7)
        assert abs(sigmas(standard(mask, 1 - ratio))) < 4
    for ratio, mode in ((0.0, on), (0.7, off)):
        y, mask = drawn(x=x, r=np.array(ratio, dtype), on=mode)
        assert np.array_equal(y, x)
        assert mask.all()
    y, mask = drawn(x=x, r=np.array(1, dtype), on=on)
    assert not y.any()


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("", ()),
        ("5", (5,)),
        ("N", (7,)),
        ("N, 4", (0, 4)),
        ("2, N, 3", (2, 0, 3)),
        ("N, 1", (9, 1)),
    ],
)
def test_all_ranks_and_empty_batches(shape: str, size: tuple[int, ...]) -> None:
    kind = f"float[{shape}]" if shape else "float"
    drawn = Drawn(
        f"""({kind} x) => ({kind} y, bool{kind[5:]} m) <float r = {{0.5}}, bool on = {{1}}> {{
        y, m = Dropout(x, r, on) }}"""
    )
    seen = [drawn(0, step, x=np.ones(size, np.float32)) for step in range(30)]
    assert all(y.shape == m.shape == size for y, m in seen)
    if np.prod(size):
        assert 0.3 < np.mean([m.mean() for _, m in seen]) < 0.7


def test_an_unknown_rank() -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Dropout", ["x", "r", "on"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, None)],
        [value("y", onnx.TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.array(0.5, np.float32), "r"),
            onnx.numpy_helper.from_array(np.array(True), "on"),
        ],
    )
    drawn = Drawn(
        "", model=onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    )
    (y,) = drawn(x=np.ones((30, 4, 5), np.float32))
    assert y.shape == (30, 4, 5)
    assert set(np.unique(y)) == {0.0, 2.0}


@pytest.mark.parametrize(
    "node",
    ["y = Dropout(x, r)", "y = Dropout(x, r, off)", "y = Dropout(x, zero, on)", "y = Relu(x)"],
)
def test_what_does_not_draw_needs_no_counter(node: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[N] x) => (float[N] y)
        <float r = {{0.5}}, float zero = {{0}}, bool on = {{1}}, bool off = {{0}}> {{ {node} }}"""
    model = draw_from_counter(normalize(load(onnx.parser.parse_model(text))))
    assert not draws_from_counter(model)


def test_nodes_without_or_with_the_same_name_draw_apart() -> None:
    for name in ("", "[same]"):
        text = f"""(float[N, 64] x) => (float[N, 64] a, float[N, 64] b)
            <float r = {{0.5}}, bool on = {{1}}> {{
            {name} a = Dropout(x, r, on)
            {name} b = Dropout(x, r, on)
        }}"""
        a, b = Drawn(text)(x=np.ones((8, 64), np.float32))
        assert not np.array_equal(a, b)


def test_the_name_of_the_input_must_be_free() -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N] x, float[N] "{RANDOM_INPUT}") => (float[N] y)
        <float r = {{0.5}}, bool on = {{1}}> {{
            z = Add(x, "{RANDOM_INPUT}") y = Dropout(z, r, on)
        }}"""
    )
    with pytest.raises(ModelError, match="rename it"):
        draw_from_counter(normalize(load(model)))


def test_differentiate_leaves_the_users_own_nodes_alone() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N] x) => (float loss)
        <float r = {0.5}, bool on = {1}> {
            y = Dropout(x, r, on) loss = ReduceSum<keepdims=0>(y)
        }"""
    )
    proto = onnxtrain.differentiate(model, wrt=["x"])
    assert "Dropout" in {n.op_type for n in proto.graph.node}
    assert [i.name for i in proto.graph.input] == ["x"]


# --- other operators ------------------------------------------------------------------------------


def chi_square(values: Array, edges: Array) -> float:
    counts, _ = np.histogram(values, edges)
    expected = values.size / (len(edges) - 1)
    freedom = len(edges) - 2
    return float((((counts - expected) ** 2) / expected).sum() - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(("kind", "dtype"), [("float", 1), ("double", 11), ("float16", 10)])
def test_uniform(kind: str, dtype: int) -> None:
    drawn = Drawn(
        f"""(float[N, 64] x) => ({kind}[N, 64] a, {kind}[20, 50] b) {{
            a = RandomUniformLike<low = -1.0, high = 3.0, dtype = {dtype}>(x)
            b = RandomUniform<shape = [20, 50], dtype = {dtype}>()
        }}"""
    )
    a, b = drawn(x=np.ones((1000, 64), np.float32))
    assert a.min() >= -1
    assert a.max() < 3 or kind == "float16"
    assert chi_square(a.astype(float), np.linspace(-1, 3, 65)) < 5
    assert chi_square(b.astype(float), np.linspace(0, 1, 11)) < 5


@pytest.mark.parametrize(("kind", "dtype"), [("float", 1), ("double", 11)])
def test_normal(kind: str, dtype: int) -> None:
    drawn = Drawn(
        f"""(float[N, 64] x) => ({kind}[N, 64] a, {kind}[100, 50] b) {{
            a = RandomNormalLike<mean = 2.0, scale = 3.0, dtype = {dtype}>(x)
            b = RandomNormal<shape = [100, 50], dtype = {dtype}>()
        }}"""
    )
    a, b = drawn(x=np.ones((2000, 64), np.float32))
    standard_normal = (a.astype(float) - 2) / 3
    cumulated = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))
    assert np.isfinite(a).all()
    assert abs(standard_normal.mean()) < 5 / math.sqrt(a.size)
    assert abs(standard_normal.std() - 1) < 5 / math.sqrt(2 * a.size)
    assert chi_square(cumulated(standard_normal[:300]), np.linspace(0, 1, 51)) < 5
    assert chi_square(cumulated(b.astype(float)), np.linspace(0, 1, 21)) < 5
    assert abs(sigmas(standard_normal[:, 1:] * standard_normal[:, :-1])) < 5


@pytest.mark.parametrize("kind", ["float", "double"])
def test_bernoulli(kind: str) -> None:
    drawn = Drawn(f"({kind}[N, 4] p) => (int32[N, 4] y) {{ y = Bernoulli<dtype = 6>(p) }}")
    p = np.tile(np.array([0.0, 0.2, 0.9, 1.0]), (20_000, 1))
    (y,) = drawn(p=p.astype("f4" if kind == "float" else "f8"))
    assert not y[:, 0].any()
    assert y[:, 3].all()
    for column in (1, 2):
        assert abs(sigmas(standard(y[:, column], p[0, column]))) < 4


@pytest.mark.parametrize(("dtype", "kind"), [(6, "int32"), (7, "int64")])
def test_multinomial(dtype: int, kind: str) -> None:
    drawn = Drawn(
        f"""(float[N, 3] x) => ({kind}[N, 500] y) {{
            y = Multinomial<sample_size = 500, dtype = {dtype}>(x) }}"""
    )
    probabilities = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0], [0.05, 0.05, 0.9]])
    logits = np.log(np.maximum(np.tile(probabilities, (40, 1)), 1e-30)).astype(np.float32)
    (y,) = drawn(x=logits)
    assert y.dtype == np.dtype(kind)
    for row, wanted in enumerate(probabilities):
        for label, p in enumerate(wanted):
            share = y[row::3] == label
            assert share.mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / share.size))


# --- inside loops ---------------------------------------------------------------------------------

FLAGS = "<float r = {0.5}, bool on = {1}, int64 n = {4}>"
BODIES = {
    "loop": f"""(float[8, 64] x) => (float[4, 8, 64] y) {FLAGS} {{
        y = Loop(n, on) <body = step (int64 i, bool go) => (bool next, float[8, 64] z) {{
            next = Identity(go) z = Dropout(x, r, on) }}>
    }}""",
    "scan": f"""(float[4, 8, 64] x) => (float[4, 8, 64] y) {FLAGS} {{
        y = Scan<num_scan_inputs = 1, body = step (float[8, 64] xt) => (float[8, 64] yt) {{
            yt = Dropout(xt, r, on) }}>(x)
    }}""",
    "scan of the last axis, backwards": f"""(float[8, 64, 4] x) => (float[4, 8, 64] y) {FLAGS} {{
        y = Scan<num_scan_inputs = 1, scan_input_axes = [-1], scan_input_directions = [1],
            body = step (float[8, 64] xt) => (float[8, 64] yt) {{ yt = Dropout(xt, r, on) }}>(x)
    }}""",
    "if in a scan in a loop": f"""(float[2, 8, 64] x) => (float[4, 2, 8, 64] y) {FLAGS} {{
        y = Loop(n, on) <body = outer (int64 i, bool go) => (bool next, float[2, 8, 64] z) {{
            next = Identity(go)
            z = Scan<num_scan_inputs = 1, body = inner (float[8, 64] xt) => (float[8, 64] yt) {{
                yt = If(on) <then_branch = yes () => (float[8, 64] a) {{ a = Dropout(xt, r, on) }},
                    else_branch = no () => (float[8, 64] b) {{ b = Identity(xt) }}>
            }}>(x)
        }}>
    }}""",
}


@pytest.mark.parametrize("name", BODIES)
def test_every_iteration_draws_anew(name: str) -> None:
    drawn = Drawn(BODIES[name])
    shape = [d.dim_value for d in drawn.proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.ones(shape, np.float32)
    (y,) = drawn(1, 1, x=x)
    assert not {"Dropout"} & {n.op_type for n in load(drawn.proto).graph.all_nodes()}
    masks = {t.tobytes() for t in y.reshape(-1, 8 * 64)}
    assert len(masks) == y.size // (8 * 64)
    assert set(np.unique(y)) == {0.0, 2.0}
    assert np.array_equal(y, drawn(1, 1, x=x)[0])
    assert not np.array_equal(y, drawn(1, 2, x=x)[0])
