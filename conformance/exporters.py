"""From a torch module to an ONNX model, by name of the exporter."""

from __future__ import annotations

from collections.abc import Callable

from onnxtrain.torch.export import Exported, export

from . import torch_tables
from .cases import TorchCase

Exporter = Callable[[TorchCase], Exported]


def _of_torch(name: str) -> Exporter:
    def run(case: TorchCase) -> Exported:
        from torch.utils import _pytree as pytree

        torch_tables.remember()
        leaves = pytree.tree_leaves((case.inputs, case.kwargs))
        names = [f"input_{i}" for i in range(sum(hasattr(leaf, "shape") for leaf in leaves))]
        return export(
            case.module, case.inputs, case.kwargs, input_names=names, exporter=name,
            dynamic_axes=case.dynamic_axes, training=None, fixed_values="ignore",
        )  # fmt: skip

    return run


EXPORTERS: dict[str, Exporter] = {n: _of_torch(n) for n in ("dynamo", "torchscript")}
"""torch's two, with what onnxtrain puts right for training."""
