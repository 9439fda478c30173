"""Moving in from onnxruntime-training and onnxcustom: names, artifacts and checkpoints.

    import onnxtrain.compat
    onnxtrain.compat.activate()

    from onnxruntime.training import artifacts          # now onnxtrain's
    from onnxruntime.training.api import Module

Without a change to a script: ``python -m onnxtrain.compat script.py arguments…``. Nothing is
patched before it is asked for, and `deactivate` takes everything back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import OnnxTrainError

VARIABLE = "ONNXTRAIN_COMPAT"
"""Environment variable that `activate_from_environment` looks at."""
SITE = str(Path(__file__).parent / "site")
"""A folder with a `sitecustomize` module; on ``PYTHONPATH`` it makes the variable work."""

__all__ = [
    "CompatError", "activate", "activate_from_environment", "activated", "convert_artifacts",
    "deactivate", "is_active",
]  # fmt: skip


class CompatError(OnnxTrainError, RuntimeError):
    """The old names cannot be provided here."""


_active: tuple[Any, list[Callable[[], None]]] | None = None


def activate() -> None:
    """Make the old names importable, backed by onnxtrain.

    These are `onnxruntime.training` with its submodules, `onnxruntime.capi.ort_trainer`, the
    training names of `onnxruntime.capi._pybind_state`, `torch_ort` and `onnxcustom`. A `torch_ort`
    or `onnxcustom` that is really installed is left as it is. Calling it again does nothing.

    Raises:
        CompatError: a training build of onnxruntime is installed; it is not touched.
    """
    global _active  # noqa: PLW0603 - sys.meta_path is global too
    if _active is not None:
        return
    _refuse_real_training()
    from . import patches
    from .finder import AliasFinder

    installed = [n for n in ("torch_ort", "onnxcustom") if importlib.util.find_spec(n) is not None]
    undo = patches.apply()
    finder = AliasFinder(installed)
    sys.meta_path.insert(0, finder)
    _active = (finder, undo)


def deactivate() -> None:
    """Take back all that `activate` did. Objects already made keep working."""
    global _active  # noqa: PLW0603
    if _active is None:
        return
    from .finder import unload

    finder, undo = _active
    _active = None
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    unload(finder)
    for step in undo:
        step()


def is_active() -> bool:
    """Whether the old names are provided."""
    return _active is not None


@contextlib.contextmanager
def activated() -> Iterator[None]:
    """The old names inside a ``with`` block."""
    before = is_active()
    activate()
    try:
        yield
    finally:
        if not before:
            deactivate()


def activate_from_environment() -> bool:
    """`activate` if the environment variable ``ONNXTRAIN_COMPAT`` is set to anything but 0."""
    if os.environ.get(VARIABLE, "0") in {"", "0"}:
        return False
    activate()
    return True


def convert_artifacts(*args: Any, **kwargs: Any) -> list[str]:
    """Convert a folder of the predecessor's artifacts; see `old_artifacts.convert_artifacts`."""
    from .ort.old_artifacts import convert_artifacts as convert

    return convert(*args, **kwargs)


def _refuse_real_training() -> None:
    """Stop if onnxruntime is a training build."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None:
        raise CompatError("onnxruntime is not installed: pip install onnxruntime")
    for location in spec.submodule_search_locations or ():
        if (Path(location) / "training").is_dir():
            raise CompatError(
                f"A training build of onnxruntime is installed in {location!r}; its names are its "
                "own and nothing was changed. To use onnxtrain's instead: pip uninstall "
                "onnxruntime-training onnxruntime-training-cpu, then pip install --force-reinstall "
                "onnxruntime."
            )
