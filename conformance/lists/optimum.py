"""Models as optimum's ONNX exporter writes them, one of every architecture that it knows.

A small configuration of transformers (the newest that optimum accepts) with random weights goes
through `onnx_export_from_model` with its own defaults: the TorchScript exporter with constants
folded, open axes, caches of keys and values as inputs and outputs, decoders merged under an If.
What the exporter was shown is what the model is fed with, and torch's outputs for it are what
onnxruntime must give.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from conformance.cases import Array, OnnxCase

from .shrink import scatter_constants
from .tiny_configs import tiny
from .torchvision_build import import_torchvision

PACKAGES = ["optimum-onnx==0.1.0", "accelerate", "timm", "torchvision"]
BATCH = 30
"""How many cases share a process."""

TASKS = [
    "text-generation-with-past", "text2text-generation-with-past",
    "automatic-speech-recognition-with-past", "image-to-text-with-past", "fill-mask",
    "automatic-speech-recognition", "image-classification", "object-detection",
    "semantic-segmentation", "depth-estimation", "image-segmentation", "text-classification",
    "audio-classification", "zero-shot-image-classification",
]  # fmt: skip
"""Which one of a type's tasks is tried, in this order; otherwise its last one."""

ALL_TASKS = ("bert", "gpt2", "llama", "qwen2", "bart", "t5", "vit", "wav2vec2", "whisper", "clip")
"""Types that are tried with every task that optimum has for them."""

SIZES = {
    "batch_size": 2, "sequence_length": 6, "num_choices": 2, "width": 32, "height": 32,
    "num_channels": 3, "nb_max_frames": 128, "audio_sequence_length": 800, "feature_size": 16,
}  # fmt: skip
"""Of what the exporter is shown, where the configuration leaves it open."""

MERGED, ENCODER = "decoder_model_merged.onnx", "encoder_model.onnx"
USE_CACHE = "use_cache_branch"

Shown = dict[str, tuple[dict[str, Array], dict[str, Array]]]
"""By file, what the exporter was shown and what torch makes of it."""


def names() -> list[str]:
    """Types with a task, a type of each task before the next; encoders in files of their own."""
    listed: list[str] = []
    for kind, tasks in _supported().items():
        chosen = tasks if kind in ALL_TASKS else [_main_task(tasks)]
        listed += [f"{kind}/{task}" for task in chosen]
    encoders = [f"{n}/encoder" for n in listed if "2" in n.split("/")[1] and "past" in n]
    encoders += [f"{n}/encoder" for n in listed if n.endswith("speech-recognition-with-past")]
    by_task: dict[str, list[str]] = {}
    for name in listed + encoders:
        by_task.setdefault(name.partition("/")[2], []).append(name)
    return [name for turn in zip_longest(*by_task.values()) for name in turn if name]


def case(name: str) -> OnnxCase:
    """The file that optimum writes, or the one of them that does the most."""
    import_torchvision()
    from optimum.exporters.onnx import onnx_export_from_model

    kind, task, *part = name.split("/")
    model = _model(kind, task)
    with tempfile.TemporaryDirectory() as folder, _watched() as shown:
        onnx_export_from_model(
            model, folder, task=task, do_validation=False, library_name="transformers", **SIZES
        )
        files = sorted(Path(folder).glob("*.onnx"), key=lambda p: p.stat().st_size)
        path = Path(folder, ENCODER) if part else files[-1]
        proto = onnx.load(path)
    feeds, expected = _calls(shown, path.name)
    inputs = {i.name for i in proto.graph.input}
    return OnnxCase(
        proto,
        {n: a for n, a in feeds.items() if n in inputs},
        family=task,
        exporter="optimum",
        expected=expected,
    )


def _supported() -> dict[str, list[str]]:
    """Types of transformers with the tasks that optimum has a configuration for."""
    import_torchvision()
    import optimum.exporters.onnx.model_configs  # noqa: F401 - registers them
    from optimum.exporters.tasks import TasksManager
    from transformers import CONFIG_MAPPING

    known = TasksManager._LIBRARY_TO_SUPPORTED_MODEL_TYPES["transformers"]  # noqa: SLF001
    return {k: list(v["onnx"]) for k, v in known.items() if "onnx" in v and k in CONFIG_MAPPING}


def _main_task(tasks: Sequence[str]) -> str:
    return next((task for task in TASKS if task in tasks), tasks[-1])


def _model(kind: str, task: str) -> Any:
    """A small model of this type with the task's head."""
    import transformers
    from optimum.exporters.tasks import TasksManager

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = tiny(transformers.CONFIG_MAPPING[kind], kind)
    config.use_cache = task.endswith("-with-past")
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 1  # classifiers of sequences look for it
    if getattr(config, "use_pretrained_backbone", False):
        config.use_pretrained_backbone = False  # its weights would be downloaded
    auto = TasksManager.get_model_class_for_task(
        task.removesuffix("-with-past"), framework="pt", model_type=kind, library="transformers"
    )
    make = auto.from_config if hasattr(auto, "from_config") else auto
    model = make(config).eval()
    scatter_constants(model)
    return model


@contextlib.contextmanager
def _watched() -> Iterator[Shown]:
    """What `torch.onnx.export` is called with meanwhile, by the name of the file it writes."""
    export, shown = torch.onnx.export, Shown()

    def looked_at(model: Any, args: Any, *more: Any, f: str, **options: Any) -> Any:
        given = args[0]
        with torch.no_grad():
            answer = model(**pytree.tree_map(_copied, given))
        in_order = [given[n] for n in inspect.signature(model.forward).parameters if n in given]
        inputs, outputs = options["input_names"], options["output_names"]
        shown[Path(f).name] = (_named(in_order, inputs), _named(answer, outputs))
        return export(model, args, *more, f=f, **options)

    with mock.patch("torch.onnx.export", looked_at):
        yield shown


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _named(values: Any, names: Sequence[str]) -> dict[str, Array]:
    """Tensors, in the order of the model's arguments or results, by their names in the graph."""
    leaves = [v for v in pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    if len(leaves) != len(names):
        return {}
    return {n: v.detach().numpy().copy() for n, v in zip(names, leaves)}


def _calls(shown: Shown, file: str) -> tuple[dict[str, Array], dict[str, Array]]:
    """Feeds of a file and its outputs; a merged decoder is called as the one with a past."""
    if file != MERGED:
        return shown[file]
    feeds, expected = shown["decoder_with_past_model.onnx"]
    first, _ = shown["decoder_model.onnx"]
    return {**first, **feeds, USE_CACHE: np.array([True])}, expected
