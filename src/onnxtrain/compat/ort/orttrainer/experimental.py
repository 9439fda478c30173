"""One file with a module's loss and its gradients, to be trained by anything that runs ONNX."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import onnx
import torch

from ....compile import differentiate
from ....graph import load, to_proto
from ....graph import parameters as params
from ....graph.io import save
from ....torch.export import OPSET, export


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    path: str | os.PathLike[str],
    opset_version: int = OPSET,
    *,
    exporter: str | None = None,
) -> onnx.ModelProto:
    """Write a graph from an input, labels and parameters to output, loss and gradients.

    Inputs are ``input``, ``labels`` and every trainable parameter under its name; outputs are
    ``output``, ``loss`` and ``<parameter>_grad``. The first dimension of input and labels is
    open. Values of the parameters are not in the file.

    Args:
        model: the module; its result is one tensor.
        loss_fn: called with the module's result and the labels.
        example_input: an input.
        example_labels: labels that go with it.
        path: where to write.
        opset_version: version of ai.onnx; 18 is the least.
        exporter: ``"dynamo"`` or ``"torchscript"``, see `onnxtrain.torch.export.export`.

    Returns:
        The model that was written.
    """
    axes = {"input": {0: "batch"}, "labels": {0: "batch"}}
    exported = export(
        model,
        [example_input, example_labels],
        loss_fn=loss_fn,
        input_names=["input", "labels"],
        output_names=["loss", "output"],
        dynamic_axes=axes,
        training=None,
        opset=opset_version,
        exporter=exporter,
    )
    trained = [n for n, p in model.named_parameters() if p.requires_grad and n in exported.names]
    loaded = load(
        differentiate(exported.model, wrt=trained, of="loss", no_gradient=exported.barriers)
    )
    params.to_inputs(loaded, trained)
    graph = loaded.graph
    inputs = {v.name: v for v in graph.inputs}
    order = [n for n in ("input", "labels", *trained) if n in inputs]
    graph.inputs.clear()
    graph.inputs.extend(inputs[n] for n in order)
    for name in trained:
        inputs[name].const_value = None
    outputs = {v.name: v for v in graph.outputs}
    graph.outputs.clear()
    graph.outputs.extend(outputs[n] for n in ("output", "loss", *(f"{n}_grad" for n in trained)))
    save(loaded, path)
    return to_proto(loaded)
