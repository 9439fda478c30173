"""The examples in the documentation of the two APIs run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["autodiff.partition", "training.graph_builder", "training.session"]
)
def test_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"onnxtrain.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
