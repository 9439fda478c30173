"""The two ways to make an update in one process: one graph, or gradients and then the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..session.devices import Device
from . import kernels
from .module import Module
from .one_graph import OneGraphStep
from .optimizer import Optimizer
from .step import Engine
from .update import OptimizerFile

Array = npt.NDArray[Any]

FEW_NODES = {"elementwise": 300, "tensor": 2000}
"""Nodes of the updates of all parameters up to which they are part of one graph, by layout.

Layers of 8 x 8 took the same time both ways with 12 to 16 parameters and Adam (25 nodes each), and
with 64 and SGD (4 nodes): one flat update is a call of its own, but no longer for more of them.
What is updated tensor by tensor has no such limit, but onnxruntime takes seconds for its session.
"""


def one_graph_pays(optimizer: OptimizerFile, sizes: Sequence[int], device: Device) -> bool:
    """Whether loss, gradients and update in one run are faster than gradients and then the update.

    Args:
        optimizer: its update is run over the flat buffers otherwise, by a kernel if it has one.
        sizes: of the parameters, in elements.
        device: where they live.
    """
    if optimizer.is_sequence:
        return True
    if device.is_host and kernels.find(optimizer.description, sum(sizes)):
        return False
    return optimizer.node_count * len(sizes) <= FEW_NODES[optimizer.layout]


def measured(outputs: Sequence[Array], values: Sequence[Any]) -> tuple[float, int]:
    """Mean loss and number of rows of a batch."""
    loss = outputs[0]
    mean = float(loss.item() if loss.size == 1 else np.mean(loss))
    return mean, len(values[0]) if np.ndim(values[0]) else 1


class OneGraphEngine(Engine):
    """Every batch is an update, made in one run."""

    def __init__(self, step: OneGraphStep) -> None:
        self.graph, self.training_state = step, step.state
        self.input_names, self.fixed_batch = step.user.input_names, step.user.fixed_batch

    @property
    def step_count(self) -> int:
        """Number of updates so far."""
        return self.graph.memory.step

    def run(self, values: Sequence[Any]) -> tuple[float, int]:
        """One batch."""
        return measured(self.graph(values), values)

    def nothing_counts(self, values: Sequence[Any]) -> bool:
        """Whether every label of a batch is ignored."""
        return self.graph.user.nothing_counts(values)


class TwoPartEngine(Engine):
    """Gradients of some micro-batches, then an update from their mean.

    Each micro-batch counts by the labels in it that do, or by its rows, so that the mean is the
    gradient of all of them as one batch: Σ nᵢ·gᵢ ÷ Σ nᵢ.

    Args:
        module: computes the gradients.
        optimizer: updates the parameters.
        accumulate: micro-batches per update.
    """

    def __init__(self, module: Module, optimizer: Optimizer, accumulate: int) -> None:
        self.module, self.optimizer, self.accumulate = module, optimizer, accumulate
        self._step = module.gradient_step
        self.training_state, self.input_names = self._step.state, module.input_names()
        self.fixed_batch = self._step.user.fixed_batch
        self._pending, self._total, self._weight = 0, 0, 0

    @property
    def step_count(self) -> int:
        """Number of updates so far."""
        return self.optimizer.step_count

    def run(self, values: Sequence[Any]) -> tuple[float, int]:
        """One micro-batch."""
        if self.accumulate == 1:
            self.module.lazy_reset_grad()
            result = self.module(*values)
            self.optimizer.step()
            return measured(result if isinstance(result, tuple) else [result], values)
        if self._pending == 0:
            self.module.lazy_reset_grad()
        weight = self._step.user.weight(values)
        self._weigh(weight)
        result = self.module(*values)
        self._total += weight
        self._pending += 1
        if self._pending == self.accumulate:
            self.finish()
        elif self.module.check_finite and not self.optimizer.scales_loss:
            self.optimizer.check_gradients()
        loss, _ = measured(result if isinstance(result, tuple) else [result], values)
        return loss, weight

    def _weigh(self, weight: int) -> None:
        """Make room for gradients of another weight: those there are have `_weight` to come.

        Where no label counts the gradient is 0 whatever its weight.
        """
        if not weight or weight == self._weight:
            return
        if self._total:
            gradients = self._step.gradients
            gradients.pull()
            for buffer in gradients.buffers.values():
                buffer.data *= buffer.data.dtype.type(self._weight / weight)
            gradients.push()
        self._weight = weight

    def finish(self) -> tuple[float, int]:
        """Update from what is gathered; `run` has told all losses."""
        if self._pending:
            scale = self._weight / self._total if self._total else 1.0
            self.forget()
            self.optimizer.apply(scale)
        return 0.0, 0

    def forget(self) -> None:
        """Drop micro-batches that an interrupted training left behind."""
        self._pending, self._total, self._weight = 0, 0, 0

    def nothing_counts(self, values: Sequence[Any]) -> bool:
        """Whether every label of a batch is ignored."""
        return self._step.user.nothing_counts(values)
