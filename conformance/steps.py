"""A few steps of AdamW through the artifacts, against torch's from the same weights."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import torch

import onnxtrain
from onnxtrain import CheckpointState, Module, Optimizer, optim

from .cases import Array, TorchCase
from .torch_function import TorchFunction, arrays
from .verdicts import Verdict, largest_of

RATE, DECAY = 1e-3, 0.01
TOLERANCE = 0.02
"""Of what the steps change."""
ABOVE_ROUNDING = 1e-3
"""ε relative to the largest gradient: an entry that is rounding alone must not become a step."""
WORSE_THAN_TORCH = 10.0


def compare_steps(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    parameters: Mapping[str, str],
    function: TorchFunction,
    case: TorchCase,
    no_gradient: Collection[str] = (),
) -> Verdict:
    """Train both, and compare the parameters.

    Args:
        model: with the loss as its first output.
        feeds: of its inputs.
        parameters: from torch's names to the initializers.
        function: the module, in float32.
        case: what it is of.
        no_gradient: names of nodes that no gradient passes.
    """
    size = largest_of(arrays(function.gradients(function.point())))
    eps = 10.0 ** round(math.log10(max(size * ABOVE_ROUNDING, 1e-8)))
    expected = torch_steps(function, list(parameters), eps, case.steps)
    names = list(dict.fromkeys(parameters.values()))
    along = our_steps(model, feeds, names, eps, case.steps, no_gradient)
    ours = along[-1]
    gap = max(_apart(ours[v], expected[n]) for n, v in parameters.items())
    if gap <= TOLERANCE:
        return Verdict("right", gap)
    exact = TorchFunction(case, torch.float64)
    exact.weights = function.weights
    reference = torch_steps(exact, list(parameters), eps, case.steps)
    theirs = max(_apart(expected[n], reference[n]) for n in parameters)
    gap = max(_apart(ours[v], reference[n]) for n, v in parameters.items())
    if gap <= max(TOLERANCE, WORSE_THAN_TORCH * theirs):
        return Verdict("right", gap, "torch's float32 is as far from float64")
    if _each_step_apart(function, parameters, along, eps) <= TOLERANCE:
        return Verdict("right", gap, "each step is torch's; together they leave a kink another way")
    return Verdict("wrong", gap, f"AdamW: {gap:.2g} of {case.steps} steps off, torch {theirs:.2g}")


def _each_step_apart(
    function: TorchFunction,
    parameters: Mapping[str, str],
    along: list[dict[str, Array]],
    eps: float,
) -> float:
    """The largest difference of one step from where ours were before it.

    Where a step ends at a kink, rounding decides how the next begins, and what follows may be far
    apart; one step from the same place is not.
    """
    point = function.point()
    weights = [point[n] for n in parameters]
    update = torch.optim.AdamW(weights, lr=RATE, eps=eps, weight_decay=DECAY)
    gap = 0.0
    for ours in along:
        gradients = function.gradients(point)
        for name in parameters:
            point[name].grad = gradients[name]
        update.step()
        for name, value in parameters.items():
            weight = point[name].data
            gap = max(gap, _apart(ours[value], weight.numpy()))
            weight.copy_(torch.from_numpy(ours[value]))
    return gap


def torch_steps(
    function: TorchFunction, names: list[str], eps: float, count: int
) -> dict[str, Array]:
    """Parameters after some steps of torch's AdamW."""
    point = function.point()
    update = torch.optim.AdamW([point[n] for n in names], lr=RATE, eps=eps, weight_decay=DECAY)
    for _ in range(count):
        gradients = function.gradients(point)
        for name in names:
            point[name].grad = gradients[name]
        update.step()
    return arrays({n: point[n] for n in names})


def our_steps(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    names: list[str],
    eps: float,
    count: int,
    no_gradient: Collection[str] = (),
) -> list[dict[str, Array]]:
    """The same through artifacts, Module and Optimizer, after each step."""
    with tempfile.TemporaryDirectory() as folder:
        onnxtrain.generate_artifacts(
            model, requires_grad=names, artifact_directory=folder, no_gradient=no_gradient,
            optimizer=optim.adamw(preset="torch", eps=eps, weight_decay=DECAY),
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
        module = Module(f"{folder}/training_model.onnx", state)
        update = Optimizer(f"{folder}/optimizer_model.onnx", module)
    update.set_learning_rate(RATE)
    stored = {i.name for i in model.graph.initializer}
    batch: list[Any] = [feeds[i.name] for i in model.graph.input if i.name not in stored]
    along = []
    for _ in range(count):
        module(*batch)
        update.step()
        module.lazy_reset_grad()
        along.append({n: np.array(state.parameters[n].data) for n in names})
    return along


def _apart(one: Array, other: Array) -> float:
    """The largest difference, in steps of the learning rate."""
    with np.errstate(all="ignore"):
        gap = np.abs(one.astype(np.float64) - other) / RATE
    same = np.isnan(one) & np.isnan(other)
    return float(np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf)).max(initial=0.0))
