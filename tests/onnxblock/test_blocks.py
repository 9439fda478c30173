"""Every elementary block against numpy, at old and new opsets."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import onnxblock
from tests.onnxblock.harness import identity_model, inputs_of, only_standard, outputs_of, run

B = onnxblock.blocks
RNG = np.random.default_rng(0)
X, Y = (RNG.uniform(0.5, 2.0, size=(3, 4)).astype(np.float32) for _ in range(2))


def build(block, names, arrays, opset=18, after=()):
    """A model whose output is what the block gives on the named values."""

    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return block(*names)

    forward = Forward()
    model = identity_model(opset=opset, **arrays)
    model.opset_import.extend(after)
    with onnxblock.base(model):
        name = forward()
    built = forward.to_model_proto()
    assert outputs_of(built) == ([name] if isinstance(name, str) else list(name))
    return built


CASES = {
    "Add": (B.Add(), (X, Y), X + Y, "add_output"),
    "Sub": (B.Sub(), (X, Y), X - Y, "sub_output"),
    "Mul": (B.Mul(), (X, Y), X * Y, "mul_output"),
    "Div": (B.Div(), (X, Y), X / Y, "div_output"),
    "Pow": (B.Pow(3.0), (X,), X**3, "pow_output"),
    "Sigmoid": (B.Sigmoid(), (X,), 1 / (1 + np.exp(-X)), "sigmoid_output"),
    "Log": (B.Log(), (X,), np.log(X), "log_output"),
    "Neg": (B.Neg(), (X,), -X, "neg_output"),
    "Abs": (B.Abs(), (-X,), X, "abs_output"),
    "ReduceMean": (B.ReduceMean(), (X,), X.mean(keepdims=True), "reducemean_output"),
    "ReduceMean scalar": (B.ReduceMean(keepdims=False), (X,), X.mean(), "reducemean_output"),
    "ReduceSum": (B.ReduceSum(), (X,), X.sum(keepdims=True), "reducesum_output"),
    "ReduceSum scalar": (B.ReduceSum(False), (X,), X.sum(), "reducesum_output"),
    "Clip": (B.Clip(0.8, 1.4), (X,), X.clip(0.8, 1.4), "clip_output"),
    "Clip max": (B.Clip(clip_max=1.4), (X,), X.clip(None, 1.4), "clip_output"),
    "Cast": (B.Cast(TensorProto.INT64), (X,), X.astype(np.int64), "cast_output"),
    "ReduceAllL2": (
        B.ReduceAllL2(), (X, Y), np.sqrt([(X**2).sum() + (Y**2).sum()]), "reducealll2_output",
    ),
}  # fmt: skip


@pytest.mark.parametrize("opset", [9, 12, 13, 18, 21])
@pytest.mark.parametrize("name", CASES)
def test_block(name, opset):
    block, inputs, want, token = CASES[name]
    arrays = {f"x{i}": x for i, x in enumerate(inputs)}
    model = build(block, list(arrays), arrays, opset)
    assert only_standard(model)
    assert outputs_of(model)[0].startswith(f"onnx::{token}::")
    node = model.graph.node[-1]
    assert node.name.startswith(f"onnx::{node.op_type}::")
    (got,) = run(model, arrays)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_pow_exponent_is_an_initializer_of_one_float():
    model = build(B.Pow(2.0), ["x"], {"x": X})
    (exponent,) = model.graph.initializer
    assert exponent.name.startswith("onnx::pow_exponent::")
    assert list(exponent.dims) == [1]


def test_constant():
    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return B.Add()(B.Constant(1.5)(), B.Constant(2.0)())

    forward = Forward()
    with onnxblock.empty_base():
        forward()
    np.testing.assert_array_equal(run(forward.to_model_proto(), {})[0], [3.5])


def test_sequence_construct_and_clip_grad_norm():
    class Forward(onnxblock.ForwardBlock):
        def __init__(self, clip):
            super().__init__()
            self._clip = clip

        def build(self):
            return self._clip(B.SequenceConstruct()("x", "y"))

    norm = np.sqrt((X**2).sum() + (Y[:2] ** 2).sum())
    for clip, scale in (
        (onnxblock.optim.ClipGradNorm(1.5), lambda v: v * 1.5 / (norm + 1e-6)),
        (onnxblock.optim.ClipGradNorm(1e6), lambda v: v),
        (onnxblock.optim.ClipGradValue(0.7), lambda v: v.clip(-0.7, 0.7)),
    ):
        forward = Forward(clip)
        with onnxblock.base(identity_model(opset=18, x=X, y=Y[:2])):
            forward()
        model = forward.to_model_proto()
        assert only_standard(model)
        (got,) = run(model, {"x": X, "y": Y[:2]})
        for g, w in zip(got, (X, Y[:2]), strict=True):
            np.testing.assert_allclose(g, scale(w), rtol=1e-5)


def test_pass_through_leaves_the_graph_alone():
    with onnxblock.base(identity_model(x=X)) as accessor:
        before = accessor.model.SerializeToString()
        assert B.PassThrough()("x", "x_out") == ("x", "x_out")
        assert accessor.model.SerializeToString() == before


def test_input_like():
    with onnxblock.base(identity_model(x=X)) as accessor:
        assert B.InputLike("x_out")("again") == "again"
        name = B.InputLike("x")()
        assert inputs_of(accessor.model) == ["x", "again", name]
        want = accessor.model.graph.output[0].type
        assert all(i.type == want for i in accessor.model.graph.input)
        with pytest.raises(LookupError, match="nothing"):
            B.InputLike("nothing")()


def test_label_encoder():
    block = B.LabelEncoder(keys_int64s=[1, 2], values_int64s=[10, 20], default_int64=-7)
    x = np.array([2, 1, 5], np.int64)
    model = build(block, ["x"], {"x": x}, after=[helper.make_opsetid("ai.onnx.ml", 2)])
    np.testing.assert_array_equal(run(model, {"x": x})[0], [20, 10, -7])


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    block = B.Linear(4, 2, bias=bias, alpha=0.5, beta=2.0)
    model = build(block, ["x"], {"x": X})
    values = [numpy_helper.to_array(t) for t in model.graph.initializer]
    want = 0.5 * X @ values[0] + (2.0 * values[1] if bias else 0)
    np.testing.assert_allclose(run(model, {"x": X})[0], want, rtol=1e-5)


def test_a_name_in_use_is_not_taken_again():
    """A model that blocks built in another process may hold the next name already."""
    from onnxtrain.onnxblock import _graph_utils

    number = int(_graph_utils.generate_graph_name("x").rsplit("::", 1)[1])
    model = identity_model(x=X)
    for i in range(1, 9):
        taken = numpy_helper.from_array(X, f"onnx::constant::{number + i}")
        model.graph.initializer.append(taken)
    with onnxblock.base(model) as accessor:
        B.Constant(1.0)()
    names = [t.name for t in accessor.model.graph.initializer]
    assert len(set(names)) == len(names)


def test_an_old_opset_is_named_in_the_error():
    class Forward(onnxblock.ForwardBlock):
        def build(self):
            return onnxblock.optim.ClipGradNorm(1.0)(B.SequenceConstruct()("x"))

    with (
        onnxblock.base(identity_model(opset=12, x=X)),
        pytest.raises(ValueError, match="opset 12"),
    ):
        Forward()()


def test_public_names():
    assert set(onnxblock.__all__) >= {
        "Block", "ForwardBlock", "TrainingBlock", "base", "blocks", "custom_op_library",
        "empty_base", "load_checkpoint_to_model", "loss", "optim", "save_checkpoint",
    }  # fmt: skip
    assert onnx.IR_VERSION >= 10
    for name in ("Add", "Constant", "Linear", "InputLike", "PassThrough"):
        assert getattr(onnxblock.building_blocks, name) is getattr(B, name)
