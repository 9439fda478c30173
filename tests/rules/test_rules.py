"""Every rule, case by case; a rule without a case fails."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import tests.rules
from onnxtrain.autodiff.registry import rules

from .harness import Case, check

CASES: list[Case] = [
    case
    for module in pkgutil.iter_modules(tests.rules.__path__)
    if module.name.startswith("cases_")
    for case in importlib.import_module(f"tests.rules.{module.name}").CASES
]


@pytest.mark.parametrize("case", CASES, ids=[c.id for c in CASES])
def test_gradient(case: Case) -> None:
    check(case)


def test_every_rule_has_a_case() -> None:
    covered = {(c.domain, c.op) for c in CASES}
    missing = sorted(key for key in rules() if key not in covered)
    assert not missing, f"rules without a table case: {missing}"
