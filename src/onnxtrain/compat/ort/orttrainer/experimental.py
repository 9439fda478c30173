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
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int = OPSET,
    *,
    exporter: str | None = None,
    training: bool | None = True,
) -> onnx.ModelProto:
    """Write a graph from an input, labels and parameters to output, loss and gradients.

    Inputs are ``input``, ``labels`` and every parameter under its name; outputs are ``output``,
    ``loss`` and, for parameters that are trained, ``<parameter>_grad``. The first dimension of
    input and labels is open. Values of the parameters are not in the file.

    Args:
        model: the module; its result is one tensor.
        loss_fn: called with the module's result and the labels.
        example_input: an input.
        example_labels: labels that go with it.
        gradient_graph_path: where to write.
        opset_version: version of ai.onnx; 18 is the least.
        exporter: ``"dynamo"`` or ``"torchscript"``, see `onnxtrain.torch.export.export`.
        training: the mode of the module in the graph, see there too.

    Returns:
        The model that was written.
    """
    exported = export(
        model,
        [example_input, example_labels],
        loss_fn=loss_fn,
        input_names=["input", "labels"],
        output_names=["loss", "output"],
        dynamic_axes={"input": {0: "batch"}, "labels": {0: "batch"}},
        training=training,
        opset=opset_version,
        exporter=exporter,
    )
    present = {n: p for n, p in model.named_parameters() if n in exported.names}
    trained = [n for n, p in present.items() if p.requires_grad]
    loaded = load(
        differentiate(exported.model, wrt=trained, of="loss", no_gradient=exported.barriers)
    )
    graph = loaded.graph
    params.to_inputs(loaded, [n for n in present if n in graph.initializers])
    inputs = {v.name: v for v in graph.inputs}
    order = [n for n in ("input", "labels", *present) if n in inputs]
    graph.inputs.clear()
    graph.inputs.extend(inputs[n] for n in order)
    for value in graph.inputs:
        value.const_value = None
    outputs = {v.name: v for v in graph.outputs}
    graph.outputs.clear()
    graph.outputs.extend(outputs[n] for n in ("output", "loss", *(f"{n}_grad" for n in trained)))
    save(loaded, gradient_graph_path)
    return to_proto(loaded)
