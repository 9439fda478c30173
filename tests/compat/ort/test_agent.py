"""The second API: graph builder, agent, states."""

from __future__ import annotations

import base64
import gc
import json
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.capi import _pybind_state as C

import onnxtrain
from onnxtrain import training
from onnxtrain.compat.ort import graph_builder
from onnxtrain.errors import ExecutionError, ModelError, StateError, UnknownNameError
from tests.compat.ort.models import CPU, Agent, mlp, parse, vector

RNG = np.random.default_rng(5)


def torch_gradients(x: Any, weights: dict[str, Any], dy: Any) -> tuple[Any, dict[str, Any]]:
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in {"X": x, **weights}.items()}
    hidden = torch.relu(tensors["X"] @ tensors["w_first"] + tensors["bias"])
    y = hidden @ tensors["w_second"]
    y.backward(torch.tensor(dy))
    return y.detach().numpy(), {f"{n}_grad": t.grad.numpy() for n, t in tensors.items()}


def test_gradient_model_has_the_documented_signature() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights), ["X"])
    assert agent.feed_names == ["X", "w_second", "w_first", "bias"]
    assert agent.gradient_names == ["X_grad", "w_second_grad", "w_first_grad", "bias_grad"]
    domains = [n.domain for n in agent.gradient.graph.node]
    assert domains.count("com.microsoft") == 1
    assert {d for d in domains if d} == {"com.microsoft"}
    assert agent.info.user_input_grad_names == {"X": "X_grad"}
    assert agent.info.module_output_gradient_name == ["Y_grad"]
    assert agent.info.initializer_grad_names_to_train == agent.gradient_names[1:]
    onnx.checker.check_model(agent.gradient)


def test_forward_and_backward_equal_torch() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights), ["X"])
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    dy = RNG.normal(size=(6, 1)).astype(np.float32)
    outputs, state = agent.forward(x, *weights.values())
    gradients = agent.backward(state, dy)
    expected, expected_gradients = torch_gradients(x, weights, dy)
    np.testing.assert_allclose(outputs[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert set(gradients) == set(expected_gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-5, atol=1e-5)


def test_only_the_activation_is_kept() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    parts = graph_builder.split(agent.gradient)
    assert parts.saved == ["a"]  # not h, not the mask, not X, not the weights


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_several_forwards_may_be_pending(order: list[int]) -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    xs = [RNG.normal(size=(n, 4)).astype(np.float32) for n in (3, 5, 2)]
    dys = [RNG.normal(size=(len(x), 1)).astype(np.float32) for x in xs]
    pending = [agent.forward(x, *weights.values()) for x in xs]
    for i in order:
        gradients = agent.backward(pending[i][1], dys[i])
        expected = torch_gradients(xs[i], weights, dys[i])[1]
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-5)


def test_saved_values_are_not_copies() -> None:
    """A value that is output and saved is one OrtValue; inputs are the caller's own memory."""
    model = parse("g (float[N,3] X) => (float[N,3] Y) { z = Mul(X, w) Y = Tanh(z) }",
                  {"w": np.ones(3, np.float32)})  # fmt: skip
    agent = Agent(model, ["w"])
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    outputs, state = agent.forward(x, np.ones(3, np.float32))
    kept = {v.data_ptr() for v in state.values}
    assert outputs[0].data_ptr() in kept
    assert x.ctypes.data in kept


def resident() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_an_abandoned_state_frees_its_memory() -> None:
    text = "g (float[N,1024] X) => (float[N,1024] Y) { z = Mul(X, w) t = Tanh(z) Y = Exp(t) }"
    model = parse(text, {"w": np.ones(1024, np.float32)})
    agent = Agent(model, ["w"])
    x, w = np.ones((4096, 1024), np.float32), np.ones(1024, np.float32)  # 16 MiB each
    agent.forward(x, w)
    gc.collect()
    before = resident()
    for _ in range(20):
        state = agent.forward(x, w)[1]
        alive = weakref.ref(state)
        del state
        assert alive() is None
    assert resident() - before < 10 * x.nbytes  # 20 passes that leaked would hold 20 × 32 MiB


def test_backward_releases_the_state() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    _, state = agent.forward(np.ones((2, 4), np.float32), *weights.values())
    agent.backward(state, np.ones((2, 1), np.float32))
    with pytest.raises(ExecutionError, match="no forward pass pending"):
        agent.backward(state, np.ones((2, 1), np.float32))


def test_a_failed_forward_says_so() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    with pytest.raises(RuntimeError, match=r"^Error in forward pass execution: "):
        agent.forward(np.ones((2, 5), np.float32), *weights.values())
    with pytest.raises(RuntimeError, match="takes 4 inputs"):
        agent.forward(np.ones((2, 4), np.float32))
    _, state = agent.forward(np.ones((2, 4), np.float32), *weights.values())
    with pytest.raises(RuntimeError, match=r"^Error in backward pass execution: it takes 1"):
        agent.backward(state)
    other = Agent(model, list(weights))
    with pytest.raises(RuntimeError, match="belongs to another agent"):
        other.backward(state, np.ones((2, 1), np.float32))


def test_fetches_are_appended() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    outputs, state = C.OrtValueVector(), training.PartialGraphExecutionState()
    for _ in range(2):
        feeds = vector([np.ones((2, 4), np.float32), *weights.values()])
        agent.agent.run_forward(feeds, outputs, state, training.OrtValueCache())
        assert len(feeds) == 4
    assert len(outputs) == 2


def test_dropout_is_drawn_once() -> None:
    model = parse(
        """g (float[N,64] X) => (float[N,64] Y) <float ratio = {0.5}, bool on = {1}> {
            z = Mul(X, w)
            Y = Dropout(z, ratio, on)
        }""",
        {"w": np.ones(64, np.float32)},
    )
    agent = Agent(model, ["w"], ["X"])
    backward = graph_builder.split(agent.gradient).backward
    assert "Dropout" not in {n.op_type for n in backward.graph.node}
    x = np.ones((8, 64), np.float32)
    outputs, state = agent.forward(x, np.ones(64, np.float32))
    gradients = agent.backward(state, np.ones((8, 64), np.float32))
    np.testing.assert_array_equal(gradients["X_grad"], outputs[0].numpy())
    assert set(np.unique(gradients["X_grad"])) == {0.0, 2.0}


def test_dropout_goes_on_exactly_from_its_random_numbers() -> None:
    model = parse(
        """g (float[N,64] X) => (float[N,64] Y) <float ratio = {0.5}, bool on = {1}> {
            z = Mul(X, w)
            Y = Dropout(z, ratio, on)
        }""",
        {"w": np.ones(64, np.float32)},
    )
    first, again = (Agent(model, ["w"], ["X"]) for _ in range(2))
    assert first.feed_names == ["X", "w"]
    x, w = np.ones((8, 64), np.float32), np.ones(64, np.float32)
    for _ in range(2):
        first.forward(x, w)
    assert first.agent.random is not None
    assert first.agent.random[1] == 2
    again.agent.random = first.agent.random
    pending = [first.forward(x, w) for _ in range(3)]
    results = [outputs[0].numpy() for outputs, _ in pending]
    assert len({r.tobytes() for r in results}) == 3
    for result in results:
        assert np.array_equal(again.forward(x, w)[0][0].numpy(), result)
    for i in (1, 0, 2):  # backward passes in any order, each with its mask
        gradients = first.backward(pending[i][1], np.ones((8, 64), np.float32))
        assert np.array_equal(gradients["X_grad"], results[i])
    plain, weights = mlp()
    assert Agent(plain, list(weights)).agent.random is None


def test_outputs_without_gradient() -> None:
    model = parse(
        """g (float[N,3] X) => (int64[N] best, float[N,3] Y) {
            Y = Mul(X, w)
            best = ArgMax<axis=1, keepdims=0>(Y)
        }""",
        {"w": np.ones(3, np.float32)},
    )
    agent = Agent(model, ["w"])
    assert agent.info.output_grad_indices_non_differentiable == [0]
    x = RNG.normal(size=(4, 3)).astype(np.float32)
    for feeds in ([x], [np.zeros(4, np.int64), x]):  # with or without the useless gradient
        outputs, state = agent.forward(x, np.ones(3, np.float32))
        np.testing.assert_array_equal(outputs[0].numpy(), x.argmax(1))
        gradient = agent.backward(state, *feeds)["w_grad"]
        np.testing.assert_allclose(gradient, (x * x).sum(0), rtol=1e-5)


def test_new_build_form_shapes_and_files(tmp_path: Path) -> None:
    model, weights = mlp()
    config = training.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = config.initializer_names_to_train = list(weights)
    config.graph_transformer_config.enable_gelu_approximation = True  # the older place
    builder = training.OrtModuleGraphBuilder()
    builder.initialize(model.SerializeToString(), config)
    transform = training.TrainingGraphTransformerConfiguration()
    transform.propagate_cast_ops_config.strategy = training.PropagateCastOpsStrategy.NONE
    transform.optimized_pre_grad_filepath = str(tmp_path / "forward.onnx")
    builder.build(transform, [[7, 4]])
    gradient = onnx.load_from_string(builder.get_gradient_model())
    assert gradient.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 7
    assert (tmp_path / "forward.onnx").read_bytes() == builder.get_forward_model()
    with pytest.raises(ModelError, match="2 shapes"):
        builder.build(transform, [[7, 4], [1]])


def test_forward_model_takes_the_weights() -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    session = onnxruntime.InferenceSession(
        agent.builder.get_inference_optimized_model(), providers=["CPUExecutionProvider"]
    )
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    (y,) = session.run(None, {"X": x, **weights})
    outputs, _ = agent.forward(x, *weights.values())
    np.testing.assert_allclose(outputs[0].numpy(), y, rtol=1e-6)


def test_agent_without_metadata_cuts_the_model_again(tmp_path: Path) -> None:
    model, weights = mlp()
    agent = Agent(model, list(weights))
    bare = onnx.ModelProto()
    bare.CopyFrom(agent.gradient)
    del bare.metadata_props[:]
    path = tmp_path / "gradient.onnx"
    onnx.save(bare, path)
    arguments: list[Any] = [agent.feed_names, [CPU], agent.gradient_names, [CPU] * 3]
    for source in (str(path), bare.SerializeToString()):
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        again = training.TrainingAgent(session, *arguments)
        outputs, state = C.OrtValueVector(), training.PartialGraphExecutionState()
        again.run_forward(vector([np.ones((2, 4), np.float32), *weights.values()]), outputs, state)
        assert outputs[0].shape() == [2, 1]
        with pytest.raises(ModelError, match="two halves"):
            training.TrainingAgent(session._sess, *arguments)


def test_names_are_checked() -> None:
    model, weights = mlp()
    config = training.OrtModuleGraphBuilderConfiguration()
    builder = training.OrtModuleGraphBuilder()
    with pytest.raises(StateError, match="initialize"):
        builder.build()
    config.initializer_names = ["nobody"]
    with pytest.raises(UnknownNameError, match="nobody"):
        builder.initialize(model.SerializeToString(), config)
    config.initializer_names = []
    config.initializer_names_to_train = ["bias"]
    with pytest.raises(UnknownNameError, match="bias"):
        builder.initialize(model.SerializeToString(), config)
    with pytest.raises(AttributeError, match="Did you mean 'initializer_names'"):
        config.initialiser_names = []
    agent = Agent(model, list(weights))
    with pytest.raises(UnknownNameError, match="'x'"):
        training.TrainingAgent(agent.session, ["x"], [CPU], ["bias_grad"], [CPU])
    with pytest.raises(ValueError, match="0 devices"):
        training.TrainingAgent(agent.session, agent.feed_names, [CPU], ["bias_grad"], [])


def test_gradient_graph_builder(tmp_path: Path) -> None:
    model = parse(
        "g (float[N] x) => (float loss) { y = Mul(x, w) loss = ReduceSum<keepdims=0>(y) }",
        {"w": np.float32(2)},
    )
    builder = training.GradientGraphBuilder(model.SerializeToString(), {"loss"}, {"w", "x"}, "loss")
    with pytest.raises(StateError):
        builder.get_model()
    builder.build()
    builder.save(str(tmp_path / "gradient.onnx"))
    session = onnxruntime.InferenceSession(builder.get_model(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    assert names == ["loss", "x_grad", "w_grad"]
    _, dx, dw = session.run(None, {"x": np.array([1, 2], np.float32)})
    assert dx.tolist() == [2, 2]
    assert dw == 3
    assert (tmp_path / "gradient.onnx").read_bytes() == builder.get_model()


def test_ort_value_cache() -> None:
    cache = training.OrtValueCache()
    cache.insert("a", 1)
    assert cache.keys() == ["a"]
    assert (cache.count("a"), cache.count("b")) == (1, 0)
    cache.remove("a")
    with pytest.raises(LookupError):
        cache.remove("a")
    cache.insert("b", 2)
    cache.clear()
    assert cache.keys() == []


def test_public_names() -> None:
    for name in ("TrainingAgent", "OrtModuleGraphBuilder", "OrtModuleGraphBuilderConfiguration"):
        assert getattr(onnxtrain, name) is getattr(training, name)


def packed(model: onnx.ModelProto | bytes) -> str:
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return base64.b64encode(zlib.compress(content)).decode()


def names_a_file() -> onnx.ModelProto:
    model, _ = mlp()
    tensor = model.graph.initializer.add(name="q", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return model


HALVES = {
    "no JSON": "{",
    "a list": "[]",
    "nothing packed": '{"forward": "", "backward": ""}',
    "no model": json.dumps({"forward": packed(b"junk"), "backward": ""}),
    "cut off": json.dumps({"forward": packed(b"junk" * 9)[:20], "backward": ""}),
    "300 MB in 400 kB": json.dumps({"forward": packed(bytes(300_000_000)), "backward": ""}),
    "a file of somebody else's": json.dumps({"forward": packed(names_a_file()), "backward": ""}),
    "nested": "[" * 100_000,
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_in_metadata_are_not_trusted(name: str) -> None:
    with pytest.raises(ModelError, match=r"onnxtrain\.partition"):
        graph_builder.embedded({"onnxtrain.partition": HALVES[name]})
