"""What `ORTModule` tells and keeps while it works."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import onnx

from ..errors import OnnxTrainError
from .value_reads import FixedValues, check_choice

LOG_LEVEL_VARIABLE = "ORTMODULE_LOG_LEVEL"
SAVE_PATH_VARIABLE = "ORTMODULE_SAVE_ONNX_PATH"


class LogLevel(IntEnum):
    """How serious a message must be to be logged."""

    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5

    @property
    def python(self) -> int:
        """The level of Python's `logging`."""
        return {0: 10, 1: 15, 2: 20, 3: 30, 4: 40, 5: 50}[int(self)]

    @property
    def onnxruntime(self) -> int:
        """The severity of onnxruntime's own log, which has no `DEVINFO`."""
        return max(0, int(self) - 1)


class OptionTypeError(OnnxTrainError, TypeError):
    """An option has the wrong type."""


class OptionValueError(OnnxTrainError, ValueError):
    """An option has a value that makes no sense."""


class SavePathError(OnnxTrainError, OSError):
    """Models cannot be written where they were asked to be."""


@dataclass(frozen=True)
class LogOptions:
    """How much is logged."""

    log_level: LogLevel


@dataclass(frozen=True)
class SaveOptions:
    """Which models are written to files, and where."""

    save: bool
    name_prefix: str
    path: Path


def file_name(prefix: str, stage: str, mode: str) -> str:
    """The name of a model's file."""
    return f"{prefix}_{stage}_{mode}.onnx"


class DebugOptions:
    """Options of `ORTModule` for those who want to look inside.

    Args:
        log_level: a `LogLevel`; the environment variable ``ORTMODULE_LOG_LEVEL`` goes before it.
        save_onnx: write every model that is made to files.
        onnx_prefix: how the names of these files begin; needed with `save_onnx`.
        save_path: an existing folder for them, by default ``ORTMODULE_SAVE_ONNX_PATH`` or the
            current folder.
        config: settings of the sessions: ``intra_op_num_threads``, ``enable_mem_pattern`` ("0" or
            "1") or any of onnxruntime's session configuration keys,
            ``{"session.force_spinning_stop": "0"}`` say.
        fixed_values: what to do when a module reads the value of a tensor in Python
            (``if x.sum() > 0``) and the export fixes it: ``"warn"`` (a `FixedValueWarning` that
            names the place), ``"error"`` or ``"ignore"``. By default the environment variable
            ``ORTMODULE_FIXED_VALUES``; without it torch takes over if the fallback policy lets
            it, and there is a warning if not.

    The files are ``<prefix>_<stage>_<mode>.onnx``, where the mode is ``training`` or
    ``inference``. The stages: ``torch_exported`` (what torch exported), ``optimized_pre_grad``
    (prepared, without gradients), ``optimized`` and, the same under its other old name,
    ``execution_model`` (with gradients when training), ``forward`` and ``backward`` (its halves, as
    they run).

    Raises:
        OSError: `save_path` does not exist or is not writable.
        TypeError: an argument has the wrong type.
        ValueError: `save_onnx` without `onnx_prefix`, a log level or a word for `fixed_values`
            that does not exist.

    Example:
        >>> from onnxtrain.torch import DebugOptions, LogLevel
        >>> DebugOptions(LogLevel.INFO).log_level
        <LogLevel.INFO: 2>
    """

    def __init__(
        self,
        log_level: LogLevel = LogLevel.WARNING,
        save_onnx: bool = False,
        onnx_prefix: str = "",
        save_path: str | os.PathLike[str] = "",
        config: Mapping[str, str | int] | None = None,
        fixed_values: FixedValues | None = None,
    ) -> None:
        if not isinstance(log_level, LogLevel):
            raise OptionTypeError(f"Expected log_level of type LogLevel, got {type(log_level)}.")
        if not isinstance(save_onnx, bool):
            raise OptionTypeError(f"save_onnx is a bool, not {type(save_onnx).__name__}.")
        if not isinstance(onnx_prefix, str):
            raise OptionTypeError(
                f"Expected name prefix of type str, got {type(onnx_prefix)}. Give onnx_prefix "
                "as text."
            )
        if not isinstance(save_path, (str, os.PathLike)):
            raise OptionTypeError(f"save_path is a path, not {type(save_path).__name__}.")
        if config is not None and not isinstance(config, Mapping):
            raise OptionTypeError(f"config is a dictionary, not {type(config).__name__}.")
        if save_onnx and not onnx_prefix:
            raise OptionValueError("onnx_prefix must be provided when save_onnx is set.")
        self.log_level = _level(log_level)
        self.save_onnx, self.onnx_prefix = save_onnx, onnx_prefix
        self.save_path = _folder(save_path) if save_onnx else Path()
        self.config = {k: str(v) for k, v in (config or {}).items()}
        self.fixed_values = check_choice(fixed_values)

    def save(self, model: onnx.ModelProto, stage: str, mode: str) -> None:
        """Write a model, if the options say so."""
        if self.save_onnx:
            onnx.save(model, self.save_path / file_name(self.onnx_prefix, stage, mode))

    @property
    def logging(self) -> LogOptions:
        """How much is logged."""
        return LogOptions(self.log_level)

    @property
    def save_onnx_models(self) -> SaveOptions:
        """Which models are written to files, and where."""
        return SaveOptions(self.save_onnx, self.onnx_prefix, self.save_path)


def _level(default: LogLevel) -> LogLevel:
    name = os.environ.get(LOG_LEVEL_VARIABLE, "")
    if not name:
        return default
    if name.upper() not in LogLevel.__members__:
        raise OptionValueError(
            f"{LOG_LEVEL_VARIABLE} is {name!r} and must be one of {', '.join(LogLevel.__members__)}"
        )
    return LogLevel[name.upper()]


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path or os.environ.get(SAVE_PATH_VARIABLE, "") or Path.cwd())
    if not folder.is_dir():
        raise SavePathError(
            f"Directory {folder} is not writable. It does not exist; create it, or give another as "
            "save_path."
        )
    if not os.access(folder, os.W_OK):
        raise SavePathError(f"Directory {folder} is not writable. Give another as save_path.")
    return folder
