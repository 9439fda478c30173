"""The same model has the same gradient nodes, and the same weights, through every way in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtrain
from onnxtrain import compile as compiler
from onnxtrain.artifacts import generate_artifacts
from onnxtrain.graph import to_proto
from onnxtrain.training import TrainingParameters, TrainingSession

torch = pytest.importorskip("torch")

from onnxtrain.torch import ORTModule, ORTTrainer, optim  # noqa: E402

from .gradients import structure  # noqa: E402

RNG = np.random.default_rng(0)


def _model(
    nodes: list[Any], x: list[Any], y: list[Any], weights: dict[str, Any]
) -> onnx.ModelProto:
    """Nodes from x to y, with a mean squared error; `scale`, a single number, is no weight."""
    nodes = [
        *nodes,
        helper.make_node("Mul", ["y", "scale"], ["scaled"], name="scaling"),
        helper.make_node("Sub", ["scaled", "target"], ["d"], name="difference"),
        helper.make_node("Mul", ["d", "d"], ["square"], name="square"),
        helper.make_node("ReduceMean", ["square"], ["loss"], name="mean", keepdims=0),
    ]
    tensors = {n: np.asarray(w, np.float32) for n, w in {**weights, "scale": 0.5}.items()}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
         helper.make_tensor_value_info("target", TensorProto.FLOAT, y)],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(w, n) for n, w in tensors.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def mlp() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], name="first", transB=1),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], name="second", transB=1),
    ]
    sizes = {"w1": (5, 4), "b1": (5,), "w2": (3, 5), "b2": (3,)}
    weights = {n: RNG.normal(size=s) for n, s in sizes.items()}
    return _model(nodes, ["batch", 4], ["batch", 3], weights)


def conv() -> onnx.ModelProto:
    norm = ["c", "gamma", "beta", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["x", "k", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", norm, ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("MaxPool", ["r"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    sizes = {"k": (2, 1, 3, 3), "b": (2,), "gamma": (2,), "beta": (2,), "mean": (2,), "var": (2,)}
    weights = {n: np.abs(RNG.normal(size=s)) + 0.1 for n, s in sizes.items()}
    return _model(nodes, ["batch", 1, 4, 4], ["batch", 2, 2, 2], weights)


MODELS = {"mlp": (mlp, ["w1", "b1", "w2", "b2"]), "conv": (conv, ["k", "b", "gamma", "beta"])}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, onnx.ModelProto]]:
    """The plans that were made, and the models with gradients that became of them."""
    seen: list[tuple[Any, onnx.ModelProto]] = []
    build = compiler._build_gradients

    def spy(plan: compiler.Plan) -> compiler.Gradients:
        result = build(plan)
        seen.append((plan, to_proto(result.copy().model)))
        return result

    monkeypatch.setattr(compiler, "_build_gradients", spy)
    return seen


def through_artifacts(model: onnx.ModelProto, folder: Path, _: Any) -> onnx.ModelProto:
    generate_artifacts(model, artifact_directory=folder)
    return onnx.load(folder / "training_model.onnx")


def through_training_session(model: onnx.ModelProto, folder: Path, _: Any) -> onnx.ModelProto:
    parameters = TrainingParameters()
    parameters.loss_output_name = "loss"
    parameters.training_optimizer_name = "SGDOptimizer"
    parameters.model_with_gradient_graph_path = str(folder / "gradients.onnx")
    TrainingSession(model.SerializeToString(), parameters)
    return onnx.load(folder / "gradients.onnx")


def through_ort_trainer(model: onnx.ModelProto, _: Path, built: Any) -> onnx.ModelProto:
    dims = [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim]
            for i in model.graph.input]  # fmt: skip
    description = {
        "inputs": [(i.name, d) for i, d in zip(model.graph.input, dims)],
        "outputs": [("loss", [], True)],
    }
    trainer = ORTTrainer(model, description, optim.SGDConfig(lr=0.1))
    batch = [torch.zeros([2, *(int(s) for s in d[1:])]) for d in dims]
    trainer.train_step(*batch)
    return built[-1][1]  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[onnx.ModelProto, Path, Any], onnx.ModelProto]] = {
    "generate_artifacts": through_artifacts,
    "TrainingSession": through_training_session,
    "ORTTrainer": through_ort_trainer,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_differentiate(
    name: str, way: str, tmp_path: Path, built: list[tuple[Any, onnx.ModelProto]]
) -> None:
    make, trained = MODELS[name]
    model = make()
    wanted = structure(onnxtrain.differentiate(model), trained)
    assert len(set(wanted.values())) == len(trained)
    found = WAYS[way](model, tmp_path, built)
    assert structure(found, trained) == wanted


def conv_and_norm() -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.MaxPool2d(2))


MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU()), (2, 4)),
    "conv": (conv_and_norm, (2, 1, 6, 6)),
    "attention": (lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0), (3, 2, 4)),
}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_of_ort_module_are_those_of_differentiate(
    name: str, exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node by node: what is differentiated is the export, with the gradients of its outputs fed."""
    results: list[tuple[compiler.Plan, compiler.Gradients]] = []
    build = compiler._build_gradients

    def spy(plan: compiler.Plan) -> compiler.Gradients:
        result = build(plan)
        results.append((plan, result.copy()))
        return result

    monkeypatch.setattr(compiler, "_build_gradients", spy)
    make, size = MODULES[name]
    ORTModule(make(), exporter=exporter)(torch.randn(size)).sum().backward()
    plan, gradients = results[-1]
    wrt = [*plan.trainable, *plan.inputs]
    assert len(wrt) > 1
    found = structure(to_proto(gradients.model), wrt, gradients.gradients)
    other = onnxtrain.differentiate(plan.load(), wrt, list(plan.of) or None, vjp=True)
    assert found == structure(other, wrt)
    assert len(set(found.values())) == len(wrt)


def test_structure_sees_one_other_node() -> None:
    """The comparison itself: names of values do not matter, operators and constants do."""
    model = onnxtrain.differentiate(mlp())
    trained = MODELS["mlp"][1]
    wanted = structure(model, trained)
    renamed, changed = onnx.ModelProto(), onnx.ModelProto()
    for copy in (renamed, changed):
        copy.CopyFrom(model)
    for node in renamed.graph.node:
        for names in (node.input, node.output):
            names[:] = ["hidden" if n == "r" else n for n in names]
    assert structure(renamed, trained) == wanted
    next(n for n in changed.graph.node if n.op_type == "Relu").op_type = "Tanh"
    assert structure(changed, trained) != wanted


@pytest.mark.parametrize("name", MODELS)
def test_one_answer_to_what_is_trained(
    name: str, tmp_path: Path, built: list[tuple[Any, onnx.ModelProto]]
) -> None:
    """Neither single numbers nor running statistics, whoever is asked."""
    make, trained = MODELS[name]
    model = make()
    assert onnxtrain.summarize(model).trainable == trained
    onnxtrain.differentiate(model)
    for way in WAYS.values():
        way(model, tmp_path, built)
    assert len(built) >= 4
    assert [list(plan.trainable) for plan, _ in built] == [trained] * len(built)


def test_artifacts_normalize_the_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    normalize = compiler.normalize
    monkeypatch.setattr(compiler, "normalize", lambda model: (calls.append(1), normalize(model))[1])
    generate_artifacts(mlp(), artifact_directory=tmp_path)
    assert len(calls) == 1


def test_a_model_of_single_numbers_trains_them() -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"], name="same")]
    model = _model(nodes, ["batch"], ["batch"], {})
    gradient = onnxtrain.differentiate(model)
    assert [o.name for o in gradient.graph.output] == ["loss", "scale_grad"]
    assert onnxtrain.summarize(model).trainable == ["scale"]
