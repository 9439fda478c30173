"""Facts about onnxcustom's last release that scripts ask for."""

from __future__ import annotations

from onnx.defs import onnx_opset_version

MAX_SUPPORTED_OPSET = 15
"""What onnxcustom converted models to. onnxtrain trains models of newer opsets too."""
MAX_SUPPORTED_OPSETS = {"": MAX_SUPPORTED_OPSET, "ai.onnx.ml": 2}


def get_max_opset() -> int:
    """The highest opset that both onnxcustom and the installed onnx know."""
    return min(onnx_opset_version(), MAX_SUPPORTED_OPSET)
