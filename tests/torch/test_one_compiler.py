"""ORTModule asks the compiler and wires no stage itself (ADR 17)."""

from __future__ import annotations

import ast
from pathlib import Path

import onnx
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import onnxtrain  # noqa: E402
from onnxtrain.torch import ORTModule  # noqa: E402
from onnxtrain.torch._ortmodule_graph import Halves  # noqa: E402
from tests.structure.gradients import structure  # noqa: E402

SOURCES = sorted((Path(onnxtrain.__file__).parent / "torch").glob("*ortmodule*.py"))
STAGES = {"autodiff", "normalize", "passes"}
ALLOWED = {"passes": {"Recompute", "check_recompute"}, "passes.draws": {"draws"}}
"""Types of options, and which nodes draw: nothing that changes a graph."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_stage_is_imported(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            module = node.module or ""
            names = {alias.name for alias in node.names}
            if module.partition(".")[0] in STAGES:
                assert names <= ALLOWED.get(module, set()), f"{source.name}: {module}"


def test_gradient_nodes_are_those_of_differentiate() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2))
    ours = ORTModule(module, exporter="torchscript")
    for size in (3, 5):  # the second time for all sizes
        ours(torch.randn(size, 3))
    kind = ours._graphs.used[True]
    whole = kind.graphs.halves.whole
    wrt = [name for name, _ in module.named_parameters()]
    model = with_values(kind.traced.model, module)
    other = structure(onnxtrain.differentiate(model, wrt=wrt, vjp=True), wrt)
    assert structure(whole, wrt) == other
    assert structure(joined(kind.graphs.halves), wrt) == other


def with_values(model: onnx.ModelProto, module: nn.Module) -> onnx.ModelProto:
    """The traced model with its weights, which ORTModule feeds and does not keep."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    values = module.state_dict()
    for tensor in whole.graph.initializer:
        if tensor.name in values:
            array = values[tensor.name].numpy()
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return whole


def joined(halves: Halves) -> onnx.ModelProto:
    """Forward and backward as one graph: what crosses from one to the other has one name."""
    model = onnx.ModelProto()
    model.CopyFrom(halves.forward)
    model.graph.node.extend(halves.backward.graph.node)
    model.graph.output.extend(halves.backward.graph.output)
    names = {t.name for t in model.graph.initializer}
    for tensor in halves.backward.graph.initializer:
        if tensor.name not in names:
            model.graph.initializer.append(tensor)
    return model
