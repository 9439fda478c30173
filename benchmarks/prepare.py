"""Write what all contestants of a workload share: model, weights, batches, settings."""

from __future__ import annotations

import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch

from onnxtrain.torch.export import export

from .workloads import WORKLOADS

BATCHES = 4


def prepare(name: str, folder: Path) -> None:
    """Fill the folder."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]
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
    exported = export(
        model, (sample,), input_names=["x"], output_names=["output"], dynamic_axes=axes,
        training=training, exporter="torchscript",
    )  # fmt: skip
    onnx.save(exported.model, folder / "model.onnx")
    _for_the_predecessor(model, sample, training, axes, folder / "model_old.onnx")
    torch.save(model.state_dict(), folder / "weights.pt")
    trainable = [n for n, _ in model.named_parameters() if n.startswith(workload.trainable)]
    spec = {
        "name": name,
        "batches": BATCHES,
        "steps": workload.steps,
        "loss": workload.loss,
        "optimizer": workload.optimizer,
        "trainable": trainable,
    }
    (folder / "spec.json").write_text(json.dumps(spec))


def _for_the_predecessor(
    model: torch.nn.Module, sample: torch.Tensor, training: bool, axes: object, path: Path
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
    prepare(sys.argv[1], Path(sys.argv[2]))
