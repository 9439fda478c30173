# ruff: noqa: E501  the documents' snippets stay as they are written
"""generate_artifacts: files, names, orders, numbers, and errors that leave nothing behind."""

import json
import os
import stat

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain import artifacts, onnxblock, optim
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts
from onnxtrain.errors import ModelError
from tests.onnxblock.harness import inputs_of, mlp, only_standard, outputs_of, run

TRAINABLE, FROZEN = ["W1", "b1", "W2"], ["b2"]


def signature(model):
    def one(value):
        t = value.type.tensor_type
        dims = [d.dim_param or d.dim_value for d in t.shape.dim]
        return value.name, TensorProto.DataType.Name(t.elem_type), dims

    return [one(i) for i in model.graph.input], [one(o) for o in model.graph.output]


def metadata(model, key="onnxtrain.artifact"):
    return json.loads({p.key: p.value for p in model.metadata_props}[key])


def make(tmp_path, model=None, **kw):
    options = {
        "requires_grad": TRAINABLE, "frozen_params": FROZEN, "loss": LossType.MSELoss,
        "optimizer": OptimType.AdamW, "artifact_directory": str(tmp_path),
    }  # fmt: skip
    generate_artifacts(mlp() if model is None else model, **{**options, **kw})
    return {p.name: onnx.load(p) for p in sorted(tmp_path.iterdir()) if p.suffix == ".onnx"}


def test_inputs_and_outputs_say_what_is_run(tmp_path):
    models = make(tmp_path, additional_output_names=["out"])
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint", "eval_model.onnx", "optimizer_model.onnx",
        "training_model.onnx",
    ]  # fmt: skip
    inputs, outputs = signature(models["training_model.onnx"])
    loss = outputs[0][0]
    assert loss.startswith("onnx::reducemean_output::")
    parameters = [
        ("W1", "FLOAT", [4, 5]), ("b1", "FLOAT", [5]), ("W2", "FLOAT", [5, 3]),
        ("b2", "FLOAT", [3]),
    ]  # fmt: skip
    user = [("x", "FLOAT", ["batch", 4]), ("target", "FLOAT", ["batch", 3])]
    assert inputs == [*user, *parameters]
    assert outputs == [
        (loss, "FLOAT", []), ("out", "FLOAT", ["batch", 3]),
        ("W1_grad", "FLOAT", [4, 5]),
        ("b1_grad", "FLOAT", [5]),
        ("W2_grad", "FLOAT", [5, 3]),
    ]  # fmt: skip
    assert signature(models["eval_model.onnx"]) == ([*user, *parameters], outputs[:2])
    optimizer = models["optimizer_model.onnx"]
    assert inputs_of(optimizer) == [
        "learning_rate", "step", "grad_scale", "params", "gradients",
        "first_order_moments", "second_order_moments",
    ]  # fmt: skip
    assert outputs_of(optimizer) == [
        "params.updated", "first_order_moments.updated", "second_order_moments.updated",
    ]  # fmt: skip
    for model in models.values():
        assert only_standard(model)
        assert model.ir_version <= 10
        onnx.checker.check_model(model, full_check=True)
    assert metadata(models["eval_model.onnx"]) == {
        "version": 1, "kind": "eval", "user_inputs": ["x", "target"],
        "user_outputs": [loss, "out"], "trainable": TRAINABLE, "frozen": FROZEN,
        "model_outputs": ["out"],
    }  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    for tensor in mlp().graph.initializer[:4]:
        np.testing.assert_array_equal(
            state.parameters[tensor.name].data, numpy_helper.to_array(tensor)
        )
    assert len(state.parameters) == 4
    assert not state.parameters["b2"].requires_grad


@pytest.mark.parametrize("loss", [kind for kind in LossType if kind is not LossType.CausalLMLoss])
def test_every_loss_type(tmp_path, loss):
    models = make(tmp_path, loss=loss)
    name = "labels" if loss in {LossType.CrossEntropyLoss, LossType.NLLLoss} else "target"
    training = models["training_model.onnx"]
    assert inputs_of(training)[1] == name
    if loss is LossType.CrossEntropyLoss:
        assert signature(training)[0][1] == ("labels", "INT64", ["batch"])
        assert outputs_of(training)[0].startswith("onnx::loss::")
    ort.InferenceSession(training.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_loss_of_language_models_takes_scores_of_three_dimensions(tmp_path):
    with pytest.raises(ModelError, match="batch, length, vocabulary"):
        make(tmp_path, loss=LossType.CausalLMLoss)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch,length] ids) => (float[batch,length,5] scores) { scores = Gather(W1, ids) }""")
    weight = np.ones((5, 5), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "W1"))
    generate_artifacts(model, loss=LossType.CausalLMLoss, artifact_directory=tmp_path)
    training = onnx.load(tmp_path / "training_model.onnx")
    assert inputs_of(training)[:2] == ["ids", "labels"]
    ort.InferenceSession(training.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("kind", list(OptimType))
def test_every_optimizer_type(tmp_path, kind):
    model = make(tmp_path, optimizer=kind)["optimizer_model.onnx"]
    assert metadata(model, "onnxtrain.optimizer")["name"] == kind.name
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_options(tmp_path):
    make(
        tmp_path, prefix="my_", ort_format=True, nominal_checkpoint=True, step_model=True,
        loss=onnxblock.loss.L1Loss(), optimizer=onnxblock.optim.SGD(momentum=0.9),
    )  # fmt: skip
    names = ["training_model", "eval_model", "optimizer_model", "step_model"]
    want = [f"my_{n}.{e}" for n in names for e in ("onnx", "ort")]
    want += ["my_checkpoint", "my_nominal_checkpoint"]
    assert sorted(os.listdir(tmp_path)) == sorted(want)
    for name in names:
        ort.InferenceSession(str(tmp_path / f"my_{name}.ort"), providers=["CPUExecutionProvider"])
    nominal = CheckpointState.load_checkpoint(tmp_path / "my_nominal_checkpoint")
    assert nominal.is_nominal


def test_defaults_write_to_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generate_artifacts(mlp(), TRAINABLE, FROZEN, LossType.MSELoss, OptimType.AdamW)
    assert len(os.listdir()) == 4


def test_seed_001_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    sizes = {"weight1": (4, 2), "bias1": (2,), "weight2": (4, 3), "bias2": (3,),
             "weight3": (4, 4), "bias3": (4,)}  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "weight3", "bias3"], ["h"]),
            helper.make_node("Gemm", ["h", "weight1", "bias1"], ["output1"]),
            helper.make_node("Gemm", ["h", "weight2", "bias2"], ["output2"]),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info("output1", TensorProto.FLOAT, ["n", 2]),
            helper.make_tensor_value_info("output2", TensorProto.FLOAT, ["n", 3]),
        ],
        [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in sizes.items()],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        "model.onnx",
    )

    class WeightedAverageLoss(onnxblock.Block):
        def __init__(self):
            self._loss1 = onnxblock.loss.MSELoss()
            self._loss2 = onnxblock.loss.MSELoss()
            self._w1 = onnxblock.blocks.Constant(0.4)
            self._w2 = onnxblock.blocks.Constant(0.6)
            self._add = onnxblock.blocks.Add()
            self._mul = onnxblock.blocks.Mul()

        def build(self, loss_input_name1, loss_input_name2):
            return self._add(
                self._mul(self._w1(), self._loss1(loss_input_name1, target_name="target1")),
                self._mul(self._w2(), self._loss2(loss_input_name2, target_name="target2")),
            )

    my_custom_loss = WeightedAverageLoss()
    model_path = "model.onnx"
    base_model = onnx.load(model_path)
    requires_grad = ["weight1", "bias1", "weight2", "bias2"]
    frozen_params = ["weight3", "bias3"]
    artifacts.generate_artifacts(base_model, requires_grad = requires_grad, frozen_params = frozen_params,
                                loss = my_custom_loss, optimizer = artifacts.OptimType.AdamW)  # fmt: skip

    assert sorted(os.listdir()) == [
        "checkpoint", "eval_model.onnx", "model.onnx", "optimizer_model.onnx",
        "training_model.onnx",
    ]  # fmt: skip
    assert onnx.load("model.onnx") == base_model, "the model is not changed"
    training = onnx.load("training_model.onnx")
    assert inputs_of(training)[:3] == ["x", "target1", "target2"]
    frozen_work = [o for n in training.graph.node for o in n.output if "weight3_grad" in o]
    assert not frozen_work
    assert not any(o.startswith("h_grad") for n in training.graph.node for o in n.output)


def feeds_for(model, seed=3, batch=8):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(batch, 4)).astype(np.float32),
        "target": rng.normal(size=(batch, 3)).astype(np.float32),
    }


CHAINS = {
    "adamw": optim.adamw(weight_decay=0.1, clip=optim.ClipNorm(0.5)),
    "sgd": optim.sgd(0.9, weight_decay=0.01, groups=[optim.Group("b*", 0.5, 0.0)]),
    "adafactor": optim.adafactor(clip=optim.ClipValue(0.1)),
    "lamb": optim.lamb(weight_decay=0.1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_one_graph_and_split_form_give_the_same_numbers(tmp_path, name):
    optimizer = CHAINS[name]
    models = make(tmp_path, optimizer=optimizer, step_model=True, additional_output_names=["out"])
    step, training = models["step_model.onnx"], models["training_model.onnx"]
    loss = outputs_of(training)[0]
    states = list(optimizer.states)
    assert inputs_of(step) == [
        "x", "target", *TRAINABLE, *FROZEN, *(f"{p}.{s}" for p in TRAINABLE for s in states),
        "learning_rate", "step",
    ]  # fmt: skip
    assert outputs_of(step) == [
        loss, "out", *(f"{p}.updated" for p in TRAINABLE),
        *(f"{p}.{s}.updated" for p in TRAINABLE for s in states),
    ]  # fmt: skip
    assert metadata(step)["kind"] == "step"
    assert only_standard(step)

    one = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    update = Optimizer(tmp_path / "optimizer_model.onnx", module)
    update.set_learning_rate(0.05)
    start = {t.name: numpy_helper.to_array(t) for t in mlp().graph.initializer if t.name != "half"}
    a = dict(start)
    sa = {f"{p}.{s}": np.zeros(optimizer.state_shape(s, start[p].shape), np.float32)
          for p in TRAINABLE for s in states}  # fmt: skip
    for t in range(1, 21):
        data = feeds_for(step, seed=t)
        clock = {"learning_rate": np.array([0.05], np.float32), "step": np.array([t], np.int64)}
        got = dict(zip(outputs_of(step), one.run(None, {**data, **a, **sa, **clock})))
        a.update({p: got[f"{p}.updated"] for p in TRAINABLE})
        sa = {k: got[f"{k}.updated"] for k in sa}
        lost, _ = module(data["x"], data["target"])
        update.step()
        module.lazy_reset_grad()
        np.testing.assert_allclose(got[loss], lost, rtol=1e-5)
    b = {p: state.parameters[p].data for p in TRAINABLE}
    for p in TRAINABLE:
        np.testing.assert_allclose(a[p], b[p], rtol=2e-5, atol=1e-6)
        assert not np.allclose(a[p], start[p])


def test_both_lists_empty(tmp_path):
    """Empty lists say that nothing is trained; the predecessor's scripts make use of it."""
    models = make(tmp_path, requires_grad=[], frozen_params=[], optimizer=None)
    training = models["training_model.onnx"]
    want = ["x", "target", "W1", "b1", "W2", "b2", "half"]
    assert inputs_of(training) == want
    assert inputs_of(models["eval_model.onnx"]) == want
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert len(state.parameters) == 0
    with pytest.raises(RuntimeError, match="trainable"):
        make(tmp_path, requires_grad=[], frozen_params=[])


def with_loss():
    model = mlp()
    model.graph.node.append(helper.make_node("ReduceMean", ["out"], ["loss"], keepdims=0))
    model.graph.output.insert(0, helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


TRAINED_BY_DEFAULT = {
    "a loss": (mlp, {"loss": LossType.MSELoss}, []),
    "a loss and an optimizer": (
        mlp,
        {"loss": onnxblock.loss.HuberLoss(), "optimizer": OptimType.SGD},
        [],
    ),
    "a loss with weights of its own": (
        mlp,
        {"loss": onnxblock.loss.CrossEntropyLoss(weight=np.array([1, 2, 3], np.float32))},
        [],
    ),
    "the loss inside the model": (with_loss, {"loss": None}, []),
    "some are frozen": (mlp, {"loss": LossType.MSELoss, "frozen_params": ["W1", "b?"]}, ["W1", "b1", "b2"]),
}  # fmt: skip


@pytest.mark.parametrize("how", TRAINED_BY_DEFAULT)
def test_by_default_what_differentiate_would_train_is_trained(tmp_path, caplog, how):
    """None, not an empty list: the predecessor made a model that trains nothing, or failed."""
    build, options, frozen = TRAINED_BY_DEFAULT[how]
    whole = metadata(onnxtrain.differentiate(with_loss()), "onnxtrain.gradients")
    options = {"requires_grad": None, "frozen_params": None, "optimizer": None, **options}
    with caplog.at_level("INFO", "onnxtrain"):
        models = make(tmp_path, build(), **options)
    meta = metadata(models["training_model.onnx"])
    assert meta["trainable"] == [n for n in whole if n not in frozen]
    assert meta["frozen"] == frozen
    assert f"is not given: {', '.join(meta['trainable'])}" in caplog.text
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert {n for n, _ in state.parameters} == set(whole)


def test_by_default_statistics_are_not_trained(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, 2] x) => (float[N, 2] y)
        <float[2] scale = {1, 1}, float[2] bias = {0, 0}, float[2] mean = {0, 0},
         float[2] var = {1, 1}, float[2] unused = {1, 1}>
        { y, m, v = BatchNormalization<training_mode = 1>(x, scale, bias, mean, var) }
    """)
    models = make(tmp_path, model, requires_grad=None, frozen_params=None)
    meta = metadata(models["training_model.onnx"])
    assert meta["trainable"] == ["scale", "bias"]
    assert meta["frozen"] == ["mean", "var"]


def test_without_a_loss_or_a_parameter_nothing_is_trained_and_one_is_told(tmp_path, caplog):
    nothing = {"requires_grad": None, "frozen_params": None, "loss": None, "optimizer": None}
    models = make(tmp_path, **nothing)
    assert {"W1", "b1", "W2", "b2"} <= set(inputs_of(models["training_model.onnx"]))
    assert "Give a loss, or name parameters in requires_grad." in caplog.text
    assert len(CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters) == 0
    bare = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }
    """)
    options = {"requires_grad": None, "frozen_params": None, "loss": LossType.MSELoss}
    make(tmp_path, bare, **options, optimizer=None)
    with pytest.raises(RuntimeError, match="Name parameters in requires_grad"):
        make(tmp_path, bare, **options)
    with pytest.raises(ValueError, match="Reduce it to one number"):
        make(tmp_path, **{**nothing, "optimizer": OptimType.SGD})


def test_patterns_and_predicates(tmp_path):
    for choice in (["W*"], "W?", lambda name: name.startswith("W")):
        meta = metadata(
            make(tmp_path, requires_grad=choice, frozen_params=["b[12]"])["training_model.onnx"]
        )
        assert meta["trainable"] == ["W1", "W2"]
        assert meta["frozen"] == ["b1", "b2"]


def test_frozen_parts_get_no_gradient_work(tmp_path):
    everything = make(tmp_path, frozen_params=[], requires_grad=["W*", "b*"])
    last = make(tmp_path, frozen_params=["W1", "b1"], requires_grad=["W2", "b2"])
    count = [len(m["training_model.onnx"].graph.node) for m in (everything, last)]
    assert count[1] < count[0] - 5
    names = [n.name for n in last["training_model.onnx"].graph.node]
    assert not any(n.startswith(("gemm1_grad", "relu_grad", "mul_grad")) for n in names)


def test_loss_inside_the_model(tmp_path):
    models = make(tmp_path, with_loss(), loss=None)
    assert outputs_of(models["training_model.onnx"])[:2] == ["loss", "out"]
    static = mlp()
    for value in (static.graph.input[0], static.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = 5
    with pytest.raises(ValueError, match="scalar"):
        make(tmp_path, static, loss=None)


def test_loss_input_names(tmp_path):
    models = make(tmp_path, loss_input_names=["m"], requires_grad=["W1"], frozen_params=["b1"])
    assert signature(models["training_model.onnx"])[0][1] == ("target", "FLOAT", ["batch", 5])


def external_model(folder):
    model = mlp(opset=17)
    onnx.save(
        model, folder / "model.onnx", save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    return str(folder / "model.onnx")


def test_a_path_keeps_external_data_on_disk(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    path = external_model(source)
    for file in source.iterdir():
        file.chmod(stat.S_IREAD)
    models = make(target, path, loss=LossType.CrossEntropyLoss)
    state = CheckpointState.load_checkpoint(target / "checkpoint")
    for tensor in mlp().graph.initializer[:4]:
        np.testing.assert_array_equal(
            state.parameters[tensor.name].data, numpy_helper.to_array(tensor)
        )
    values = {t.name: numpy_helper.to_array(t) for t in mlp().graph.initializer[:4]}
    feeds = {"x": feeds_for(None)["x"], "labels": np.arange(8) % 3, **values}
    (loss,) = run(str(target / "eval_model.onnx"), feeds)
    h = np.maximum(feeds["x"] @ values["W1"] + values["b1"], 0) * 0.5
    logits = torch.tensor(h @ values["W2"] + values["b2"])
    want = torch.nn.functional.cross_entropy(logits, torch.tensor(feeds["labels"]))
    np.testing.assert_allclose(loss, want.item(), rtol=1e-5)
    assert models["eval_model.onnx"].opset_import[0].version == 17


def test_old_models_with_weights_among_the_inputs(tmp_path):
    model = mlp(opset=9, ir_version=3)
    for tensor in model.graph.initializer:
        model.graph.input.insert(
            0, helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    models = make(tmp_path, model)
    assert inputs_of(models["eval_model.onnx"]) == ["x", "target", *TRAINABLE, *FROZEN]
    assert inputs_of(models["training_model.onnx"])[:6] == ["x", "target", *TRAINABLE, *FROZEN]


def torch_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Dropout(0.0), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 3),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # the tracing exporter is deprecated and says so
@pytest.mark.parametrize("opset", [14, 17])
def test_a_training_export_of_torch(tmp_path, opset):
    net = torch_model().train()
    x = torch.randn(5, 1, 8, 8)
    torch.onnx.export(
        net, (x,), tmp_path / "net.onnx", export_params=True, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING, dynamo=False, opset_version=opset,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
    )  # fmt: skip
    net = torch_model().train()
    trainable = [n for n, _ in net.named_parameters()]
    out = tmp_path / "out"
    out.mkdir()
    models = make(
        out, onnx.load(tmp_path / "net.onnx"), requires_grad=trainable, frozen_params=[],
        loss=LossType.CrossEntropyLoss, step_model=True,
    )  # fmt: skip
    training = models["training_model.onnx"]
    meta = metadata(training)
    assert meta["states"] == {
        "1.running_mean": "1.running_mean.updated", "1.running_var": "1.running_var.updated",
    }  # fmt: skip
    assert set(meta["frozen"]) >= {"1.running_mean", "1.running_var"}
    labels = torch.tensor([0, 1, 2, 0, 1])
    values = {
        k: v.numpy() for k, v in net.state_dict().items() if k in meta["trainable"] + meta["frozen"]
    }
    values = {k: v.copy() for k, v in values.items()}
    loss = torch.nn.functional.cross_entropy(net(x), labels)
    loss.backward()
    results = run(training, {"x": x.numpy(), "labels": labels.numpy(), **values})
    got = dict(zip(outputs_of(training), results))
    np.testing.assert_allclose(results[0], loss.item(), rtol=1e-5)
    for name, parameter in net.named_parameters():
        np.testing.assert_allclose(got[f"{name}_grad"], parameter.grad, rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(
        got["1.running_mean.updated"], net.state_dict()["1.running_mean"], rtol=1e-4, atol=1e-6
    )
    evaluation = models["eval_model.onnx"]
    state = {k: v.numpy() for k, v in torch_model().state_dict().items()}
    feeds = {n: state[n] for n in inputs_of(evaluation)[2:]}
    with torch.no_grad():
        want = torch.nn.functional.cross_entropy(torch_model().eval()(x), labels)
    (value,) = run(evaluation, {"x": x.numpy(), "labels": labels.numpy(), **feeds})
    np.testing.assert_allclose(value, want.item(), rtol=1e-4)


@pytest.mark.parametrize(
    ("kw", "error", "part"),
    [
        ({"frozen_params": ["W1", "b2"]}, RuntimeError, "W1"),
        ({"requires_grad": ["W9"]}, LookupError, "W9"),
        ({"frozen_params": ["zz*"]}, LookupError, r"zz\*"),
        ({"loss": "mse"}, RuntimeError, "Unknown loss provided"),
        ({"optimizer": "adam"}, TypeError, "Unknown optimizer"),
        ({"additional_output_names": "out"}, RuntimeError, "list"),
        ({"additional_output_names": ["nope"]}, LookupError, "nope"),
        ({"loss_input_names": ["nope"]}, LookupError, "nope"),
        ({"model": 3}, RuntimeError, "path"),
        ({"model": "nope.onnx"}, FileNotFoundError, "nope.onnx"),
        ({"custom_op_library": "nope.so"}, RuntimeError, "nope.so"),
        ({"artifact_directory": "no/such/folder"}, FileNotFoundError, "does not exist"),
        ({"step_model": True, "optimizer": None}, RuntimeError, "step_model"),
        ({"training_mode": "always"}, ValueError, "training_mode"),
    ],
)  # fmt: skip
def test_errors_leave_nothing_behind(tmp_path, kw, error, part):
    with pytest.raises(error, match=part):
        make(tmp_path, **kw)
    assert os.listdir(tmp_path) == []
    make(tmp_path)  # and the next call works


def test_a_missing_folder_is_made_and_gone_again_after_an_error(tmp_path, monkeypatch):
    make(tmp_path, artifact_directory=tmp_path / "new")
    assert "checkpoint" in os.listdir(tmp_path / "new")

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("onnxtrain.artifacts.generate.save_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        make(tmp_path, artifact_directory=tmp_path / "newer")
    assert os.listdir(tmp_path) == ["new"]
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="Create it first"):
        make(tmp_path, artifact_directory=tmp_path / "file")


def test_an_error_while_writing_leaves_the_old_files(tmp_path, monkeypatch):
    make(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fail(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr("onnxtrain.artifacts.generate.save_checkpoint", fail)
    with pytest.raises(OSError, match="no space"):
        make(tmp_path, loss=LossType.L1Loss)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_unreachable_parameter(tmp_path):
    with pytest.raises(ValueError, match="partial derivative"):
        make(tmp_path, loss_input_names=["h"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("opset", [22, 24])
def test_newer_opsets_come_down(tmp_path, opset):
    models = make(tmp_path, mlp(opset=opset, ir_version=11))
    values = {t.name: numpy_helper.to_array(t) for t in mlp().graph.initializer[:4]}
    for name, model in models.items():
        assert model.opset_import[0].version <= 21, name
        assert model.ir_version <= 10
    feeds = {**feeds_for(None), **values}
    h = np.maximum(feeds["x"] @ values["W1"] + values["b1"], 0) * 0.5
    want = np.mean((h @ values["W2"] + values["b2"] - feeds["target"]) ** 2)
    np.testing.assert_allclose(run(models["eval_model.onnx"], feeds)[0], want, rtol=1e-5)


def test_contrib_operators_leave(tmp_path):
    model = mlp()
    model.graph.node[1].op_type, model.graph.node[1].domain = "Gelu", "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    models = make(tmp_path, model)
    assert all(only_standard(m) for m in models.values())
    for built in models.values():
        ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(PermissionError, match="artifact directory"):
        make(tmp_path)
