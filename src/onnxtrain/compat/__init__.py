"""Moving in from onnxruntime-training and onnxcustom: names, artifacts and checkpoints."""

from typing import Any


def convert_artifacts(*args: Any, **kwargs: Any) -> list[str]:
    """Convert a folder of the predecessor's artifacts; see `old_artifacts.convert_artifacts`."""
    from .old_artifacts import convert_artifacts as convert

    return convert(*args, **kwargs)
