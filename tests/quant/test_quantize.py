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


DEEP = 24
QUANTIZE = """
import sys
from pathlib import Path
from onnxtrain import lora, quant

def peak():
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1])

folder = Path(sys.argv[1])
quant.quantize(folder / "small.onnx", output=folder / "small4.onnx")
before = peak()
quant.quantize(folder / "model.onnx", output=folder / "base.onnx")
lora.add(folder / "base.onnx", "all-linear", 2, output=folder / "adapted.onnx")
print(peak() - before)
"""


def layers_in_a_file(path: Path, width: int) -> None:
    """Linear layers, one after the other, with their weights in a file."""
    nodes = [oh.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(DEEP)]
    x, y = (oh.make_tensor_value_info(f"h{i}", F, ["N", width]) for i in (0, DEEP))
    arrays = [onh.from_array(weights(width, width, seed=i), f"w{i}") for i in range(DEEP)]
    graph = oh.make_graph(nodes, "g", [x], [y], arrays)
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_weights_are_quantised_one_after_the_other(tmp_path: Path) -> None:
    """In memory, and on the disk once: adapters refer to the file of the base.

    Of 226 MB of floats.
    """
    width = 1536
    layers_in_a_file(tmp_path / "model.onnx", width)
    layers_in_a_file(tmp_path / "small.onnx", 64)
    done = subprocess.run(
        [sys.executable, "-c", QUANTIZE, str(tmp_path)], check=True, capture_output=True, text=True
    )
    floats, codes = 4 * DEEP * width**2, DEEP * width**2 // 2
    assert int(done.stdout) * 1024 < floats * 0.6
    sizes = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
    assert sizes["base.onnx.data"] >= codes
    assert sizes["base.onnx"] + sizes["adapted.onnx"] < codes / 4
    assert "adapted.onnx.data" not in sizes
    x = weights(3, width, seed=9)
    base, adapted = (
        onnxruntime.InferenceSession(tmp_path / name).run(None, {"h0": x})[0]
        for name in ("base.onnx", "adapted.onnx")
    )
    np.testing.assert_allclose(base, adapted, rtol=1e-4)


def test_quantising_over_the_model_keeps_the_file_of_the_floats(tmp_path: Path) -> None:
    """Another model may have its weights there."""
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    layers_in_a_file(path, 512)
    before = data.read_bytes()
    x = weights(2, 512)
    expected = onnxruntime.InferenceSession(path).run(None, {"h0": x})[0]
    quant.quantize(path, bits=8, output=path)
    assert data.read_bytes() == before
    result = onnxruntime.InferenceSession(path).run(None, {"h0": x})[0]
    assert np.corrcoef(result.ravel(), expected.ravel())[0, 1] > 0.99
