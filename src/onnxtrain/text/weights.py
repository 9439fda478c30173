"""What was learned, back in the model that it was taken from."""

from __future__ import annotations

import os

import onnx_ir as ir

from ..errors import UnknownNameError, model_errors
from ..graph import ModelLike, load
from ..graph.io import save
from ..runtime.state.checkpoint_state import CheckpointState


@model_errors("Putting the weights back")
def with_weights(
    model: ModelLike,
    state: CheckpointState | str | os.PathLike[str],
    output: str | os.PathLike[str],
) -> None:
    """Write a model with the parameters of a checkpoint in the place of its own.

    Everything else stays as the exporter wrote it: inputs and outputs of the cache, fused
    operators, the opset and the metadata.

    Args:
        model: the original; it is not changed.
        state: trained parameters, of `without_cache(model)` say, under the same names.
        output: path to write to.
    """
    if not isinstance(state, CheckpointState):
        state = CheckpointState.load_checkpoint(state)
    original = load(model)
    initializers = original.graph.initializers
    for name, parameter in state.parameters:
        value = initializers.get(name)
        if value is None or value.const_value is None:
            raise UnknownNameError("parameter", name, list(initializers))
        value.const_value = ir.tensor(parameter.data.copy(), value.const_value.dtype, name=name)
    save(original, output)
