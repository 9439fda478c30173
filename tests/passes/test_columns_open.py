"""Layers whose batch size is open are in the graph in columns and in rows; an If decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxtrain
from onnxtrain import losses, optim, training
from onnxtrain.api import CheckpointState, Module, Optimizer, Trainer
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.parameters import to_inputs
from onnxtrain.graph.subgraphs import subgraph_protos
from onnxtrain.normalize import normalize
from onnxtrain.passes import columns, layers_in_columns
from onnxtrain.runtime.session import cutting
from onnxtrain.runtime.session.devices import open_session
from tests.compat.ort.models import Agent

from .test_columns import CHAIN, LAYERS, WEIGHTS, model_of, operators, run, turned

pytestmark = pytest.mark.slow

WIDE = 12
SIZES = (20, 4, 16, 15, 1, 600, 20)
"""Rows of consecutive batches: few, enough, too many."""
CONDITION = {"Shape": 1, "Clip": 1, "Equal": 1, "If": 1}


@pytest.fixture(autouse=True)
def small_layers_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "FEWEST_WEIGHTS", WIDE)
    monkeypatch.setattr(columns, "FEWEST_WEIGHTS_OF_BOTH", WIDE)


def open_model(body: str = CHAIN) -> onnx.ModelProto:
    return model_of(body, batch="N", wide=WIDE)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    for rows in SIZES:
        yield rng.normal(size=(rows, WIDE)).astype(np.float32), rng.integers(0, 3, rows)


@pytest.mark.parametrize(
    "body",
    [
        CHAIN,
        LAYERS.replace(", b1", "").replace(", b2", "") + "y = LeakyRelu<alpha=0.2>(c)",
        LAYERS + "y = Add(a, c)",
        LAYERS + "d = Gemm<transB=1>(h, w1, b1) y = Add(c, d)",
    ],
)
def test_values_stay(body: str) -> None:
    model = open_model(body)
    made = turned(model)
    assert CONDITION.items() <= operators(made).items()
    assert not operators(made)["Gemm"]
    for rows in SIZES:
        np.testing.assert_allclose(run(made, rows)[0], run(model, rows)[0], rtol=1e-4, atol=1e-5)


def test_each_branch_has_one_form() -> None:
    [node] = [n for n in turned(open_model()).graph.node if n.op_type == "If"]
    in_columns, in_rows = subgraph_protos(node)
    firsts = [
        [n.input[0] in WEIGHTS for n in graph.node if n.op_type == "Gemm"]
        for graph in (in_columns, in_rows)
    ]
    assert firsts == [[True] * 3, [False] * 3]
    assert [n.op_type for n in in_rows.node] == ["Gemm", "Relu", "Gemm", "Tanh", "Gemm"]


def test_a_long_chain_has_several_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MOST_LAYERS", 2)
    body = LAYERS + "d = Gemm<transB=1>(c, w1, b1) e = Relu(d) y = Gemm<transB=1>(e, w3, b3)"
    model = open_model(body)
    made = turned(model)
    assert operators(made) == {**CONDITION, "If": 2}  # which share what they ask
    for rows in (4, 20):
        np.testing.assert_allclose(run(made, rows)[0], run(model, rows)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (CHAIN, {"no_gradient": ["second"]}),
        (CHAIN, {"keep": ["h", "k"]}),
        (CHAIN, {"open_batches": False}),
        (CHAIN.replace("b1", "s1").replace("b2", "s2"), {}),  # biases that are computed later
    ],
)
def test_stays_in_rows(body: str, options: dict[str, Any]) -> None:
    biases = "s1 = Neg(b1) s2 = Neg(b2) " if "s1" in body else ""
    model = open_model(biases + body)
    [gemm] = [n for n in model.graph.node if "w2" in n.input]
    gemm.name = "second"
    loaded = load(model)
    to_inputs(loaded, [n for n in WEIGHTS if n in loaded.graph.initializers])
    made = to_proto(layers_in_columns(normalize(loaded), **options))
    assert operators(made) == operators(model)


def gradients_of(model: onnx.ModelProto, rows: int) -> list[np.ndarray]:
    summed = onnx.parser.parse_graph(
        "g (float[N,3] y) => (float l) { z = Mul(y, y) l = ReduceSum<keepdims=0>(z) }"
    )
    model.graph.node.extend(summed.node)
    model.graph.output[0].CopyFrom(summed.output[0])
    made = onnxtrain.differentiate(model, wrt=[*WEIGHTS, "x"])
    assert operators(made)["If"] == (2 if columns.FEWEST_WEIGHTS == WIDE else 0)
    return run(made, rows)


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {rows: gradients_of(open_model(), rows) for rows in (1, 4, 16, 30)}
    monkeypatch.setattr(columns, "FEWEST_WEIGHTS", 1_000_000)
    for rows, values in both.items():
        for value, expected in zip(values, gradients_of(open_model(), rows), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(rows: int) -> list[np.ndarray]:
        once = onnxtrain.differentiate(open_model(CHAIN), wrt=[*WEIGHTS, "x"], of="y", vjp=True)
        again = onnxtrain.differentiate(once, wrt=["w2"], of="x_grad", vjp=True)
        assert (operators(again)["If"] > 2) == (columns.FEWEST_WEIGHTS == WIDE)
        rng = np.random.default_rng(1)
        feeds = {
            v.name: rng.normal(size=(rows, v.type.tensor_type.shape.dim[1].dim_value or 3))
            for v in again.graph.input
        }
        session = open_session(again.SerializeToString())
        return session.run(None, {n: a.astype(np.float32) for n, a in feeds.items()})

    both = {rows: twice(rows) for rows in (4, 20)}
    monkeypatch.setattr(columns, "FEWEST_WEIGHTS", 1_000_000)
    for rows, values in both.items():
        for value, expected in zip(values, twice(rows), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


# -- every way to train, with batches of changing sizes --------------------------------------------


def generate(folder: Path) -> Path:
    onnxtrain.generate_artifacts(
        open_model(),
        loss=losses.CrossEntropyLoss(),
        optimizer=optim.adamw(),
        artifact_directory=folder,
        step_model=True,
    )
    return folder


def by_module(folder: Path) -> list[float]:
    """With evaluations in between, and a resume after every second step."""
    generate(folder)
    path, values = folder / "checkpoint", []
    for number, (x, y) in enumerate(batches()):
        if number % 2 == 0:
            state = CheckpointState.load_checkpoint(path)
            module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
            optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        values.append(float(module.train()(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
        values.append(float(module.eval()(x, y)))
        path = folder / "resumed"
        CheckpointState.save_checkpoint(state, path)
    return values


def by_trainer(folder: Path) -> list[float]:
    """Of 50 rows the last batch has few."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(50, WIDE)).astype(np.float32), rng.integers(0, 3, 50)
    trainer = Trainer.from_directory(generate(folder))
    history = trainer.fit((x, y), validation_data=(x, y), epochs=2, batch_size=20, progress=False)
    return [*history["loss"], *history["val_loss"]]


def by_session(folder: Path) -> list[float]:
    del folder
    model = open_model(CHAIN + " z = Sub(y, t) q = Mul(z, z) loss = ReduceMean<keepdims=0>(q)")
    model.graph.input.append(onnx.helper.make_tensor_value_info("t", 1, ["N", 3]))
    model.graph.output.insert(0, onnx.helper.make_tensor_value_info("loss", 1, []))
    options = training.TrainingParameters()
    options.loss_output_name = "loss"
    options.weights_to_train = set(WEIGHTS)
    options.training_optimizer_name = "AdamOptimizer"
    session = training.TrainingSession(model.SerializeToString(), options)
    rate = np.array([0.01], np.float32)
    return [
        float(
            session.run(["loss"], {"x": x, "t": np.eye(3, dtype="f4")[y], "Learning_Rate": rate})[0]
        )
        for x, y in batches()
    ]


def by_agent(folder: Path) -> list[float]:
    del folder
    model = open_model()
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    agent, values = Agent(model, list(weights), ["x"]), []
    for x, y in batches():
        outputs, state = agent.forward(x, *weights.values())
        values.append(float(outputs[0].numpy().sum()))
        gradients = agent.backward(state, np.eye(3, dtype=np.float32)[y])
        values += [float(np.abs(g).sum()) for g in gradients.values()]
    return values


@pytest.mark.parametrize("way", [by_module, by_trainer, by_session, by_agent])
def test_batches_of_any_size(way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for name, fewest in (("both", WIDE), ("rows", 1_000_000)):
        monkeypatch.setattr(columns, "FEWEST_WEIGHTS", fewest)
        (tmp_path / name).mkdir()
        results.append(way(tmp_path / name))
    np.testing.assert_allclose(*results, rtol=2e-4, atol=1e-5)


def test_batches_of_any_size_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = by_module(tmp_path / "whole")
    monkeypatch.setattr(cutting, "MANY_NODES", 5)
    monkeypatch.setattr(cutting, "NODES_OF_A_PIECE", 6)
    np.testing.assert_allclose(by_module(tmp_path / "cut"), whole, rtol=2e-4, atol=1e-5)


def test_artifacts_have_both_forms(tmp_path: Path) -> None:
    generate(tmp_path)
    for name, count in (("training_model", 2), ("step_model", 2), ("eval_model", 0)):
        assert operators(onnx.load(tmp_path / f"{name}.onnx"))["If"] == count
