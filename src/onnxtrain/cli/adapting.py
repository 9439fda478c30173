"""Adapters on the command line: into the model before a run, out of it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from .. import lora
from ..graph import ModelLike, load, to_proto
from .language import base_model
from .output import UserError

if TYPE_CHECKING:
    from ..runtime.state.checkpoint_state import CheckpointState
    from .settings import Settings


def adapted_model(settings: Settings, base: ModelLike | None = None) -> str | onnx.ModelProto:
    """The model of the settings, or another, with adapters where these are asked for."""
    base = base_model(settings) if base is None else base
    if settings.adapter is not None:
        return lora.attach(base, read_adapter(settings.adapter))
    if not settings.rank:
        return base if isinstance(base, str) else to_proto(load(base))
    return lora.add(
        base,
        targets_of(settings.targets),
        settings.rank,
        settings.alpha,
        settings.lora_dropout,
        use_dora=settings.dora,
        use_rslora=settings.rslora,
        seed=settings.seed,
    )


def read_adapter(path: str) -> lora.Adapter:
    """An adapter from a folder of PEFT's, or from a file of onnxruntime's."""
    if Path(path).is_dir():
        return lora.load_peft(path)
    if Path(path).is_file():
        return lora.load_onnx_adapter(path)
    raise UserError(
        f"There is no adapter {path!r}: give a folder with adapter_model.safetensors, or an "
        ".onnx_adapter file."
    )


def write_adapter(
    adapted: ModelLike, base: str, state: CheckpointState, folder: Path
) -> list[Path]:
    """Write what was trained: merged into the model, for PEFT, and for onnxruntime."""
    adapter = lora.Adapter.of(adapted, state)
    lora.merge(base, adapter, output=folder / "model.onnx")
    lora.save_peft(adapter, folder / "adapter")
    files = [folder / "adapter"]
    if not adapter.config.use_dora:
        files += [folder / "adapter.onnx_adapter", folder / "base.onnx"]
        lora.save_onnx_adapter(adapter, files[-2])
        lora.with_inputs(base, adapter, output=files[-1])
    return files


def targets_of(text: str) -> str | list[str]:
    """A regular expression, or patterns with commas between them."""
    return text.split(",") if "," in text or ("*" in text and ".*" not in text) else text
