"""Rules of rules/quantization.py are estimators, not derivatives: no central difference applies."""

from .harness import Case

CASES: list[Case] = []

TESTED_ELSEWHERE = {
    "QuantizeLinear": "test_quantization.py",
    "DequantizeLinear": "test_quantization.py",
    "DynamicQuantizeLinear": "test_quantization.py",
    "MatMulInteger": "../normalize/test_quantized.py",
    "ConvInteger": "../normalize/test_quantized.py",
}
