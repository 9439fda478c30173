"""onnxruntime-genai loads our adapters, and generates what the merged model does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

from onnxtrain import lora, quant

from .test_lora import trained

og = pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed")

F, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
WORDS, WIDTH, HEADS, SIZE, LONGEST = 50, 32, 2, 16, 16
PROMPT = [5, 6, 7]


def decoder() -> onnx.ModelProto:
    """One layer of attention with a cache, in the form that genai's builder writes."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return onh.from_array(rng.normal(size=shape).astype(np.float32) / 4, name)

    projections = [f"model.layers.0.attn.{part}_proj" for part in "qkvo"]
    tensors = [weight(f"{name}.MatMul.weight", WIDTH, WIDTH) for name in projections]
    tensors += [weight("table", WORDS, WIDTH), weight("lm_head.MatMul.weight", WIDTH, WORDS)]
    tensors += [onh.from_array(np.array([1]), "one"), onh.from_array(np.array(1), "last")]
    nodes = [
        oh.make_node("Gather", ["table", "input_ids"], ["h"]),
        *(
            oh.make_node("MatMul", ["h", f"{name}.MatMul.weight"], [part], name=f"/{part}/MatMul")
            for name, part in zip(projections, "qkv")
        ),
        oh.make_node("ReduceSum", ["attention_mask", "one"], ["count"], keepdims=0),
        oh.make_node("Sub", ["count", "one"], ["lengths64"]),
        oh.make_node("Cast", ["lengths64"], ["lengths"], to=onnx.TensorProto.INT32),
        oh.make_node("Shape", ["attention_mask"], ["shape"]),
        oh.make_node("Gather", ["shape", "last"], ["total64"]),
        oh.make_node("Cast", ["total64"], ["total"], to=onnx.TensorProto.INT32),
        oh.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key_values.0.key", "past_key_values.0.value", "lengths", "total"],
            ["a", "present.0.key", "present.0.value"],
            domain="com.microsoft", num_heads=HEADS, kv_num_heads=HEADS,
        ),
        oh.make_node("MatMul", ["a", f"{projections[3]}.MatMul.weight"], ["o"], name="/o/MatMul"),
        oh.make_node("Add", ["h", "o"], ["r"]),
        oh.make_node("MatMul", ["r", "lm_head.MatMul.weight"], ["logits"], name="/lm_head/MatMul"),
    ]  # fmt: skip
    cache = ["batch", HEADS, "past", SIZE]
    inputs = [
        oh.make_tensor_value_info("input_ids", I64, ["batch", "length"]),
        oh.make_tensor_value_info("attention_mask", I64, ["batch", "total"]),
        *(oh.make_tensor_value_info(f"past_key_values.0.{n}", F, cache) for n in ("key", "value")),
    ]
    outputs = [
        oh.make_tensor_value_info("logits", F, ["batch", "length", WORDS]),
        *(
            oh.make_tensor_value_info(f"present.0.{n}", F, ["batch", HEADS, "total", SIZE])
            for n in ("key", "value")
        ),
    ]
    graph = oh.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [oh.make_opsetid("", 18), oh.make_opsetid("com.microsoft", 1)]
    return oh.make_model(graph, opset_imports=imports, ir_version=10)


SETTINGS: dict[str, Any] = {
    "model": {
        "type": "decoder", "context_length": LONGEST, "vocab_size": WORDS,
        "bos_token_id": 1, "eos_token_id": WORDS - 1, "pad_token_id": 0,
        "decoder": {
            "filename": "model.onnx", "session_options": {"log_severity_level": 3},
            "hidden_size": WIDTH, "head_size": SIZE, "num_hidden_layers": 1,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
            "inputs": {
                "input_ids": "input_ids", "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits", "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    },
    "search": {"max_length": LONGEST, "do_sample": False, "past_present_share_buffer": False},
}  # fmt: skip


def generated(model: onnx.ModelProto, folder: Path, *adapters: Path) -> list[list[int]]:
    """What the model says after the prompt: once for each adapter, or once without any."""
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(SETTINGS))
    loaded = og.Model(str(folder))
    known = og.Adapters(loaded)
    for path in adapters:
        known.load(str(path), path.stem)
    said = []
    for path in adapters or (None,):
        settings = og.GeneratorParams(loaded)
        settings.set_search_options(max_length=LONGEST, do_sample=False)
        generator = og.Generator(loaded, settings)
        if path is not None:
            generator.set_active_adapter(known, path.stem)
        generator.append_tokens(np.array([PROMPT], np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        said.append([int(token) for token in generator.get_sequence(0)])
    return said


@pytest.mark.parametrize("bits", [None, 4], ids=["floats", "4 bits"])
def test_generation_with_an_adapter_is_that_of_the_merged_model(
    bits: int | None, tmp_path: Path
) -> None:
    base = decoder()
    if bits is not None:
        quantizer = "onnxruntime.quantization.matmul_nbits_quantizer"
        pytest.importorskip(quantizer, reason="onnxruntime is older than 1.22")
        base = quant.quantize(base, bits, 16).model
    one = trained(lora.Adapter.of(lora.add(base, "q_proj|v_proj|o_proj", rank=2, alpha=8)))
    two = trained(lora.Adapter.of(lora.add(base, ["lm_head"], rank=3, alpha=30)))
    files = [tmp_path / "one.onnx_adapter", tmp_path / "two.onnx_adapter"]
    for adapter, path in zip((one, two), files):
        lora.save_onnx_adapter(adapter, path)
    served = lora.with_inputs(base, [one, two])
    plain = generated(base, tmp_path / "base")[0]
    assert plain[: len(PROMPT)] == PROMPT
    assert generated(served, tmp_path / "without") == [plain]
    with_one, with_two = generated(served, tmp_path / "served", *files)
    assert with_one == generated(lora.merge(base, one), tmp_path / "merged one")[0]
    assert with_two == generated(lora.merge(base, two), tmp_path / "merged two")[0]
    assert len({tuple(words) for words in (plain, with_one, with_two)}) == 3
