"""Parameters to and from checkpoint files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import OnnxTrainError
from ..graph.external import read_tensor
from ..runtime.state.checkpoint_state import CheckpointState


class ParametersError(OnnxTrainError, RuntimeError):
    """The parameters to save are missing, or a checkpoint has none to give."""


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
    *,
    base_dir: str = "",
) -> None:
    """Write the parameters of a training block to a checkpoint file, atomically.

    Args:
        parameters: the trainable and the frozen tensors, as `TrainingBlock.parameters()` gives.
        path_to_checkpoint: the file.
        nominal_checkpoint: write names only; values are loaded on the device later.
        base_dir: folder that tensors with external data refer to.
    """
    if parameters is None:
        raise ParametersError("No checkpoint parameters provided.")
    trainable, frozen = parameters
    if nominal_checkpoint:
        state = CheckpointState.nominal([t.name for t in trainable], [t.name for t in frozen])
    else:
        state = CheckpointState.from_arrays(
            {t.name: array_of(t, base_dir) for t in trainable},
            {t.name: array_of(t, base_dir) for t in frozen},
        )
    CheckpointState.save_checkpoint(state, path_to_checkpoint)


def array_of(tensor: onnx.TensorProto, base_dir: str = "") -> np.ndarray[Any, Any]:
    """The values of a tensor, read from its external file if it has one."""
    if tensor.data_location == tensor.EXTERNAL:
        return np.asarray(read_tensor(tensor, base_dir or None).numpy())
    array: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
    return array


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Overwrite, in place, the initializers of a model whose names are in the checkpoint."""
    state = CheckpointState.load_checkpoint(path_to_checkpoint)
    if state.is_nominal:
        raise ParametersError(
            f"{os.fspath(path_to_checkpoint)!r} is a nominal checkpoint: it has names and no "
            "values. Use the full checkpoint."
        )
    values = {name: parameter.data for name, parameter in state.parameters}
    for tensor in model.graph.initializer:
        if tensor.name in values:
            new = numpy_helper.from_array(np.asarray(values[tensor.name]), tensor.name)
            new.data_type = tensor.data_type
            tensor.CopyFrom(new)
