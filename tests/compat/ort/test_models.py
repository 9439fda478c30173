"""The first API on models of all kinds: types, old files, external data, bad losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain import TrainingSession
from onnxtrain.errors import ModelError, StateError, UnreachableError
from onnxtrain.training import ParameterError
from tests.compat.ort.models import mlp_with_loss, parse
from tests.compat.ort.test_session import batches, feeds, parameters


@pytest.mark.parametrize("optimizer", ["SGDOptimizer", "AdamOptimizer"])
def test_double_precision(optimizer: str) -> None:
    model = parse(
        """g (double[N] x) => (double loss) {
            d = Sub(x, w)
            s = Mul(d, d)
            loss = ReduceMean<keepdims=0>(s)
        }""",
        {"w": np.float64(3)},
    )
    session = TrainingSession(model.SerializeToString(), parameters(optimizer))
    given = {"x": np.ones(4), "Learning_Rate": np.array([0.1], np.float32)}
    losses = [float(session.run(["loss"], given)[0]) for _ in range(300)]
    assert losses[0] == 4.0
    assert losses[-1] < 1e-3
    assert session.get_state()["w"].dtype == np.float64
    assert not session.is_output_fp32_node("loss")


def test_initializers_that_are_inputs_too() -> None:
    """Old files list every initializer among the inputs, those that are not trained as well."""
    model, weights = mlp_with_loss()
    old = onnx.ModelProto()
    old.CopyFrom(model)
    for name, array in weights.items():
        kind = onnx.TensorProto.FLOAT
        old.graph.input.insert(0, onnx.helper.make_tensor_value_info(name, kind, array.shape))
    x, y = batches(1)[0]
    for chosen in ({"bias", "w_first"}, set(weights)):
        states = []
        for one in (model, old):
            session = TrainingSession(one.SerializeToString(), parameters(weights_to_train=chosen))
            assert [i.name for i in session.get_inputs()] == ["X", "label", "Learning_Rate"]
            for _ in range(3):
                session.run(None, feeds(x, y, 0.05))
            states.append(session.get_state())
        assert list(states[0]) == list(states[1])
        for name in chosen:
            np.testing.assert_array_equal(states[0][name], states[1][name])


def test_external_data(tmp_path: Path) -> None:
    model, weights = mlp_with_loss()
    plain = TrainingSession(model.SerializeToString(), parameters())
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    session = TrainingSession(str(path), parameters())
    np.testing.assert_array_equal(session.get_state()["w_first"], weights["w_first"])
    x, y = batches(1)[0]
    assert session.run(["loss"], feeds(x, y, 0.1)) == plain.run(["loss"], feeds(x, y, 0.1))
    np.testing.assert_array_equal(session.get_state()["bias"], plain.get_state()["bias"])


def test_loss_that_is_not_first_and_not_quite_a_scalar() -> None:
    model = parse(
        """g (float[N,2] x) => (float[N,1] y, float[1,1] cost) {
            y = MatMul(x, w)
            cost = ReduceSumSquare<keepdims=1>(y)
        }""",
        {"w": np.ones((2, 1), np.float32)},
    )
    session = TrainingSession(model.SerializeToString(), parameters(loss_output_name="cost"))
    assert [o.name for o in session.get_outputs()] == ["cost", "y"]
    x = np.eye(2, dtype=np.float32)
    rate = np.array([0.25], np.float32)
    costs = [session.run(None, {"x": x, "Learning_Rate": rate})[0] for _ in range(3)]
    assert [c.tolist() for c in costs] == [[[2.0]], [[0.5]], [[0.125]]]


def test_a_vector_is_no_loss() -> None:
    model = parse("g (float[3] x) => (float[3] loss) { loss = Mul(x, w) }", {"w": np.float32(1)})
    with pytest.raises(ModelError, match="'loss' has shape"):
        TrainingSession(model.SerializeToString(), parameters())


def test_constants_that_the_loss_does_not_depend_on() -> None:
    text = """g (float[N] x) => (float loss, float[N] other) {
        y = Mul(x, w)
        loss = ReduceSum<keepdims=0>(y)
        other = Add(x, c)
    }"""
    model = parse(text, {"w": np.float32(1), "c": np.float32(2)})
    session = TrainingSession(model.SerializeToString(), parameters())
    assert list(session.get_state()) == ["w"]
    with pytest.raises(UnreachableError, match="'c'"):
        TrainingSession(model.SerializeToString(), parameters(weights_to_train={"c"}))
    with pytest.raises(ParameterError, match="no weight"):
        TrainingSession(model.SerializeToString(), parameters(weights_not_to_train={"w"}))


def test_dropout_trains() -> None:
    model = parse(
        """g (float[N,4] X, float[N,4] label) => (float loss)
            <float ratio = {0.5}, bool on = {1}> {
            h = Mul(X, w)
            y = Dropout(h, ratio, on)
            d = Sub(y, label)
            s = Mul(d, d)
            loss = ReduceMean<keepdims=0>(s)
        }""",
        {"w": np.ones(4, np.float32)},
    )
    session = TrainingSession(model.SerializeToString(), parameters(weights_to_train={"w"}))
    x = np.ones((64, 4), np.float32)
    given: dict[str, Any] = feeds(x, x, 0.05)
    losses = [float(session.run(["loss"], given)[0]) for _ in range(60)]
    assert len(set(losses[:5])) == 5  # a new mask every time
    assert abs(session.get_state()["w"] - 0.5).max() < 0.15  # E[(2wb − 1)²] is least at ½


def test_an_update_that_the_optimizer_of_graphs_rewrites() -> None:
    """w + (−s) becomes w − s; the result keeps its name."""
    text = """g (float[N] x) => (float loss) {
        y = Sub(x, w)
        s = Mul(y, y)
        loss = ReduceMean<keepdims=0>(s)
    }"""
    model = parse(text, {"w": np.float32(3)})
    session = TrainingSession(model.SerializeToString(), parameters())
    given = {"x": np.ones(4, np.float32), "Learning_Rate": np.array([0.25], np.float32)}
    assert [float(session.run(["loss"], given)[0]) for _ in range(3)] == [4.0, 1.0, 0.25]
    assert session.get_state()["w"] == 1.25


def test_providers_are_fixed() -> None:
    model, _ = mlp_with_loss()
    session = TrainingSession(model.SerializeToString(), parameters())
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(StateError, match="load_state"):
        session.set_providers(["CPUExecutionProvider"])
