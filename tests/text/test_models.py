"""Models of other exporters: without their cache they compute the same, and get it back."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxtrain import artifacts, lora, losses, text
from onnxtrain.api import Trainer

from .models import TEXTS, VOCABULARY, decoder, tokenizer_json

pytestmark = pytest.mark.slow

pytest.importorskip("tokenizers")


def run(model: onnx.ModelProto | str, feeds: dict) -> np.ndarray:
    content = model if isinstance(model, str) else model.SerializeToString()
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(
        ["logits"], feeds
    )[0]


def empty_cache(layers: int = 2, rows: int = 2) -> dict:
    empty = np.zeros((rows, 2, 0, 4), np.float32)
    return {f"past_key_values.{i}.{k}": empty for i in range(layers) for k in ("key", "value")}


def test_without_its_cache_a_decoder_scores_the_same() -> None:
    original = decoder()
    plain = text.without_cache(original)
    inputs = text.LanguageInputs.of(plain)
    assert [i.name for i in plain.graph.input] == ["input_ids", "attention_mask", "position_ids"]
    assert [o.name for o in plain.graph.output] == ["logits"]
    assert "Concat" not in {n.op_type for n in plain.graph.node}
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, (2, 6))
    feeds = inputs.feeds(tokens, np.ones_like(tokens))
    np.testing.assert_allclose(
        run(plain, feeds), run(original, {**feeds, **empty_cache()}), rtol=1e-6, atol=1e-6
    )


def test_a_cache_that_something_else_reads_has_no_length() -> None:
    """Its size is asked for, as exporters do for the position of the first token."""
    model = decoder(1)
    shape = onnx.helper.make_node("Shape", ["past_key_values.0.key"], ["past_shape"])
    two = onnx.helper.make_node("Gather", ["past_shape", "two"], ["past_length"])
    added = onnx.helper.make_node("Add", ["position_ids", "past_length"], ["moved"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "two"))
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = "moved" if name == "position_ids" else name
    for node in (added, two, shape):
        model.graph.node.insert(0, node)
    plain = text.without_cache(model)
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, (2, 6))
    feeds = text.LanguageInputs.of(plain).feeds(tokens, np.ones_like(tokens))
    np.testing.assert_allclose(
        run(plain, feeds), run(model, {**feeds, **empty_cache(1)}), rtol=1e-6, atol=1e-6
    )


def test_rows_have_the_same_scores_on_whichever_side_they_are_filled_up(tmp_path) -> None:
    plain = text.without_cache(decoder())
    inputs = text.LanguageInputs.of(plain)
    tokenizer = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    scores, labels = {}, {}
    for side in ("right", "left"):
        rows = text.causal_lm_rows(TEXTS, tokenizer, packing=False, padding_side=side)
        given = rows.arrays(inputs)
        labels[side] = given.pop("labels")
        real = rows.mask > 0
        scores[side] = run(plain, given)[real]
        labels[side] = labels[side][real]
    np.testing.assert_array_equal(labels["left"], labels["right"])
    np.testing.assert_allclose(scores["left"], scores["right"], rtol=1e-5, atol=1e-5)


def trained(model, folder, tokenizer, **options):
    folder.mkdir()
    artifacts.generate_artifacts(
        model, loss=losses.CausalLMLoss(), optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )  # fmt: skip
    trainer = Trainer.from_directory(folder, learning_rate=2e-2, metrics=["perplexity"], **options)
    rows = text.causal_lm_rows(TEXTS * 4, tokenizer, 16)
    return trainer, rows.arrays(text.LanguageInputs.of(model))


def test_what_was_learned_goes_back_into_the_original(tmp_path) -> None:
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    tokenizer = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    plain = text.without_cache(tmp_path / "decoder.onnx")
    trainer, data = trained(plain, tmp_path / "run", tokenizer)
    before = trainer.evaluate(data)
    trainer.fit(data, 20, 4, progress=False)
    after = trainer.evaluate(data)
    assert before["perplexity"] == pytest.approx(np.exp(before["loss"]))
    assert after["perplexity"] < 0.4 * before["perplexity"]
    text.with_weights(tmp_path / "decoder.onnx", trainer.state, tmp_path / "trained.onnx")
    back = onnx.load(tmp_path / "trained.onnx")
    assert [i.name for i in back.graph.input] == [i.name for i in decoder().graph.input]
    feeds = {k: v[:2] for k, v in data.items() if k != "labels"}
    given = {**feeds, **empty_cache()}
    want = trainer.predict(feeds)
    np.testing.assert_allclose(run(back, given), want, rtol=1e-4, atol=1e-5)
    written = text.generate(trainer.predict, text.LanguageInputs.of(plain), tokenizer, "the cat", 4)
    assert written.split()[:2] == ["sat", "on"]


def test_the_mean_loss_is_over_labels_whatever_the_batches(tmp_path) -> None:
    """Rows of other lengths count for as many tokens as they have, also when they are evaluated."""
    tokenizer = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    plain = text.without_cache(decoder())
    trainer, _ = trained(plain, tmp_path / "run", tokenizer)
    rows = text.causal_lm_rows(TEXTS, tokenizer, packing=False)
    data = rows.arrays(text.LanguageInputs.of(plain))
    whole = trainer.evaluate(data, len(TEXTS))["loss"]
    assert trainer.evaluate(data, 1)["loss"] == pytest.approx(whole, rel=1e-5)
    assert trainer.evaluate(data, 2)["loss"] == pytest.approx(whole, rel=1e-5)


def test_an_adapter_of_the_plain_model_fits_the_one_with_the_cache(tmp_path) -> None:
    onnx.save(decoder(), tmp_path / "decoder.onnx")
    tokenizer = text.load_tokenizer(tokenizer_json(tmp_path / "tokenizer.json"))
    plain = text.without_cache(tmp_path / "decoder.onnx")
    adapted = lora.add(plain, targets="q_proj|v_proj|o_proj", rank=2)
    trainer, data = trained(adapted, tmp_path / "run", tokenizer)
    trainer.fit(data, 2, 4, progress=False)
    merged = lora.merge(tmp_path / "decoder.onnx", lora.Adapter.of(adapted, trainer.state))
    feeds = {k: v[:2] for k, v in data.items() if k != "labels"}
    np.testing.assert_allclose(
        run(merged, {**feeds, **empty_cache()}), trainer.predict(feeds), rtol=1e-4, atol=1e-5
    )


def test_inputs_without_a_role_are_told() -> None:
    model = decoder(1)
    extra = onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, ["n", 3])
    model.graph.input.append(extra)
    with pytest.raises(text.TextError, match="pixel_values"):
        text.LanguageInputs.of(model)
    only_cache = decoder(1)
    del only_cache.graph.output[0]
    with pytest.raises(text.TextError, match="no scores"):
        text.without_cache(only_cache)
    fixed = decoder(1)
    for value in fixed.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[2].dim_value = 8
    fixed.graph.node.append(onnx.helper.make_node("Shape", ["past_key_values.0.key"], ["asked"]))
    fixed.graph.output.append(onnx.helper.make_tensor_value_info("asked", 7, [4]))
    with pytest.raises(text.TextError, match="fixed length"):
        text.without_cache(fixed)


def test_genai_exports_are_trained_without_their_cache(tmp_path) -> None:
    """The model of onnxruntime-genai's builder: GroupQueryAttention with a cache of its own."""
    pytest.importorskip("onnxruntime_genai")
    pytest.importorskip("transformers")
    from conformance.lists import genai

    case = genai.case("llama/fp32")
    plain = text.without_cache(case.model)
    assert not [i.name for i in plain.graph.input if "past" in i.name]
    inputs = text.LanguageInputs.of(plain)
    ids = case.feeds["input_ids"]
    feeds = inputs.feeds(ids, np.ones_like(ids))
    assert set(feeds) == {i.name for i in plain.graph.input}
    np.testing.assert_allclose(run(plain, feeds), run(case.model, case.feeds), rtol=1e-5, atol=1e-5)
    artifacts.generate_artifacts(
        plain, loss=losses.CausalLMLoss(), optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )  # fmt: skip
    trainer = Trainer.from_directory(tmp_path, learning_rate=1e-2)
    history = trainer.fit({**feeds, "labels": ids}, 5, progress=False)
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    text.with_weights(case.model, trainer.state, tmp_path / "trained.onnx")
    want = trainer.predict(feeds)
    got = run(str(tmp_path / "trained.onnx"), case.feeds)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
