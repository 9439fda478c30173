"""The public function: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import onnxtrain
import onnxtrain.extend
from onnxtrain.errors import (
    ModelError,
    NoGradientError,
    UnknownNameError,
    UnreachableError,
)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "my.ops": 1]>\n{text}')


def run(model: onnx.ModelProto, **feeds) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


QUADRATIC = """
g (float[N,2] x) => (float loss) <float[2,3] W = {1,2,3,4,5,6}, float[3] unused = {0,0,0}>
{ h = MatMul(x, W)  sq = Mul(h, h)  loss = ReduceSum<keepdims=0>(sq) }
"""

X = np.array([[1, -1], [0.5, 2]], np.float32)
W = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def test_parameters_and_inputs() -> None:
    got = run(onnxtrain.differentiate(parse(QUADRATIC), wrt=["W", "x"], of="loss"), x=X)
    np.testing.assert_allclose(got["W_grad"], 2 * X.T @ (X @ W), rtol=1e-6)
    np.testing.assert_allclose(got["x_grad"], 2 * (X @ W) @ W.T, rtol=1e-6)
    assert list(got) == ["loss", "W_grad", "x_grad"]


def test_default_is_every_parameter_the_loss_depends_on() -> None:
    model = onnxtrain.differentiate(parse(QUADRATIC))
    assert [o.name for o in model.graph.output] == ["loss", "W_grad"]


def test_the_model_handed_in_is_not_changed() -> None:
    model = parse(QUADRATIC)
    before = model.SerializeToString()
    onnxtrain.differentiate(model)
    assert model.SerializeToString() == before


def test_path_bytes_and_output_file(tmp_path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parse(QUADRATIC), path)
    first = onnxtrain.differentiate(path, output=tmp_path / "grad.onnx")
    second = onnxtrain.differentiate(path.read_bytes())
    assert [n.op_type for n in first.graph.node] == [n.op_type for n in second.graph.node]
    got = run(onnx.load(tmp_path / "grad.onnx"), x=X)
    np.testing.assert_allclose(got["W_grad"], 2 * X.T @ (X @ W), rtol=1e-6)


def test_vector_jacobian_form() -> None:
    model = parse("g (float[N,2] x) => (float[N,3] y) <float[2,3] W = {1,2,3,4,5,6}> "
                  "{ h = MatMul(x, W) y = Tanh(h) }")  # fmt: skip
    got_model = onnxtrain.differentiate(model, wrt=["x", "W"], vjp=True)
    assert [i.name for i in got_model.graph.input] == ["x", "y_grad"]
    seed = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    got = run(got_model, x=X, y_grad=seed)
    inner = seed * (1 - np.tanh(X @ W) ** 2)
    np.testing.assert_allclose(got["x_grad"], inner @ W.T, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["W_grad"], X.T @ inner, rtol=1e-4, atol=1e-6)


def test_differentiating_twice() -> None:
    """The Hessian of sum((xW)²) times a vector is 2·v·WWᵀ."""
    first = onnxtrain.differentiate(parse(QUADRATIC), wrt=["x"], of="loss")
    second = onnxtrain.differentiate(first, wrt=["x"], of="x_grad", vjp=True)
    assert [o.name for o in second.graph.output] == ["loss", "x_grad", "x_grad_1"]
    v = np.array([[1, 0], [0, 1]], np.float32)
    got = run(second, x=X, x_grad_grad=v)
    np.testing.assert_allclose(got["x_grad_1"], 2 * v @ W @ W.T, rtol=1e-5)


def test_one_tensor_used_twice_by_a_node() -> None:
    model = parse("g (float[3] x) => (float y) { s = Mul(x, x) t = Add(s, x) u = Add(t, t) "
                  "y = ReduceSum<keepdims=0>(u) }")  # fmt: skip
    x = np.array([1, 2, 3], np.float32)
    got = run(onnxtrain.differentiate(model, wrt=["x"]), x=x)
    np.testing.assert_allclose(got["x_grad"], 4 * x + 2)


def test_loss_is_the_parameter_itself_and_gradient_is_an_input() -> None:
    model = parse("g (float a, float b) => (float y) { y = Mul(a, b) }")
    got = run(onnxtrain.differentiate(model, wrt=["a", "b"]), a=np.float32([3]).reshape(()),
              b=np.float32([4]).reshape(()))  # fmt: skip
    assert (got["a_grad"], got["b_grad"]) == (4, 3)


def test_integers_stop_the_gradient() -> None:
    model = parse("g (float[3] x) => (float y) { i = Cast<to=7>(x) f = Cast<to=1>(i) s = Mul(f, x) "
                  "y = ReduceSum<keepdims=0>(s) }")  # fmt: skip
    x = np.array([1.5, 2.5, 3.5], np.float32)
    got = run(onnxtrain.differentiate(model, wrt=["x"]), x=x)
    np.testing.assert_allclose(got["x_grad"], [1, 2, 3])


def test_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match=r"'nope'.*'W'"):
        onnxtrain.differentiate(parse(QUADRATIC), wrt=["nope"])
    with pytest.raises(UnknownNameError, match="output named 'sq'"):
        onnxtrain.differentiate(parse(QUADRATIC), of="sq")


def test_unreachable_parameter() -> None:
    with pytest.raises(UnreachableError, match=r"Cannot compute the partial derivative.*'unused'"):
        onnxtrain.differentiate(parse(QUADRATIC), wrt=["W", "unused"])
    got = run(onnxtrain.differentiate(parse(QUADRATIC), wrt=["unused"], allow_unused=True), x=X)
    np.testing.assert_array_equal(got["unused_grad"], np.zeros(3))


def test_loss_must_be_a_scalar() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Mul(x, x) }")
    with pytest.raises(ModelError, match=r"'y' has shape \[3\].*vjp=True"):
        onnxtrain.differentiate(model, wrt=["x"])


def test_a_symbolic_vector_is_no_scalar() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Mul(x, x) }")
    with pytest.raises(ModelError, match=r"'y' has shape \['N'\]"):
        onnxtrain.differentiate(model, wrt=["x"])


BLOCKED = """
g (float[2] x) => (float loss) <float[2] w = {1,2}, float[2] v = {1,2}>
{ a = my.ops.Black(x, w)  b = my.ops.White(a)  c = Add(b, v)  loss = ReduceSum<keepdims=0>(c) }
"""


def test_one_error_lists_every_blocking_node() -> None:
    model = parse(BLOCKED)
    with pytest.raises(NoGradientError) as caught:
        onnxtrain.differentiate(model, wrt=["w", "v"])
    first, second = caught.value.blockers
    assert (first.op_type, second.op_type) == ("Black", "White")
    assert first.domain == "my.ops"
    assert first.parameters == second.parameters == ("w",)
    text = str(caught.value)
    assert "my.ops::Black (opset 1)" in text
    assert "path from the loss: loss → " in text
    for remedy in ("freeze", "no_gradient", "onnxtrain.extend"):
        assert remedy in text


def test_no_gradient_treats_a_node_as_constant() -> None:
    model = parse(BLOCKED)
    for stop in (["White"], ["Black"]):
        with pytest.raises(UnreachableError):
            onnxtrain.differentiate(model, wrt=["w"], no_gradient=stop)
    got = onnxtrain.differentiate(model, wrt=["v"])
    assert got.graph.output[-1].name == "v_grad"


def test_only_what_is_wanted_is_computed() -> None:
    small = onnxtrain.differentiate(parse(QUADRATIC), wrt=["W"])
    both = onnxtrain.differentiate(parse(QUADRATIC), wrt=["W", "x"])
    assert len(small.graph.node) < len(both.graph.node)
    assert "x_grad" not in [o for n in small.graph.node for o in n.output]


def test_custom_gradient() -> None:
    from onnxtrain import extend

    @extend.gradient("White", domain="my.ops")
    def white(op, dy, y, x):
        return dy * 2.0

    @extend.elementwise("Black", domain="my.ops")
    def black(op, dy, y, a, b):
        return dy * b, dy * a

    try:
        model = parse(BLOCKED)
        model.graph.value_info.extend(
            onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "ab"
        )
        got = onnxtrain.differentiate(model, wrt=["w"])
        by_output = {n.output[0]: n for n in got.graph.node}
        assert by_output["w_grad"].op_type == "Mul"
        with pytest.raises(ValueError, match="registered already"):
            extend.gradient("White", domain="my.ops")(white)
    finally:
        extend.unregister("White", "my.ops")
        extend.unregister("Black", "my.ops")
    assert not extend.is_registered("White", "my.ops")


def test_a_rule_that_fails_is_named() -> None:
    from onnxtrain import extend

    @extend.gradient("White", domain="my.ops")
    def broken(op, dy, y, x):
        raise KeyError("oops")

    try:
        model = parse("g (float[2] x) => (float y) { a = my.ops.White(x) "
                      "y = ReduceSum<keepdims=0>(a) }")  # fmt: skip
        with pytest.raises(
            onnxtrain.errors.GradientRuleError, match=r"my.ops::White failed at node"
        ):
            onnxtrain.differentiate(model, wrt=["x"])
    finally:
        extend.unregister("White", "my.ops")


@pytest.mark.parametrize("dtype", ["float16", "double", "bfloat16"])
def test_other_float_types(dtype: str) -> None:
    model = parse(f"g ({dtype}[N,2] x, {dtype}[2,3] w) => ({dtype} y) {{ h = MatMul(x, w) "
                  "r = Tanh(h) y = ReduceMean<keepdims=0>(r) }")  # fmt: skip
    got = onnxtrain.differentiate(model, wrt=["x", "w"])
    onnx.checker.check_model(got, full_check=True)
    kinds = {o.type.tensor_type.elem_type for o in got.graph.output}
    assert len(kinds) == 1
    if dtype != "bfloat16":  # onnxruntime has no bfloat16 MatMul on the CPU
        kind = np.float16 if dtype == "float16" else np.float64
        x, w = np.ones((4, 2), kind), np.ones((2, 3), kind) / 4
        result = run(got, x=x, w=w)
        expected = np.full((2, 3), (1 - np.tanh(0.5) ** 2) / 3)
        np.testing.assert_allclose(result["w_grad"], expected, rtol=5e-3)


def test_no_dead_or_duplicate_nodes() -> None:
    model = onnxtrain.differentiate(parse(QUADRATIC), wrt=["W", "x"])
    used = {i for n in model.graph.node for i in n.input} | {o.name for o in model.graph.output}
    for node in model.graph.node:
        assert any(o in used for o in node.output), f"{node.name} is dead"
    keys = [(n.op_type, tuple(n.input), str(n.attribute)) for n in model.graph.node]
    assert len(keys) == len(set(keys))


def test_a_rule_for_a_function_is_checked_in_float64():
    """The twin in float64 also widens what stands inside model-local functions."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18, "my.ops": 1]>
        g (float[n] x) => (float[n] y) { y = my.ops.Twice (x) }
        <domain: "my.ops", opset_import: ["": 18]>
        Twice (x) => (y) { two = Constant <value_float = 2.0> () y = Mul (x, two) }
    """)
    onnxtrain.extend.gradient("Twice", domain="my.ops")(lambda op, dy, y, x: dy * 2.0)
    try:
        assert onnxtrain.check_gradient(model, wrt=["x"]).ok
        onnxtrain.extend.gradient("Twice", domain="my.ops", replace=True)(
            lambda op, dy, y, x: dy * 3.0
        )
        assert not onnxtrain.check_gradient(model, wrt=["x"]).ok
    finally:
        onnxtrain.extend.unregister("Twice", domain="my.ops")


def test_names_of_nodes_stay_unique_when_differentiated_again() -> None:
    """Two gradients are one value here, so that one of the outputs is a copy."""
    model = parse(
        "g (float[2,3] x, float[3,2] w, float[2] a, float[2] b) => (float y) { h = MatMul(x, w) "
        "s = Add(h, a) t = Add(s, b) q = Mul(t, t) y = ReduceSum<keepdims=0>(q) }"
    )
    once = onnxtrain.differentiate(model, wrt=["a", "b"])
    for name in ("a", "b"):
        once.graph.node.append(
            onnx.helper.make_node("ReduceSum", [f"{name}_grad"], [f"sum_{name}"], keepdims=0)
        )
    once.graph.node.append(onnx.helper.make_node("Add", ["sum_a", "sum_b"], ["z"]))
    once.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, []))
    twice = onnxtrain.differentiate(once, wrt=["a", "b"], of="z")
    names = [node.name for node in twice.graph.node]
    assert len(names) == len(set(names))
    point = {"x": np.ones((2, 3), "f"), "w": np.ones((3, 2), "f"), "a": np.ones(2, "f")}
    result = run(twice, **point, b=np.ones(2, "f"))
    for output in twice.graph.output[-2:]:
        np.testing.assert_allclose(result[output.name], [8.0, 8.0])


def test_a_weight_inside_a_branch_or_a_constant_node_can_be_named() -> None:
    model = parse("""
        g (float[2] x, bool on) => (float loss) {
            v = Constant <value = float[2] {1, 2}> ()
            z = If (on) <
                then_branch = then () => (float[2] a) <float[2] w = {3, 4}> { a = Mul(x, w) },
                else_branch = other () => (float[2] b) { b = Neg(x) }
            >
            y = Mul(z, v)
            loss = ReduceSum<keepdims=0>(y)
        }""")
    result = onnxtrain.differentiate(model, wrt=["w", "v"], of="loss")
    x = np.array([5, 6], np.float32)
    got = run(result, x=x, on=np.array(True))
    np.testing.assert_array_equal(got["w_grad"], [5, 12])
    np.testing.assert_array_equal(got["v_grad"], [15, 24])
    np.testing.assert_array_equal(run(result, x=x, on=np.array(False))["w_grad"], [0, 0])


def test_the_model_that_was_passed_stays_as_it_is() -> None:
    """Names that two branches share are told apart in a copy."""
    model = parse("""
        g (float[2] x, bool on) => (float loss) {
            v = Constant <value = float[2] {1, 2}> ()
            z = If (on) <
                then_branch = then () => (float[2] a) <float[2] w = {3, 4}> { a = Mul(x, w) },
                else_branch = other () => (float[2] b) <float[2] w = {5, 6}> {
                    k = Constant <value = float[2] {1, 2}> () c = Mul(x, k) b = Mul(c, w) }
            >
            y = Mul(z, v)
            loss = ReduceSum<keepdims=0>(y)
        }""")
    before = model.SerializeToString(deterministic=True)
    first = onnxtrain.differentiate(model, vjp=True)
    assert model.SerializeToString(deterministic=True) == before
    assert onnxtrain.differentiate(model, vjp=True) == first


def test_a_transposed_number_is_nothing_to_log_about(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 18]>
        g (float x) => (float y) { t = Transpose(x) y = Mul(t, t) }
    """)
    onnxtrain.differentiate(model, wrt=["x"])
    assert not caplog.records
