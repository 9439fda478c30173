"""Models in onnxruntime's own format (``.ort``), read by onnxruntime and written as ONNX.

Its optimizer has been at work in such a file already; the result runs on any onnxruntime whose
kernels the file was made for.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime

from ...errors import ModelFileError
from .devices import create_session, session_options


def to_onnx(data: bytes | memoryview, where: str) -> bytes:
    """The bytes of the same model as ONNX.

    Args:
        data: the content of the file.
        where: what to call it in an error.
    """
    options = session_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with tempfile.TemporaryDirectory(prefix="onnxtrain-") as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        try:
            create_session(bytes(data), options)
            return path.read_bytes()
        except Exception as error:  # onnxruntime's errors have no common base class
            raise ModelFileError(
                f"{where} is in the format of onnxruntime (.ort), and this onnxruntime cannot read "
                f"it ({error}). Use the .onnx file that it was made from."
            ) from error
