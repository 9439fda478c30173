"""A few steps of AdamW through the artifacts, against torch's from the same weights."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

import onnxtrain
from onnxtrain import CheckpointState, Module, Optimizer, optim

from .cases import Array, TorchCase
from .check import EndOfCase
from .sessions import Session
from .torch_function import TorchFunction, arrays
from .verdicts import Verdict, largest_of

RATE, DECAY = 1e-3, 0.01
TOLERANCE = 0.02
"""Of what the steps change."""
ABOVE_ROUNDING = 1e-3
"""ε relative to the largest gradient: an entry that is rounding alone must not become a step."""
WORSE_THAN_TORCH = 10.0
SAME_LOSS = 1e-4
"""Of the sum of all terms of a loss, each without its sign: what rounding may change."""
NEIGHBOURS, ULPS, FURTHER = 6, 5e-7, 2.0
"""Places a rounding away that are looked at, how far away they are, and how many times as far as
they are from torch's a step may be."""


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
    if _each_step_right(function, parameters, along, eps):
        return Verdict("right", gap, "each step is torch's; together they leave a kink another way")
    if any(is_another_function(model, feeds, function, parameters, w) for w in along):
        # Experts that had no tokens when a module was traced are not in the graph, for one.
        reason = "after a step the exported graph has other outputs than the module: a choice that"
        raise EndOfCase("not exported", f"{reason} follows from the weights is fixed in it")
    exact = TorchFunction(case, torch.float64)
    exact.weights = function.weights
    reference = torch_steps(exact, list(parameters), eps, case.steps)
    theirs = max(_apart(expected[n], reference[n]) for n in parameters)
    gap = max(_apart(ours[v], reference[n]) for n, v in parameters.items())
    if gap <= max(TOLERANCE, WORSE_THAN_TORCH * theirs):
        return Verdict("right", gap, "torch's float32 is as far from float64")
    return Verdict("wrong", gap, f"AdamW: {gap:.2g} of {case.steps} steps off, torch {theirs:.2g}")


def _each_step_right(
    function: TorchFunction,
    parameters: Mapping[str, str],
    along: list[dict[str, Array]],
    eps: float,
) -> bool:
    """Whether each step is torch's from where ours were before it.

    Where a step ends at a kink, rounding decides how the next begins, and what follows may be far
    apart; one step from the same place is not, unless that place is at the kink: then torch's own
    steps from places a rounding away differ as much.
    """
    point = function.point()
    update = torch.optim.AdamW([point[n] for n in parameters], lr=RATE, eps=eps, weight_decay=DECAY)
    for ours in along:
        before = {n: point[n].detach().clone() for n in parameters}
        moments = copy.deepcopy(update.state_dict())
        expected = _one_step(function, point, update)
        gaps = {n: _apart(ours[v], expected[n]) for n, v in parameters.items()}
        if max(gaps.values()) > TOLERANCE:
            near = dict.fromkeys(parameters, 0.0)
            for number in range(NEIGHBOURS):
                _move(point, before, number)
                update.load_state_dict(copy.deepcopy(moments))
                other = _one_step(function, point, update)
                near = {n: max(near[n], _apart(other[n], expected[n])) for n in parameters}
            if any(gap > max(TOLERANCE, FURTHER * near[n]) for n, gap in gaps.items()):
                return False
            _move(point, before)
            update.load_state_dict(moments)
            _one_step(function, point, update)
        _move(point, {n: torch.from_numpy(ours[v]) for n, v in parameters.items()})
    return True


def is_another_function(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    function: TorchFunction,
    parameters: Mapping[str, str],
    values: Mapping[str, Array],
) -> bool:
    """Whether a graph and its module differ in their loss with other values of initializers."""
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    for tensor in moved.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
    outputs = Session(moved, whole=True, optimized=False).run(feeds)
    ours = float(outputs[model.graph.output[0].name])
    theirs, size = function.loss_and_size({n: values[v] for n, v in parameters.items()})
    return not abs(ours - theirs) <= SAME_LOSS * size


def _one_step(
    function: TorchFunction, point: dict[str, torch.Tensor], update: torch.optim.AdamW
) -> dict[str, Array]:
    """The parameters after a step."""
    gradients = function.gradients(point)
    for name, tensor in point.items():
        tensor.grad = gradients[name]
    update.step()
    return {n: t.detach().numpy().copy() for n, t in point.items()}


def _move(
    point: dict[str, torch.Tensor], places: Mapping[str, torch.Tensor], seed: int | None = None
) -> None:
    """Put parameters where they are told to be; with a seed, a rounding away from there."""
    random = torch.Generator().manual_seed(seed or 0)
    for name, place in places.items():
        point[name].data.copy_(place)
        if seed is not None and place.numel():
            size = max(float(place.abs().max()), RATE)
            point[name].data.add_(torch.randn(place.shape, generator=random), alpha=ULPS * size)


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
        module = Module(f"{folder}/training_model.onnx", state, session_options=_one_thread())
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


def _one_thread() -> ort.SessionOptions:
    """On a shared machine a second thread waits for a core, and the first for it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def _apart(one: Array, other: Array) -> float:
    """The largest difference, in steps of the learning rate."""
    with np.errstate(all="ignore"):
        gap = np.abs(one.astype(np.float64) - other) / RATE
    same = np.isnan(one) & np.isnan(other)
    return float(np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf)).max(initial=0.0))
