"""Language models in JavaScript: tokens, rows, losses, samples and adapters as in Python."""

import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain import lora, text
from onnxtrain.api import CheckpointState, Module, Optimizer
from onnxtrain.artifacts import LossType, OptimType, generate_artifacts
from tests.text.models import TEXTS

from . import cases, tools
from .language import LENGTH, base_model, byte_pairs, trained, write

pytest.importorskip("tokenizers")

STEPS, BATCH, RATE, TOKENS = 6, 2, 0.05, 12
PROMPT = "the cat sat"


def python_run(folder, rows, inputs, tokenizer):
    """The same batches in Python: losses, and samples before and after."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    arrays = rows.arrays(inputs)
    found = []
    for step in range(STEPS):
        start = step * BATCH % (len(rows.tokens) - BATCH)
        batch = [arrays[n][start : start + BATCH] for n in module.input_names()]
        found.append(float(module.train()(*batch)))
        optimizer.step()
        module.lazy_reset_grad()
    return found, state


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    base = base_model(folder / "lm.onnx")
    adapted = write(base, folder / "artifacts")
    onnx.save(adapted, folder / "adapted.onnx")
    tokenizer = byte_pairs(folder / "tokenizer.json")
    adapter = trained(adapted)
    lora.save_onnx_adapter(adapter, folder / "python.onnx_adapter")
    lora.save_peft(adapter, folder / "python_peft")
    other = write(base_model(folder / "other.onnx", seed=5), folder / "other")
    lora.save_onnx_adapter(trained(other), folder / "other.onnx_adapter")
    lora.save_peft(trained(other), folder / "other_peft")
    lora.save_onnx_adapter(trained(write(base, folder / "wide", 3)), folder / "wide.onnx_adapter")
    write(base, folder / "dora", use_dora=True)
    for name in ("js_peft", "js_dora", "plain"):
        (folder / name).mkdir()
    mlp, trainable, *_ = cases.forward(cases.mlp)
    generate_artifacts(
        mlp, requires_grad=trainable, loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD,
        artifact_directory=folder / "plain", browser=True,
    )  # fmt: skip
    plan = {
        "texts": TEXTS, "length": LENGTH, "prompt": PROMPT, "tokens": TOKENS, "steps": STEPS,
        "batch": BATCH, "rate": RATE,
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    (found,) = tools.run_node("language.mjs", tools.LIBRARY, tools.modules(), folder)
    return folder, base, tokenizer, adapter, found


def test_rows_are_those_of_python(made):
    _, base, tokenizer, _, found = made
    inputs = text.LanguageInputs.of(text.without_cache(base))
    assert found["inputs"] == {
        "tokens": "input_ids", "mask": "attention_mask", "positions": "position_ids",
        "labels": "labels", "ignored": -100, "vocabulary": 300,
    }  # fmt: skip
    for name, packing in (("rows", True), ("single", False)):
        rows = text.causal_lm_rows(TEXTS, tokenizer, LENGTH, packing=packing)
        for key, array in rows.arrays(inputs).items():
            assert found[name][key] == array.ravel().tolist(), (name, key)


def test_losses_and_samples_are_those_of_python(made):
    folder, base, tokenizer, _, found = made
    inputs = text.LanguageInputs.of(text.without_cache(base))
    rows = text.causal_lm_rows(TEXTS, tokenizer, LENGTH)
    want, state = python_run(folder / "artifacts", rows, inputs, tokenizer)
    np.testing.assert_allclose(found["losses"], want, rtol=1e-5)
    assert found["steps"] == STEPS
    for moment, parameters in (("before", None), ("after", state)):
        adapter = lora.Adapter.of(folder / "adapted.onnx", parameters) if parameters else None
        model = base if adapter is None else lora.merge(base, adapter)
        scores = _session(text.without_cache(model))
        assert found[moment] == text.generate(scores, inputs, tokenizer, PROMPT, TOKENS)
    assert found["before"] != found["after"]


def _session(model):
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    session = ort.InferenceSession(proto.SerializeToString())
    return lambda feeds: session.run(["logits"], feeds)[0]


def test_python_computes_with_the_adapters_that_javascript_wrote(made):
    folder, base, tokenizer, _, found = made
    inputs = text.LanguageInputs.of(text.without_cache(base))
    rows = text.causal_lm_rows(TEXTS, tokenizer, LENGTH)
    feeds = inputs.feeds(rows.tokens[:1], rows.mask[:1])
    plain = _session(text.without_cache(base))(feeds)
    for adapter in (
        lora.load_onnx_adapter(folder / "js.onnx_adapter"),
        lora.load_peft(folder / "js_peft"),
    ):
        merged = text.without_cache(lora.merge(base, adapter))
        scores = _session(merged)(feeds)
        np.testing.assert_allclose(scores.ravel(), found["scores"], atol=1e-5)
        assert np.abs(scores - plain).max() > 0.05
    assert lora.load_peft(folder / "js_dora").config.use_dora


def test_onnxruntime_itself_takes_the_file(made):
    folder, base, tokenizer, _, found = made
    model = text.without_cache(base)
    adapter = lora.load_onnx_adapter(folder / "js.onnx_adapter")
    served = lora.with_inputs(model, adapter)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(served.SerializeToString(), options)
    style, run = ort.LoraAdapter(), ort.RunOptions()
    style.Load(str(folder / "js.onnx_adapter"))
    run.add_active_adapter(style)
    inputs = text.LanguageInputs.of(model)
    rows = text.causal_lm_rows(TEXTS, tokenizer, LENGTH)
    (scores,) = session.run(["logits"], inputs.feeds(rows.tokens[:1], rows.mask[:1]), run)
    np.testing.assert_allclose(scores.ravel(), found["scores"], atol=1e-5)


def test_javascript_goes_on_with_the_adapters_that_python_wrote(made):
    _, _, _, adapter, found = made
    want = np.concatenate([m.ravel() for one in adapter.layers.values() for m in (one.a, one.b)])
    for kind in ("onnx", "peft"):
        np.testing.assert_allclose(found["python"][kind], want, rtol=1e-6, err_msg=kind)


# --- tokenizers -----------------------------------------------------------------------------------

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA.replace("{1,3}", "")
PIECES = [
    "", " ", "the cat sat on a mat", "  two  spaces   and\ttabs\n\nlines \r\n",
    "It's WE'LL I'D don't",
    "numbers 1234567 x2y ½ ٣٤", "Zürich, naïve — “quoted” …!?", "日本語 のテキスト 🙂🙂 e\u0301",
    "a<|endoftext|>b <|tool|> c<|tool|>", "\u00a0no\u2003break\u0085next\ufeffmark", "aaaa" * 40,
    "def f(x):\n    return x**2  # why\n", "<|endoftext|>",
]  # fmt: skip


def _variants():
    """Names and changes of a tokenizer.json, as published models have them."""
    from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

    level = pre_tokenizers.ByteLevel
    split = {
        name: pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"), level(False, use_regex=False),
        ])
        for name, pattern in (("llama", LLAMA), ("qwen", QWEN))
    }  # fmt: skip
    yield "gpt2", {}, []
    yield "prefix", {"pre_tokenizer": level(add_prefix_space=True)}, []
    yield "llama", {"pre_tokenizer": split["llama"]}, []
    yield "qwen", {"pre_tokenizer": split["qwen"], "normalizer": normalizers.NFC()}, []
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), level(False)])
    yield "smol", {"pre_tokenizer": digits}, [AddedToken("<|tool|>", normalized=True)]
    yield "one word", {"pre_tokenizer": level(False, use_regex=False)}, []


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    tokenizers = {}
    for name, changes, added in _variants():
        backend = byte_pairs(folder / f"{name}.json", PIECES).backend
        for attribute, value in changes.items():
            setattr(backend, attribute, value)
        backend.add_tokens(added)
        backend.save(str(folder / f"{name}.json"))
        tokenizers[name] = text.load_tokenizer(folder / f"{name}.json")
    content = json.loads((folder / "llama.json").read_text())
    content["model"]["ignore_merges"] = True
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (folder / "old.json").write_text(json.dumps(content))
    tokenizers["old"] = text.load_tokenizer(folder / "old.json")
    (folder / "gpt2.config").write_text(json.dumps({"bos_token": {"content": "a"}}))
    wanted = {"names": list(tokenizers), "texts": PIECES}
    (folder / "texts.json").write_text(json.dumps(wanted))
    (found,) = tools.run_node("tokens.mjs", tools.LIBRARY, folder)
    return tokenizers, found


NAMES = ["gpt2", "prefix", "llama", "qwen", "smol", "one word", "old"]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_the_package_tokenizers(encoded, name):
    tokenizer, found = encoded[0][name], encoded[1][name]
    for piece, ids, decoded in zip(PIECES, found["ids"], found["decoded"], strict=True):
        (want,) = tokenizer.encode([piece])
        assert ids == want, piece
        assert decoded == tokenizer.decode(want), piece
    assert found["size"] == tokenizer.size
    assert found["eosId"] == tokenizer.eos_id
    assert found["bosId"] == (tokenizer.backend.token_to_id("a") if name == "gpt2" else None)


def test_bytes_are_tokens(encoded):
    found = encoded[1]["bytes"]
    assert found["ids"] == [list(piece.encode()) for piece in PIECES]
    assert found["decoded"] == PIECES
