"""Class labels through every door of the runtime: wrong ones are refused, ignored ones left out."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper

from onnxtrain import artifacts, onnxblock
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.artifacts.choose import ArtifactError
from onnxtrain.errors import InputError, LabelError, ModelFileError, RunError
from onnxtrain.runtime.session.labels import ClassLabels

pytestmark = pytest.mark.slow

NAMES = ["w1", "b1", "w2", "b2"]
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w1": RNG.normal(size=(6, 8)), "b1": RNG.normal(size=8),
    "w2": RNG.normal(size=(8, 4)), "b2": RNG.normal(size=4),
}  # fmt: skip
X = RNG.normal(size=(5, 6)).astype(np.float32)
GOOD = np.array([0, 3, 1, 2, 1])
SOME = np.array([0, -100, 1, -100, 3])
LOWEST = -(2**63)


def network(output="float[N, 4] y", last="y = Gemm(h, w2, b2)"):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 6] x) => ({output}) {{ a = Gemm(x, w1, b1) h = Tanh(a) {last} }}"""
    )
    for name, value in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def generate(folder, model=None, loss=artifacts.LossType.CrossEntropyLoss, **options):
    artifacts.generate_artifacts(
        model or network(), requires_grad=NAMES, loss=loss, optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder, step_model=True, **options,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("labels"))


def module_of(folder, **options):
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", **options)


def torch_loss(labels, x=X, **options):
    weights = [torch.tensor(WEIGHTS[n].astype(np.float32), requires_grad=True) for n in NAMES]
    scores = torch.tanh(torch.tensor(x) @ weights[0] + weights[1]) @ weights[2] + weights[3]
    loss = F.cross_entropy(scores, torch.tensor(labels), **options)
    loss.backward()
    return loss.item(), {n: w.grad.numpy() for n, w in zip(NAMES, weights)}


# --- what a wrong label is told ------------------------------------------------------------------

WRONG = {
    "minus one": ([0, 1, -1, 2, 3], "the label -1 in row 2"),
    "would be class 0": ([0, -4, 1, 2, 3], "the label -4 in row 1"),
    "too large": ([0, 1, 2, 3, 4], "the label 4 in row 4"),
    "far": ([10**9, 1, 2, 3, 0], "the label 1000000000 in row 0"),
    "NaN as an integer": ([0, 1, 2, LOWEST, 3], f"the label {LOWEST} in row 3"),
    "beside an ignored one": ([-100, -1, -100, 2, 3], "the label -1 in row 1"),
    "several": ([-100, -1, -7, 9, 3], "the label -1 in row 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_names_input_row_value_and_range(folder, name):
    labels, text = WRONG[name]
    module = module_of(folder)
    for mode in (True, False):
        module.train(mode)
        with pytest.raises(LabelError) as caught:
            module(X, np.array(labels))
        message = str(caught.value)
        assert f"Input 'labels' has {text}," in message
        assert "classes 0 to 3, or -100 to be left out" in message
        assert ("3 of 5 labels are wrong" in message) is (name == "several")
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, ValueError)


def test_the_remedy_fits():
    classes = ClassLabels("y", 4, None)
    for value, remedy in ((-1, "ignore_index=-1"), (7, "more classes"), (LOWEST, "NaN")):
        with pytest.raises(LabelError, match=remedy):
            classes.check(np.array([0, value]))
    with pytest.raises(LabelError, match=r"row 1 \(at \[1, 2\]\)"):
        classes.check(np.array([[0, 1, 2], [0, 1, 9]]))


# --- every way of handing labels over ------------------------------------------------------------


def ort_value(array):
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


FORMS = {
    "array": lambda x, y: ((x, y), {}),
    "by name": lambda x, y: ((), {"x": x, "labels": y}),
    "list": lambda x, y: ((x, y.tolist()), {}),
    "tensor": lambda x, y: ((torch.tensor(x), torch.tensor(y)), {}),
    "OrtValues": lambda x, y: ((ort_value(x), ort_value(y)), {}),
    "one OrtValue": lambda x, y: ((x, ort_value(y)), {}),
    "strided": lambda x, y: ((x, np.stack([y, y * 0], 1)[:, 0]), {}),
    "read only": lambda x, y: ((x, np.frombuffer(y.tobytes(), np.int64)), {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("copies", [1, 2000])
def test_every_form_of_labels(folder, form, copies):
    """2,000 copies are above what is copied into memory that stays bound."""
    module = module_of(folder)
    x, good, some = (np.repeat(a, copies, axis=0) for a in (X, GOOD, SOME))
    make = FORMS[form]

    def loss(labels):
        module.lazy_reset_grad()
        args, named = make(x, labels)
        result = module(*args, **named)
        return float(result.numpy() if hasattr(result, "numpy") else result)

    for labels in (good, some, good):  # the same shapes: from the second on little is looked at
        assert loss(labels) == pytest.approx(torch_loss(labels, x)[0], rel=1e-4)
        for bad in (-1, 4):
            wrong = labels.copy()
            wrong[-1] = bad
            with pytest.raises(LabelError, match=f"the label {bad} in row {len(x) - 1},"):
                loss(wrong)
    module.eval()
    assert loss(some) == pytest.approx(torch_loss(some, x)[0], rel=1e-4)
    with pytest.raises(LabelError):
        loss(wrong)


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_are_those_of_pytorch(folder, accumulate):
    module = module_of(folder)
    total = dict.fromkeys(NAMES, 0.0)
    for labels in (GOOD, SOME, np.full(5, -100), SOME[::-1].copy()):
        if not accumulate:
            module.lazy_reset_grad()
            total = dict.fromkeys(NAMES, 0.0)
        loss = module(X, labels)
        want, gradients = torch_loss(labels)
        np.testing.assert_allclose(loss, want, rtol=1e-5)  # NaN where all are ignored
        for name in NAMES:
            total[name] = total[name] + gradients[name]
            got = module.state.parameters[name].grad
            np.testing.assert_allclose(got, total[name], rtol=1e-4, atol=1e-6)


def test_a_wrong_label_changes_nothing(folder):
    module = module_of(folder)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    module(X, GOOD)
    before = {n: module.state.parameters[n].grad.copy() for n in NAMES}
    with pytest.raises(LabelError):
        module(X, np.array([0, 1, 2, 3, -1]))
    for name in NAMES:
        np.testing.assert_array_equal(module.state.parameters[name].grad, before[name])
    optimizer.step()
    module.lazy_reset_grad()
    assert np.isfinite(module(X, GOOD))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8])
def test_labels_of_other_types(tmp_path, dtype):
    """A graph made by hand may take them as it likes and cast them."""
    model = network("float loss", "y = Gemm(h, w2, b2)")
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.input.append(onnx.helper.make_tensor_value_info("t", kind, ["N", 1]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "flat"))
    model.graph.node.extend(
        [
            onnx.helper.make_node("Cast", ["t"], ["wide"], to=onnx.TensorProto.INT64),
            onnx.helper.make_node("Reshape", ["wide", "flat"], ["row"]),
            onnx.helper.make_node("SoftmaxCrossEntropyLoss", ["y", "row"], ["loss"]),
        ]
    )
    module = module_of(generate(tmp_path, model, None))
    labels = GOOD.astype(dtype).reshape(-1, 1)
    assert module(X, labels) == pytest.approx(torch_loss(GOOD)[0], rel=1e-5)
    labels[2] = np.array(255, np.uint8).astype(dtype)
    with pytest.raises(LabelError, match=r"Input 't' .* in row 2, .*classes 0 to 3\b"):
        module(X, labels)


# --- losses, classes ------------------------------------------------------------------------------

LOSSES = {
    "by name": (artifacts.LossType.CrossEntropyLoss, {}, {}),
    "another label": (artifacts.LossType.CrossEntropyLoss, {"ignore_index": -1}, {}),
    "a class": (artifacts.LossType.CrossEntropyLoss, {"ignore_index": 2}, {}),
    "above the classes": (artifacts.LossType.CrossEntropyLoss, {"ignore_index": 255}, {}),
    "none": (artifacts.LossType.CrossEntropyLoss, {"ignore_index": None}, {}),
    "block": (onnxblock.loss.CrossEntropyLoss(ignore_index=-7), {}, {}),
    "weights": (
        onnxblock.loss.CrossEntropyLoss(weight=np.array([1, 2, 3, 4.0], np.float32)), {},
        {"weight": torch.tensor([1, 2, 3, 4.0])},
    ),
    "smoothing": (
        onnxblock.loss.CrossEntropyLoss(label_smoothing=0.2), {}, {"label_smoothing": 0.2},
    ),
    "sum": (onnxblock.loss.CrossEntropyLoss(reduction="sum"), {}, {"reduction": "sum"}),
    "last axis": (
        onnxblock.loss.CrossEntropyLoss(class_axis=-1, label_smoothing=0.1), {},
        {"label_smoothing": 0.1},
    ),
}  # fmt: skip
IGNORED = {"another label": -1, "a class": 2, "above the classes": 255, "none": None, "block": -7}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss(tmp_path, name):
    loss, options, theirs = LOSSES[name]
    module = module_of(generate(tmp_path, None, loss, **options))
    ignored = IGNORED.get(name, -100)
    labels = GOOD if ignored is None else np.where(SOME < 0, ignored, SOME)
    got = module(X, labels)
    if ignored is not None:
        theirs = {**theirs, "ignore_index": ignored}
    want, gradients = torch_loss(labels, **theirs)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for parameter in NAMES:
        grad = module.state.parameters[parameter].grad
        np.testing.assert_allclose(grad, gradients[parameter], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module.eval()(X, labels), want, rtol=1e-5)
    for bad in (-100, -1, 4, 255, LOWEST):
        if bad == ignored:
            continue
        wrong = labels.copy()
        wrong[1] = bad
        for mode in (True, False):
            with pytest.raises(LabelError, match=f"the label {bad} in row 1,"):
                module.train(mode)(X, wrong)


def test_nll_by_name(tmp_path):
    model = network(last="s = Gemm(h, w2, b2) y = LogSoftmax <axis = 1> (s)")
    options = {"loss": artifacts.LossType.NLLLoss, "ignore_index": -1}
    module = module_of(generate(tmp_path, model, **options))
    labels = np.where(SOME < 0, -1, SOME)
    assert module(X, labels) == pytest.approx(torch_loss(labels, ignore_index=-1)[0], rel=1e-5)
    with pytest.raises(LabelError, match="-100 in row 1"):
        module(X, SOME)


@pytest.mark.parametrize("loss", [artifacts.LossType.MSELoss, onnxblock.loss.CrossEntropyLoss()])
def test_ignore_index_where_it_says_nothing(tmp_path, loss):
    with pytest.raises(ArtifactError, match="ignore_index=-1 goes with a loss from labels"):
        generate(tmp_path, None, loss, ignore_index=-1)
    assert not list(tmp_path.iterdir())


def open_model():
    """Scores against candidates that come with the batch: only a run tells how many classes."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]>
        g (float[N, 6] x, float[8, C] candidates) => (float[N, C] y) {
            a = Gemm(x, w1, b1)
            y = MatMul(a, candidates)
        }"""
    )
    for name in ("w1", "b1"):
        value = WEIGHTS[name].astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def test_unknown_number_of_classes(tmp_path):
    artifacts.generate_artifacts(
        open_model(), requires_grad=["w1", "b1"], loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    candidates = RNG.normal(size=(8, 3)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    module = module_of(tmp_path, session_options=options)
    labels = np.array([0, 2, -100, 1, 2])
    scores = (X @ WEIGHTS["w1"] + WEIGHTS["b1"]) @ candidates
    want = F.cross_entropy(torch.tensor(scores), torch.tensor(labels)).item()
    for mode in (True, False):
        module.train(mode)
        assert module(X, candidates, labels) == pytest.approx(want, rel=1e-5)
        with pytest.raises(
            LabelError, match="-1 in row 1, and labels are numbers from 0 on, or -100"
        ):
            module(X, candidates, np.array([0, -1, 1, 1, 2]))
        for _ in range(2):
            with pytest.raises(RunError, match="'labels' has labels up to 3: are there as many"):
                module(X, candidates, np.array([0, 2, 3, 1, 2]))
        assert module(X, candidates, labels) == pytest.approx(want, rel=1e-5)


def test_labels_that_the_graph_computes(tmp_path):
    """Nothing can be checked before the run; the run fails instead of training on another class."""
    model = network("float loss", "y = Gemm(h, w2, b2)")
    model.graph.input.append(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.INT64, ["N"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    model.graph.node.extend(
        [
            onnx.helper.make_node("Sub", ["t", "one"], ["from_zero"]),
            onnx.helper.make_node(
                "SoftmaxCrossEntropyLoss", ["y", "from_zero"], ["loss"], ignore_index=-100
            ),
        ]
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    module = module_of(generate(tmp_path, model, None), session_options=options)
    for mode in (True, False):
        module.train(mode)
        assert module(X, SOME + 1) == pytest.approx(torch_loss(SOME)[0], rel=1e-5)
        for bad in (0, 5):
            with pytest.raises(RunError, match="Out of range"):
                module(X, np.array([1, 2, bad, 1, 1]))


# --- the trainer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("step_model", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
def test_trainer(folder, step_model, shuffle):
    """The same weights as with PyTorch, ignored labels in most batches, wrong ones named."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 6)).astype(np.float32)
    y = rng.integers(0, 4, 40)
    y[rng.random(40) < 0.3] = -100
    y[8:12] = -100  # a whole batch
    options = {} if step_model else {"step_model": None}
    trainer = Trainer.from_directory(folder, learning_rate=0.1, check_finite=True, **options)
    assert type(trainer._engine).__name__ == ("OneGraphEngine" if step_model else "TwoPartEngine")
    history = trainer.fit((x, y), 2, 4, shuffle=False, progress=False)
    weights = [torch.tensor(WEIGHTS[n].astype(np.float32), requires_grad=True) for n in NAMES]
    means = []
    for _ in range(2):
        losses = []
        for start in range(0, 40, 4):
            part = slice(start, start + 4)
            hidden = torch.tanh(torch.tensor(x[part]) @ weights[0] + weights[1])
            scores = hidden @ weights[2] + weights[3]
            loss = F.cross_entropy(scores, torch.tensor(y[part]))
            gradients = torch.autograd.grad(loss, weights)
            losses.append(loss.item())
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients):
                    weight -= 0.1 * gradient
        means.append(np.nanmean(losses))
    np.testing.assert_allclose(history["loss"], means, rtol=1e-5)
    for name, weight in zip(NAMES, weights):
        got = trainer.state.parameters[name].data
        np.testing.assert_allclose(got, weight.detach().numpy(), rtol=1e-4, atol=1e-5)
    y[13] = -1
    step = trainer.step
    with pytest.raises(LabelError, match="the label -1 in row 1," if not shuffle else "label -1"):
        trainer.fit((x, y), 1, 4, shuffle=shuffle, progress=False)
    assert trainer.step <= step + 9


def test_validation_counts_what_counts(folder):
    """Loss and metrics are those of the labels that are not ignored, whatever the batches."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(30, 6)).astype(np.float32)
    y = rng.integers(0, 4, 30)
    y[:7], y[20] = -100, -100
    names = ["accuracy", "top2", "perplexity"]
    trainer = Trainer.from_directory(folder, metrics=names)
    kept = y >= 0
    want = Trainer.from_directory(folder, metrics=names).evaluate((x[kept], y[kept]), 22)
    for size in (30, 7, 4):
        got = trainer.evaluate((x, y), size)
        assert got == pytest.approx(want, rel=1e-5)
    assert want["loss"] == pytest.approx(torch_loss(y[kept], x[kept])[0], rel=1e-5)
    with pytest.raises(InputError, match="no batch"):
        trainer.evaluate((x[:4], y[:4]))
    y[3] = -5
    with pytest.raises(LabelError, match="-5 in row 3"):
        trainer.evaluate((x, y))


def test_trainer_accumulates(folder):
    trainer = Trainer.from_directory(folder, learning_rate=0.1, accumulate=2)
    y = np.array([0, 1, -100, -100, 2, 3, -100, 1])
    x = np.random.default_rng(5).normal(size=(8, 6)).astype(np.float32)
    loss = trainer.fit((x, y), 1, 2, shuffle=False, progress=False)["loss"][0]
    assert np.isfinite(loss)
    with pytest.raises(LabelError, match="-1 in row 1,"):
        trainer.fit((x, np.array([0, -1] * 4)), 1, 2, shuffle=False, progress=False)


# --- what a file says -----------------------------------------------------------------------------

HOSTILE = {
    "no list": 3,
    "no entries": [3],
    "no name": [{"input": 1, "classes": 4, "ignore_index": None}],
    "lacks": [{"input": "labels"}],
    "text": [{"input": "labels", "classes": "4", "ignore_index": None}],
    "unknown": [{"input": "nobody", "classes": 4, "ignore_index": None}],
    "floats": [{"input": "x", "classes": 4, "ignore_index": None}],
    "parameter": [{"input": "w1", "classes": 4, "ignore_index": None}],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_description(folder, tmp_path, name):
    model = onnx.load(folder / "training_model.onnx")
    (entry,) = (p for p in model.metadata_props if p.key == "onnxtrain.artifact")
    described = json.loads(entry.value)
    assert described["labels"] == [{"input": "labels", "classes": 4, "ignore_index": -100}]
    described["labels"] = HOSTILE[name]
    entry.value = json.dumps(described)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises((ModelFileError, LookupError), match=r"labels|nobody"):
        Module(model.SerializeToString(), state)


def test_models_for_inference_know_no_labels(folder, tmp_path):
    module = module_of(folder)
    module.export_model_for_inferencing(tmp_path / "model.onnx", ["y"])
    model = onnx.load(tmp_path / "model.onnx")
    assert [i.name for i in model.graph.input] == ["x"]
    assert not [p for p in model.metadata_props if p.key.startswith("onnxtrain")]
    assert not [n for n in model.graph.node if "labels" in n.name]
