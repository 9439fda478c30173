"""Record how torch writes small vision models: ``python -m tests.transfer.make_data``.

An export takes seconds, and what it gives is what the tests are about.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import onnx
import torch

from .models import SIDE, torch_networks

DATA = Path(__file__).parent / "data"


def torchscript(network: Any, example: Any) -> onnx.ModelProto:
    """The older exporter."""
    buffer = io.BytesIO()
    torch.onnx.export(
        network, (example,), buffer, input_names=["x"], output_names=["y"], dynamo=False,
        dynamic_axes={"x": {0: "N"}}, opset_version=17,
    )  # fmt: skip
    return onnx.load_from_string(buffer.getvalue())


def dynamo(network: Any, example: Any) -> onnx.ModelProto:
    """The newer exporter."""
    program = torch.onnx.export(
        network, (example,), input_names=["x"], output_names=["y"], dynamo=True, verbose=False,
        dynamic_shapes=({0: torch.export.Dim("N")},), optimize=True,
    )  # fmt: skip
    assert program is not None
    return program.model_proto


def main() -> None:
    DATA.mkdir(exist_ok=True)
    example = torch.randn(4, 3, SIDE, SIDE)
    for name, network in torch_networks().items():
        for exporter in (torchscript, dynamo):
            model = exporter(network, example)
            for node in model.graph.node:  # where in whose files each node was made
                noted = [p for p in node.metadata_props if "stack_trace" not in p.key]
                del node.metadata_props[:]
                node.metadata_props.extend(noted)
            onnx.save(model, DATA / f"{name}_{exporter.__name__}.onnx")


if __name__ == "__main__":
    main()
