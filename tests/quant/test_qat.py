"""Quantisation-aware training: what is rounded, what is learned, and what is deployed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import onnxruntime as ort
import pytest

import onnxtrain
from onnxtrain import losses, optim, quant
from onnxtrain.api import CheckpointState, Trainer
from onnxtrain.cli.demo_model import digits_network
from onnxtrain.errors import ModelError, QuantizationError, UnknownNameError
from onnxtrain.graph import load
from onnxtrain.quant.folding import fold_batch_norms
from onnxtrain.quant.observers import observe

pytestmark = pytest.mark.slow

F = onnx.TensorProto.FLOAT
Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    arrays: dict[str, Array],
    x: list[Any],
    opset: int = 18,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", F, x)],
        [onnx.ValueInfoProto(name="y")],
        [onh.from_array(array, name) for name, array in arrays.items()],
    )
    imports = [oh.make_opsetid("", opset), *(oh.make_opsetid(d, 1) for d in domains)]
    made = oh.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def run(model: onnx.ModelProto, x: Array, level: str = "ORT_DISABLE_ALL") -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    name = model.graph.input[0].name
    results: list[Array] = ort.InferenceSession(model.SerializeToString(), options).run(
        None, {name: x}
    )
    return results


def with_codes(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """The model with these integers as outputs, those of four bits in bytes, and a number."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    for name in names:
        copy.graph.node.append(oh.make_node("Cast", [name], [f"{name}/shown"], to=6))
        copy.graph.output.append(onnx.ValueInfoProto(name=f"{name}/shown"))
    copy.graph.node.append(oh.make_node("Shape", [copy.graph.input[0].name], ["size"]))
    copy.graph.output.append(onnx.ValueInfoProto(name="size"))
    return copy


def codes_of(model: onnx.ModelProto) -> list[str]:
    return [n.output[0] for n in model.graph.node if n.op_type == "QuantizeLinear"]


def stored(model: onnx.ModelProto) -> dict[str, Array]:
    return {i.name: onh.to_array(i) for i in model.graph.initializer}


def with_values(model: onnx.ModelProto, state: CheckpointState) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    trained = {name: p.data for name, p in state.parameters}
    for tensor in copy.graph.initializer:
        if tensor.name in trained:
            tensor.CopyFrom(onh.from_array(np.array(trained[tensor.name]), tensor.name))
    return copy


def digits() -> tuple[onnx.ModelProto, Array, Array]:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (64, 1, 8, 8)).astype(np.float32)
    return digits_network(), x, rng.integers(0, 10, 64)


def normed() -> onnx.ModelProto:
    """A convolution, a normalisation, a residual: what a deployed network has."""
    arrays = {
        "conv.weight": numbers(6, 3, 3, 3),
        "bn.weight": np.abs(numbers(6, seed=2)) + 0.5,
        "bn.bias": numbers(6, seed=3),
        "bn.mean": numbers(6, seed=4),
        "bn.var": np.abs(numbers(6, seed=5)) + 0.5,
        "two.weight": numbers(6, 6, 1, 1, seed=6),
        "two.bias": numbers(6, seed=7),
        "fc.weight": numbers(6, 4, seed=8),
    }
    norm = [f"bn.{k}" for k in ("weight", "bias", "mean", "var")]
    nodes = [
        oh.make_node("Conv", ["x", "conv.weight"], ["c"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("BatchNormalization", ["c", *norm], ["b"], "bn"),
        oh.make_node("Relu", ["b"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "two.weight", "two.bias"], ["t"], "two"),
        oh.make_node("Add", ["t", "r"], ["s"], "add"),
        oh.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        oh.make_node("Flatten", ["p"], ["f"], "flatten"),
        oh.make_node("MatMul", ["f", "fc.weight"], ["y"], "fc"),
    ]  # fmt: skip
    return model_of(nodes, arrays, ["N", 3, 6, 6])


def trained(
    prepared: onnx.ModelProto, x: Array, y: Array, folder: Path, epochs: int = 2
) -> CheckpointState:
    onnxtrain.generate_artifacts(
        prepared,
        loss=losses.CrossEntropyLoss(),
        optimizer=optim.adamw(),
        artifact_directory=folder,
    )
    trainer = Trainer.from_directory(folder, learning_rate=1e-3)
    trainer.fit((x, y), epochs=epochs, batch_size=16, progress=False)
    return trainer.state


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_channel": False},
        {"weight_bits": 4},
        {"weight_bits": 4, "activation_bits": 4, "per_channel": False},
        {"activation_bits": 16, "overrides": {"fc*": 4}},
        {"activation_bits": None},
        {"learn_scales": False},
    ],
    ids=str,
)
def test_the_deployed_integers_are_the_trained_ones(options: Any, tmp_path: Path) -> None:
    model, x, y = digits()
    prepared = quant.prepare_qat(model, x, **options)
    state = trained(prepared, x, y, tmp_path)
    deployed = quant.convert(prepared, state)
    onnx.checker.check_model(deployed, full_check=True)
    simulated = with_values(prepared, state)
    names = codes_of(deployed)
    assert bool(names) == (options.get("activation_bits", 8) is not None)
    codes, integers = (run(with_codes(m, names), x) for m in (simulated, deployed))
    for name, a, b in zip(names, codes, integers):
        assert np.array_equal(a, b), name
    np.testing.assert_array_equal(run(simulated, x)[0], run(deployed, x)[0])
    (fast,) = run(deployed, x, "ORT_ENABLE_ALL")
    assert np.isfinite(fast).all()
    weights = [n for n in codes_of(prepared) if n not in names]
    assert len(weights) == 4
    for name in weights:
        code, _ = run(with_codes(simulated, [name]), x)
        np.testing.assert_array_equal(code, stored(deployed)[name].astype(np.int32))
    assert not any("factor" in name or "slope" in name for name in stored(deployed))


def test_four_bit_weights_are_stored_in_half_a_byte(tmp_path: Path) -> None:
    model, x, _ = digits()
    deployed = quant.convert(quant.prepare_qat(model, x, weight_bits=4))
    types = {i.name: i.data_type for i in deployed.graph.initializer}
    assert types["fc1.weight_quantized"] == onnx.TensorProto.INT4
    assert deployed.ByteSize() < model.ByteSize() / 5


def test_integer_kernels_run_it_nearly_alike(tmp_path: Path) -> None:
    """With all optimisations onnxruntime computes with integers, and rounds a sum once less."""
    model, x, y = digits()
    prepared = quant.prepare_qat(model, x)
    state = trained(prepared, x, y, tmp_path)
    deployed = quant.convert(prepared, state)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ort.InferenceSession(deployed.SerializeToString(), options)
    kinds = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("QLinearConv") == 2
    (fast,) = session.run(None, {"image": x})
    (plain,) = run(deployed, x)
    assert np.abs(fast - plain).max() < 0.02 * np.abs(plain).max()


def test_training_lowers_the_loss_and_moves_the_scales(tmp_path: Path) -> None:
    model, x, y = digits()
    prepared = quant.prepare_qat(model, x, weight_bits=4)
    onnxtrain.generate_artifacts(
        prepared,
        loss=losses.CrossEntropyLoss(),
        optimizer=optim.adamw(),
        artifact_directory=tmp_path,
    )
    trainer = Trainer.from_directory(tmp_path, learning_rate=3e-3)
    before = trainer.evaluate((x, y))["loss"]
    trainer.fit((x, y), epochs=12, batch_size=16, progress=False)
    assert trainer.evaluate((x, y))["loss"] < 0.7 * before
    factors = {n: p.data for n, p in trainer.state.parameters if n.endswith("_factor")}
    assert len(factors) == 8
    assert all(np.abs(f - 1).max() > 1e-4 for f in factors.values())


def test_gradient_of_a_scale_is_lsqs() -> None:
    torch = pytest.importorskip("torch")
    w, x = numbers(5, 4), numbers(3, 5, seed=2)
    model = model_of([oh.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, ["N", 5])
    prepared = quant.prepare_qat(model, activation_bits=None, per_channel=False, weight_bits=4)
    start = stored(prepared)["w_scale_start"]
    gradients = onnxtrain.differentiate(prepared, wrt=["w", "w_scale_factor"], vjp=True)
    session = ort.InferenceSession(gradients.SerializeToString())
    seed = numbers(3, 4, seed=3)
    results = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, {"x": x, "y_grad": seed}))
    )
    weight = torch.tensor(w, requires_grad=True)
    scale = torch.tensor(start, requires_grad=True)
    fake = torch._fake_quantize_learnable_per_tensor_affine(
        weight, scale, torch.zeros(1), -8, 7, 1.0
    )
    (torch.tensor(x) @ fake).backward(torch.tensor(seed))
    np.testing.assert_allclose(results["w_grad"], weight.grad, rtol=1e-5, atol=1e-6)
    # Per step of SGD the scale moves by −lr·g·∂L/∂s with g = 1/√(N·Q): the factor by that over s₀.
    expected = scale.grad.numpy() / np.sqrt(w.size * 7) / start
    np.testing.assert_allclose(results["w_scale_factor_grad"], expected, rtol=1e-4)


def test_what_is_trained_by_default(tmp_path: Path) -> None:
    model, x, y = digits()
    state = trained(quant.prepare_qat(model, x), x, y, tmp_path, epochs=1)
    names = [name for name, _ in state.parameters]
    assert "conv1.weight" in names
    assert "conv1.bias" in names
    assert "conv1.weight_scale_factor" in names
    assert "image_scale_factor" in names
    assert not any(name.endswith(("_start", "_slope", "_zero_point")) for name in names)
    assert state.parameters["conv2.weight_scale_factor"].data.shape == (32,)


def test_batch_norm_is_folded_as_it_is_deployed() -> None:
    model, x = normed(), numbers(16, 3, 6, 6, seed=9)
    prepared = quant.prepare_qat(model, activation_bits=None)
    assert "BatchNormalization" not in [n.op_type for n in prepared.graph.node]
    (expected,) = run(model, x)
    (rounded,) = run(prepared, x)
    assert np.abs(rounded - expected).max() < 0.05 * np.abs(expected).max()
    kept = quant.prepare_qat(model, activation_bits=None, fold_batch_norm=False)
    assert "BatchNormalization" in [n.op_type for n in kept.graph.node]


FOLDED: dict[str, Callable[[], tuple[onnx.NodeProto, dict[str, Array], list[Any], int]]] = {
    "conv": lambda: (
        oh.make_node("Conv", ["x", "w", "b"], ["c"], group=2),
        {"w": numbers(6, 2, 3, 3), "b": numbers(6)}, ["N", 4, 5, 5], 6),
    "transposed conv": lambda: (
        oh.make_node("ConvTranspose", ["x", "w"], ["c"], group=2),
        {"w": numbers(4, 3, 2, 2)}, ["N", 4, 5, 5], 6),
    "gemm": lambda: (
        oh.make_node("Gemm", ["x", "w", "b"], ["c"], alpha=0.5),
        {"w": numbers(4, 6), "b": numbers(6)}, ["N", 4], 6),
    "gemm, transposed": lambda: (
        oh.make_node("Gemm", ["x", "w"], ["c"], transB=1), {"w": numbers(6, 4)}, ["N", 4], 6),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_folding_changes_nothing_but_rounding(name: str) -> None:
    node, arrays, shape, channels = FOLDED[name]()
    statistics = {k: np.abs(numbers(channels, seed=i)) + 0.5 for i, k in enumerate("gbmv")}
    nodes = [node, oh.make_node("BatchNormalization", ["c", *"gbmv"], ["y"], epsilon=1e-3)]
    model = model_of(nodes, {**arrays, **statistics}, shape)
    folded = load(model)
    assert fold_batch_norms(folded) == 1
    x = numbers(3, *shape[1:])
    (expected,) = run(model, x)
    np.testing.assert_allclose(run(ir.to_proto(folded), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_residuals_and_products_are_rounded_where_integers_are_read() -> None:
    model, x = normed(), numbers(16, 3, 6, 6, seed=9)
    prepared = quant.prepare_qat(model, x)
    # the input, both convolutions (behind ReLU; before the sum), and what the product reads
    assert set(codes_of(prepared)) >= {f"{n}_quantized" for n in ("x", "r", "t", "p")}
    assert "s_quantized" not in codes_of(prepared)
    (y,), (expected,) = run(prepared, x), run(model, x)
    assert np.abs(y - expected).max() < 0.1 * np.abs(expected).max()


def test_a_shared_weight_has_one_scale() -> None:
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["h"]),
        oh.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    prepared = quant.prepare_qat(
        model_of(nodes, {"w": numbers(4, 4)}, ["N", 4]), activation_bits=None
    )
    assert [n for n in stored(prepared) if n.endswith("_factor")] == ["w_scale_factor"]
    quant.convert(prepared)


def test_a_transposed_weight_is_stored_as_it_is_read() -> None:
    nodes = [
        oh.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        oh.make_node("MatMul", ["x", "t"], ["y"], name="/fc/MatMul"),
    ]
    model = model_of(nodes, {"w": numbers(6, 4)}, ["N", 4])
    deployed = quant.convert(quant.prepare_qat(model, activation_bits=None))
    assert stored(deployed)["t_quantized"].shape == (4, 6)
    x = numbers(3, 4)
    np.testing.assert_allclose(run(deployed, x)[0], run(model, x)[0], atol=0.1)


# --- observers ------------------------------------------------------------------------------------


def test_observers_cut_rare_values_off() -> None:
    rows = numbers(4000, 4)
    rows[7, 2] = 400.0
    model = load(
        model_of([oh.make_node("MatMul", ["x", "w"], ["y"])], {"w": numbers(4, 2)}, ["N", 4])
    )
    highs = {
        m: observe(model, ["x"], rows, m, 99.9, 4000)["x"].high for m in ("minmax", "percentile")
    }
    assert highs["minmax"] == 400.0
    assert highs["percentile"] < 40
    plain = numbers(512, 4, seed=3)
    entropy = observe(model, ["x"], plain, "entropy", 99.9, 512)["x"]
    assert 0 < entropy.high <= np.abs(plain).max() * 1.01


def test_data_in_every_form() -> None:
    model, x, _ = digits()
    expected = stored(quant.prepare_qat(model, x))["image_scale_start"]
    batches = [{"image": x[i : i + 16]} for i in range(0, 64, 16)]
    for data in ([x], {"image": x, "labels": x}, batches, iter(batches)):
        np.testing.assert_array_equal(
            stored(quant.prepare_qat(model, data))["image_scale_start"], expected
        )


# --- models that are quantised already ------------------------------------------------------------


def test_a_deployed_model_goes_on() -> None:
    model, x, _ = digits()
    deployed = quant.convert(quant.prepare_qat(model, x))
    again = quant.prepare_qat(deployed)
    assert sum(name.endswith("_factor") for name in stored(again)) == 8
    np.testing.assert_array_equal(run(again, x)[0], run(deployed, x)[0])
    twice = quant.convert(again)
    first, second = stored(deployed), stored(twice)
    assert first.keys() == second.keys()
    for name in first:
        assert first[name].tobytes() == second[name].tobytes(), name


def test_what_onnxruntimes_tool_made_goes_on(tmp_path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, x: Array) -> None:
            self.rows = iter([{"image": x}])

        def get_next(self) -> Any:
            return next(self.rows, None)

    model, x, y = digits()
    onnx.save(model, tmp_path / "model.onnx")
    quantize_static(
        tmp_path / "model.onnx", tmp_path / "static.onnx", Reader(x),
        quant_format=QuantFormat.QDQ, per_channel=True,
    )  # fmt: skip
    static = onnx.load(tmp_path / "static.onnx")
    prepared = quant.prepare_qat(static)
    np.testing.assert_allclose(run(prepared, x)[0], run(static, x)[0], atol=1e-5)
    (tmp_path / "run").mkdir()
    state = trained(prepared, x, y, tmp_path / "run")
    deployed = quant.convert(prepared, state)
    np.testing.assert_array_equal(run(deployed, x)[0], run(with_values(prepared, state), x)[0])


def test_preparing_twice_changes_nothing() -> None:
    model, x, _ = digits()
    prepared = quant.prepare_qat(model, x)
    assert quant.prepare_qat(prepared).graph == prepared.graph


# --- mistakes -------------------------------------------------------------------------------------


def test_mistakes_are_told() -> None:
    model, x, _ = digits()
    no_layer = model_of([oh.make_node("Relu", ["x"], ["y"])], {}, ["N", 4])
    integers = model_of(
        [
            oh.make_node("Cast", ["x"], ["x8"], to=2),
            oh.make_node("MatMulInteger", ["x8", "w8"], ["y"]),
        ],
        {"w8": np.ones((4, 4), np.uint8)}, ["N", 4],
    )  # fmt: skip
    node = oh.make_node("DequantizeLinear", ["w8", "s"], ["w"], domain="com.microsoft")
    contrib = model_of(
        [node, oh.make_node("MatMul", ["x", "w"], ["y"])],
        {"w8": np.ones((4, 4), np.int8), "s": np.array(0.1, np.float32)}, ["N", 4],
        domains=("com.microsoft",),
    )  # fmt: skip
    for message, call in (
        ("nothing to quantise", lambda: quant.prepare_qat(no_layer, x)),
        ("3 bits", lambda: quant.prepare_qat(model, x, weight_bits=3)),
        ("7 bits", lambda: quant.prepare_qat(model, x, activation_bits=7)),
        ("at least 8", lambda: quant.prepare_qat(model, x[:3])),
        ("need data", lambda: quant.prepare_qat(model)),
        ("no observer 'mean'", lambda: quant.prepare_qat(model, x, observer="mean")),
        ("percentile is 0.99", lambda: quant.prepare_qat(model, x, percentile=0.99)),
        ("no array for the input 'image'", lambda: quant.prepare_qat(model, {"picture": x})),
        ("not finite", lambda: quant.prepare_qat(model, x * np.nan)),
        ("MatMulInteger", lambda: quant.prepare_qat(integers, x)),
        ("com.microsoft", lambda: quant.prepare_qat(contrib, x)),
        ("no fake quantisation", lambda: quant.convert(model)),
    ):
        with pytest.raises(QuantizationError, match=message):
            call()
    with pytest.raises(UnknownNameError, match="conv9"):
        quant.prepare_qat(model, x, exclude=["conv9"])
    with pytest.raises(UnknownNameError, match="conv1"):  # the nearest
        quant.prepare_qat(model, x, weight_bits=4, overrides={"fc*": 8, "convl": 8})
    with pytest.raises(ModelError):
        quant.prepare_qat(b"not a model", x)


def test_constants_that_grow_are_left_alone() -> None:
    """A chain of squares is computed once; a product far larger than its factors is not."""
    nodes = [oh.make_node("Mul", [f"w{i}", f"w{i}"], [f"w{i + 1}"]) for i in range(60)]
    nodes.append(oh.make_node("MatMul", ["x", "w60"], ["y"]))
    chain = model_of(nodes, {"w0": np.ones((4, 4), np.float32)}, ["N", 4])
    quant.prepare_qat(chain, activation_bits=None)
    nodes = [oh.make_node("Mul", ["a", "b"], ["w"]), oh.make_node("MatMul", ["x", "w"], ["y"])]
    arrays = {"a": np.ones((1 << 13, 1), np.float32), "b": np.ones((1, 1 << 13), np.float32)}
    with pytest.raises(QuantizationError, match="nothing to quantise"):
        quant.prepare_qat(model_of(nodes, arrays, ["N", 1 << 13]), activation_bits=None)


def test_a_diverged_scale_is_told() -> None:
    model, x, _ = digits()
    prepared = quant.prepare_qat(model, x)
    with pytest.raises(QuantizationError, match="not positive"):
        quant.convert(prepared, {"image_scale_factor": np.array([-0.1], np.float32)})
    with pytest.raises(UnknownNameError, match="fc7"):
        quant.convert(prepared, {"fc7": np.ones(1, np.float32)})


def test_excluded_layers_stay_floats() -> None:
    model, x, _ = digits()
    deployed = quant.convert(quant.prepare_qat(model, x, exclude=["conv1", "fc2"]))
    assert {"conv1.weight", "fc2.weight"} <= set(stored(deployed))
    assert {"conv2.weight_quantized", "fc1.weight_quantized"} <= set(stored(deployed))
