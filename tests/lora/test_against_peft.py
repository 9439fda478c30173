"""The same torch module under PEFT: equal outputs, equal training, each other's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxtrain
from onnxtrain import lora
from onnxtrain.artifacts import generate_artifacts

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft", reason="peft is not installed")


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Some linear layers, one of them after a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(6, 8)
        self.v_proj = torch.nn.Linear(6, 8, bias=False)
        self.out = torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Some mixing."""
        return self.out(torch.tanh(self.q_proj(x)) * self.v_proj(x))


def block(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return Block()


def exported(module: Any, folder: Path) -> Path:
    path = folder / "base.onnx"
    x = torch.zeros(4, 6)
    torch.onnx.export(module, (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
    return path


def under_peft(module: Any, use_dora: bool) -> Any:
    config = peft.LoraConfig(
        r=2, lora_alpha=6, target_modules=["q_proj", "v_proj"], use_dora=use_dora
    )
    return peft.get_peft_model(module, config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
def test_training_is_that_of_peft_and_files_go_both_ways(use_dora: bool, tmp_path: Path) -> None:
    base = exported(block(), tmp_path)
    theirs = under_peft(block(), use_dora)
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(tmp_path / "theirs")

    adapted = lora.attach(base, lora.load_peft(tmp_path / "theirs"))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 6)).astype(np.float32)
    target = rng.normal(size=(4, 3)).astype(np.float32)
    generate_artifacts(
        adapted,
        loss=onnxtrain.artifacts.LossType.MSELoss,
        optimizer=onnxtrain.artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    state = onnxtrain.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = onnxtrain.Module(tmp_path / "training_model.onnx", state)
    ours = onnxtrain.Optimizer(tmp_path / "optimizer_model.onnx", module)
    ours.set_learning_rate(0.1)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(5):
        expected = torch.nn.functional.mse_loss(theirs(torch.tensor(x)), torch.tensor(target))
        reference.zero_grad()
        expected.backward()
        reference.step()
        assert float(module(x, target)) == pytest.approx(expected.item(), rel=1e-5)
        ours.step()
        module.lazy_reset_grad()

    lora.save_peft(lora.Adapter.of(adapted, state), tmp_path / "ours")
    loaded = peft.PeftModel.from_pretrained(block(), tmp_path / "ours")
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.tensor(x)), theirs(torch.tensor(x)))
