"""The getting-started sample of ORTTrainer through its old import paths, at full length but tiny.

A transformer language model: trained and evaluated for two epochs, stopped and resumed, exported,
with accumulated gradients, with mixed precision, and with every option of distributed training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from onnxtrain import compat
from onnxtrain.errors import DeviceError, InputError

torch = pytest.importorskip("torch")

WORDS, WIDTH, ROWS, LENGTH, LR = 13, 8, 4, 5, 0.5
TOKENS = torch.from_numpy(np.random.default_rng(3).integers(0, WORDS, (41, ROWS)))


class LanguageModel(torch.nn.Module):
    """Embedding, positions, one encoder layer with a causal mask, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(WORDS, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0)
        self.layers = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)
        self.register_buffer("positions", torch.linspace(-1, 1, LENGTH)[:, None, None])
        mask = torch.triu(torch.full((LENGTH, LENGTH), -math.inf), diagonal=1)
        self.register_buffer("mask", mask)

    def forward(self, src: Any) -> Any:
        x = self.encoder(src) * math.sqrt(WIDTH) + self.positions
        return self.decoder(self.layers(x, self.mask, is_causal=True))


class Bigrams(torch.nn.Module):
    """Embedding, dropout, decoder: exported in a fraction of the time."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.drop = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Dropout(dropout)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, src: Any) -> Any:
        return self.decoder(self.drop(self.encoder(src)))


def loss_with_flat_output(output: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(output.view(-1, WORDS), target)


def batches() -> Iterator[tuple[Any, Any]]:
    for i in range(0, len(TOKENS) - 1, LENGTH):
        yield TOKENS[i : i + LENGTH], TOKENS[i + 1 : i + 1 + LENGTH].reshape(-1)


def first(model: Any, optimizer: str = "SGDOptimizer", **options: Any) -> Any:
    """The trainer of the sample: descriptions as objects, the learning rate fed."""
    from onnxruntime.capi.ort_trainer import IODescription, ModelDescription, ORTTrainer

    description = ModelDescription(
        [
            IODescription("src", [LENGTH, ROWS], torch.float32),
            IODescription("label", [LENGTH, ROWS, WORDS], torch.int64),
        ],
        [
            IODescription("loss", [], torch.float32),
            IODescription("output", [LENGTH, ROWS, WORDS], torch.float32),
        ],
    )
    rate = IODescription("Learning_Rate", [LR], torch.float32)
    return ORTTrainer(
        model, loss_with_flat_output, description, optimizer, None, rate,
        torch.device("cpu"), _opset_version=12, **options,
    )  # fmt: skip


def second(model: Any, options: dict[str, Any] | None = None, config: Any = None) -> Any:
    """The trainer of the later sample: a dictionary as description."""
    from onnxruntime.training import ORTTrainer, ORTTrainerOptions, optim

    description = {
        "inputs": [("src", [LENGTH, ROWS]), ("label", [LENGTH * ROWS])],
        "outputs": [("loss", [], True), ("output", [LENGTH, ROWS, WORDS])],
    }
    return ORTTrainer(
        model, description, config or optim.SGDConfig(lr=LR), loss_fn=loss_with_flat_output,
        options=ORTTrainerOptions({"exporter": "torchscript", **(options or {})}),
    )  # fmt: skip


def losses(trainer: Any, data: Any, *rate: Any) -> list[float]:
    return [float(trainer.train_step(x, y, *rate)[0]) for x, y in data]


@pytest.fixture(autouse=True)
def old_names() -> Iterator[None]:
    torch.manual_seed(1)
    with compat.activated():
        yield


@pytest.fixture
def model() -> Any:
    return Bigrams()


def expected(model: Any, data: Any) -> list[float]:
    """PyTorch's losses."""
    twin = copy.deepcopy(model).train()
    optimizer, found = torch.optim.SGD(twin.parameters(), LR), []
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_with_flat_output(twin(x), y)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_two_epochs_of_the_sample() -> None:
    model, data = LanguageModel(), [*batches(), *batches()]
    torchs = expected(model, data)
    trainer = first(model, exporter="torchscript")
    assert losses(trainer, data, torch.tensor([LR])) == pytest.approx(torchs, rel=1e-4)
    trainer.eval()
    evaluated = [float(trainer(x, y)[0]) for x, y in batches()]
    assert np.mean(evaluated) < torchs[0]


def test_both_generations_learn_the_same(model: Any) -> None:
    data = list(batches())
    older = first(copy.deepcopy(model), exporter="torchscript")
    one = losses(older, data, torch.tensor([LR]))
    assert losses(second(model), data) == pytest.approx(one, rel=1e-6)


def test_a_checkpoint_goes_on_where_it_was_with_dropout(tmp_path: Path) -> None:
    from onnxruntime.training import optim

    model, data, config = Bigrams(0.2), list(batches()), optim.LambConfig(lr=0.01)
    whole = second(copy.deepcopy(model), config=config)
    losses(whole, data[:4])
    whole.save_checkpoint(tmp_path / "c", {"epoch": 1, "best": np.arange(2), "mark": torch.ones(1)})
    again = second(Bigrams(0.2), config=config)
    user = again.load_checkpoint(tmp_path / "c")
    assert user["epoch"] == 1
    assert user["best"].tolist() == [0, 1]
    assert torch.equal(user["mark"], torch.ones(1))
    assert losses(again, data[4:]) == losses(whole, data[4:])
    assert again._train_step_info.optimization_step == len(data)


def test_weights_alone_can_be_saved_and_loaded(tmp_path: Path, model: Any) -> None:
    trainer = second(model)
    losses(trainer, list(batches())[:2])
    trainer.save_checkpoint(tmp_path / "c", include_optimizer_states=False)
    other = second(Bigrams())
    other.load_checkpoint(tmp_path / "c")  # gradient descent has no states to miss
    x, y = next(batches())
    assert float(other.eval_step(x, y)[0]) == float(trainer.eval_step(x, y)[0])


def test_the_saved_model_runs_in_plain_onnxruntime(tmp_path: Path, model: Any) -> None:
    trainer = first(model, exporter="torchscript")
    losses(trainer, list(batches()), torch.tensor([LR]))
    trainer.save_as_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    x, y = next(batches())
    assert [i.name for i in session.get_inputs()] == ["src", "label"]
    loss, output = session.run(None, {"src": x.numpy(), "label": y.numpy()})
    trainer.eval()
    ours = trainer(x, y)
    np.testing.assert_allclose(loss, ours[0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(output, ours[1].numpy(), rtol=1e-4, atol=1e-5)


def test_two_small_batches_are_one_large(model: Any) -> None:
    data = list(batches())
    accumulated = second(model, {"batch": {"gradient_accumulation_steps": 2}})
    losses(accumulated, data[:4])
    assert accumulated._train_step_info.optimization_step == 2
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), LR)
    for pair in (data[:2], data[2:4]):
        optimizer.zero_grad()
        (sum(loss_with_flat_output(twin(x), y) for x, y in pair) / 2).backward()
        optimizer.step()
    found = accumulated.state_dict(pytorch_format=True)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_mixed_precision_scales_the_loss_and_learns_the_same(model: Any) -> None:
    from onnxruntime.training import amp

    data = list(batches())
    plain = losses(second(copy.deepcopy(model)), data)
    scaler = amp.DynamicLossScaler(loss_scale=2.0**10, up_scale_window=3)
    options = {"mixed_precision": {"enabled": True, "loss_scaler": scaler}}
    assert losses(second(model, options), data) == pytest.approx(plain, rel=1e-5)
    assert scaler.loss_scale > 2.0**10


@pytest.mark.parametrize(
    ("distributed", "named"),
    [
        ({"horizontal_parallel_size": 2}, "horizontal_parallel_size"),
        ({"pipeline_parallel": {"pipeline_parallel_size": 2}}, "pipeline_parallel"),
        ({"world_size": 2, "deepspeed_zero_optimization": {"stage": 1}}, "deepspeed_zero"),
        ({"enable_adasum": True}, "enable_adasum"),
    ],
)
def test_what_is_not_divided_is_refused_in_a_sentence(model, distributed, named) -> None:
    with pytest.raises(InputError, match=f"{named}.* is not available: processes train on their"):
        second(model, {"distributed": distributed})


def test_several_processes_need_a_process_group(model: Any) -> None:
    options = {"distributed": {"world_size": 2, "allreduce_post_accumulation": True}}
    with pytest.raises(DeviceError, match="init_process_group"):
        losses(second(model, options), list(batches())[:1])


def test_one_process_of_a_distributed_script(tmp_path: Path, model: Any) -> None:
    one = {"world_rank": 0, "world_size": 1, "local_rank": 0, "data_parallel_size": 1}
    options = {"distributed": {**one, "deepspeed_zero_optimization": {"stage": 1}}}
    data = list(batches())[:3]
    alone = second(copy.deepcopy(model))
    trainer = second(model, options)
    assert losses(trainer, data) == losses(alone, data)
    assert trainer.state_dict()["partition_info"] == {}
    trainer.save_checkpoint(tmp_path / "c")
    again = second(Bigrams(), options)
    again.load_checkpoint(tmp_path / "c")
    assert losses(again, data) == losses(alone, data)
