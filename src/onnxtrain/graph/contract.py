"""What artifacts say of themselves: the order of their inputs, and their metadata.

The runtime reads the metadata under `METADATA`, so it is a contract: a key that has been written
keeps its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import onnx_ir as ir

from .labels import DECLARED, ClassLabels

METADATA = "onnxtrain.artifact"
RANDOM_INPUT = "onnxtrain.random"
"""Name of the input INT64 [2]: seed, and the number of training passes before this one."""


class Described(Protocol):
    """What of a plan goes into the metadata."""

    @property
    def user_inputs(self) -> Sequence[str]:
        """Inputs that are no parameters."""

    @property
    def outputs(self) -> Sequence[str]:
        """Outputs, the loss first."""

    @property
    def trainable(self) -> Sequence[str]:
        """Parameters that are trained."""

    @property
    def frozen(self) -> Sequence[str]:
        """Parameters that are not."""

    @property
    def parameters(self) -> Sequence[str]:
        """All of them, in the model's order."""


def order_inputs(model: ir.Model, plan: Described, extra: Sequence[str] = ()) -> None:
    """User inputs and targets, parameters in initializer order, then what was added.

    What random operators draw from comes last.
    """
    inputs = model.graph.inputs
    values = {v.name: v for v in inputs}
    users = [n for n in plan.user_inputs if n not in plan.parameters]
    hidden = [n for n in (RANDOM_INPUT,) if n in values]
    order = [*users, *plan.parameters, *extra, *hidden]
    inputs.clear()
    inputs.extend(values[n] for n in order)
    for name in (*plan.parameters, *extra):
        values[name].const_value = None  # the values live in the checkpoint


def describe_labels(labels: Sequence[ClassLabels]) -> dict[str, Any]:
    """The entry of the metadata that says what to check of the labels; none if none."""
    return {"labels": [one.to_dict() for one in labels]} if labels else {}


def describe(
    model: ir.Model, plan: Described, kind: str, labels: Sequence[ClassLabels], **more: Any
) -> None:
    """Write the metadata."""
    model.metadata_props.pop(DECLARED, None)  # what is written here takes its place
    described = {
        "version": 1,
        "kind": kind,
        "user_inputs": list(plan.user_inputs),
        "user_outputs": list(plan.outputs),
        "trainable": list(plan.trainable),
        "frozen": list(plan.frozen),
        **describe_labels(labels),
        **more,
    }
    model.metadata_props[METADATA] = json.dumps(described)
