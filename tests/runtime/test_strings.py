"""Strings as inputs: onnxruntime's Python package binds none, so they go another way."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain.api import CheckpointState, Module
from onnxtrain.artifacts import LossType, generate_artifacts
from onnxtrain.errors import InputError
from onnxtrain.runtime.session.native import raw_ortvalue
from onnxtrain.runtime.session.strings import string_value

WORDS = np.array([["1.5", "2", "-3"], ["0", "4", "1e1"]])


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A linear layer on numbers that are written as words."""
    folder = tmp_path_factory.mktemp("strings")
    weight = numpy_helper.from_array(np.eye(3, 2, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Cast", ["words"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("words", TensorProto.STRING, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")


@pytest.mark.parametrize("words", [WORDS, WORDS.astype(object), WORDS.astype(bytes)])
def test_words_are_trained_on(module, words):
    target = np.zeros((2, 2), np.float32)
    numbers = WORDS.astype(np.float32)
    want = np.mean((numbers @ np.eye(3, 2)) ** 2)
    for _ in range(2):  # also when the binding has been used before
        module.lazy_reset_grad()
        np.testing.assert_allclose(module.train()(words, target), want, rtol=1e-6)
    gradient = module.state.parameters["w"].grad
    np.testing.assert_allclose(gradient, 2 * numbers.T @ numbers[:, :2] / 4, rtol=1e-5)
    np.testing.assert_allclose(module.eval()(words[:1], target[:1]), (1.5**2 + 2**2) / 2)


def test_numbers_for_words_are_refused(module):
    with pytest.raises(InputError, match="'words' needs"):
        module.train()(WORDS.astype(np.float32), np.zeros((2, 2), np.float32))


def test_all_characters_come_through():
    words = np.array(["", "é", "日本語", "a\nb"], dtype=object)
    value = string_value(words)
    assert raw_ortvalue(value) is value
    assert value.numpy().tolist() == words.tolist()
