"""Which parameters are trained: names, patterns or a function of the name."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import onnx

from ..errors import OnnxTrainError, UnknownNameError
from ..graph import FLOATS

Choice: TypeAlias = "Sequence[str] | str | Callable[[str], bool] | None"


class ArtifactError(OnnxTrainError, RuntimeError):
    """An argument of `generate_artifacts` that cannot be used."""


def choose(
    model: onnx.ModelProto, choice: Choice, argument: str, *, inputs: bool = False
) -> list[str]:
    """The parameters that a choice means, in the model's order.

    Args:
        model: the model.
        choice: names and patterns (``"encoder.*"``), or a function that says yes or no to the
            name of each float initializer.
        argument: name of the argument, for errors.
        inputs: whether graph inputs may be named too.
    """
    if choice is None:
        return []
    initializers = {t.name: t for t in model.graph.initializer}
    if callable(choice):
        floats = [n for n, t in initializers.items() if t.data_type in FLOATS]
        return [n for n in floats if choice(n)]
    if isinstance(choice, str):
        choice = [choice]
    graph_inputs = [i.name for i in model.graph.input if i.name not in initializers]
    chosen: set[str] = set()
    for name in choice:
        if not isinstance(name, str):
            raise ArtifactError(f"{argument} holds names, and {name!r} is none.")
        if name in initializers or (inputs and name in graph_inputs):
            chosen.add(name)
            continue
        matches = fnmatch.filter(initializers, name) if any(c in name for c in "*?[") else []
        if not matches:
            raise UnknownNameError(f"parameter (in {argument})", name, list(initializers))
        chosen.update(matches)
    return [n for n in (*initializers, *graph_inputs) if n in chosen]


def check_apart(trainable: Collection[str], frozen: Collection[str]) -> None:
    """Raise when a parameter is in both lists."""
    both = [n for n in trainable if n in set(frozen)]
    if both:
        raise ArtifactError(
            f"Parameters cannot be trained and frozen: {', '.join(both)} "
            "are in requires_grad and in frozen_params."
        )
