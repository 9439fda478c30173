"""Every rule, case by case; a rule without a case fails."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import onnx
import pytest

import tests.rules
from onnxtrain.autodiff.registry import rules

from .harness import Case, check

MODULES = [
    importlib.import_module(f"tests.rules.{module.name}")
    for module in pkgutil.iter_modules(tests.rules.__path__)
    if module.name.startswith("cases_")
]
CASES: list[Case] = [case for module in MODULES for case in module.CASES]

ELSEWHERE: dict[tuple[str, str], str] = {
    ("", op): file
    for module in MODULES
    for op, file in getattr(module, "TESTED_ELSEWHERE", {}).items()
}
"""Rules that one node and central differences cannot show, and the file that tests them."""


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_gradient(case: Case) -> None:
    check(case)


def test_every_rule_has_a_case() -> None:
    covered = {(c.domain, c.op) for c in CASES} | set(ELSEWHERE)
    covered |= {key for key in rules() if key[0] == "ai.onnx.ml"}  # tests/normalize/test_ml.py
    missing = sorted(
        key
        for key, rule in rules().items()
        if key not in covered and not (rule.kind == "zero" and _unreachable(*key))
    )
    assert not missing, f"rules without a table case: {missing}"


def test_tested_elsewhere() -> None:
    for (_, op), file in ELSEWHERE.items():
        text = (pathlib.Path(__file__).parent / file).read_text(encoding="utf-8")
        assert op in text, f"{file} does not test {op}"


def _unreachable(domain: str, op: str) -> bool:
    """Whether the types of an operator keep every gradient away from it."""
    schema = onnx.defs.get_schema(op, 21, domain)
    floats = {"tensor(float)", "tensor(double)", "seq(tensor(float))"}
    return not all(
        any(floats & set(p.types) for p in operands) for operands in (schema.inputs, schema.outputs)
    )
