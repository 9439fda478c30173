from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.api import CheckpointState, Module
from onnxtrain.errors import InputError, StateError

from . import handmade


@pytest.fixture
def state():
    return CheckpointState.from_arrays(
        {"w": np.zeros((2, 3), np.float32)}, {"f": np.ones(2, np.int64)}
    )


def test_parameters(state):
    w = state.parameters["w"]
    assert (w.name, w.requires_grad, w.grad) == ("w", True, None)
    assert not state.parameters["f"].requires_grad
    w.data[0, 0] = 5
    assert state.parameters["w"].data[0, 0] == 5
    state.parameters["w"] = np.ones((2, 3), np.float32)
    assert w.data.sum() == 6
    assert [n for n, _ in state.parameters] == ["f", "w"]
    assert len(state.parameters) == 2
    assert "w" in state.parameters
    assert "x" not in state.parameters
    assert repr(w) == "Parameter(name='w', requires_grad=True)"
    assert repr(state.parameters) == "Parameters(f: int64[2], w: float32[2, 3])"
    assert "1 trainable and 1 frozen" in repr(state)


def test_wrong_values(state):
    with pytest.raises(KeyError, match="not found"):
        state.parameters["nothing"]
    with pytest.raises(InputError, match="astype"):
        state.parameters["w"] = np.ones((2, 3))
    with pytest.raises(InputError, match="shape"):
        state.parameters["w"] = np.ones((3, 2), np.float32)
    assert not state.parameters["w"].data.any()
    with pytest.raises(TypeError, match="load_checkpoint"):
        CheckpointState("path")
    with pytest.raises(InputError, match="as frozen"):
        CheckpointState.from_arrays({"w": np.ones(1)}, {"w": np.ones(1)})
    with pytest.raises(InputError, match="complex"):
        CheckpointState.from_arrays({"w": np.ones(1, complex)})


def test_properties(state):
    properties = state.properties
    properties["i"], properties["f"], properties["s"], properties["b"] = 3, 0.5, "text", True
    assert dict(properties) == {"i": 3, "f": 0.5, "s": "text", "b": 1}
    assert [n for n, _ in properties] == ["b", "f", "i", "s"]
    assert repr(properties) == "Properties(b=1, f=0.5, i=3, s='text')"
    assert "i" in properties
    assert len(properties) == 4
    state["own"] = 7
    assert state["own"] == 7
    assert "own" in state
    del properties["own"]
    assert "own" not in state
    with pytest.raises(KeyError, match="not found"):
        properties["nothing"]
    with pytest.raises(TypeError, match="int, a float or a string"):
        properties["list"] = [1]
    with pytest.raises(ValueError, match="64 bits"):
        properties["big"] = 2**63


def test_nominal_state(artifacts):
    state = CheckpointState.nominal(handmade.TRAINABLE, handmade.FROZEN)
    with pytest.raises(StateError, match="Please load the parameter states first"):
        state.parameters["W1"].data  # noqa: B018
    with pytest.raises(StateError, match="Please load all the parameter states first"):
        state.parameters["W1"] = np.ones((4, 8), np.float32)
    module = Module(artifacts.train, state)
    assert module.get_parameters_size() == 32 + 8 + 24 + 3
    assert module.get_parameters_size(trainable_only=False) == 67 + 8
    with pytest.raises(StateError, match="Please load the model parameters first"):
        module(*handmade.batch())
    full = Module(artifacts.train, artifacts.state())
    vector = full.get_contiguous_parameters(trainable_only=False)
    with pytest.raises(StateError, match="trainable_only=False"):
        module.copy_buffer_to_parameters(vector, trainable_only=True)
    module.copy_buffer_to_parameters(vector, trainable_only=False)
    assert not state.is_nominal
    assert module(*handmade.batch())[0] == full(*handmade.batch())[0]
