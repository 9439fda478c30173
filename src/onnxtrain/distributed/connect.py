"""From a name, or from the environment, to a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import InputError
from .backend import TIMEOUT, Backend, Single

MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables in which launchers (hydra, OpenMPI, MVAPICH) leave the number of ranks."""

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NAMES = ("mpi", "torch", "single", "auto")

_connected: dict[str, Backend] = {}


def detect(environment: Mapping[str, str] | None = None) -> str | None:
    """Which launcher started this process: ``"mpi"``, ``"torch"``, or None for none.

    Args:
        environment: by default that of the process.

    Example:
        >>> detect({"PMI_RANK": "0", "PMI_SIZE": "4"})
        'mpi'
        >>> detect({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"})
        'torch'
        >>> detect({}) is None
        True
    """
    variables = os.environ if environment is None else environment
    if any(_number(variables.get(name)) > 1 for name in MPI_SIZES):
        return "mpi"
    if all(name in variables for name in TORCH_VARIABLES):
        return "torch" if _number(variables["WORLD_SIZE"]) > 1 else None
    return None


def connect(distributed: Backend | str | None, timeout: float | None = None) -> Backend | None:
    """The backend that is meant; the same one each time a name is given again.

    Args:
        distributed: a backend, ``"mpi"``, ``"torch"``, ``"single"``, ``"auto"`` (what `detect`
            finds) or None.
        timeout: seconds after which a silent rank counts as lost; by default the environment
            variable ``ONNXTRAIN_TIMEOUT``, or 120.
    """
    if distributed is None or isinstance(distributed, Backend):
        return distributed
    if distributed not in NAMES:
        raise InputError(
            f"distributed is one of {', '.join(map(repr, NAMES))}, a Backend or None, not "
            f"{distributed!r}."
        )
    name = detect() if distributed == "auto" else distributed
    if name is None:
        return None
    if name not in _connected:
        _connected[name] = _open(name, _seconds(timeout))
    return _connected[name]


def _open(name: str, timeout: float) -> Backend:
    if name == "mpi":
        from .mpi import MPIBackend

        return MPIBackend(timeout)
    if name == "torch":
        from .torch_backend import TorchBackend

        return TorchBackend(timeout)
    return Single()


def _seconds(timeout: float | None) -> float:
    if timeout is not None:
        return timeout
    setting = os.environ.get("ONNXTRAIN_TIMEOUT", "")
    if not setting:
        return TIMEOUT
    try:
        seconds = float(setting)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise InputError(f"ONNXTRAIN_TIMEOUT must be a positive number, not {setting!r}.")
    return seconds


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
