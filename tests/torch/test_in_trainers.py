"""ORTModule inside the trainers of DistributedDataParallel, accelerate, transformers, Lightning."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from onnxtrain.torch import ORTModule, _gloo_threads  # noqa: E402
from onnxtrain.torch.fallback import ORTModuleTorchModelException  # noqa: E402
from tests.docs.blocks import read_blocks  # noqa: E402

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


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_torchrun_runs_the_script_of_the_guide(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "trainers.md"
    (script,) = (block.code for block in read_blocks(guide) if block.language == "python")
    (tmp_path / "train.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2: loss below 0.2: True" in done.stdout


def test_the_end_of_a_program_waits_for_threads_of_gloo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = iter("SSRDSSSR")

    def look() -> list[str]:
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "stat").write_text(f"7 ({_gloo_threads.GLOO}) {next(letters)} 1 7")
        (tmp_path / "8").mkdir(exist_ok=True)
        (tmp_path / "8" / "stat").write_text("8 (python) R 1 8")
        return states()

    states = _gloo_threads.gloo_states
    monkeypatch.setattr(_gloo_threads, "THREADS", tmp_path)
    monkeypatch.setattr(_gloo_threads, "gloo_states", look)
    _gloo_threads.wait_for_gloo()
    assert list(letters) == ["R"]  # asleep three times in a row
    monkeypatch.setattr(_gloo_threads, "gloo_states", list)
    _gloo_threads.wait_for_gloo()


def test_accelerate_takes_it_as_it_is() -> None:
    accelerate = pytest.importorskip("accelerate", reason="no accelerate for Python 3.10")
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


def tiny_bert() -> Any:
    transformers = pytest.importorskip("transformers", reason="no transformers for Python 3.10")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_it_with_its_defaults(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="no transformers for Python 3.10")
    torch.manual_seed(0)
    rows = [
        {"input_ids": torch.full((8,), i % 3), "labels": i % 3, "text": "unused"} for i in range(12)
    ]
    ours = ORTModule(tiny_bert())
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        bf16=True,
        save_strategy="epoch",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(ours, arguments, train_dataset=rows, eval_dataset=rows)
    assert trainer.label_names == ["labels"]  # read from the class, which is the wrapped one's
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert trainer.predict(rows).predictions.shape == (12, 3)
    trainer.save_model(str(tmp_path / "saved"))
    again: Any = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert all(map(torch.equal, again.parameters(), ours.parameters()))
    arguments.num_train_epochs = 5
    longer = transformers.Trainer(ours, arguments, train_dataset=rows)
    assert longer.train(resume_from_checkpoint=True).global_step == 5 * 2


def test_a_wrapped_model_of_transformers_is_both(tmp_path: Path) -> None:
    bert = tiny_bert()
    ours = ORTModule(bert)
    assert isinstance(ours, ORTModule)
    assert isinstance(ours, type(bert))
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(twin) is ORTModule
        assert type(twin.module) is type(bert)
    assert ORTModule(nn.Linear(1, 1)).__class__ is ORTModule


@pytest.mark.filterwarnings("ignore")  # those of Lightning
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_lightning_trains_it(tmp_path: Path, precision: str) -> None:
    lightning = pytest.importorskip("lightning", reason="no lightning for Python 3.10")

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
            self.network = ORTModule(network, exporter="torchscript")
            self.losses: list[float] = []

        def training_step(self, batch: Any, _: int) -> Any:
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    x = torch.randn(64, 6)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model = Classifier()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=10,
        precision=precision,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(model, loader, loader)
    assert model.losses[-1] < model.losses[0]
    assert trainer.callback_metrics["val_loss"] < model.losses[0]
    again = Classifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    expected = dict(model.named_parameters())
    assert list(dict(again.named_parameters())) == list(expected)
    for name, value in again.named_parameters():
        assert torch.equal(value, expected[name].to(value.dtype)), name


@pytest.mark.filterwarnings("ignore")  # those of torch, about what it does not look into
def test_torch_compile_inside_is_refused_by_name() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="aot_eager")
    with pytest.raises(TypeError, match=r"torch\.compile.*ORTModule\(module\)"):
        ORTModule(compiled)
    partly = ORTModule(nn.Sequential(compiled), exporter="torchscript")
    with pytest.raises(ORTModuleTorchModelException, match=r"leave torch\.compile"):
        partly(torch.ones(1, 2, requires_grad=True))


@pytest.mark.parametrize("warm", [False, True], ids=["at the first call", "later"])
@pytest.mark.parametrize("place", ["around", "in place"])
def test_torch_compile_around_leaves_the_module_to_onnxruntime(place: str, warm: bool) -> None:
    """As trainers do with torch_compile=True; looking into a session ended the process."""
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin = copy.deepcopy(network)
    wrapped = ORTModule(network, exporter="torchscript")
    x = torch.randn(5, 3)
    if warm:
        wrapped(x)
    if place == "around":
        call = torch.compile(wrapped, backend="aot_eager")
    else:
        wrapped.compile(backend="aot_eager")
        call = wrapped
    for _ in range(2):
        assert torch.allclose(call(x), twin(x), atol=1e-6)
        call(x).square().sum().backward()
        twin(x).square().sum().backward()
    for mine, its in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine.grad, its.grad, rtol=1e-5)
    assert "_compiled_call_impl" not in vars(network), "a wrapped module that called its wrapper"
