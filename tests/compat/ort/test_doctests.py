"""The examples in the documentation of the two APIs run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["passes.partition", "compat.ort.graph_builder", "compat.ort.session"]
)
def test_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"onnxtrain.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
