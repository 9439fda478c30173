"""Old operators, before and after, on onnxruntime."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxtrain
from onnxtrain.errors import ModelError

from .compare import assert_same, normalized, op_model, operators, run_ort, run_reference

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    """A test draws the same whichever ones its process has run before."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def f(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


@dataclasses.dataclass
class Old:
    op: str
    opset: int
    inputs: tuple
    attrs: dict
    outputs: int = 1
    constants: tuple = ()
    emits: str = ""
    reference: bool = False

    @property
    def id(self) -> str:
        attrs = ",".join(f"{k}={v}" for k, v in self.attrs.items()).replace(" ", "")
        return f"{self.op}-{self.opset}({attrs})"


def old(op: str, opset: int, *inputs: Any, **kw: Any) -> Old:
    options = {k[1:]: kw.pop(k) for k in list(kw) if k.startswith("_")}
    return Old(op, opset, inputs, kw, **options)


X = f(2, 3, 4)
IMAGE = f(2, 3, 6, 5)
REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
SCALES = np.array([1, 1, 2, 3], np.float32)

CASES = [
    *(old(op, v, X, axis=a) for op in ("Softmax", "LogSoftmax", "Hardmax") for v, a in
      ((7, 1), (9, 2), (11, 0), (11, -1), (11, -2), (12, 1))),
    old("Softmax", 7, f(2, 3, 1, 1)),
    old("Softmax", 12, X),
    old("Softmax", 13, X),
    old("Softmax", 15, X, axis=1),
    *(old(op, v, X, axes=[1], keepdims=k) for op in REDUCTIONS for v, k in
      ((7, 0), (11, 1), (12, 0), *(((13, 0), (17, 1)) if op != "ReduceSum" else ()))),
    old("ReduceLogSum", 11, np.abs(X), axes=[-1]),
    old("ReduceMean", 11, X),
    old("ReduceSum", 11, X, keepdims=0),
    old("ReduceSum", 13, X, i(1), _constants=(1,), keepdims=0),
    old("ReduceSum", 17, X, i(0, 2)),
    *(old("Squeeze", v, f(1, 3, 1), axes=[0]) for v in (7, 11, 12)),
    old("Squeeze", 11, f(1, 3, 1)),
    old("Squeeze", 13, f(1, 3, 1), i(-1), _constants=(1,)),
    *(old("Unsqueeze", v, X, axes=[0, 3]) for v in (7, 11, 12)),
    old("Unsqueeze", 15, X, i(1), _constants=(1,)),
    old("Clip", 7, X, min=-1.0, max=0.5),
    old("Clip", 9, X, max=0.5),
    old("Clip", 10, X, min=0.0),
    old("Clip", 7, X),
    old("Clip", 11, X, np.array(-1, np.float32), None),
    old("Pad", 7, X, pads=[0, 1, 0, 1, 0, 2], value=1.5),
    old("Pad", 10, X, pads=[0, 1, 0, 0, 1, 0], mode="reflect"),
    old("Pad", 7, X, pads=[0, 0, -1, 0, 1, 0], mode="edge"),
    old("Pad", 11, X, i(0, 1, 0, 1, 0, 2), np.array(2, np.float32), _constants=(1, 2)),
    old("Slice", 7, X, starts=[1, 0], ends=[3, -1], axes=[1, 2]),
    old("Slice", 9, X, starts=[0, 1], ends=[1, 100]),
    old("Slice", 10, X, i(1), i(3), i(2), i(2)),
    old("TopK", 7, X, k=2, _outputs=2),
    old("TopK", 9, X, k=2, axis=1, _outputs=2),
    old("TopK", 10, X, i(3), _outputs=2),
    old("TopK", 11, X, i(2), _outputs=2, largest=0),
    old("Split", 7, f(2, 6), axis=1, split=[2, 4], _outputs=2),
    old("Split", 11, f(4, 6), _outputs=2),
    old("Split", 13, f(2, 6), i(1, 5), axis=1, _outputs=2),
    old("Split", 15, f(2, 6), axis=-1, _outputs=3),
    old("Dropout", 7, X, ratio=0.3),
    old("Dropout", 10, X),
    old("Dropout", 10, X, _outputs=2, _reference=True),
    old("Dropout", 12, X, np.array(0.4, np.float32)),
    old("BatchNormalization", 7, IMAGE, f(3), f(3), f(3), np.abs(f(3)), epsilon=1e-2),
    old("BatchNormalization", 9, IMAGE, f(3), f(3), f(3), np.abs(f(3))),
    old("BatchNormalization", 14, IMAGE, f(3), f(3), f(3), np.abs(f(3))),
    old("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 2.0]),
    old("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
    old("Upsample", 9, IMAGE, SCALES, mode="nearest", _constants=(1,)),
    old("Upsample", 9, IMAGE, SCALES, mode="linear"),
    old("Resize", 10, IMAGE, SCALES, mode="linear"),
    old("Resize", 10, IMAGE, np.array([1, 1, 0.5, 1.5], np.float32), mode="nearest"),
    old("Resize", 11, IMAGE, f(0), SCALES, mode="linear", _constants=(1, 2)),
    old("Resize", 11, IMAGE, f(0), f(0), i(2, 3, 9, 7), mode="cubic", _constants=(1, 2, 3)),
    old("Resize", 11, IMAGE, f(0), SCALES, nearest_mode="floor",
        coordinate_transformation_mode="tf_half_pixel_for_nn", _constants=(1, 2)),
    old("Resize", 11, IMAGE, np.array([0, 0, .1, .2, 1, 1, .8, .9], np.float32), f(0),
        i(2, 3, 4, 4), mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=1.0, _constants=(1, 2, 3)),
    old("Resize", 13, IMAGE, None, SCALES, mode="linear", _constants=(2,)),
    old("RoiAlign", 10, f(1, 2, 8, 8), np.array([[0, 0, 5, 6], [1, 2, 7, 7]], np.float32),
        i(0, 0), output_height=3, output_width=3, sampling_ratio=2),
    old("RoiAlign", 16, f(1, 2, 8, 8), np.array([[0, 0, 5, 6]], np.float32), i(0),
        output_height=2, output_width=3, sampling_ratio=2),
    old("Scatter", 9, f(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), f(2, 3)),
    old("Scatter", 10, f(3, 3), np.array([[1, 0], [0, 2]]), f(2, 2), axis=1),
    old("ScatterElements", 11, f(3, 3), np.array([[1, 0], [0, 2]]), f(2, 2), axis=1),
    old("Gemm", 7, f(2, 3), f(3, 4), f(4), alpha=0.5),
    old("Gemm", 9, f(3, 2), f(3, 4), f(2, 1), transA=1),
    old("Flatten", 9, X, axis=2),
    old("MaxPool", 8, IMAGE, kernel_shape=[2, 2], _outputs=2),
    old("AveragePool", 7, IMAGE, kernel_shape=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
    old("AveragePool", 10, IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    old("ConvTranspose", 7, IMAGE, f(3, 2, 3, 3), strides=[2, 2], output_padding=[1, 1]),
    old("PRelu", 7, IMAGE, f(3, 1, 1)),
    old("Pow", 7, np.abs(X), f(4)),
    old("ArgMax", 7, X, axis=1, keepdims=0),
    old("Gather", 7, X, i(1, 0), axis=1),
    old("OneHot", 9, i(0, 2), i(3), np.array([0, 1], np.float32)),
    old("DepthToSpace", 7, f(1, 8, 2, 3), blocksize=2),
    old("LSTM", 7, f(3, 2, 4), f(1, 20, 4), f(1, 20, 5), hidden_size=5, _outputs=3),
    old("GRU", 7, f(3, 2, 4), f(1, 15, 4), f(1, 15, 5), hidden_size=5, linear_before_reset=1),
    old("QuantizeLinear", 10, X, np.array(0.1, np.float32), np.array(5, np.uint8)),
    old("Cast", 7, X, to=7),
    old("Max", 8, X, f(4)),
    old("NonMaxSuppression", 10, f(1, 5, 4, low=0), f(1, 1, 5), i(3)),
    old("CumSum", 11, X, np.array(1, np.int64)),
    old("Einsum", 12, f(2, 3), f(3, 4), equation="ij,jk->ik"),
    old("LpPool", 11, IMAGE, kernel_shape=[2, 2], p=2),
    old("Mod", 10, i(5, -7), i(3, 3)),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_same_before_and_after(case: Old, dynamic: bool) -> None:
    model, feeds = op_model(
        case.op, list(case.inputs), opset=case.opset, outputs=case.outputs,
        constants=case.constants, dynamic=dynamic, **case.attrs,
    )  # fmt: skip
    run = run_reference if case.reference else run_ort
    assert_same(model, normalized(model), feeds, run=run)


def test_batch_normalization_in_training_mode_keeps_its_statistics() -> None:
    x, scale, bias, mean, var = IMAGE, f(3), f(3), f(3), np.abs(f(3))
    model, feeds = op_model("BatchNormalization", [x, scale, bias, mean, var], opset=9, outputs=5)
    del model.graph.output[3:]
    y, running_mean, running_var = run_reference(normalized(model), feeds)
    batch_mean, batch_var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    column = (slice(None), None, None)
    expected = (x - batch_mean[column]) / np.sqrt(batch_var[column] + 1e-5)
    np.testing.assert_allclose(y, expected * scale[column] + bias[column], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(running_mean, 0.9 * mean + 0.1 * batch_mean, rtol=1e-5)
    np.testing.assert_allclose(running_var, 0.9 * var + 0.1 * batch_var, rtol=1e-5)


def test_saved_statistics_of_old_batch_normalization_are_refused() -> None:
    model, _ = op_model(
        "BatchNormalization", [IMAGE, *(f(3) for _ in range(4))], opset=9, outputs=5
    )
    with pytest.raises(ModelError, match="output 3 is used"):
        normalized(model)


def test_batch_normalization_per_activation() -> None:
    arrays = [f(2, 3, 4), f(3, 4), f(3, 4), f(3, 4), np.abs(f(3, 4))]
    model, feeds = op_model("BatchNormalization", arrays, opset=7, spatial=0)
    x, scale, bias, mean, var = arrays
    (y,) = run_ort(normalized(model), feeds)
    np.testing.assert_allclose(
        y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5
    )


def test_old_dropout_mask_has_the_type_of_the_data() -> None:
    model, feeds = op_model("Dropout", [X], opset=7, outputs=2)
    after = normalized(model)
    y, mask = run_ort(after, feeds)
    np.testing.assert_array_equal(y, X)
    assert mask.dtype == np.float32


def test_experimental_operators() -> None:
    x = f(1, 3, 2, 2)
    model, feeds = op_model("ImageScaler", [x], opset=8, scale=2.0, bias=[1.0, 2.0, 3.0])
    (y,) = run_ort(normalized(model), feeds)
    np.testing.assert_allclose(y, x * 2 + np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1))


def test_branches_are_raised_too_and_names_survive() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 7, opset_import: ["": 11, "com.microsoft": 1]>
        g (float[N, 3] x, bool c) => (float[N, 3] y) <float[3] weight = {1, 2, 3}> {
            h = Mul (x, weight)
            y = If (c) <
                then_branch = t () => (float[N, 3] o) {
                    two = Constant <value = float {2}> ()
                    scaled = Mul (h, two)
                    s = ReduceSum <axes = [1]> (scaled)
                    o = Add (scaled, s)
                },
                else_branch = e () => (float[N, 3] o) {
                    two = Constant <value = float {3}> ()
                    scaled = Mul (h, two)
                    o = Softmax (scaled)
                }
            >
        }""")
    model.doc_string, model.graph.doc_string = "a model", "a graph"
    model.metadata_props.add(key="author", value="someone")
    after = normalized(model)
    for c in (True, False):
        assert_same(model, after, {"x": f(2, 3), "c": np.array(c)})
    names = [t.name for t in after.graph.initializer]
    assert names[:3] == ["weight", "two", "two_1"]
    assert after.doc_string == "a model"
    assert after.graph.doc_string == "a graph"
    assert {p.key: p.value for p in after.metadata_props} == {"author": "someone"}
    assert [o.domain for o in after.opset_import] == [""]
    for node in after.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                typed = {v.name for v in (*attribute.g.value_info, *attribute.g.output)}
                assert {o for n in attribute.g.node for o in n.output} <= typed


def test_initializers_that_are_inputs_leave_the_inputs() -> None:
    model, feeds = op_model("Gemm", [f(2, 3), f(3, 4), f(4)], opset=8, ir_version=3)
    for name in ("x1", "x2"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(feeds[name], name))
    after = normalized(model)
    assert [i.name for i in after.graph.input] == ["x0"]
    assert_same(model, after, {"x0": feeds["x0"]})


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17])
def test_every_old_opset_becomes_18(opset: int) -> None:
    model, feeds = op_model("Relu", [X], opset=opset)
    after = normalized(model)
    assert after.opset_import[0].version == 18
    assert_same(model, after, feeds)


@pytest.mark.parametrize("opset", [18, 19, 20, 21])
def test_versions_in_the_range_are_kept(opset: int) -> None:
    model, _ = op_model("Relu", [X], opset=opset)
    assert normalized(model).opset_import[0].version == opset


def test_before_opset_7_the_onnx_converter_helps() -> None:
    model, feeds = op_model("Add", [f(2, 3, 4), f(4)], opset=6, broadcast=1)
    (y,) = run_ort(normalized(model), feeds)
    np.testing.assert_allclose(y, feeds["x0"] + feeds["x1"])


def test_what_the_onnx_converter_cannot_do_is_said() -> None:
    model, _ = op_model("Add", [f(2, 3, 4), f(3)], opset=6, broadcast=1, axis=1)
    with pytest.raises(ModelError, match="opset 7 or newer"):
        normalized(model)


@pytest.mark.parametrize("lengths", [None, [4, 2, 1], [1, 4, 3]])
@pytest.mark.parametrize("directions", ["", "directions = [0, 1],", "directions = [1, 0],"])
def test_scan_of_opset_8(lengths: list[int] | None, directions: str) -> None:
    """It runs over a batch, and each sequence has its own length."""
    operand, given = ("n, ", ", int64[3] n") if lengths else ('"", ', "")
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["": 8]>
        g (float[3, 2] s, float[3, 4, 2] x, float[3, 4, 2] z, float[2] w{given})
            => (float[3, 2] t, float[3, 4, 2] y) {{
            t, y = Scan <num_scan_inputs = 2, {directions} body = b
                (float[2] a, float[2] c, float[2] e) => (float[2] d, float[2] f) {{
                p = Mul (c, w) q = Mul (p, e) d = Add (a, q) f = Tanh (d) }}> ({operand} s, x, z)
        }}""")
    feeds = {"s": f(3, 2), "x": f(3, 4, 2), "z": f(3, 4, 2), "w": f(2)}
    if lengths:
        feeds["n"] = np.array(lengths)
    after = normalized(model)
    for ours, theirs in zip(run_ort(after, feeds), run_ort(model, feeds)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    gradient = onnxtrain.differentiate(model, wrt=["s", "x", "w"], vjp=True)
    seeds = {"t_grad": f(3, 2), "y_grad": f(3, 4, 2)}
    found = run_ort(gradient, {**feeds, **seeds})[2:]
    for name, value in zip(("s", "x", "w"), found):
        direction = f(*feeds[name].shape)
        difference = 0.0
        for sign in (1, -1):
            moved = {**feeds, name: feeds[name] + np.float32(sign * 2e-3) * direction}
            t, y = run_ort(model, moved)
            pairs = ((t, "t_grad"), (y, "y_grad"))
            difference += sign * sum(float((v.astype(float) * seeds[n]).sum()) for v, n in pairs)
        np.testing.assert_allclose(
            (value * direction).sum(), difference / 4e-3, rtol=5e-3, atol=5e-3
        )


def test_softmax_stays_one_node_where_the_meaning_is_the_same() -> None:
    for shape, axis in (((2, 3), 1), ((2, 3, 4), 2), ((2, 3, 1, 1), 1)):
        model, _ = op_model("Softmax", [f(*shape)], opset=9, axis=axis)
        assert operators(normalized(model)) == {"Softmax"}


def test_a_small_weight_of_the_oldest_files_is_found() -> None:
    """IR 3: weights are inputs too, and the onnx converter looks for them there."""
    model = onnx.parser.parse_model("""
        <ir_version: 3, opset_import: ["": 6]>
        g (float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,2,2] y)
        <float[1,1,2,2] w = {1, 2, 3, 4}> { y = Conv(x, w) }
    """)
    assert normalized(model).opset_import[0].version == 18
