"""Weights of a few bits, for a base that only adapters are trained on (QLoRA).

quant.quantize("model.onnx", bits=4, block_size=32, output="base.onnx")
adapted = lora.add("base.onnx", targets="q_proj|v_proj")
"""

from .blocks import Quantized as Quantized
from .blocks import quantize as quantize

__all__ = ["Quantized", "quantize"]
