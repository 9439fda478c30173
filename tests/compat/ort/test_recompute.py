"""`TrainingParameters.recompute`, and the older fields that mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain.passes.segments import RecomputeError
from onnxtrain.training import TrainingParameters, TrainingSession

from ...passes.test_recompute import TANH, batch, network


def parameters(**fields: Any) -> TrainingParameters:
    made = TrainingParameters()
    made.loss_output_name, made.training_optimizer_name = "loss", "SGDOptimizer"
    made.weights_to_train = {f"w{i}" for i in range(6)}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, None),
        ({"recompute": 4}, 4),
        ({"transformer_layer_recompute": True}, "auto"),
        ({"transformer_layer_recompute": True, "number_recompute_layers": 3}, 3),
        ({"number_recompute_layers": 3}, None),
        ({"gelu_recompute": True}, "cheap"),
        ({"attn_dropout_recompute": True}, "cheap"),
        ({"recompute": ["x2"], "gelu_recompute": True}, ["x2"]),
    ],
    ids=str,
)
def test_fields(fields: dict[str, Any], how: Any) -> None:
    assert parameters(**fields).what_to_recompute() == how


def test_a_wrong_value_is_an_error() -> None:
    with pytest.raises(RecomputeError):
        parameters(recompute="deep").check()


@pytest.mark.parametrize("fields", [{"recompute": 3}, {"transformer_layer_recompute": True}])
def test_a_session_trains_alike(fields: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    for chosen in ({}, fields):
        path = tmp_path / f"{len(losses)}.onnx"
        wanted = parameters(**chosen, model_with_training_graph_path=str(path))
        session = TrainingSession(network(TANH).SerializeToString(), wanted)
        feeds = batch() | {"Learning_Rate": np.array([0.5], np.float32)}
        losses.append([float(session.run(["loss"], feeds)[0]) for _ in range(4)])
        # factors of a gradient are computed late in any case, layers only where that is asked for
        again = {n.op_type for n in onnx.load(path).graph.node if "_again" in n.name}
        assert ("Tanh" in again) == bool(chosen)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][-1] != losses[0][0]
