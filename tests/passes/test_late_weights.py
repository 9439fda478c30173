"""Quantised weights stay in their few bits: same numbers, and one weight as floats at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest

import onnxtrain
from onnxtrain import artifacts
from onnxtrain.graph import few_bits
from onnxtrain.normalize import few_bits as lowering
from onnxtrain.passes import late_weights

Array = np.ndarray[Any, Any]
F = onnx.TensorProto.FLOAT
ROWS, LAYERS = 3, 4
RNG = np.random.default_rng(0)


def model_of(
    nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], width: int, opset: int
) -> onnx.ModelProto:
    """The nodes make `y` of `x`; the loss is half the sum of its squares."""
    graph = oh.make_graph(
        [
            *nodes,
            oh.make_node("Mul", ["y", "y"], ["squares"]),
            oh.make_node("ReduceSum", ["squares"], ["sum"], keepdims=0),
            oh.make_node("Mul", ["sum", "half"], ["loss"]),
        ],
        "g",
        [oh.make_tensor_value_info("x", F, ["N", width])],
        [oh.make_tensor_value_info("loss", F, []), oh.make_tensor_value_info("y", F, ["N", "M"])],
        [*tensors, onh.from_array(np.float32(0.5), "half")],
    )
    imports = [oh.make_opsetid("", opset), oh.make_opsetid("com.microsoft", 1)]
    return oh.make_model(graph, opset_imports=imports, ir_version=10)


def nbits(
    k: int, n: int, bits: int = 4, block: int = 32, zeros: bool = False, opset: int = 21
) -> tuple[onnx.ModelProto, Array]:
    """A MatMulNBits, and its weight [k, n] as floats."""
    blocks = -(-k // block)
    codes = RNG.integers(0, 2**bits, (n, blocks, block)).astype(np.uint8)
    scales = RNG.uniform(0.01, 0.02, (n, blocks)).astype(np.float32)
    middle = RNG.integers(0, 2**bits, (n, blocks)).astype(np.uint8)
    tensors = [
        onh.from_array(packed(codes, bits), "w"),
        onh.from_array(scales.ravel(), "s"),
        onh.from_array(packed(middle, bits).ravel(), "z"),
    ]
    node = oh.make_node(
        "MatMulNBits", ["x", "w", "s", *(["z"] if zeros else [])], ["y"], domain="com.microsoft",
        K=k, N=n, bits=bits, block_size=block, accuracy_level=1,
    )  # fmt: skip
    centred = codes - (middle[..., None].astype(np.float32) if zeros else 2.0 ** (bits - 1))
    floats = (centred * scales[..., None]).reshape(n, -1)[:, :k].T
    return model_of([node], tensors if zeros else tensors[:2], k, opset), floats


def packed(codes: Array, bits: int) -> Array:
    if bits == 8:
        return codes
    even = np.concatenate([codes, np.zeros((*codes.shape[:-1], codes.shape[-1] % 2), np.uint8)], -1)
    return even[..., ::2] | even[..., 1::2] << 4


def qdq(kind: int, axis: int, block: int) -> tuple[onnx.ModelProto, Array]:
    """DequantizeLinear of a weight [512, 520] in blocks along an axis, or with one scale (0)."""
    shape = [512, 520]
    codes = RNG.integers(-8, 8, shape)
    scale_shape = [d // block if i == axis else d for i, d in enumerate(shape)] if block else []
    scales = RNG.uniform(0.01, 0.02, scale_shape).astype(np.float32)
    attributes = {"axis": axis, "block_size": block} if block else {}
    nodes = [
        oh.make_node("DequantizeLinear", ["w", "s"], ["f"], **attributes),
        oh.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    tensors = [oh.make_tensor("w", kind, shape, codes.ravel()), onh.from_array(scales, "s")]
    spread = np.repeat(scales, block, axis) if block else scales
    return model_of(nodes, tensors, shape[0], 21), (codes * spread).astype(np.float32)


FORMS = {
    "4 bits": lambda: nbits(512, 520),
    "4 bits with zero points": lambda: nbits(512, 520, zeros=True),
    "4 bits, blocks that are not full, odd in number": lambda: nbits(530, 520, zeros=True),
    "4 bits in opset 18": lambda: nbits(512, 520, opset=18),
    "8 bits": lambda: nbits(512, 520, bits=8),
    "8 bits with zero points, opset 18": lambda: nbits(512, 520, bits=8, zeros=True, opset=18),
    "int4 blocks along the inputs": lambda: qdq(onnx.TensorProto.INT4, 0, 32),
    "int8 blocks along the outputs": lambda: qdq(onnx.TensorProto.INT8, 1, 40),
    "int8, one scale": lambda: qdq(onnx.TensorProto.INT8, 0, 0),
}


def session_of(model: onnx.ModelProto, **options: Any) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    for name, value in options.items():
        setattr(settings, name, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), settings)


def float_bytes(model: onnx.ModelProto) -> int:
    """Bytes of the float constants that are as large as a weight."""
    sizes = [4 * int(np.prod(t.dims)) for t in model.graph.initializer if t.data_type == F]
    return sum(size for size in sizes if size >= few_bits.LARGE_BYTES)


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_those_of_the_floats(form: str, tmp_path: Path) -> None:
    model, weight = FORMS[form]()
    x = RNG.normal(size=(ROWS, weight.shape[0])).astype(np.float32)
    gradient_model = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    optimized = tmp_path / "optimized.onnx"
    session = session_of(gradient_model, optimized_model_filepath=str(optimized))
    y, dx = session.run(["y", "x_grad"], {"x": x})
    np.testing.assert_allclose(y, x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, x @ weight @ weight.T, rtol=1e-4, atol=1e-3)
    assert float_bytes(gradient_model) == 0
    assert float_bytes(onnx.load(optimized)) == 0, "onnxruntime made floats when it loaded"


@pytest.mark.parametrize("is_external", [False, True], ids=["in memory", "in a file"])
@pytest.mark.parametrize("zeros", [False, True], ids=["middle", "zero points"])
def test_a_very_large_weight_is_used_in_parts(
    zeros: bool, is_external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering, "PART", 400 * 544 * 4)
    monkeypatch.setattr(late_weights, "LARGE_BYTES", 1 << 16)
    model, weight = nbits(530, 901, zeros=zeros)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=is_external, location="weights")
    gradient_model = onnxtrain.differentiate(path, wrt=["x"], of="loss")
    operators = [n.op_type for n in gradient_model.graph.node]
    assert operators.count("DequantizeLinear") == 2 * 3
    x = RNG.normal(size=(ROWS, 530)).astype(np.float32)
    y, dx = session_of(gradient_model).run(["y", "x_grad"], {"x": x})
    np.testing.assert_allclose(y, x @ weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dx, x @ weight @ weight.T, rtol=1e-4, atol=1e-3)


def test_artifacts_hold_a_frozen_weight_once(tmp_path: Path) -> None:
    """In its few bits, for both models and for a table that is also the last layer."""
    model, _ = nbits(512, 520)
    model.graph.initializer.append(onh.from_array(np.zeros(520, np.float32), "bias"))
    model.graph.node.insert(1, oh.make_node("Add", ["y0", "bias"], ["y"]))
    model.graph.node[0].output[0] = "y0"
    onnx.save(model, tmp_path / "base.onnx", save_as_external_data=True, location="weights")
    run = tmp_path / "run"
    run.mkdir()
    artifacts.generate_artifacts(
        tmp_path / "base.onnx", requires_grad=["bias"], artifact_directory=run,
        optimizer=artifacts.OptimType.AdamW,
    )  # fmt: skip
    stored = 512 * 520 // 2
    scales = stored // 16 * 4
    sizes = {p.name: p.stat().st_size for p in run.iterdir()}
    assert "eval_model.onnx.data" not in sizes
    assert sizes["training_model.onnx.data"] < 1.1 * (stored + scales) + 20_000
    assert sum(sizes.values()) < 1.1 * (stored + scales) + 80_000
    state = onnxtrain.CheckpointState.load_checkpoint(run / "checkpoint")
    module = onnxtrain.Module(run / "training_model.onnx", state, run / "eval_model.onnx")
    x = np.ones((ROWS, 512), np.float32)
    loss = float(np.asarray(module(x)[0]))
    module.eval()
    assert float(np.asarray(module(x)[0])) == pytest.approx(loss, rel=1e-5)


def stack() -> onnx.ModelProto:
    """Layers in a row, each with a weight in blocks of 4 bits."""
    model, _ = nbits(512, 512)
    product = model.graph.node[0]
    del model.graph.node[0]
    nodes = []
    for i in range(LAYERS):
        node = onnx.NodeProto()
        node.CopyFrom(product)
        weight = onnx.TensorProto()
        weight.CopyFrom(model.graph.initializer[0])
        weight.name = node.input[1] = f"w{i}"
        model.graph.initializer.append(weight)
        node.input[0], node.output[0] = f"h{i}" if i else "x", f"p{i}"
        out = "y" if i == LAYERS - 1 else f"h{i + 1}"
        nodes += [node, oh.make_node("Tanh", [f"p{i}"], [out])]
    del model.graph.initializer[0]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    return model


def test_one_weight_is_floats_at_a_time(tmp_path: Path) -> None:
    gradient_model = onnxtrain.differentiate(stack(), wrt=["x"], of="loss")
    session = session_of(
        gradient_model, enable_profiling=True, profile_file_prefix=str(tmp_path / "profile")
    )
    session.run(None, {"x": RNG.normal(size=(ROWS, 512)).astype(np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    order = [e["args"]["op_name"] for e in events if "op_name" in e.get("args", {})]
    relevant = [name for name in order if "MatMul" in name or name == "DequantizeLinear"]
    assert len(relevant) == 4 * LAYERS  # each weight forward and backward
    assert all(name == "DequantizeLinear" for name in relevant[::2])
    assert all("MatMul" in name for name in relevant[1::2])


def test_no_rows_are_no_trouble() -> None:
    model, _ = nbits(512, 520)
    session = session_of(onnxtrain.differentiate(model, wrt=["x"], of="loss"))
    (dx,) = session.run(["x_grad"], {"x": np.zeros((0, 512), np.float32)})
    assert dx.shape == (0, 512)


def test_a_small_weight_becomes_floats_once() -> None:
    model, _ = nbits(64, 32)
    gradient_model = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    assert "DequantizeLinear" not in {n.op_type for n in gradient_model.graph.node}


def test_quantised_activations_keep_the_forward_product_as_it_is() -> None:
    """onnxruntime can run that one on integers; the backward one reads floats that wait."""
    model, _ = qdq(onnx.TensorProto.INT8, 0, 0)
    model.graph.initializer.append(onh.from_array(np.float32(0.1), "step"))
    model.graph.initializer.append(onh.from_array(np.int8(0), "zero"))
    model.graph.node.insert(0, oh.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]))
    model.graph.node.insert(1, oh.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]))
    next(n for n in model.graph.node if n.op_type == "MatMul").input[0] = "d"
    gradient_model = onnxtrain.differentiate(model, wrt=["x"], of="loss")
    producers = {n.output[0]: n for n in gradient_model.graph.node}
    stored = {t.name for t in gradient_model.graph.initializer}
    weights = [n for n in producers.values() if n.input[0] == "w"]
    assert sorted(n.input[1] in stored for n in weights) == [False, True]
