"""Training blocks: both generations, the seeds' snippets, names, orders, modes."""

import json
import os

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import onnxblock
from onnxtrain.onnxblock import _graph_utils, model_accessor
from tests.onnxblock.harness import identity_model, inputs_of, mlp, only_standard, outputs_of, run


class MseTraining(onnxblock.TrainingBlock):
    def build(self, output):
        return onnxblock.loss.MSELoss()(output), output


def arrays_of(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def zeros(model, names):
    shapes = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
    }
    return {n: np.zeros(shapes[n], np.float32) for n in names}


def build_mse(opset=18):
    model = mlp(opset=opset)
    block = MseTraining()
    for name in ("W1", "b1", "W2"):
        block.requires_grad(name)
    block.requires_grad("b2", False)
    with onnxblock.base(model) as accessor:
        loss, _ = block("out")
        assert inputs_of(accessor.model)[0] == "x"
        assert outputs_of(accessor.model)[0] == loss
    return model, block, loss


def torch_gradients(values, x, target, half=0.5):
    p = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
    h = torch.relu(torch.tensor(x) @ p["W1"] + p["b1"]) * half
    loss = torch.nn.functional.mse_loss(h @ p["W2"] + p["b2"], torch.tensor(target))
    loss.backward()
    return loss.item(), {n: v.grad.numpy() for n, v in p.items()}


@pytest.mark.parametrize("opset", [9, 13, 18, 21])
def test_training_block(opset):
    user, block, loss = build_mse(opset)
    assert inputs_of(user) == ["x"], "the user's model stays as it was"
    training, evaluation = block.to_model_proto()
    parameters = ["W1", "b1", "W2", "b2"]
    trainable = parameters[:3]
    buffers = [f"{n}_grad.accumulation.buffer" for n in trainable]
    assert inputs_of(training) == ["x", "target", *parameters, *buffers, "lazy_reset_grad"]
    assert outputs_of(training) == [
        loss, "out", *(f"{n}_grad.accumulation.out" for n in trainable),
    ]  # fmt: skip
    assert inputs_of(evaluation) == ["x", "target", *parameters]
    assert outputs_of(evaluation) == [loss, "out"]
    assert evaluation.opset_import[0].version == opset
    assert only_standard(training)
    assert only_standard(evaluation)
    onnx.checker.check_model(training, full_check=True)
    onnx.checker.check_model(evaluation, full_check=True)
    meta = json.loads({p.key: p.value for p in training.metadata_props}["onnxtrain.artifact"])
    assert meta == {
        "version": 1, "kind": "training", "user_inputs": ["x", "target"],
        "user_outputs": [loss, "out"], "trainable": trainable, "frozen": ["b2"],
        "gradients": {n: f"{n}_grad" for n in trainable}, "states": {}, "random_nodes": [],
    }  # fmt: skip
    produced = {o for n in training.graph.node for o in n.output}
    assert {f"{n}_grad" for n in trainable} <= produced
    assert "b2_grad" not in produced

    rng = np.random.default_rng(5)
    x = rng.normal(size=(7, 4)).astype(np.float32)
    target = rng.normal(size=(7, 3)).astype(np.float32)
    values = arrays_of(user)
    half = values.pop("half")
    want_loss, want = torch_gradients(values, x, target, float(half[0]))
    feeds = {"x": x, "target": target, **values}
    old = zeros(training, buffers)
    first = run(training, {**feeds, **old, "lazy_reset_grad": np.array([True])})
    np.testing.assert_allclose(first[0], want_loss, rtol=1e-5)
    assert first[0].shape == ()
    for got, name in zip(first[2:], trainable, strict=True):
        np.testing.assert_allclose(got, want[name], rtol=1e-4, atol=1e-6)
    kept = dict(zip(buffers, first[2:]))
    again = run(training, {**feeds, **kept, "lazy_reset_grad": np.array([False])})
    for got, name in zip(again[2:], trainable, strict=True):
        np.testing.assert_allclose(got, 2 * want[name], rtol=1e-4, atol=1e-6)
    reset = run(training, {**feeds, **kept, "lazy_reset_grad": np.array([True])})
    np.testing.assert_array_equal(reset[2], first[2])
    np.testing.assert_allclose(run(evaluation, feeds)[0], want_loss, rtol=1e-5)


def test_parameters_in_initializer_order():
    _, block, _ = build_mse()
    trainable, frozen = block.parameters()
    assert [t.name for t in trainable] == ["W1", "b1", "W2"]
    assert [t.name for t in frozen] == ["b2"]
    with pytest.raises(RuntimeError, match="Please build the training model first before trying"):
        MseTraining().parameters()
    with pytest.raises(RuntimeError, match="build the training model first"):
        MseTraining().to_model_proto()


def test_gradient_of_a_graph_input():
    model = mlp()
    block = MseTraining()
    block.requires_grad("W1")
    block.requires_grad("x")
    with onnxblock.base(model):
        block("out")
    training, _ = block.to_model_proto()
    assert outputs_of(training)[-1] == "x_grad.accumulation.out"
    assert inputs_of(training)[:3] == ["x", "target", "W1"]
    assert "x_grad.accumulation.buffer" in inputs_of(training)


def test_unknown_and_unreachable_names():
    for name, error, part in (("nope", LookupError, "nope"), ("half2", ValueError, "half2")):
        model = mlp()
        model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "half2"))
        block = MseTraining()
        block.requires_grad(name)
        with onnxblock.base(model), pytest.raises(error, match=part):
            block("out")


# -- the first generation, seed 000 ---------------------------------------------------------------


def two_outputs():
    rng = np.random.default_rng(2)
    f = numpy_helper.from_array
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["output-0"]),
            helper.make_node("Gemm", ["input", "fc2.weight", "fc2.bias"], ["output-1"]),
        ],
        "two",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 4])],
        [
            helper.make_tensor_value_info("output-0", TensorProto.FLOAT, ["batch", 2]),
            helper.make_tensor_value_info("output-1", TensorProto.FLOAT, ["batch", 3]),
        ],
        [
            f(rng.normal(size=(4, 2)).astype(np.float32), "fc1.weight"),
            f(rng.normal(size=(2,)).astype(np.float32), "fc1.bias"),
            f(rng.normal(size=(4, 3)).astype(np.float32), "fc2.weight"),
            f(rng.normal(size=(3,)).astype(np.float32), "fc2.bias"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)


def test_seed_000_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(two_outputs(), "model.onnx")

    class MyTrainingModel(onnxblock.TrainingModel):
        def __init__(self):
            super(MyTrainingModel, self).__init__()  # noqa: UP008  as in the document
            self._loss1 = onnxblock.loss.MSELoss()
            self._loss2 = onnxblock.loss.MSELoss()
            self._w1 = onnxblock.building_blocks.Constant(0.6)
            self._w2 = onnxblock.building_blocks.Constant(0.4)
            self._add = onnxblock.building_blocks.Add()
            self._mul = onnxblock.building_blocks.Mul()

        def build(self, loss_input_name1, loss_input_name2):
            return self._add(
                self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
                self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
            )

    model_path = "model.onnx"
    model = onnx.load(model_path)
    my_model = MyTrainingModel()
    with onnxblock.onnx_model(model) as accessor:
        loss_output_name = my_model("output-0", "output-1")
        eval_model = accessor.eval_model
    onnx.save(model, "training_model.onnx")
    onnx.save(eval_model, "eval_model.onnx")

    clip_grad_norm = onnxblock.optim.ClipGradNorm(2.5)
    optimizer = onnxblock.optim.AdamW(clip_grad=clip_grad_norm)
    optimizer_model = None
    with onnxblock.onnx_model() as accessor:
        flag = optimizer(my_model.parameters())
        optimizer_model = accessor.model
    onnx.save(optimizer_model, "adamw_optimizer.onnx")
    onnxblock.save_checkpoint(my_model.parameters(), "checkpoint.ckpt")

    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert [t.name for t in my_model.parameters()[0]] == names
    assert outputs_of(model)[0] == outputs_of(eval_model)[0] == loss_output_name
    assert inputs_of(eval_model) == ["input", "target1", "target2", *names]
    assert outputs_of(optimizer_model)[0] == flag
    assert optimizer_model.opset_import[0].version == 14

    rng = np.random.default_rng(0)
    x, t1, t2 = (rng.normal(size=(6, n)).astype(np.float32) for n in (4, 2, 3))
    values = arrays_of(two_outputs())
    feeds = {"input": x, "target1": t1, "target2": t2, **values}
    buffers = zeros(model, [f"{n}_grad.accumulation.buffer" for n in names])
    loss, *gradients = run(
        "training_model.onnx", {**feeds, **buffers, "lazy_reset_grad": np.array([True])}
    )
    want = 0.6 * np.mean((x @ values["fc1.weight"] + values["fc1.bias"] - t1) ** 2)
    want += 0.4 * np.mean((x @ values["fc2.weight"] + values["fc2.bias"] - t2) ** 2)
    np.testing.assert_allclose(loss, [want], rtol=1e-5)
    np.testing.assert_allclose(run("eval_model.onnx", feeds)[0], loss, rtol=1e-6)

    import onnxruntime as ort

    session = ort.InferenceSession("adamw_optimizer.onnx", providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == [
        "learning_rate", "step", "params", "gradients",
        "first_order_moments", "second_order_moments",
    ]  # fmt: skip
    old = [values[n] for n in names]
    moments = [np.zeros_like(v) for v in old]
    flag, new, *_ = session.run(
        None,
        {
            "learning_rate": np.array([0.1], np.float32), "step": np.array([1], np.int64),
            "params": old, "gradients": gradients,
            "first_order_moments": moments, "second_order_moments": moments,
        },
    )  # fmt: skip
    assert flag.tolist() == [True]
    for before, after, g in zip(old, new, gradients, strict=True):
        np.testing.assert_allclose(after, before - 0.1 * np.sign(g), atol=1e-3)
    restored = two_outputs()
    for tensor in restored.graph.initializer:
        tensor.CopyFrom(
            numpy_helper.from_array(np.zeros(list(tensor.dims), np.float32), tensor.name)
        )
    onnxblock.load_checkpoint_to_model("checkpoint.ckpt", restored)
    for name, value in arrays_of(restored).items():
        np.testing.assert_array_equal(value, values[name])


def test_old_generation_defaults():
    class Mine(onnxblock.TrainingModel):
        def build(self, a, b):
            return onnxblock.loss.MSELoss()(a, "t1"), onnxblock.loss.MSELoss()(b, "t2")

    model = two_outputs()
    block = Mine()
    block.requires_grad("fc1.bias", False)
    with onnxblock.onnx_model(model) as accessor:
        with pytest.raises(RuntimeError, match="eval model"):
            _ = accessor.eval_model
        block("output-0", "output-1")
    assert [t.name for t in block.parameters()[0]] == ["fc1.weight", "fc2.weight", "fc2.bias"]
    assert [t.name for t in block.parameters()[1]] == ["fc1.bias"]
    assert "fc2.weight_grad.accumulation.out" in outputs_of(model), "all outputs are losses"


# -- contexts and names ---------------------------------------------------------------------------


def test_names_count_over_the_process():
    first, second = (_graph_utils.generate_graph_name("add_output") for _ in range(2))
    prefix, token, number = first.split("::")
    assert (prefix, token) == ("onnx", "add_output")
    assert int(second.rsplit("::", 1)[1]) == int(number) + 1


def test_contexts():
    with pytest.raises(RuntimeError, match="onnxblock"):
        onnxblock.blocks.Constant(1.0)()
    with pytest.raises(RuntimeError, match="None"), onnxblock.base(None):
        pass
    with (
        onnxblock.empty_base(),
        pytest.raises(RuntimeError, match="Base onnx model already exists"),
        onnxblock.empty_base(),
    ):
        pass
    with onnxblock.empty_base(opset_version=15) as accessor:
        assert accessor.model.opset_import[0].version == 15
        assert not accessor.has_path
        with pytest.raises(RuntimeError, match="path"):
            _ = accessor.path
    assert model_accessor._GLOBAL_ACCESSOR is None
    with (
        pytest.raises(RuntimeError, match="does not exist"),
        onnxblock.custom_op_library("nope.so"),
    ):
        pass
    with onnxblock.custom_op_library(__file__) as path:
        assert path == __file__
        with (
            pytest.raises(RuntimeError, match="already"),
            onnxblock.custom_op_library(os.path.dirname(__file__)),
        ):
            pass


def test_absolute_temp_file_is_refused():
    class Mine(onnxblock.Block):
        def build(self):
            return ""

    with pytest.raises(RuntimeError, match="relative"):
        Mine("/tmp/x.onnx")
    assert Mine("a.onnx").temp_onnx_file_path.endswith("a.onnx")


def test_a_block_that_builds_nonsense_is_refused():
    class Bad(onnxblock.Block):
        def build(self, x):
            self.base.graph.node.append(helper.make_node("Add", [x, "missing"], ["z"]))
            return "z"

    with (
        onnxblock.base(identity_model(x=np.zeros((2, 2), np.float32))),
        pytest.raises(ValueError, match="not valid"),
    ):
        Bad()("x")


def test_forward_block():
    class Forward(onnxblock.ForwardBlock):
        def build(self, x):
            return onnxblock.blocks.Linear(4, 2)(x)

    block = Forward()
    with pytest.raises(RuntimeError):
        block.to_model_proto()
    x = np.ones((3, 4), np.float32)
    with onnxblock.base(identity_model(x=x)):
        name = block("x_out")
    model = block.to_model_proto()
    assert outputs_of(model) == [name]
    weight, bias = model.graph.initializer
    assert weight.name.startswith("onnx::linear.weight::")
    assert bias.name.startswith("onnx::linear.bias::")
    want = x @ numpy_helper.to_array(weight) + numpy_helper.to_array(bias)
    np.testing.assert_allclose(run(model, {"x": x})[0], want, rtol=1e-5)

    class Unknown(onnxblock.ForwardBlock):
        def build(self):
            return "nothing"

    with onnxblock.base(identity_model(x=x)), pytest.raises(LookupError, match="nothing"):
        Unknown()()


# -- BatchNormalization and Dropout ---------------------------------------------------------------


def batch_norm_model(training_mode, opset=15, uses=1, dropout=False):
    f = numpy_helper.from_array
    rng = np.random.default_rng(0)
    extra = {"training_mode": training_mode} if opset >= 14 else {}
    outputs = 1 if not training_mode else (3 if opset >= 14 else 5)
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h0"], name="gemm")]
    nodes += [
        helper.make_node(
            "BatchNormalization", [f"h{i}", "scale", "bias", "mean", "var"],
            [f"h{i + 1}", *(f"bn{i}_{k}" for k in range(outputs - 1))],
            name=f"bn{i}", momentum=0.8, **extra,
        )
        for i in range(uses)
    ]  # fmt: skip
    last = f"h{uses}"
    if dropout:
        nodes.append(helper.make_node("Dropout", [last, "ratio", "on"], ["d"], name="drop"))
        last = "d"
    nodes.append(helper.make_node("Gemm", [last, "v"], ["y"], name="gemm_out"))
    tensors = [
        f(rng.normal(size=(4, 3)).astype(np.float32), "w"),
        f(rng.uniform(0.5, 2, 3).astype(np.float32), "scale"),
        f(rng.normal(size=3).astype(np.float32), "bias"),
        f(rng.normal(size=3).astype(np.float32), "mean"),
        f(rng.uniform(0.5, 2, 3).astype(np.float32), "var"),
        f(rng.normal(size=(3, 2)).astype(np.float32), "v"),
    ]
    if dropout:
        tensors += [f(np.array(0.5, np.float32), "ratio"), f(np.array(True), "on")]
    graph = helper.make_graph(
        nodes, "bn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def train_block(model, trainable, mode="preserve"):
    class Mine(onnxblock.TrainingBlock):
        _training_mode = mode

        def build(self):
            return onnxblock.loss.MSELoss()("y")

    block = Mine()
    for name in trainable:
        block.requires_grad(name)
    with onnxblock.base(model):
        block()
    return block


def run_training(training, feeds, trainable, step=0):
    buffers = zeros(training, [f"{n}_grad.accumulation.buffer" for n in trainable])
    if "onnxtrain.random" in inputs_of(training):
        feeds = {**feeds, "onnxtrain.random": np.array([0, step])}
    values = run(training, {**feeds, **buffers, "lazy_reset_grad": np.array([True])})
    return dict(zip(outputs_of(training), values))


@pytest.mark.parametrize(("opset", "uses"), [(15, 1), (15, 2), (18, 1), (11, 1)])
def test_batch_norm_trains_and_updates_its_statistics(opset, uses):
    trainable = ["w", "scale", "bias", "v"]
    model = batch_norm_model(1, opset, uses)
    block = train_block(model, trainable)
    training, evaluation = block.to_model_proto()
    assert inputs_of(training)[2:8] == ["w", "scale", "bias", "mean", "var", "v"]
    assert [t.name for t in block.parameters()[1]] == ["mean", "var"]
    assert outputs_of(training)[-2:] == ["mean.updated", "var.updated"]
    values = arrays_of(model)
    rng = np.random.default_rng(1)
    x, target = rng.normal(size=(16, 4)).astype(np.float32), rng.normal(size=(16, 2))
    target = target.astype(np.float32)
    got = run_training(training, {"x": x, "target": target, **values}, trainable)

    t = {n: torch.tensor(v, requires_grad=n in trainable) for n, v in values.items()}
    h = torch.tensor(x) @ t["w"]
    mean, var = t["mean"], t["var"]
    for _ in range(uses):
        m, v = h.mean(0), h.var(0, unbiased=False)
        mean, var = 0.8 * mean + 0.2 * m, 0.8 * var + 0.2 * v
        h = (h - m) / torch.sqrt(v + 1e-5) * t["scale"] + t["bias"]
    loss = torch.nn.functional.mse_loss(h @ t["v"], torch.tensor(target))
    loss.backward()
    np.testing.assert_allclose(next(iter(got.values())), loss.item(), rtol=1e-4)
    for name in trainable:
        np.testing.assert_allclose(
            got[f"{name}_grad.accumulation.out"], t[name].grad, rtol=2e-3, atol=1e-5
        )
    np.testing.assert_allclose(got["mean.updated"], mean.detach(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["var.updated"], var.detach(), rtol=1e-4, atol=1e-6)

    onnx.checker.check_model(evaluation, full_check=True)
    (value,) = run(evaluation, {"x": x, "target": target, **values})
    h = x @ values["w"]
    for _ in range(uses):
        h = (h - values["mean"]) / np.sqrt(values["var"] + 1e-5) * values["scale"] + values["bias"]
    np.testing.assert_allclose(value, np.mean((h @ values["v"] - target) ** 2), rtol=1e-4)


def test_modes_of_batch_norm():
    def states(training_mode, trainable, mode):
        block = train_block(batch_norm_model(training_mode), trainable, mode)
        return [o for o in outputs_of(block.to_model_proto()[0]) if o.endswith(".updated")]

    both = ["mean.updated", "var.updated"]
    assert states(0, ["w", "scale"], "preserve") == []
    assert states(0, ["w", "scale"], "auto") == both
    assert states(0, ["w"], "auto") == []
    assert states(0, ["w"], "train") == both
    assert states(1, ["w"], "preserve") == both
    with pytest.raises(ValueError, match="training_mode"):
        states(0, ["w"], "sometimes")


def test_dropout_is_on_in_training_and_off_in_evaluation():
    model = batch_norm_model(0, dropout=True)
    trainable = ["w", "v"]
    block = train_block(model, trainable)
    training, evaluation = block.to_model_proto()
    meta = json.loads({p.key: p.value for p in training.metadata_props}["onnxtrain.artifact"])
    assert meta["random_nodes"] == []  # none draws from a generator of its kernel
    assert meta["random"] == inputs_of(training)[-1] == "onnxtrain.random"
    assert "onnxtrain.random" not in meta["user_inputs"]
    values = {k: v for k, v in arrays_of(model).items() if k in trainable}
    x, target = np.ones((64, 4), np.float32), np.zeros((64, 2), np.float32)
    feeds = {"x": x, "target": target, **values}
    losses = {
        float(next(iter(run_training(training, feeds, trainable, step % 4).values())))
        for step in range(8)
    }
    assert len(losses) == 4
    assert len({float(run(evaluation, feeds)[0]) for _ in range(4)}) == 1
    assert list(evaluation.graph.node[2].input) == ["h1", "ratio", ""]


def test_training_mode_train_switches_dropout_on():
    model = batch_norm_model(0, dropout=True)
    next(n for n in model.graph.node if n.op_type == "Dropout").input.pop()
    for mode, count in (("preserve", 1), ("auto", 1), ("train", 2)):
        training, evaluation = train_block(model, ["v"], mode).to_model_proto()
        values = {k: v for k, v in arrays_of(model).items() if k in inputs_of(training)}
        rng = np.random.default_rng(0)
        x = rng.normal(size=(64, 4)).astype(np.float32)
        feeds = {"x": x, "target": np.zeros((64, 2), np.float32), **values}
        losses = {
            float(next(iter(run_training(training, feeds, ["v"], step).values())))
            for step in range(4)
        }
        assert (len(losses) > 1) == (count > 1), mode
        assert len({float(run(evaluation, feeds)[0]) for _ in range(3)}) == 1


def test_parameters_of_a_model_by_name():
    from onnxtrain.onnxblock._training_graph_utils import get_model_parameters

    trainable, frozen = get_model_parameters(mlp(), {"b2", "W1"}, {"half"})
    assert [t.name for t in trainable] == ["W1", "b2"]
    assert [t.name for t in frozen] == ["half"]
    with pytest.raises(RuntimeError, match="W1"):
        get_model_parameters(mlp(), ["W1"], ["W1"])


def test_optimizer_over_sequences_refuses_other_types():
    tensor = numpy_helper.from_array(np.ones(2), "w")
    with onnxblock.empty_base(), pytest.raises(RuntimeError, match="DOUBLE"):
        onnxblock.optim.AdamW()(([tensor], []))
    with onnxblock.empty_base(), pytest.raises(RuntimeError, match="at least one"):
        onnxblock.optim.AdamW()(([], []))
