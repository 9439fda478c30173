"""`quant.quantize`: every exporter's layers, near the floats, and a base for adapters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest

import onnxtrain
from onnxtrain import lora, quant
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts
from onnxtrain.errors import ModelError

F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
WIDTH, OUT, ROWS = 64, 48, 5
pytest.importorskip(
    "onnxruntime.quantization.matmul_nbits_quantizer", reason="onnxruntime is older than 1.22"
)


def weights(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto], arrays: dict[str, Any], kind: int = F, columns: int = WIDTH
) -> onnx.ModelProto:
    shape = ["N", columns] if kind == F else ["N"]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", kind, shape)],
        [oh.make_tensor_value_info("y", F, ["N", OUT])],
        [onh.from_array(array, name) for name, array in arrays.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)


def matmul() -> onnx.ModelProto:
    return model_of(
        [oh.make_node("MatMul", ["x", "fc.weight"], ["y"])], {"fc.weight": weights(WIDTH, OUT)}
    )


def transposed() -> onnx.ModelProto:
    nodes = [
        oh.make_node("Transpose", ["fc.weight"], ["t"], perm=[1, 0]),
        oh.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    return model_of(nodes, {"fc.weight": weights(OUT, WIDTH)})


def gemm() -> onnx.ModelProto:
    node = oh.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], transB=1, alpha=0.5, beta=2.0)
    return model_of([node], {"fc.weight": weights(OUT, WIDTH), "fc.bias": weights(OUT)})


def odd_width() -> onnx.ModelProto:
    """The last block of each output is not full."""
    return model_of(
        [oh.make_node("MatMul", ["x", "fc.weight"], ["y"])],
        {"fc.weight": weights(WIDTH - 13, OUT)},
        columns=WIDTH - 13,
    )


def tied() -> onnx.ModelProto:
    """A table that is also the last layer."""
    nodes = [
        oh.make_node("Gather", ["table.weight", "x"], ["h"]),
        oh.make_node("Transpose", ["table.weight"], ["t"], perm=[1, 0]),
        oh.make_node("MatMul", ["h", "t"], ["y"], name="/head/MatMul"),
    ]
    return model_of(nodes, {"table.weight": weights(OUT, WIDTH)}, I64)


FORMS = {
    "matmul": matmul,
    "transposed": transposed,
    "gemm": gemm,
    "odd width": odd_width,
    "tied": tied,
}


def run(model: onnx.ModelProto, x: Any) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def feed(model: onnx.ModelProto) -> Any:
    kind = model.graph.input[0].type.tensor_type
    if kind.elem_type == I64:
        return np.arange(ROWS)
    return weights(ROWS, kind.shape.dim[1].dim_value, seed=0)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", FORMS)
def test_results_are_near_and_weights_are_small(form: str, bits: int, symmetric: bool) -> None:
    base = FORMS[form]()
    tables = form == "tied" and bits == 4
    result = quant.quantize(base, bits, 16, symmetric=symmetric, embeddings=tables)
    stored = {n.op_type for n in result.model.graph.node}
    assert stored <= {"MatMulNBits", "Add", "Mul", "GatherBlockQuantized" if tables else "Gather"}
    assert result.bytes_after < result.bytes_before * (bits + 4) / 32 * 1.3
    assert [o.name for o in result.model.graph.output] == ["y"]
    x = feed(base)
    expected = run(base, x)
    error = np.abs(run(result.model, x) - expected).max() / np.abs(expected).max()
    assert 0 < error < {4: 0.25, 8: 0.02}[bits]


def test_adapters_learn_what_rounding_took(tmp_path: Path) -> None:
    """The whole way: quantise, add adapters, train them to the floats' results."""
    base = gemm()
    quant.quantize(base, 4, 16, output=tmp_path / "base.onnx")
    adapted = lora.add(tmp_path / "base.onnx", rank=8)
    generate_artifacts(
        adapted, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    state = onnxtrain.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = onnxtrain.Module(tmp_path / "training_model.onnx", state)
    optimizer = onnxtrain.Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    x = feed(base)
    target = run(base, x)
    losses = []
    for _ in range(80):
        losses.append(float(module(x, target)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.1 * losses[0]


def test_some_layers_are_chosen_and_others_left_out() -> None:
    nodes = [
        oh.make_node("MatMul", ["x", "one.weight"], ["h"]),
        oh.make_node("MatMul", ["h", "two.weight"], ["y"]),
    ]
    model = model_of(
        nodes, {"one.weight": weights(WIDTH, WIDTH), "two.weight": weights(WIDTH, OUT)}
    )
    assert quant.quantize(model).layers == ["one", "two"]
    assert quant.quantize(model, targets="one").layers == ["one"]
    assert quant.quantize(model, exclude=["one"]).layers == ["two"]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": 3}, "4 or 8 bits"),
    "block size": ({"block_size": 24}, "choose 16, 32"),
    "tables": ({"bits": 8, "embeddings": True}, "goes with bits=4"),
    "all left out": ({"exclude": ["fc"]}, "nothing to quantise"),
    "targets": ({"targets": "cf"}, "Near: fc"),
    "left out by another name": ({"exclude": "fcc"}, "Near: fc"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake: str) -> None:
    settings, message = MISTAKES[mistake]
    with pytest.raises((ModelError, lora.AdapterError), match=message):
        quant.quantize(matmul(), **settings)


def test_quantised_twice_is_told() -> None:
    with pytest.raises(ModelError, match="nothing to quantise"):
        quant.quantize(quant.quantize(matmul()).model)


def test_the_tool_leaves_the_log_of_the_program_alone(tmp_path: Path) -> None:
    """It is set up when the tool is imported, and gets two lines for each weight."""
    onnx.save(matmul(), tmp_path / "model.onnx")
    script = (
        "import logging, sys; from onnxtrain import quant; quant.quantize(sys.argv[1]); "
        "root = logging.getLogger(); print(root.handlers, root.level == logging.WARNING)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model.onnx")],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert done.stdout.split() == ["[]", "True"]
    assert "quantize" not in done.stderr
