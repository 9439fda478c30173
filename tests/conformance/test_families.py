"""A cross-section of the lists: a small network of each of twenty-two families."""

from __future__ import annotations

import pytest

from conformance.cases import TorchCase
from conformance.check import check

from .families import FAMILIES, network

ONLY_BY_DYNAMO = ["FNet", "Longformer"]
CASES = [(name, "torchscript") for name in FAMILIES if name not in ONLY_BY_DYNAMO]
CASES += [(name, "dynamo") for name in (*ONLY_BY_DYNAMO, "T5", "Mixtral")]


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_family(name: str, exporter: str) -> None:
    """Exported, run forward, and every gradient like autograd's."""
    module, inputs = network(name)
    case = TorchCase(module, inputs, exporters=(exporter,), steps=0, timing=False)
    (row,) = check(name, case)
    assert row["outcome"] == "right", row


def test_three_steps_of_a_family() -> None:
    """The same network trained by both, where weights are tied."""
    module, inputs = network("GPT2")
    case = TorchCase(module, inputs, exporters=("torchscript",), timing=False)
    (row,) = check("GPT2", case)
    assert (row["outcome"], row["steps"]) == ("right", "right"), row


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "gpt_oss"])
def test_architecture_of_transformers(name: str) -> None:
    """Where transformers is installed, the real ones by their small configurations."""
    pytest.importorskip("transformers", minversion="5")
    from conformance.lists import transformers

    case = transformers.case(name)
    case.exporters, case.steps, case.timing = ("torchscript",), 0, False
    (row,) = check(name, case)
    assert row["outcome"] == "right", row
