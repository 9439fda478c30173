"""The optimizers that `TrainingParameters` ask for, each with its attributes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from ... import optim
from ...errors import UnknownNameError
from ...optim.recipes import OPERATORS, from_operator
from .parameters import ParameterError, TrainingParameters


def optimizers_for(
    parameters: TrainingParameters, weights: Sequence[str]
) -> dict[str, optim.Optimizer]:
    """The optimizer of each weight; nothing when none is asked for."""
    name = parameters.training_optimizer_name
    if not name:
        return {}
    if isinstance(name, optim.Optimizer):
        return dict.fromkeys(weights, name)
    if name not in OPERATORS:
        raise ParameterError(
            f"training_optimizer_name is one of {', '.join(OPERATORS)}, not {name!r}."
        )
    for attributes in (
        parameters.optimizer_attributes_map,
        parameters.optimizer_int_attributes_map,
    ):
        for weight in attributes:
            if weight not in weights:
                raise UnknownNameError("trained weight (in an attribute map)", weight, weights)
    return {
        weight: from_operator(name, _attributes(parameters, name, weight)) for weight in weights
    }


def _attributes(parameters: TrainingParameters, name: str, weight: str) -> dict[str, Any]:
    known = OPERATORS[name]
    attributes: dict[str, Any] = {
        **parameters.optimizer_attributes_map.get(weight, {}),
        **parameters.optimizer_int_attributes_map.get(weight, {}),
    }
    for attribute in attributes:
        if attribute not in known:
            close = difflib.get_close_matches(attribute, known, 1, 0.5)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"{name} has no attribute {attribute!r} (asked for {weight!r}); it has "
                f"{', '.join(known) or 'none'}.{hint}"
            )
    if not parameters.enable_grad_norm_clip:
        attributes["max_norm_clip"] = None
    return attributes
