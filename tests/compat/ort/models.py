"""Small models and the bits that every test of the two APIs needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from onnxruntime.capi import _pybind_state as C

from onnxtrain import training

HEADER = '<ir_version: 8, opset_import: ["": 18]>'
CPU = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
Arrays = Mapping[str, Any]


def parse(graph: str, weights: Arrays | None = None) -> onnx.ModelProto:
    """A model from its text, with initializers."""
    model = onnx.parser.parse_model(f"{HEADER} {graph}")
    for name, array in (weights or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def mlp(
    seed: int = 0, features: int = 4, hidden: int = 8
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """X → Relu layer → Y, names deliberately not in alphabetical order."""
    rng = np.random.default_rng(seed)
    weights = {
        "w_second": rng.normal(size=(hidden, 1)).astype(np.float32),
        "w_first": rng.normal(size=(features, hidden)).astype(np.float32),
        "bias": rng.normal(size=hidden).astype(np.float32),
    }
    text = f"""g (float[N,{features}] X) => (float[N,1] Y) {{
        z = MatMul(X, w_first)
        h = Add(z, bias)
        a = Relu(h)
        Y = MatMul(a, w_second)
    }}"""
    return parse(text, weights), weights


def mlp_with_loss(**kwargs: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The same with a label and the mean squared error."""
    model, weights = mlp(**kwargs)
    nodes = onnx.parser.parse_graph(
        """g (float[N,1] Y, float[N,1] label) => (float loss) {
            d = Sub(Y, label)
            s = Mul(d, d)
            loss = ReduceMean<keepdims=0>(s)
        }"""
    )
    model.graph.node.extend(nodes.node)
    model.graph.input.append(nodes.input[1])
    outputs = [nodes.output[0], *model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return model, weights


def vector(arrays: Iterable[Any]) -> Any:
    """Arrays as an OrtValueVector."""
    values = C.OrtValueVector()
    for array in arrays:
        values.push_back(C.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), CPU))
    return values


class Agent:
    """A model behind the second API, called with arrays."""

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Sequence[str],
        inputs: Sequence[str] = (),
        train: Sequence[str] | None = None,
    ) -> None:
        config = training.OrtModuleGraphBuilderConfiguration()
        config.initializer_names = list(weights)
        config.initializer_names_to_train = list(weights if train is None else train)
        config.input_names_require_grad = list(inputs)
        builder = training.OrtModuleGraphBuilder()
        builder.initialize(model.SerializeToString(), config)
        builder.build()
        self.builder, self.info = builder, builder.get_graph_info()
        self.gradient = onnx.load_from_string(builder.get_gradient_model())
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            builder.get_gradient_model(), options, providers=["CPUExecutionProvider"]
        )
        self.feed_names = [i.name for i in self.gradient.graph.input]
        self.gradient_names = [o.name for o in self.gradient.graph.output]
        self.agent = training.TrainingAgent(
            self.session._sess,
            self.feed_names,
            [CPU] * len(self.info.user_output_names),
            self.gradient_names,
            [CPU] * len(self.gradient_names),
        )

    def forward(self, *arrays: Any) -> tuple[Any, training.PartialGraphExecutionState]:
        """Outputs as an OrtValueVector, and the state."""
        outputs, state = C.OrtValueVector(), training.PartialGraphExecutionState()
        self.agent.run_forward(vector(arrays), outputs, state, training.OrtValueCache())
        return outputs, state

    def backward(self, state: training.PartialGraphExecutionState, *arrays: Any) -> dict[str, Any]:
        """Gradients by name."""
        gradients = C.OrtValueVector()
        self.agent.run_backward(vector(arrays), gradients, state)
        return {n: g.numpy() for n, g in zip(self.gradient_names, gradients)}
