"""ORTModule inside other people's trainers: DistributedDataParallel, accelerate, transformers."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import ORTModule  # noqa: E402

TWO_PROCESSES = """
import copy, os, sys
import torch
from torch import distributed, nn
from onnxtrain.torch import ORTModule

rank, rendezvous = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
ours = nn.parallel.DistributedDataParallel(
    ORTModule(copy.deepcopy(plain), exporter="torchscript")
)
x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
loss = nn.functional.cross_entropy
loss(ours(x[rank::2]), y[rank::2]).backward()
loss(plain(x), y).backward()
for mine, other in zip(ours.parameters(), plain.parameters()):
    torch.testing.assert_close(mine.grad, other.grad)
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_PROCESSES]
    arguments = [[str(rank), str(tmp_path / "rendezvous")] for rank in range(2)]
    running = [
        subprocess.Popen([*command, *a], stderr=subprocess.PIPE, text=True) for a in arguments
    ]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said


def test_accelerate_takes_it_as_it_is() -> None:
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    ours = ORTModule(copy.deepcopy(plain), exporter="torchscript")
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    ours, optimizer = accelerator.prepare(ours, optimizer)
    x = torch.randn(64, 6)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ours(x), x.argmax(1) % 3)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert isinstance(accelerator.unwrap_model(ours), ORTModule)
    assert list(accelerator.get_state_dict(ours)) == list(plain.state_dict())


def test_the_trainer_of_transformers_trains_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=3,
    )
    rows = [
        {"input_ids": torch.full((8,), i % 3), "labels": i % 3, "text": "unused"} for i in range(12)
    ]
    ours = ORTModule(transformers.BertForSequenceClassification(config))
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=4,
        learning_rate=1e-2,
        label_names=["labels"],
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(ours, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert trainer.predict(rows).predictions.shape == (12, 3)
    ours.module.save_pretrained(tmp_path / "saved")
    again: Any = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert all(map(torch.equal, again.parameters(), ours.parameters()))
