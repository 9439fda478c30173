"""Layers in columns: which chains are turned, and that values and gradients stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.autodiff import differentiate_model
from onnxtrain.graph import load, to_proto
from onnxtrain.graph.parameters import to_initializers, to_inputs
from onnxtrain.normalize import normalize
from onnxtrain.passes import clean_up, layers_in_columns

WIDE = 256
WEIGHTS = ["w1", "b1", "w2", "b2", "w3", "b3"]
LAYERS = "a = Gemm<transB=1>(x, w1, b1) h = Relu(a) c = Gemm<transB=1>(h, w2, b2) "
CHAIN = LAYERS + "k = Tanh(c) y = Gemm<transB=1>(k, w3, b3)"


def model_of(body: str, *, batch: str = "20", wide: int = WIDE) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]>\n'
        f"g (float[{batch},{wide}] x) => (float[A,B] y) {{ {body} }}"
    )
    sizes = {"w1": (wide, wide), "b1": wide, "w2": (wide, wide), "b2": wide, "w3": (3, wide)}
    for name, size in {**sizes, "b3": 3, "row": (1, wide)}.items():
        if any(name in node.input for node in model.graph.node):
            values = rng.normal(size=size) / np.sqrt(wide)
            tensor = numpy_helper.from_array(values.astype(np.float32), name)
            model.graph.initializer.append(tensor)
    return model


def turned(model: onnx.ModelProto, parameters: list[str] | None = None) -> onnx.ModelProto:
    loaded = load(model)
    names = WEIGHTS if parameters is None else parameters
    to_inputs(loaded, [n for n in names if n in loaded.graph.initializers])
    result = layers_in_columns(normalize(loaded))
    to_initializers(result)
    made = to_proto(result)
    onnx.checker.check_model(made, full_check=True)
    return made


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, rows: int = 20) -> list[np.ndarray]:
    wide = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(1).normal(size=(rows, wide)).astype(np.float32)
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})


def test_a_chain_has_one_transposition() -> None:
    model = model_of(CHAIN)
    made = turned(model)
    assert operators(made) == {"Gemm": 3, "Unsqueeze": 3, "Relu": 1, "Tanh": 1, "Transpose": 1}
    assert [n.input[0] for n in made.graph.node if n.op_type == "Gemm"] == ["w1", "w2", "w3"]
    np.testing.assert_allclose(run(made)[0], run(model)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        LAYERS.replace(", b1", "").replace(", b2", "") + "y = LeakyRelu<alpha=0.2>(c)",
        LAYERS + "y = Add(a, c)",  # in rows, what others read
        LAYERS + "d = Mul(x, c) y = Gemm<transB=1>(d, w3, b3)",
        LAYERS + "d = Gemm<transB=1>(h, w1, b1) y = Add(c, d)",  # a chain that forks
    ],
)
def test_values_stay(body: str) -> None:
    model = model_of(body)
    made = turned(model)
    assert operators(made)["Transpose"] > 0
    np.testing.assert_allclose(run(made)[0], run(model)[0], rtol=1e-5, atol=1e-6)


def test_values_in_between_keep_their_names() -> None:
    model = model_of(CHAIN)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("h"))
    made = turned(model)
    assert [o.name for o in made.graph.output] == ["y", "h"]
    for found, expected in zip(run(made), run(model), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_is_to_be_kept_stays_in_rows() -> None:
    loaded = load(model_of(CHAIN))
    to_inputs(loaded, WEIGHTS)
    made = to_proto(layers_in_columns(normalize(loaded), keep=["c"]))
    gemms = [n for n in made.graph.node if n.op_type == "Gemm"]
    assert [n.output[0] for n in gemms] == ["a", "c", "y"]
    loaded = load(model_of(CHAIN))
    to_inputs(loaded, WEIGHTS)
    made = to_proto(layers_in_columns(normalize(loaded), keep=["k"]))
    assert "k" in {o for n in made.graph.node for o in n.output if n.op_type == "Tanh"}
    assert "a" not in {o for n in made.graph.node for o in n.output}


def losses(folder: Path) -> list[float]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(16, WIDE)).astype(np.float32), rng.integers(0, 3, 16)
    found = []
    for _ in range(3):
        found.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return found


@pytest.mark.parametrize(
    "options", [{"recompute": ["h"]}, {"recompute": 2}, {"no_gradient": ["second"]}]
)
def test_artifacts_with_values_and_nodes_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    found = []
    for batch in ("16", "N"):  # in columns, and (too few weights for both) in rows
        model = model_of(CHAIN, batch=batch)
        model.graph.node[2].name = "second"
        folder = tmp_path / batch
        folder.mkdir()
        trained = [n for n in WEIGHTS if "no_gradient" not in options or n in ("w3", "b3")]
        artifacts.generate_artifacts(
            model,
            requires_grad=trained,
            frozen_params=[n for n in WEIGHTS if n not in trained],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
            **options,
        )
        made = operators(onnx.load(folder / "training_model.onnx"))
        assert (made["Transpose"] > 0) == (batch == "16")
        found.append(losses(folder))
    assert found[0][0] > found[0][-1]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("body", "options", "parameters"),
    [
        ("a = Relu(x) y = Gemm<transB=1>(a, w1, b1)", {}, WEIGHTS),  # alone
        (CHAIN, {"batch": "N"}, WEIGHTS),  # too little to gain for an If
        (CHAIN, {"batch": "8"}, WEIGHTS),
        (CHAIN, {"batch": "2048"}, WEIGHTS),
        (CHAIN, {"wide": 32}, WEIGHTS),
        (CHAIN, {}, []),  # constants, which onnxruntime packs once
        (LAYERS.replace("transB=1", "transB=0") + "y = Relu(c)", {}, WEIGHTS),
        (LAYERS.replace("transB=1", "transB=1, alpha=0.5") + "y = Relu(c)", {}, WEIGHTS),
        (LAYERS.replace("b1", "row").replace("b2", "row") + "y = Relu(c)", {}, WEIGHTS),
        (LAYERS.replace("Relu", "Softmax") + "y = Relu(c)", {}, WEIGHTS),
    ],
)
def test_stays_in_rows(body: str, options: dict[str, object], parameters: list[str]) -> None:
    model = model_of(body, **options)  # type: ignore[arg-type]
    assert operators(turned(model, parameters)) == operators(model)


def test_gradients() -> None:
    results = []
    for turn in (False, True):
        loaded = load(model_of(CHAIN + " z = Mul(y, y) l = ReduceSum<keepdims=0>(z)"))
        to_inputs(loaded, WEIGHTS)
        loaded = normalize(loaded)
        loaded.graph.outputs[:] = [list(loaded.graph)[-1].outputs[0]]
        if turn:
            loaded = layers_in_columns(loaded)
        loaded, _ = differentiate_model(loaded, WEIGHTS, ["l"])
        loaded = clean_up(loaded)
        to_initializers(loaded)
        results.append(to_proto(loaded))
    flags = [
        {a.name: a.i for a in node.attribute if a.name.startswith("trans") and a.i}
        for node in results[1].graph.node
        if node.op_type == "Gemm" and node.input[0] not in WEIGHTS
    ]
    assert {} in flags  # the gradient of the first weights takes both operands as they are
    assert not any("transA" in f for f in flags)
    for found, expected in zip(run(results[1]), run(results[0]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
