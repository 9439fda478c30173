"""Small language models and tokenizers that the tests share."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

WORDS = [
    "the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "far", "away", "with", "red", "big",
    "ball", "now", "then", "saw",
]  # fmt: skip
SPECIAL = ["<pad>", "<eos>", "<unk>"]
VOCABULARY = len(SPECIAL) + len(WORDS)
TEXTS = [
    "the cat sat on a mat", "the dog ran far away", "a big cat saw the red ball",
    "then the dog sat on the mat and saw a cat", "now a dog ran with the ball",
]  # fmt: skip

HEAD = """<ir_version: 9, opset_import: ["": 17]>
decoder (int64[batch, sequence] input_ids, int64[batch, total] attention_mask,
         int64[batch, sequence] position_ids{past_inputs})
    => (float[batch, sequence, {vocabulary}] logits{present_outputs})
{{
    zero = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    axes12 = Constant <value_ints = [1, 2]> ()
    heads = Constant <value_ints = [0, 0, 2, 4]> ()
    joined = Constant <value_ints = [0, 0, 8]> ()
    mask_shape = Shape (attention_mask)
    ids_shape = Shape (input_ids)
    total = Gather (mask_shape, one)
    length = Gather (ids_shape, one)
    before = Sub (total, length)
    rows = Range (before, total, one)
    columns = Range (zero, total, one)
    row = Unsqueeze (rows, one1)
    causal = GreaterOrEqual (row, columns)
    real = Cast <to = 9> (attention_mask)
    real4 = Unsqueeze (real, axes12)
    seen = And (causal, real4)
    low = Constant <value_float = -1e9> ()
    nothing = Constant <value_float = 0.0> ()
    bias = Where (seen, nothing, low)
    words = Gather (embed.weight, input_ids)
    places = Gather (position.weight, position_ids)
    h0 = Add (words, places)
{layers}
    logits = MatMul (h{last}, lm_head.weight)
}}
"""
LAYER = """
    q{i}_ = MatMul (h{i}, layers.{i}.q_proj.weight)
    k{i}_ = MatMul (h{i}, layers.{i}.k_proj.weight)
    v{i}_ = MatMul (h{i}, layers.{i}.v_proj.weight)
    q{i}h = Reshape (q{i}_, heads)
    k{i}h = Reshape (k{i}_, heads)
    v{i}h = Reshape (v{i}_, heads)
    q{i} = Transpose <perm = [0, 2, 1, 3]> (q{i}h)
    kn{i} = Transpose <perm = [0, 2, 1, 3]> (k{i}h)
    vn{i} = Transpose <perm = [0, 2, 1, 3]> (v{i}h)
{cache}
    kt{i} = Transpose <perm = [0, 1, 3, 2]> ({key})
    s{i} = MatMul (q{i}, kt{i})
    b{i} = Add (s{i}, bias)
    p{i} = Softmax <axis = -1> (b{i})
    y{i} = MatMul (p{i}, {value})
    yt{i} = Transpose <perm = [0, 2, 1, 3]> (y{i})
    yj{i} = Reshape (yt{i}, joined)
    o{i} = MatMul (yj{i}, layers.{i}.o_proj.weight)
    h{next} = Add (h{i}, o{i})
"""
CACHE = """
    present.{i}.key = Concat <axis = 2> (past_key_values.{i}.key, kn{i})
    present.{i}.value = Concat <axis = 2> (past_key_values.{i}.value, vn{i})
"""


def decoder(
    layers: int = 2, *, cache: bool = True, seed: int = 0, vocabulary: int = VOCABULARY
) -> onnx.ModelProto:
    """A decoder as optimum exports one: hidden size 8, two heads."""
    parts, past, present = [], "", ""
    for i in range(layers):
        names = {"key": f"present.{i}.key", "value": f"present.{i}.value"}
        if not cache:
            names = {"key": f"kn{i}", "value": f"vn{i}"}
        parts.append(
            LAYER.format(i=i, next=i + 1, cache=CACHE.format(i=i) if cache else "", **names)
        )
        for kind in ("key", "value") if cache else ():
            past += f",\n float[batch, 2, past, 4] past_key_values.{i}.{kind}"
            present += f", float[batch, 2, total, 4] present.{i}.{kind}"
    text = HEAD.format(
        past_inputs=past, present_outputs=present, vocabulary=vocabulary, last=layers,
        layers="\n".join(parts),
    )  # fmt: skip
    model = _dotted(onnx.parser.parse_model(re.sub(r"\.(?=[a-z]|\d+\.)", "__", text)))
    rng = np.random.default_rng(seed)
    shapes = {
        "embed.weight": (vocabulary, 8), "position.weight": (64, 8),
        "lm_head.weight": (8, vocabulary),
        **{f"layers.{i}.{p}_proj.weight": (8, 8) for i in range(layers) for p in "qkvo"},
    }  # fmt: skip
    for name, shape in shapes.items():
        value = rng.normal(size=shape).astype(np.float32) * 0.4
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one1"))
    onnx.checker.check_model(model, full_check=True)
    return model


def _dotted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Names as exporters give them: the parser knows no dots."""
    values = [*model.graph.input, *model.graph.output]
    for value in values:
        value.name = value.name.replace("__", ".")
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [n.replace("__", ".") for n in names]
    return model


def tokenizer_json(path: str | Path = "tokenizer.json", words: list[str] | None = None) -> str:
    """A tokenizer of whole words, as the package tokenizers writes it."""
    listed = [*SPECIAL, *(WORDS if words is None else words)]
    content = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, t in enumerate(SPECIAL)
        ],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(listed)},
                  "unk_token": "<unk>"},
    }  # fmt: skip
    Path(path).write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def write_jsonl(path: str | Path = "text.jsonl", texts: list[str] | None = None) -> str:
    rows = TEXTS * 4 if texts is None else texts
    Path(path).write_text("".join(json.dumps({"text": t}) + "\n" for t in rows), encoding="utf-8")
    return str(path)
