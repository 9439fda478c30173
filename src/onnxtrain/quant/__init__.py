"""Integers of a few bits: a base for adapters (QLoRA), and models that learn to round (QAT).

quant.quantize("model.onnx", bits=4, block_size=32, output="base.onnx")
adapted = lora.add("base.onnx", targets="q_proj|v_proj")

prepared = quant.prepare_qat("model.onnx", rows, weight_bits=4)
onnxtrain.generate_artifacts(prepared, loss=…, optimizer=…, artifact_directory="run")
…                                                    train as any other model
quant.convert(prepared, "run/checkpoint", output="quantized.onnx")
"""

from ..errors import QuantizationError as QuantizationError
from .blocks import Quantized as Quantized
from .blocks import quantize as quantize
from .convert import convert as convert
from .half import half_weights as half_weights
from .mixed import mixed_precision as mixed_precision
from .qat import prepare_qat as prepare_qat

__all__ = [
    "QuantizationError",
    "Quantized",
    "convert",
    "half_weights",
    "mixed_precision",
    "prepare_qat",
    "quantize",
]
