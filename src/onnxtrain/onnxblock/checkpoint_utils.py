"""Parameters to and from checkpoint files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import OnnxTrainError
from ..graph.external import read_tensor
from ..runtime.files.checkpoint import save_arrays
from ..runtime.state.checkpoint_state import CheckpointState

Array = np.ndarray[Any, Any]


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
        CheckpointState.save_checkpoint(state, path_to_checkpoint)
    else:
        save_arrays(path_to_checkpoint, _Arrays(trainable, base_dir), _Arrays(frozen, base_dir))


class _Arrays(Mapping[str, Array]):
    """Tensors as arrays by name: those in a file are mapped while somebody has them."""

    def __init__(self, tensors: Sequence[onnx.TensorProto], base_dir: str) -> None:
        self._tensors = {t.name: t for t in tensors}
        self._base_dir = base_dir

    def __getitem__(self, name: str) -> Array:
        return array_of(self._tensors[name], self._base_dir)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def array_of(tensor: onnx.TensorProto, base_dir: str = "") -> Array:
    """The values of a tensor, read from its external file if it has one."""
    if tensor.data_location == tensor.EXTERNAL:
        return np.asarray(read_tensor(tensor, base_dir or None).numpy())
    array: Array = numpy_helper.to_array(tensor)
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
