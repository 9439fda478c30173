"""PyTorch companions of the predecessor: gradient graphs, and what need not be built any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import torch

from ...compile import differentiate
from ...torch.export import export

PathLike = str | os.PathLike[str]


def build_torch_cpp_extensions() -> None:
    """Nothing to build: `ORTModule` needs no compiled extensions any more."""
    print("onnxtrain needs no PyTorch extensions; nothing was built.")


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: PathLike,
    opset_version: int = 18,
) -> None:
    """Write a model that computes output, loss and the gradient of every trained parameter.

    Inputs: ``input``, ``labels``, then the parameters; outputs: ``output``, ``loss``, then
    ``<parameter>_grad``. The first dimension of input and labels is open.
    """
    exported = export(
        model,
        (example_input, example_labels),
        loss_fn=loss_fn,
        input_names=["input", "labels"],
        output_names=["loss", "output"],
        dynamic_axes={"input": {0: "batch"}, "labels": {0: "batch"}},
        opset=opset_version,
    )
    trained = [n for n, p in model.named_parameters() if p.requires_grad]
    proto = differentiate(exported.model, wrt=trained, of="loss")
    _parameters_to_inputs(proto, [n for n, _ in model.named_parameters()])
    outputs = {o.name: o for o in proto.graph.output}
    order = ["output", "loss", *(f"{n}_grad" for n in trained)]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs[n] for n in order)
    onnx.save(proto, os.fspath(gradient_graph_path))


def _parameters_to_inputs(proto: onnx.ModelProto, names: Iterable[str]) -> None:
    graph = proto.graph
    weights = {t.name: t for t in graph.initializer}
    moved = [n for n in names if n in weights]
    for name in moved:
        tensor = weights[name]
        graph.input.append(
            onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        )
    remaining = [t for t in graph.initializer if t.name not in set(moved)]
    del graph.initializer[:]
    graph.initializer.extend(remaining)
