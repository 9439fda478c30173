"""Sessions compute marked groups in a kernel of our own; the file has none of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import onnxtrain
from onnxtrain.operators import FUSED
from onnxtrain.runtime.files.outline import Outline
from onnxtrain.runtime.fusion import library, operators
from onnxtrain.runtime.session import devices, fusion

Array = np.ndarray[Any, Any]
needs_kernel = pytest.mark.skipif(
    not library.is_available(), reason="fused nodes need numba, and Linux on x86-64 or ARM64"
)

MODELS = {
    "sigmoid and product": "s = Sigmoid(x) y = Mul(x, s)",
    "softmax": "y = Softmax(x)",
    "layer norm": "y = LayerNormalization(x, w, b)",
    "gelu": "y = Gelu(x)",
    "hard swish": "y = HardSwish(x)",
    "elu": "y = Elu(x)",
    "softplus": "y = Softplus(x)",
    "tanh": "t = Tanh(x) y = Mul(t, w)",
    "sinh": "y = Sinh(x)",
    "cosh": "y = Cosh(x)",
    "asinh": "y = Asinh(x)",
    "acosh": "p = Cosh(x) q = Add(p, p) y = Acosh(q)",
    "atanh": "t = Softsign(x) y = Atanh(t)",
    "tan": "y = Tan(x)",
    "a norm by hand": "p = Mul(x, x) m = ReduceMean(p, last) q = Sqrt(m) y = Div(x, q)",
    "a sum that drops its axis": "p = Mul(x, x) m = ReduceMean<keepdims = 0>(p, last)"
    " u = Unsqueeze(m, last) y = Mul(x, u)",
    "softmax of a product": "s = Mul(x, w) y = Softmax(s)",
    "softmax of a mask": "p = Greater(x, b) n = Where(p, x, least) s = Add(n, w) y = Softmax(s)",
    "a choice": "p = Greater(x, b) n = Neg(x) y = Where(p, n, x)",
    "a mask that is a result": "n = Neg(x) p = Greater(n, b) y = Where(p, n, x)",
}


def model_of(nodes: str) -> onnx.ModelProto:
    extra = ", bool[N, 150] p" if "result" in nodes else ""
    return onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[N, 150] x, float[150] w, float[150] b) => (float[N, 150] y{extra})
        <int64[1] last = {{-1}}, float least = {{-3e38}}> {{ {nodes} }}""")


def graded(name: str) -> onnx.ModelProto:
    model = model_of(MODELS[name])
    if name == "a mask that is a result":
        p = onnx.helper.make_tensor_value_info("p", onnx.TensorProto.BOOL, ["N", 150])
        model.graph.output.append(p)
    return onnxtrain.differentiate(model, wrt=["x"], of="y", vjp=True)


def feeds(rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    draw = {"x": (rows, 150), "w": (150,), "b": (150,), "y_grad": (rows, 150)}
    return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in draw.items()}


def run(session: Any, rows: int) -> dict[str, Array]:
    wanted = {i.name for i in session.get_inputs()}
    values = session.run(None, {n: a for n, a in feeds(rows).items() if n in wanted})
    return dict(zip([o.name for o in session.get_outputs()], values))


def is_fused(model: onnx.ModelProto) -> bool:
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    return fusion.fused(outline) is not None


@needs_kernel
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 7, 500])
def test_fused_nodes_give_the_numbers_of_the_operators(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = graded(name)
    assert is_fused(model)
    content = model.SerializeToString()
    found = run(devices.open_session(content), rows)
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    assert not is_fused(model)
    expected = run(devices.open_session(content), rows)
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        assert found[output].dtype == values.dtype
        np.testing.assert_allclose(found[output], values, rtol=2e-5, atol=2e-6)


@needs_kernel
def test_bodies_of_loops_are_fused() -> None:
    torch = pytest.importorskip("torch")
    from onnxtrain.torch import ORTModule

    torch.manual_seed(0)
    layer = torch.nn.LSTM(32, 64, batch_first=True)
    x = torch.randn(16, 5, 32)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    found = torch.autograd.grad(ORTModule(layer)(x)[0].square().sum(), list(layer.parameters()))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_kernel
@pytest.mark.parametrize("shape", [
    (3, 16, 17, 13), (16, 64, 32, 32), (2, 3000, 2, 2), (5, 64, 40), (2, 40, 3, 4, 5),
    (1, 600, 4, 4),
])  # fmt: skip
@pytest.mark.parametrize("is_trained", [True, False])
def test_normalizations_of_batches(
    shape: tuple[int, ...], is_trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is added and a Relu behind; both directions, the same on any number of threads."""
    sizes, channels = ",".join(map(str, ("n", *shape[1:]))), shape[1]
    vectors = ", ".join(f"float[{channels}] {name}" for name in "wbmv")
    normalized = "i, j, k = BatchNormalization<training_mode = 1>" if is_trained else (
        "i = BatchNormalization<epsilon = 0.01>"
    )  # fmt: skip
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{sizes}] x, float[{sizes}] z, {vectors}) => (float[{sizes}] y)
        {{ {normalized}(x, w, b, m, v) s = Add(i, z) y = Relu(s) }}""")
    model = onnxtrain.differentiate(model, wrt=["x", "z", "w", "b"], of="y", vjp=True)
    marked = [n for n in model.graph.node if n.doc_string.startswith(FUSED)]
    assert "BatchNormalization" in {n.op_type for n in marked}
    rng = np.random.default_rng(0)
    fed = {n: rng.standard_normal(shape).astype(np.float32) for n in ("x", "z", "y_grad")}
    fed |= {n: rng.uniform(0.5, 2, channels).astype(np.float32) for n in "wbmv"}

    def results(threads: int) -> list[Array]:
        options = devices.session_options(threads=threads)
        session = devices.open_session(model.SerializeToString(), options)
        wanted = {i.name for i in session.get_inputs()}
        return list(session.run(None, {n: a for n, a in fed.items() if n in wanted}))

    ours, with_two = results(1), results(2)
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    for a, b, plain in zip(ours, with_two, results(1), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max())


@needs_kernel
@pytest.mark.parametrize("hints", ["-cccc", "-rrrr", "ccccc", "-----"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 9, -2])
@pytest.mark.parametrize("row_axes", [1, 2])
@pytest.mark.parametrize("shape", [(4, 4, 4), (4, 4), (1, 4, 4, 4)])
def test_a_wrong_mark_normalizes_no_other_axis(
    hints: str, rank: int, row_axes: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[{",".join("abcd"[: len(shape)])}] x, float[c] w, float[c] b, float[c] v)
        => (float[] y) {{ i = BatchNormalization(x, w, b, b, v) y = Neg(i) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for node, words in zip(model.graph.node, (hints, "- out")):
        node.doc_string = f"{FUSED} 1 2 {rank} {row_axes} {words}"
    rng = np.random.default_rng(0)
    fed = {n: rng.uniform(1, 2, 4).astype(np.float32) for n in "wbv"}
    fed["x"] = rng.standard_normal(shape).astype(np.float32)
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    expected = devices.open_session(model.SerializeToString()).run(None, fed)
    monkeypatch.delenv("ONNXTRAIN_NO_FUSION")
    error = ""
    try:
        (found,) = devices.open_session(model.SerializeToString()).run(None, fed)
    except Exception as caught:  # onnxruntime's errors have no common base class
        found, error = expected[0], str(caught)
    assert not error or "fused node do not have the shapes" in error
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)


def test_a_group_of_which_a_part_is_elsewhere_is_left_alone() -> None:
    model = graded("gelu")
    mark = next(n for n in model.graph.node if n.doc_string.startswith(FUSED))
    mark.doc_string = ""
    words = {n.doc_string.split()[2] for n in model.graph.node if n.doc_string.startswith(FUSED)}
    content = fusion.fused(Outline.of(model.SerializeToString()))  # type: ignore[arg-type]
    if content is not None:
        left = onnx.load_from_string(content)
        assert {n.doc_string.split()[2] for n in left.graph.node if n.doc_string} <= words
    session = devices.open_session(model.SerializeToString())
    assert run(session, 3)["y"].shape == (3, 150)


DROPPED = {
    "last two": ((4, 3, 5, 6), [2, 3]),
    "last, of one element": ((4, 3, 5, 1), [3]),
    "last three": ((7, 3, 5, 6), [-1, -3, -2]),
    "last of many rows": ((60, 70, 40), [2]),
    "all": ((3, 40), [0, 1]),
    "last of nothing": ((0, 3, 5), [2]),
    "last, which is empty": ((4, 3, 0), [2]),
}


@needs_kernel
@pytest.mark.parametrize("case", DROPPED)
def test_sums_of_rows_lose_their_axes_in_the_kernel(case: str) -> None:
    """No node behind the group drops them."""
    shape, axes = DROPPED[case]
    open_shape = ", ".join("nmkl"[: len(shape)])
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[{open_shape}] x) => (float[] p, float[] s)
        {{ p = Mul(x, x) s = ReduceSum<keepdims = 0>(p, axes) }}""")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(axes), "axes"))
    for node in model.graph.node:
        node.doc_string = f"{FUSED} 1 2 {len(shape)} {len(axes)} -- out"
    outline = Outline.of(model.SerializeToString())
    assert outline is not None
    (written,) = [n for nodes in fusion.fused_groups(outline).values() for n in nodes]
    assert onnx.NodeProto.FromString(written).op_type == "Elementwise"
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    p, s = devices.open_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(p, x * x)
    np.testing.assert_allclose(s, (x * x).sum(tuple(axes)), rtol=1e-5, atol=1e-5)


BAD_MARKS = [
    "", "x", "1", "1 2", "1 2 2 1", "1 x 2 1 --", "1 2 x 1 --", "1 1 2 1 ?? out", "9" * 40,
    "1 1 2 9 -- out", "1 1 2 x -- out", "1 1 2 2 -- out", "1 1 2 1 bb out",
    "1 1 2 1 nn out", "1 1 2 1 rr out", "1 1 0 1 -- out", "1 1 -5 1 -- out", "é",
]  # fmt: skip


REDUCTIONS = {
    "the last axis": "p = Mul(x, x) s = ReduceSum<keepdims = 0>(p, last) y = Neg(x)",
    "an axis before": "p = Mul(x, x) s = ReduceSum(p, first) y = Sub(x, s)",
    "an axis that another rank has last": "p = Neg(i) s = ReduceSum(p, second) y = Neg(x)",
}


@needs_kernel
@pytest.mark.parametrize("mark", ["1 2 {} 1 -- out", "1 2 {} 2 -- out", "1 2 {} 1 rr out"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 9, -2])
@pytest.mark.parametrize("case", REDUCTIONS)
def test_a_wrong_mark_reduces_no_other_axis(
    case: str, rank: int, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[N, 6] x, float[2, 3, 4] i) => (float[N, 6] y, float[] s)
        <int64[1] last = {{-1}}, int64[1] first = {{0}}, int64[1] second = {{1}}>
        {{ {REDUCTIONS[case]} }}""")
    model.graph.output[1].type.tensor_type.ClearField("shape")
    for constant in model.graph.initializer:  # as bytes, as whoever writes a model stores them
        array = onnx.numpy_helper.to_array(constant)
        constant.CopyFrom(onnx.numpy_helper.from_array(array, constant.name))
    for node in model.graph.node[:2]:
        node.doc_string = f"{FUSED} {mark.format(rank)}"
    rng = np.random.default_rng(0)
    values = {"x": (6, 6), "i": (2, 3, 4)}
    fed = {n: rng.standard_normal(shape).astype(np.float32) for n, shape in values.items()}
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    expected = devices.open_session(model.SerializeToString()).run(None, fed)
    monkeypatch.delenv("ONNXTRAIN_NO_FUSION")
    error = ""
    try:
        found = devices.open_session(model.SerializeToString()).run(None, fed)
    except Exception as caught:  # onnxruntime's errors have no common base class
        found, error = expected, str(caught)
    assert not error or "fused node do not have the shapes" in error
    for ours, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("mark", BAD_MARKS)
def test_a_wrong_mark_changes_no_number(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = graded("sigmoid and product")
    for node in model.graph.node:
        node.doc_string = f"{FUSED} {mark}"
    monkeypatch.setenv("ONNXTRAIN_NO_FUSION", "1")
    expected = run(devices.open_session(model.SerializeToString()), 4)
    monkeypatch.delenv("ONNXTRAIN_NO_FUSION")
    error = ""
    try:
        found = run(devices.open_session(model.SerializeToString()), 4)
    except Exception as caught:  # onnxruntime's errors have no common base class
        found, error = {}, str(caught)
    assert found or "fused node do not have the shapes" in error
    for output, values in found.items():
        np.testing.assert_allclose(values, expected[output], rtol=2e-5, atol=2e-6)


def test_without_the_kernel_operators_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = graded("gelu").SerializeToString()
    expected = run(devices.open_session(content), 9)
    monkeypatch.setattr(devices, "register", lambda *_: False)
    found = run(devices.open_session(content), 9)
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=2e-5, atol=2e-6)


@needs_kernel
def test_options_learn_of_operators_as_models_need_them() -> None:
    options = devices.session_options(threads=1)
    contents = [graded("gelu").SerializeToString() for _ in range(2)]
    for needed in (operators.OPERATORS[:1], operators.OPERATORS[:1], operators.OPERATORS[1:4]):
        devices._register(options, needed, is_lent=False)
        session = devices.session_of(
            devices.Form(fusion.fused(Outline.of(contents[0])) or b"", [], needed), options
        )
        assert run(session, 4)
    assert devices._registered[options] == set(operators.OPERATORS[:4])


@needs_kernel
def test_options_of_a_user_are_not_changed() -> None:
    content = graded("gelu").SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    devices.open_session(content, devices.session_options(options))
    node = onnx.helper.make_node(library.OPERATOR, ["x"], ["y"], domain=library.DOMAIN)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [value("x", 1, [1])], [value("y", 1, [1])])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(library.DOMAIN, 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"onnxtrain\.fused|not a registered"):
        onnxruntime.InferenceSession(model.SerializeToString(), options)


@needs_kernel
def test_one_object_of_options_makes_several_sessions() -> None:
    options = devices.session_options()
    for name in ("gelu", "softmax", "gelu"):
        session = devices.open_session(graded(name).SerializeToString(), options)
        assert run(session, 2)["y"].shape == (2, 150)


@needs_kernel
def test_a_process_with_fused_sessions_ends_in_peace() -> None:
    program = (
        "import numpy as np, onnx, onnx.parser, onnxtrain\n"
        "from onnxtrain.runtime.session.devices import open_session\n"
        'm = onnx.parser.parse_model(\'<ir_version: 9, opset_import: ["": 20]> g (float[64, 256] x)'
        " => (float[64, 256] y) { s = Sigmoid(x) y = Mul(x, s) }')\n"
        "g = onnxtrain.differentiate(m, wrt=['x'], vjp=True)\n"
        "kept = open_session(g.SerializeToString())\n"
        "x = np.ones((64, 256), np.float32)\n"
        "print(kept.run(None, {'x': x, 'y_grad': x})[0][0, 0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(0.731059, abs=1e-5)
