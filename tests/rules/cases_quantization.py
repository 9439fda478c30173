"""Rules of rules/quantization.py are estimators, not derivatives: no central difference applies."""

from .harness import Case

CASES: list[Case] = []

TESTED_ELSEWHERE = dict.fromkeys(
    ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), "test_quantization.py"
)
