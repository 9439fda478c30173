"""Recurrent layers in columns: order of gates, the last step as final state, open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.passes import selection
from onnxtrain.passes.recurrent import columns
from tests.rules.harness import run_ort

H, SHAPES = 3, {"x": (5, 16, 2), "w": (12, 2), "r": (12, 3), "b0": (12,), "b1": (12,)}


def model_of(weights: str, layer: str = "", read: str = "y = Exp(h4)") -> onnx.ModelProto:
    """An LSTM whose weights W, R and B are made of w, r and b."""
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in SHAPES.items())
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g ({inputs}) => (float loss) <int64[1] zero = {{0}}, int64[1] one = {{1}}, "
        "int64 first = {0}, int64 last = {-1}, int64 fourth = {4}, int64[1] end = {5}, "
        "int64[1] minus = {-1}, int64[1] four = {4}, int64[3] cuts = {3, 6, 3}, "
        "int64[16] spans = {5,5,5,5,5,5,5,5,5,5,5,5,5,5,5,4}> {"
        f"{weights} h4 = LSTM<hidden_size=3{layer}>(x, W, R, B) {read} "
        "t = Mul(y, y) loss = ReduceSum<keepdims=0>(t) }"
    )


def permuted() -> str:
    """Weights as an exporter writes them whose framework has the gates as i, f, g, o."""
    lines = []
    for name, target in (("w", "W2"), ("r", "R2"), ("b0", "B0"), ("b1", "B1")):
        parts = f"{name}i, {name}fg, {name}o = Split<axis=0>({name}, cuts)"
        lines.append(f"{parts} {target} = Concat<axis=0>({name}i, {name}o, {name}fg)")
    return " ".join(lines) + (
        " W = Unsqueeze(W2, zero) R = Unsqueeze(R2, zero) "
        "B2 = Concat<axis=0>(B0, B1) B = Unsqueeze(B2, zero)"
    )


PLAIN = (
    "W = Unsqueeze(w, zero) R = Unsqueeze(r, zero) "
    "B2 = Concat<axis=0>(b0, b1) B = Unsqueeze(B2, zero)"
)
WRT = [*SHAPES]


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in SHAPES.items()}


def in_onnx_order(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Blocks i, f, g, o as i, o, f, g."""
    return value.reshape(4, H, *value.shape[1:])[[0, 3, 1, 2]].reshape(value.shape)


def test_the_order_of_gates_is_that_of_the_model() -> None:
    graph = onnxtrain.differentiate(model_of(permuted()), wrt=WRT)
    readers = {n.op_type for n in graph.graph.node if {"w", "r"} & set(n.input)}
    assert readers <= {"Concat", "Transpose"}, readers  # side by side, not block by block
    given = feeds()
    ours = run_ort(graph, given)
    moved = {n: in_onnx_order(v) if n != "x" else v for n, v in given.items()}
    plain = run_ort(onnxtrain.differentiate(model_of(PLAIN), wrt=WRT), moved)
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5)
    for name, found, expected in zip(WRT, ours[1:], plain[1:]):
        found = found if name == "x" else in_onnx_order(found)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_weights_that_are_no_reordering_are_taken_as_they_come() -> None:
    """A gate that stands twice, and biases in another order than weights."""
    twice = (
        "wi, wfg, wo = Split<axis=0>(w, cuts) W2 = Concat<axis=0>(wi, wi, wfg) "
    ) + PLAIN.replace("(w,", "(W2,")
    mixed = permuted().replace("Unsqueeze(R2, zero)", "Unsqueeze(r, zero)")
    for weights in (twice, mixed):
        model = model_of(weights)
        fast = onnxtrain.differentiate(model, wrt=WRT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "has_form", lambda node: False)
            slow = onnxtrain.differentiate(model, wrt=WRT)
        for found, expected in zip(run_ort(fast, feeds()), run_ort(slow, feeds())):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("named", "plain"), [(["Sigmoid", "tanh", "Tanh"], True), (["Sigmoid", "Tanh", "Relu"], False)]
)
def test_activations_may_be_named(named: list[str], plain: bool) -> None:
    model = model_of(PLAIN)
    node = next(n for n in model.graph.node if n.op_type == "LSTM")
    node.attribute.append(onnx.helper.make_attribute("activations", named))
    found = next(n for n in onnxtrain.graph.load(model).graph if n.op_type == "LSTM")
    assert columns.has_form(found) == plain


@pytest.fixture
def any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow layers have the forms that wide ones have."""
    monkeypatch.setattr(columns, "ALWAYS", 0)
    monkeypatch.setattr(columns, "ALWAYS_WITH_LENGTHS", 0)
    monkeypatch.setattr(columns, "NARROW", 0)


@pytest.mark.usefixtures("any_width")
def test_few_sequences_keep_their_rows() -> None:
    model = model_of(PLAIN)
    node = next(n for n in onnxtrain.graph.load(model).graph if n.op_type == "LSTM")
    assert columns.has_form(node)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = columns.FEWEST_SEQUENCES - 1
    node = next(n for n in onnxtrain.graph.load(model).graph if n.op_type == "LSTM")
    assert not columns.has_form(node)


LAST = {
    "squeezed": ("", "s = Squeeze(h4, one) y = Gather(s, last)"),
    "by number": ("", "s = Squeeze(h4, one) y = Gather(s, fourth)"),
    "with directions": ("", "y = Gather(h4, last)"),
    "a slice": ("", "s = Squeeze(h4, one) y = Slice(s, four, end, zero)"),
    "a slice with directions": ("", "y = Slice(h4, four, end, zero)"),
    "turned, batch first": (
        "", "s = Squeeze(h4, one) t0 = Transpose<perm=[1,0,2]>(s) y = Gather<axis=1>(t0, last)"
    ),
    "reverse": (", direction=\"reverse\"", "s = Squeeze(h4, one) y = Gather(s, first)"),
}  # fmt: skip
NOT_LAST = {
    "the first": ("", "s = Squeeze(h4, one) y = Gather(s, first)"),
    "reverse": (', direction="reverse"', "s = Squeeze(h4, one) y = Gather(s, last)"),
}


@pytest.mark.parametrize("name", [*LAST, *(f"not {n}" for n in NOT_LAST)])
def test_the_last_step_is_the_final_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_last = name in LAST
    layer, read = LAST[name] if is_last else NOT_LAST[name.removeprefix("not ")]
    model = model_of(PLAIN, layer, read)
    graph = onnxtrain.differentiate(model, wrt=WRT)
    spread = {"Pad", "Scatter", "ScatterElements", "ScatterND"} & {
        n.op_type for n in graph.graph.node
    }
    assert bool(spread) != is_last, spread
    monkeypatch.setattr(selection._Moving, "end_of_layer", lambda *_: None)
    plain = onnxtrain.differentiate(model, wrt=WRT)
    for found, expected in zip(run_ort(graph, feeds()), run_ort(plain, feeds())):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_with_lengths_the_last_step_is_not_the_final_state() -> None:
    model = model_of(PLAIN, read="s = Squeeze(h4, one) y = Gather(s, last)")
    node = next(n for n in model.graph.node if n.op_type == "LSTM")
    node.input.append("lens")
    model.graph.node.insert(0, onnx.helper.make_node("Cast", ["spans"], ["lens"], to=6))
    graph = onnxtrain.differentiate(model, wrt=WRT)
    loss, dx, *_ = run_ort(graph, feeds())
    assert dx[:, :15].any()
    assert not dx[:, 15].any()  # its last step is padding, and zero
    assert loss > 0


# -- a number of sequences that is open ------------------------------------------------------------


def open_model(body: str) -> onnx.ModelProto:
    """Layers on [5, N, 2]; `zeros` is a first state, and there before the first layer is."""
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[5,N,2] x, float[12,2] w, float[12,3] r, float[12] b0, float[12] b1) "
        "=> (float loss) <int64[1] zero = {0}, int64[1] one = {1}, float start = {0.5}, "
        "int64[1] three = {3}, int64[1] two = {2}> {"
        f"{PLAIN} {body} t = Mul(y, y) loss = ReduceSum<keepdims=0>(t) }}"
    )


def with_state(state: str) -> str:
    return (
        "h1, f1, c1 = LSTM<hidden_size=3>(x, W, R, B) s1 = Squeeze(h1, one) "
        "n = Shape<start=1, end=2>(x) size = Concat<axis=0>(one, n, three) "
        f"{state} h2 = LSTM<hidden_size=3>(s1, R, R, B, , state) y = Exp(h2)"
    )


OPEN = {
    "one": ("h4 = LSTM<hidden_size=3>(x, W, R, B) y = Exp(h4)", 2),
    "batch first": (
        "u = Transpose<perm=[1,0,2]>(x) h4 = LSTM<hidden_size=3, layout=1>(u, W, R, B) y = Exp(h4)",
        2,
    ),
    "stacked": (with_state("state = Expand(start, size)"), 2),
    "a state of the first": (with_state("state = Mul(f1, f1)"), 4),  # not before the first is
}


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("name", OPEN)
def test_few_and_many_sequences(
    name: str, is_narrow: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, conditions = OPEN[name]
    if not is_narrow:
        request.getfixturevalue("any_width")
    model = open_model(body)
    both = onnxtrain.differentiate(model, wrt=WRT)
    count_of_ifs = [n.op_type for n in both.graph.node].count("If")
    assert count_of_ifs == (0 if is_narrow else conditions)
    monkeypatch.setattr(columns, "has_form", lambda node: False)
    in_rows = onnxtrain.differentiate(model, wrt=WRT)
    assert "If" not in {n.op_type for n in in_rows.graph.node}
    rng = np.random.default_rng(2)
    for count in (1, 15, 16, 20):
        given = {**feeds(), "x": rng.normal(size=(5, count, 2)).astype(np.float32)}
        for value, expected in zip(run_ort(both, given), run_ort(in_rows, given), strict=True):
            np.testing.assert_allclose(value, expected, rtol=2e-4, atol=1e-4)


def test_recomputation_has_one_form() -> None:
    made = onnxtrain.differentiate(open_model(OPEN["one"][0]), wrt=WRT, recompute=2)
    assert "If" not in {n.op_type for n in made.graph.node}


OTHERS = {
    "GRU": (9, "h = GRU<hidden_size=3, linear_before_reset=1>(x, w, r, b)"),
    "RNN": (3, "h = RNN<hidden_size=3>(x, w, r, b)"),
    "lengths": (12, "h = LSTM<hidden_size=3>(x, w, r, b, lens)"),
    "peepholes": (12, "h = LSTM<hidden_size=3>(x, w, r, b, , , , p)"),
}


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_few_and_many_sequences_of_other_layers(
    name: str, is_narrow: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_narrow:
        request.getfixturevalue("any_width")
    monkeypatch.setattr(columns, "NARROWEST", dict.fromkeys(columns.NARROWEST, 1))
    rows, body = OTHERS[name]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[T,N,2] x, float[1,{rows},2] w, float[1,{rows},3] r, float[1,{2 * rows}] b, "
        "float[1,9] p, int32[N] lens) => (float loss) "
        f"{{ {body} t = Exp(h) loss = ReduceSum<keepdims=0>(t) }}"
    )
    wrt = ["x", "w", "r", "b", *["p"] * (name == "peepholes")]
    both = onnxtrain.differentiate(model, wrt=wrt)
    has_one_form = is_narrow and "LSTM" in body
    assert [n.op_type for n in both.graph.node].count("If") == (0 if has_one_form else 2)
    monkeypatch.setattr(columns, "has_form", lambda node: False)
    in_rows = onnxtrain.differentiate(model, wrt=wrt)
    rng = np.random.default_rng(3)
    shapes = {"w": (1, rows, 2), "r": (1, rows, 3), "b": (1, 2 * rows), "p": (1, 9)}
    weights = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    for time, count in ((4, 1), (6, 15), (5, 16), (3, 20)):
        given: dict[str, Any] = dict(weights)
        given["x"] = rng.normal(size=(time, count, 2)).astype(np.float32)
        given["lens"] = rng.integers(1, time + 1, count).astype(np.int32)
        for value, expected in zip(run_ort(both, given), run_ort(in_rows, given), strict=True):
            np.testing.assert_allclose(value, expected, rtol=2e-4, atol=1e-4)


@pytest.mark.usefixtures("any_width")
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_what_both_forms_need_is_computed_once(direction: str) -> None:
    """Weights are taken apart, and their gradients put together, outside of the branches."""
    count = 2 if direction == "bidirectional" else 1
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[5,N,2] x, float[{count},12,2] w, float[{count},12,3] r, float[{count},24] b)"
        " => (float loss) {"
        f'h = LSTM<hidden_size=3, direction="{direction}">(x, w, r, b) t = Exp(h) '
        "loss = ReduceSum<keepdims=0>(t) }"
    )
    made = onnxtrain.differentiate(model, wrt=["x", "w", "r", "b"])
    ifs = [n for n in made.graph.node if n.op_type == "If"]
    assert len(ifs) == 2
    branches = [a.g for n in ifs for a in n.attribute]
    assert not {"w", "r", "b"} & {name for g in branches for n in g.node for name in n.input}
    assert not {"ConstantOfShape", "Gather", "Pad"} & {
        n.op_type for g in branches[1::2] for n in g.node if n.name.startswith("LSTM")
    }
    frozen = onnxtrain.differentiate(model_with_values(model), wrt=["x"])
    assert "Squeeze" not in {n.op_type for n in frozen.graph.node}
    assert "Split" not in {n.op_type for n in frozen.graph.node}


def model_with_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with weights that are constants."""
    frozen = onnx.ModelProto.FromString(model.SerializeToString())
    rng = np.random.default_rng(0)
    for value in list(frozen.graph.input)[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.normal(size=shape).astype(np.float32)
        frozen.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
        frozen.graph.input.remove(value)
    return frozen


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_no_stack_is_copied_for_the_gradient_of_weights(direction: str) -> None:
    """The states of a loop, read in the order in which its gradients are written."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        "g (float[5,4,2] x, float[1,9,2] w, float[1,9,3] r) => (float loss) {"
        f'h = GRU<hidden_size=3, linear_before_reset=1, direction="{direction}">(x, w, r) '
        "t = Exp(h) loss = ReduceSum<keepdims=0>(t) }"
    )
    made = onnxtrain.differentiate(model, wrt=["x", "w", "r"])
    backward = [n for n in made.graph.node if n.op_type == "Scan"][-1]
    (body,) = (a.g for a in backward.attribute if a.name == "body")
    inputs = {i.name for i in body.input}
    assert not [n for n in body.node if n.op_type == "Identity" and n.input[0] in inputs]


@pytest.mark.parametrize(("kind", "size"), [("GRU", 64), ("RNN", 256)])
def test_narrow_layers_keep_their_rows(kind: str, size: int) -> None:
    for hidden, expected in ((size, True), (size - 1, False)):
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 18]>\n'
            "g (float[5,16,2] x, float[1,A,2] w, float[1,A,B] r) => (float[T,1,N,B] h) "
            f"{{ h = {kind}<hidden_size={hidden}>(x, w, r) }}"
        )
        (node,) = onnxtrain.graph.load(model).graph
        assert columns.has_form(node) == expected
