"""Adapters beside layers of every form: nothing changes at first, and merged is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnxruntime
import pytest

import onnxtrain
from onnxtrain import lora
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts

F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
INPUTS, OUTPUTS = 6, 5


def weights(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def named(**arrays: Any) -> list[onnx.TensorProto]:
    return [onh.from_array(array, name.replace("__", ".")) for name, array in arrays.items()]


def model_of(
    nodes: list[onnx.NodeProto],
    initializers: list[onnx.TensorProto],
    x: tuple[Any, ...] = ("N", 3, INPUTS),
    rank: int = 0,
    opset: int = 18,
    kind: int = F,
) -> onnx.ModelProto:
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", kind, x)],
        [oh.make_tensor_value_info("y", F, [None] * (rank or len(x)))],
        initializers,
    )
    imports = [oh.make_opsetid("", opset), oh.make_opsetid("com.microsoft", 1)]
    return oh.make_model(graph, opset_imports=imports, ir_version=10)


def then_relu(result: str) -> list[onnx.NodeProto]:
    return [oh.make_node("Relu", [result], ["y"])]


def matmul() -> onnx.ModelProto:
    nodes = [oh.make_node("MatMul", ["x", "fc.weight"], ["h"]), *then_relu("h")]
    return model_of(nodes, named(fc__weight=weights(INPUTS, OUTPUTS)))


def transposed() -> onnx.ModelProto:
    nodes = [
        oh.make_node("Transpose", ["fc.weight"], ["t"], perm=[1, 0]),
        oh.make_node("MatMul", ["x", "t"], ["h"]),
        *then_relu("h"),
    ]
    return model_of(nodes, named(fc__weight=weights(OUTPUTS, INPUTS)))


def gemm(trans_b: int) -> onnx.ModelProto:
    nodes = [
        oh.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["h"], transB=trans_b),
        *then_relu("h"),
    ]
    shape = (OUTPUTS, INPUTS) if trans_b else (INPUTS, OUTPUTS)
    values = named(fc__weight=weights(*shape), fc__bias=weights(OUTPUTS))
    return model_of(nodes, values, ("N", INPUTS))


def constant_node() -> onnx.ModelProto:
    nodes = [
        oh.make_node("Constant", [], ["w"], value=onh.from_array(weights(INPUTS, OUTPUTS))),
        oh.make_node("MatMul", ["x", "w"], ["h"], name="/block/fc/MatMul"),
        *then_relu("h"),
    ]
    return model_of(nodes, [])


def int8_per_channel() -> onnx.ModelProto:
    codes = np.random.default_rng(2).integers(-99, 99, (INPUTS, OUTPUTS)).astype(np.int8)
    nodes = [
        oh.make_node("DequantizeLinear", ["fc.weight", "scale", "zero"], ["w"], axis=1),
        oh.make_node("MatMul", ["x", "w"], ["h"]),
        *then_relu("h"),
    ]
    scale = np.linspace(0.01, 0.02, OUTPUTS, dtype=np.float32)
    zero = np.arange(OUTPUTS, dtype=np.int8)
    return model_of(nodes, named(fc__weight=codes, scale=scale, zero=zero))


def int4_blocks() -> onnx.ModelProto:
    """Blocks of four rows; the last one is not full."""
    codes = np.random.default_rng(3).integers(-8, 8, (INPUTS, OUTPUTS))
    stored = oh.make_tensor("fc.weight", onnx.TensorProto.INT4, codes.shape, codes.ravel())
    nodes = [
        oh.make_node("DequantizeLinear", ["fc.weight", "scale"], ["w"], axis=0, block_size=4),
        oh.make_node("MatMul", ["x", "w"], ["h"]),
        *then_relu("h"),
    ]
    scale = np.abs(weights(2, OUTPUTS)) / 10
    return model_of(nodes, [stored, *named(scale=scale)], opset=21)


def nbits(bias: bool = True) -> onnx.ModelProto:
    block, count = 16, 2
    packed = np.random.default_rng(4).integers(0, 256, (OUTPUTS, count, block // 2), np.uint8)
    scales = np.abs(weights(OUTPUTS * count)) / 10
    extra = ["", "", "fc.bias"] if bias else []
    nodes = [
        oh.make_node(
            "MatMulNBits", ["x", "fc.weight_Q4", "scales", *extra], ["h"], domain="com.microsoft",
            K=20, N=OUTPUTS, bits=4, block_size=block, name="/fc/MatMul_Q4",
        ),
        *then_relu("h"),
    ]  # fmt: skip
    values = named(fc__weight_Q4=packed, scales=scales, fc__bias=weights(OUTPUTS))
    return model_of(nodes, values, ("N", 3, 20))


def shared() -> onnx.ModelProto:
    """One weight applied twice."""
    nodes = [
        oh.make_node("MatMul", ["x", "fc.weight"], ["h"]),
        oh.make_node("Tanh", ["h"], ["t"]),
        oh.make_node("MatMul", ["t", "fc.weight"], ["y"]),
    ]
    return model_of(nodes, named(fc__weight=weights(INPUTS, INPUTS)))


def tied() -> onnx.ModelProto:
    """The table of an embedding is the last layer too, and only that is adapted."""
    nodes = [
        oh.make_node("Gather", ["table.weight", "x"], ["h"]),
        oh.make_node("Transpose", ["table.weight"], ["t"], perm=[1, 0]),
        oh.make_node("MatMul", ["h", "t"], ["y"], name="/lm_head/MatMul"),
    ]
    return model_of(nodes, named(table__weight=weights(7, INPUTS)), ("N", 3), 3, kind=I64)


def convolution() -> onnx.ModelProto:
    nodes = [
        oh.make_node(
            "Conv", ["x", "conv.weight", "conv.bias"], ["h"], strides=[2, 1], pads=[1, 1, 1, 0]
        ),
        *then_relu("h"),
    ]
    values = named(conv__weight=weights(4, 3, 3, 2), conv__bias=weights(4))
    return model_of(nodes, values, ("N", 3, 6, 5))


FORMS = {
    "matmul": matmul,
    "transposed": transposed,
    "gemm": lambda: gemm(0),
    "gemm transB": lambda: gemm(1),
    "constant node": constant_node,
    "int8 per channel": int8_per_channel,
    "int4 blocks": int4_blocks,
    "MatMulNBits": nbits,
    "MatMulNBits without bias": lambda: nbits(bias=False),
    "shared": shared,
    "tied": tied,
    "convolution": convolution,
}


def feed(model: onnx.ModelProto, rows: int = 4) -> dict[str, Any]:
    info = model.graph.input[0]
    shape = [d.dim_value or rows for d in info.type.tensor_type.shape.dim]
    if info.type.tensor_type.elem_type == I64:
        return {"x": np.random.default_rng(0).integers(0, 7, shape)}
    return {"x": weights(*shape, seed=0)}


def run(model: onnx.ModelProto, feeds: dict[str, Any], options: Any = None) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # inputs with defaults are a warning each
    # above this level onnxruntime rounds activations too where it finds quantised weights
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
    return session.run(None, feeds, options)[0]


def run_with(path: Path, model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """Run with an adapter that onnxruntime loads; its options do not keep the adapter alive."""
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(path))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(loaded)
    return run(model, feeds, options)


def trained(adapter: lora.Adapter) -> lora.Adapter:
    """The adapter as if it had been trained: B and the norms are no longer what they began as."""
    rng = np.random.default_rng(5)

    def layer(one: lora.LayerAdapter) -> lora.LayerAdapter:
        b = rng.normal(size=one.b.shape).astype(np.float32) / 3
        magnitude = None if one.magnitude is None else (one.magnitude * 1.3).astype(np.float32)
        return lora.LayerAdapter(one.a, b, magnitude)

    layers = {name: layer(one) for name, one in adapter.layers.items()}
    return lora.Adapter(adapter.config, layers, adapter.base, adapter.saved)


@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("form", FORMS)
def test_adapted_starts_as_the_base_and_merged_equals_adapted(form: str, use_dora: bool) -> None:
    base = FORMS[form]()
    if use_dora and form == "convolution":
        pytest.skip("DoRA is for linear layers")
    targets = "conv" if form == "convolution" else "all-linear"
    adapted = lora.add(base, targets, rank=2, use_dora=use_dora)
    x = feed(base)
    before = run(base, x)
    np.testing.assert_allclose(run(adapted, x), before, atol=1e-5)
    adapter = trained(lora.Adapter.of(adapted))
    after = run(lora.attach(base, adapter), x)
    assert np.abs(after - before).max() > 1e-2
    merged = lora.merge(base, adapter)
    np.testing.assert_allclose(run(merged, x), after, rtol=1e-5, atol=1e-5)
    assert [i.name for i in merged.graph.input] == ["x"]
    assert not any("lora" in t.name for t in merged.graph.initializer)


@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_loads_the_adapter(form: str, tmp_path: Path) -> None:
    base = FORMS[form]()
    targets = "conv" if form == "convolution" else "all-linear"
    adapter = trained(lora.Adapter.of(lora.add(base, targets, rank=2, alpha=3)))
    path = tmp_path / "style.onnx_adapter"
    lora.save_onnx_adapter(adapter, path)
    with_inputs, x = lora.with_inputs(base, adapter), feed(base)
    np.testing.assert_allclose(run(with_inputs, x), run(base, x), rtol=1e-5, atol=1e-6)
    expected = run(lora.attach(base, adapter), x)
    adapted = run_with(path, with_inputs, x)
    np.testing.assert_allclose(adapted, expected, rtol=1e-5, atol=1e-5)
    back = lora.load_onnx_adapter(path)
    np.testing.assert_allclose(run(lora.merge(base, back), x), expected, rtol=1e-5, atol=1e-5)


def test_several_adapters_of_several_ranks_on_one_base(tmp_path: Path) -> None:
    base = matmul()
    one = trained(lora.Adapter.of(lora.add(base, rank=1)))
    two = trained(lora.Adapter.of(lora.add(base, rank=3, use_rslora=True)))
    with_inputs, x = lora.with_inputs(base, [one, two]), feed(base)
    for adapter in (one, two):
        path = tmp_path / "a.onnx_adapter"
        lora.save_onnx_adapter(adapter, path)
        expected = run(lora.attach(base, adapter), x)
        adapted = run_with(path, with_inputs, x)
        np.testing.assert_allclose(adapted, expected, rtol=1e-5, atol=1e-5)


def test_adapters_of_different_layers_on_one_base(tmp_path: Path) -> None:
    """A layer that the adapter of a run leaves out has no rank, whatever the others have."""
    nodes = [
        oh.make_node("MatMul", ["x", "one.weight"], ["h"]),
        oh.make_node("MatMul", ["h", "two.weight"], ["y"]),
    ]
    values = named(one__weight=weights(INPUTS, INPUTS), two__weight=weights(INPUTS, OUTPUTS))
    base = model_of(nodes, values)
    adapters = [trained(lora.Adapter.of(lora.add(base, name, rank=2))) for name in ("one", "two")]
    with_inputs, x = lora.with_inputs(base, adapters), feed(base)
    for adapter in adapters:
        lora.save_onnx_adapter(adapter, tmp_path / "a.onnx_adapter")
        expected = run(lora.merge(base, adapter), x)
        adapted = run_with(tmp_path / "a.onnx_adapter", with_inputs, x)
        np.testing.assert_allclose(adapted, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
def test_peft_folder_comes_back_as_it_was(use_dora: bool, tmp_path: Path) -> None:
    base = gemm(1)
    adapter = trained(lora.Adapter.of(lora.add(base, rank=2, use_dora=use_dora)))
    lora.save_peft(adapter, tmp_path)
    back = lora.load_peft(tmp_path)
    assert back.config == adapter.config
    assert back.base == adapter.base
    x = feed(base)
    np.testing.assert_array_equal(
        run(lora.attach(base, back), x), run(lora.attach(base, adapter), x)
    )


@pytest.mark.parametrize("form", ["gemm", "int4 blocks", "MatMulNBits", "convolution"])
def test_only_the_adapter_is_trained_and_saved(form: str, tmp_path: Path) -> None:
    base = FORMS[form]()
    targets = "conv" if form == "convolution" else "all-linear"
    adapted = lora.add(base, targets, rank=2)
    x = feed(base)
    target = run(base, x) + 0.5
    generate_artifacts(
        adapted, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    state = onnxtrain.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert all(".lora_" in name for name, _ in state.parameters)
    module = onnxtrain.Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = onnxtrain.Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    losses = []
    for _ in range(30):
        losses.append(float(module(x["x"], target)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.8 * losses[0]
    adapter = lora.Adapter.of(adapted, state)
    module.eval()
    merged = run(lora.merge(base, adapter), x)
    assert np.mean((merged - target) ** 2) == pytest.approx(float(module(x["x"], target)), rel=1e-4)


def test_modules_to_save_are_trained_in_full_and_merged(tmp_path: Path) -> None:
    base = gemm(1)
    adapted = lora.add(base, rank=2, modules_to_save=["fc.bias"])
    assert list(lora.Adapter.of(adapted).saved) == ["fc.bias"]
    bias = np.full(OUTPUTS, 3.0, np.float32)
    adapter = lora.Adapter.of(adapted)
    changed = lora.Adapter(adapter.config, adapter.layers, adapter.base, {"fc.bias": bias})
    x = feed(base)
    merged = run(lora.merge(base, changed), x)
    np.testing.assert_allclose(merged, run(lora.attach(base, changed), x), rtol=1e-5, atol=1e-5)
    assert np.abs(merged - run(base, x)).max() > 0.5


def test_dropout_is_for_training_only(tmp_path: Path) -> None:
    adapted = lora.add(matmul(), rank=2, dropout=0.5)
    assert "Dropout" in {n.op_type for n in adapted.graph.node}
    adapter = trained(lora.Adapter.of(adapted))
    merged = lora.merge(matmul(), adapter)
    assert "Dropout" not in {n.op_type for n in merged.graph.node}


def test_all_linear_leaves_the_last_layer_out() -> None:
    nodes = [
        oh.make_node("MatMul", ["x", "one.weight"], ["h"]),
        oh.make_node("MatMul", ["h", "two.weight"], ["l"]),
        oh.make_node("Add", ["l", "two.bias"], ["y"]),
    ]
    values = named(
        one__weight=weights(INPUTS, OUTPUTS), two__weight=weights(OUTPUTS, 2), two__bias=weights(2)
    )
    adapted = lora.add(model_of(nodes, values), rank=1)
    assert list(lora.Adapter.of(adapted).layers) == ["one"]


MISTAKES: dict[str, tuple[Any, str]] = {
    "targets match nothing": (lambda m: lora.add(m, "cf"), "match none of the 1 layers. Near: fc"),
    "no expression": (lambda m: lora.add(m, "*fc"), "give a list"),
    "rank too high": (lambda m: lora.add(m, rank=6), "5 at most"),
    "rank zero": (lambda m: lora.add(m, rank=0), "rank is a whole number"),
    "rank of words": (lambda m: lora.add(m, rank="8"), "rank is a whole number"),
    "alpha": (lambda m: lora.add(m, rank=2, alpha=float("nan")), "alpha"),
    "dropout": (lambda m: lora.add(m, rank=2, dropout=1.0), "dropout"),
    "dora with dropout": (lambda m: lora.add(m, rank=2, dropout=0.1, use_dora=True), "dropout"),
    "adapted twice": (lambda m: lora.add(lora.add(m, rank=2), rank=2), "already"),
    "a base has no adapter": (lora.Adapter.of, "no adapters"),
    "already merged": (
        lambda m: lora.Adapter.of(lora.merge(m, lora.Adapter.of(lora.add(m, rank=2)))),
        "merged",
    ),
    "another base": (
        lambda m: lora.merge(gemm(1), lora.Adapter.of(lora.add(m, rank=2))),
        "another base",
    ),
    "other layers": (
        lambda m: lora.merge(constant_node(), lora.Adapter.of(lora.add(m, rank=2))),
        "no layer 'fc'",
    ),
    "other shapes": (
        lambda m: lora.merge(shared(), lora.Adapter.of(lora.add(m, rank=2))),
        "shapes",
    ),
    "a checkpoint of something else": (
        lambda m: lora.Adapter.of(lora.add(m, rank=2), {"w": np.zeros(1)}),
        "no value for the adapter's parameter",
    ),
}


@pytest.mark.parametrize("door", ["merge", "attach", "with_inputs"])
@pytest.mark.parametrize("file", ["peft", "onnx_adapter"])
def test_files_know_their_base(file: str, door: str, tmp_path: Path) -> None:
    """By the numbers in it: another of the same form, or one it is merged into, is refused."""
    base = matmul()
    adapter = trained(lora.Adapter.of(lora.add(base, rank=2)))
    if file == "peft":
        lora.save_peft(adapter, tmp_path)
        loaded = lora.load_peft(tmp_path)
    else:
        lora.save_onnx_adapter(adapter, tmp_path / "a.onnx_adapter")
        loaded = lora.load_onnx_adapter(tmp_path / "a.onnx_adapter")
    use = getattr(lora, door)
    use(base, loaded)
    other = matmul()
    other.graph.initializer[0].CopyFrom(named(fc__weight=weights(INPUTS, OUTPUTS, seed=9))[0])
    for wrong in (other, lora.merge(base, adapter)):
        with pytest.raises(lora.AdapterError, match="numbers in them differ"):
            use(wrong, loaded)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake: str) -> None:
    call, message = MISTAKES[mistake]
    with pytest.raises(lora.AdapterError, match=message):
        call(matmul())
