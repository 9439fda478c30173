"""What `onnxruntime.training._utils` had that scripts use: types, devices, modules from files."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import torch

from ....errors import InputError


class UtilityError(InputError, AssertionError):
    """A type, a device or a file that there is none of."""


ONNX_TO_TORCH: dict[str, Any] = {
    "UNDEFINED": None, "FLOAT": torch.float32, "DOUBLE": torch.float64, "FLOAT16": torch.float16,
    "BFLOAT16": torch.bfloat16, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32,
    "UINT64": torch.uint64, "BOOL": torch.bool, "COMPLEX64": torch.complex64,
    "COMPLEX128": torch.complex128, "STRING": str,
}  # fmt: skip


def dtype_onnx_to_torch(onnx_type: int | str) -> Any:
    """The torch type of an ONNX type, given by its number or name.

    Example:
        >>> dtype_onnx_to_torch(7), dtype_onnx_to_torch("float16")
        (torch.int64, torch.float16)
    """
    known = dict(onnx.TensorProto.DataType.items())
    names = {number: name for name, number in known.items()}
    name = onnx_type.upper() if isinstance(onnx_type, str) else names.get(onnx_type, "")
    if name not in ONNX_TO_TORCH:
        raise UtilityError(f"There is no torch type for the ONNX type {onnx_type!r}.")
    return ONNX_TO_TORCH[name]


def dtype_torch_to_numpy(torch_dtype: torch.dtype) -> type[np.generic]:
    """The numpy type of a torch type.

    Example:
        >>> dtype_torch_to_numpy(torch.int64).__name__
        'int64'
    """
    try:
        kind: type[np.generic] = torch.empty(0, dtype=torch_dtype).numpy().dtype.type
    except TypeError:
        raise UtilityError(f"numpy has no type for {torch_dtype}.") from None
    return kind


def get_device_index(device: str | int | torch.device) -> int:
    """The number of a device: 1 of ``"cuda:1"``, 0 where none is given."""
    return device if isinstance(device, int) else torch.device(device).index or 0


def get_device_index_from_input(input: Any) -> int:  # noqa: A002 - the name it had
    """The number of the device that a tensor, or the first of several, lies on."""
    first = input[0] if isinstance(input, (list, tuple)) else input
    return get_device_index(first.device)


def get_device_str(device: str | int | torch.device) -> str:
    """A device with its number: ``"cuda:0"`` for 0 and for ``"cuda"``."""
    torch_device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return f"{torch_device.type}:{torch_device.index or 0}"


def import_module_from_file(
    file_path: str | os.PathLike[str], module_name: str | None = None
) -> ModuleType:
    """Import a Python file, under the file's name unless another is given."""
    path = os.fspath(file_path)
    name = module_name or os.path.basename(path).split(".")[0]
    spec = importlib.util.spec_from_file_location(name, path) if os.path.isfile(path) else None
    if spec is None or spec.loader is None:
        raise UtilityError(f"{path!r} is not a Python file that can be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
