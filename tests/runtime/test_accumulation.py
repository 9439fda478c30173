"""Gradients of several batches together are those of one large batch, whatever each one counts."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain import artifacts, losses
from onnxtrain.api import Trainer
from tests.text.models import VOCABULARY, decoder

LENGTH = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm")
    artifacts.generate_artifacts(
        decoder(1, cache=False), loss=losses.CausalLMLoss(), optimizer=artifacts.OptimType.AdamW,
        artifact_directory=path,
    )  # fmt: skip
    return path


def rows(counts):
    """Rows in which so many tokens are to be learned."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, (len(counts), LENGTH))
    labels = np.full_like(tokens, -100)
    for row, count in enumerate(counts):
        labels[row, 1 : 1 + count] = tokens[row, 1 : 1 + count]
    places = np.tile(np.arange(LENGTH), (len(counts), 1))
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": places,
            "labels": labels}  # fmt: skip


def trained(folder, data, batch_size, accumulate):
    trainer = Trainer.from_directory(folder, learning_rate=0.1, accumulate=accumulate)
    history = trainer.fit(data, 2, batch_size, shuffle=False, progress=False)
    return history["loss"], {n: p.data.copy() for n, p in trainer.state.parameters}, trainer.step


@pytest.mark.parametrize(
    "counts",
    [
        (8, 8, 1, 2, 3, 1),
        (1, 1, 8, 8, 0, 1),
        (0, 0, 5, 1, 2, 8),  # the first micro-batch has nothing to learn
        (3, 4, 8, 1, 0, 0),  # nor has the last
        (8, 7, 6, 5, 4),  # the last one is smaller
    ],
)
def test_token_by_token_it_is_one_large_batch(folder, counts) -> None:
    data = rows(counts)
    want, large, steps = trained(folder, data, len(counts), 1)
    got, small, same = trained(folder, data, 2, 3)
    assert steps == same == 2
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for name, value in large.items():
        np.testing.assert_allclose(small[name], value, rtol=2e-4, atol=2e-6, err_msg=name)


def test_rows_count_where_there_are_no_labels(tmp_path) -> None:
    """Regression with a last micro-batch of one row."""
    import onnx.parser

    from tests.cli.models import HEAD

    model = onnx.parser.parse_model(
        HEAD + "g (float[N, 3] x) => (float[N, 1] y) <float[3, 1] w = {0.1, 0.2, 0.3}>"
        "{ y = MatMul(x, w) }"
    )
    artifacts.generate_artifacts(
        model, loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 1)).astype(np.float32))
    _, large, _ = trained(tmp_path, data, 5, 1)
    _, small, _ = trained(tmp_path, data, 2, 3)
    np.testing.assert_allclose(small["w"], large["w"], rtol=1e-5)
