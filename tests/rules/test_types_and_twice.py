"""What every rule must do besides being right: keep element types, and be differentiable again."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain

from .harness import Case, arrays_of, feeds_of, forward_model, run_ort, run_reference

FAMILIES = (
    "activations", "einsum", "elementwise", "indexing", "linear", "losses", "movement",
    "normalization", "randomness", "reductions", "signal", "softmax",
)  # fmt: skip


def _cases_of(*families: str) -> list[Case]:
    modules = (importlib.import_module(f"tests.rules.cases_{family}") for family in families)
    return [case for module in modules for case in module.CASES]


CASES = _cases_of(*FAMILIES)
# Of the others onnxruntime lacks half-precision kernels, and crashes on some (Split).
HALF = _cases_of("activations", "elementwise", "losses", "normalization", "reductions", "softmax")


def _first_of_each(cases: list[Case]) -> list[Case]:
    """One case per operator and number of inputs: types do not depend on shapes."""
    chosen = {(c.op, len(c.inputs), c.opset, tuple(c.attrs)): c for c in reversed(cases)}
    return list(chosen.values())[::-1]


def _retyped(c: Case, kind: int) -> onnx.ModelProto | None:
    """The model of a case with all its float32 operands in another type, if the schema allows."""
    arrays = arrays_of(c)
    model = forward_model(c, arrays, np.float32, None, c.dynamic)
    for value in model.graph.input:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    try:
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return None
    return model


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "DOUBLE"])
@pytest.mark.parametrize("c", _first_of_each(CASES), ids=lambda c: c.id)
def test_element_types_are_kept(c: Case, kind: str) -> None:
    wrt = [f"x{i}" for i, s in enumerate(c.inputs) if s is not None and s.grad]
    model = _retyped(c, getattr(TensorProto, kind))
    if model is None or not wrt:
        pytest.skip(f"{c.op} is not defined for {kind}")
    of = [o.name for o in model.graph.output if o.type.tensor_type.elem_type in (1, 10, 11, 16)]
    if not of or not all(o.type.tensor_type.HasField("shape") for o in model.graph.output):
        pytest.skip("no float output, or one of unknown rank")
    result = onnxtrain.differentiate(model, wrt=wrt, of=of, vjp=True, allow_unused=True)
    onnx.checker.check_model(result, full_check=True)
    types = {o.name: o.type.tensor_type.elem_type for o in result.graph.output}
    given = {i.name: i.type.tensor_type.elem_type for i in result.graph.input}
    assert all(types[f"{name}_grad"] == given[name] for name in wrt)


@pytest.mark.parametrize("c", _first_of_each(HALF), ids=lambda c: c.id)
def test_half_precision_runs(c: Case) -> None:
    """The gradient in float16 on onnxruntime, against the same in float32."""
    wrt = [f"x{i}" for i, s in enumerate(c.inputs) if s is not None and s.grad]
    half, single = (_retyped(c, kind) for kind in (TensorProto.FLOAT16, TensorProto.FLOAT))
    if half is None or single is None or not wrt:
        pytest.skip(f"{c.op} is not defined for float16")
    names = [o.name for o in single.graph.output]
    run = run_reference if c.reference else run_ort
    shapes = {n: np.shape(o) for n, o in zip(names, run(single, _feeds(c, np.float32)))}
    results = []
    for model, dtype in ((half, np.float16), (single, np.float32)):
        kinds = {o.name: o.type.tensor_type.elem_type for o in model.graph.output}
        of = [name for name, kind in kinds.items() if kind in (1, 10)]
        if not of:
            pytest.skip("no float output")
        graph = onnxtrain.differentiate(model, wrt=wrt, of=of, vjp=True, allow_unused=True)
        feeds = _feeds(c, dtype)
        for o in of:
            feeds[f"{o}_grad"] = np.ones(shapes[o], helper.tensor_dtype_to_np_dtype(kinds[o]))
        results.append(run_ort(graph, feeds)[-len(wrt) :])
    for low, high in zip(*results):
        np.testing.assert_allclose(low.astype(np.float32), high, rtol=0.03, atol=0.03)


def _feeds(c: Case, dtype: type) -> dict[str, np.ndarray]:
    """The inputs of a case; float32 ones are rounded to float16 first, so that both runs agree."""
    rounded = {}
    for name, array in feeds_of(c, arrays_of(c), np.float32).items():
        is_float = array.dtype.kind == "f"
        rounded[name] = array.astype(np.float16).astype(dtype) if is_float else array
    return rounded


RANDOM = {"Dropout", "Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
TWICE = [c for c in CASES if c.opset >= 18 and c.op not in RANDOM]


@pytest.mark.parametrize("c", _first_of_each(TWICE), ids=lambda c: c.id)
def test_second_derivative(c: Case) -> None:
    """d/dx of ⟨v, ∇loss(x)⟩ against the central difference of ∇loss along a direction."""
    rng = np.random.default_rng(5)
    arrays = arrays_of(c)
    wrt = [f"x{i}" for i, s in enumerate(c.inputs) if s is not None and s.grad]
    run, dtype, step, tolerance = (
        (run_reference, np.float64, 1e-5, 1e-4)
        if c.reference
        else (run_ort, np.float32, 1e-2, 3e-2)
    )
    plain = run(forward_model(c, arrays, dtype, None, False),
                          feeds_of(c, arrays, dtype))  # fmt: skip
    if not wrt or all(np.asarray(o).dtype != dtype for o in plain):
        pytest.skip("nothing to differentiate")
    weights = [
        rng.uniform(0.5, 1.5, np.shape(o)) if np.asarray(o).dtype == dtype else None for o in plain
    ]
    model = forward_model(c, arrays, dtype, weights, False)
    # loss² makes the second derivative differ from zero also for linear operators
    model.graph.node.append(helper.make_node("Mul", ["loss", "loss"], ["squared"], name="square"))
    model.graph.output[0].name = "squared"
    once = onnxtrain.differentiate(model, wrt=wrt, of="squared", allow_unused=True)
    terms = []
    for name in wrt:
        vector = rng.uniform(-1, 1, arrays[int(name[1:])].shape)
        once.graph.initializer.append(numpy_helper.from_array(vector.astype(dtype), f"v_{name}"))
        product, total = f"vg_{name}", f"s_{name}"
        once.graph.node.extend(
            [
                helper.make_node("Mul", [f"{name}_grad", f"v_{name}"], [product], name=product),
                helper.make_node("ReduceSum", [product], [total], keepdims=0, name=total),
            ]
        )
        terms.append(total)
    once.graph.node.append(helper.make_node("Sum", terms, ["dot"], name="dot_sum"))
    del once.graph.output[:]
    once.graph.output.append(
        helper.make_tensor_value_info("dot", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [])
    )
    twice = onnxtrain.differentiate(once, wrt=wrt, of="dot", allow_unused=True)
    grads = run(twice, feeds_of(c, arrays, dtype))[1:]
    direction = {n: rng.uniform(-1, 1, arrays[int(n[1:])].shape) for n in wrt}
    analytic = sum(float(np.sum(g * direction[n])) for n, g in zip(wrt, grads))
    values = []
    for move in (step, -step):
        moved = [
            a + move * direction[f"x{i}"] if f"x{i}" in direction else a
            for i, a in enumerate(arrays)
        ]
        values.append(float(run(once, feeds_of(c, moved, dtype))[0]))
    numeric = (values[0] - values[1]) / (2 * step)
    np.testing.assert_allclose(analytic, numeric, rtol=tolerance, atol=tolerance)


def test_what_is_drawn_trains_what_reads_it() -> None:
    """Multinomial passes no gradient on; the row that was drawn gets it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N,4] x) => (float[N,1] y) <float[4,1] table = {1, 2, 3, 4}, int64[1] one = {1}> {
            drawn = Multinomial<sample_size = 1, dtype = 7>(x)
            row = Squeeze(drawn, one)
            y = Gather<axis = 0>(table, row)
        }""")
    gradient = onnxtrain.differentiate(model, wrt=["table", "x"], vjp=True, allow_unused=True)
    x = np.zeros((50, 4), np.float32)
    y, dtable, dx = run_ort(gradient, {"x": x, "y_grad": np.ones((50, 1), np.float32)})
    np.testing.assert_array_equal(dtable[:, 0], [(y == k).sum() for k in (1, 2, 3, 4)])
    assert not dx.any()
