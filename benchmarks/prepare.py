"""Write what all contestants of a workload share: model, weights, batches, settings.

`python -m benchmarks.prepare NAME FOLDER [PEER ...]`; the exports that a peer needs for itself are
written when it is named.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from onnxtrain.torch.export import export

from .workloads import find

BATCHES = 4
PACKAGES = (
    "onnxtrain", "onnxruntime", "numpy", "numba", "onnx", "torch", "jax", "onnxsim", "scikit-learn",
)  # fmt: skip


def prepare(name: str, folder: Path, peers: tuple[str, ...] = ()) -> None:
    """Fill the folder."""
    torch.manual_seed(0)
    workload = find(name)
    model = workload.model()
    for parameter in model.parameters():
        if (
            parameter.dim() == 1 and parameter.numel() < 10_000
        ):  # no two equal: exporters merge them
            torch.nn.init.normal_(parameter, 0.5, 0.1)
    batches = [workload.batch() for _ in range(BATCHES)]
    arrays = {}
    for i, (x, y) in enumerate(batches):
        arrays[f"x{i}"], arrays[f"y{i}"] = x.numpy(), y.numpy()
    np.savez(folder / "batches.npz", **arrays)
    training = not workload.trainable
    sample = batches[0][0]
    axes = {"x": {0: "batch"}} if workload.dynamic else None
    exported = _export(model, sample, training, axes, workload.exporter)
    onnx.save(exported, folder / "model.onnx")
    if "onnxsim" in peers:
        if workload.dynamic:
            exported = _export(model, sample, training, None, workload.exporter)
        onnx.save(exported, folder / "model_static.onnx")
    if "old" in set(peers) - set(workload.left_out) and workload.exporter == "torchscript":
        _for_the_predecessor(model, sample, training, axes, folder / "model_old.onnx")
    weights = model.state_dict()
    torch.save(weights, folder / "weights.pt")
    np.savez(folder / "weights.npz", **{n: t.numpy() for n, t in weights.items()})
    trainable = [n for n, _ in model.named_parameters() if n.startswith(workload.trainable)]
    spec = {
        "name": name,
        "title": workload.title,
        "batches": BATCHES,
        "loss": workload.loss,
        "random": workload.random,
        "left_out": workload.left_out,
        "optimizer": workload.optimizer,
        "trainable": trainable,
        "packages": packages(),
    }
    (folder / "spec.json").write_text(json.dumps(spec))


def packages() -> dict[str, str]:
    """What is installed here of those that a time may depend on, with Python itself."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def _export(
    model: torch.nn.Module, sample: torch.Tensor, training: bool, axes: Any, exporter: str
) -> Any:
    exported = export(
        model, (sample,), input_names=["x"], output_names=["output"], dynamic_axes=axes,
        training=training, exporter=exporter,
    )  # fmt: skip
    return exported.model


def _for_the_predecessor(
    model: torch.nn.Module, sample: torch.Tensor, training: bool, axes: Any, path: Path
) -> None:
    """The export that its documentation asks for."""
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (sample,), buffer, input_names=["x"], output_names=["output"], dynamo=False,
            training=mode, do_constant_folding=False, opset_version=15, dynamic_axes=axes,
        )  # fmt: skip
    path.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]), tuple(sys.argv[3:]))
