"""A client's copy of the model: set the parameters, train a little, give the parameters back."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, NonFiniteError
from ..hyper import check_amount
from ..runtime.loop.batches import make_batches
from ..runtime.loop.metrics import Metric
from ..runtime.loop.trainer import Trainer
from ..runtime.session.sharing import OneProcess, exclusive
from ..runtime.state.checkpoint_state import CheckpointState
from ..runtime.step.module import Module
from ..runtime.step.optimizer import Optimizer

Array = npt.NDArray[Any]
PARAMETERS, STATISTICS = "parameters", "statistics"
"""Names of the arrays that travel: all trained values, and running statistics if there are any."""


class LocalModel(OneProcess):
    """Artifacts in the hands of one client (or of the server, to evaluate).

    Args:
        artifacts: folder that `generate_artifacts` wrote.
        prefix: of the file names.
        metrics: what `evaluate` computes besides the loss.
        named: exchange one array per parameter, under its name, instead of a single flat one.

    Example:
        >>> model = LocalModel("artifacts", metrics=["accuracy"])  # doctest: +SKIP
        >>> loss = model.train((x, y), epochs=1)  # doctest: +SKIP
        >>> arrays = model.arrays()  # doctest: +SKIP
    """

    _instead = "Hand over arrays(), and give them to set_arrays() of a new LocalModel there."

    def __init__(
        self,
        artifacts: str | os.PathLike[str],
        prefix: str = "",
        *,
        metrics: Sequence[str | Metric] = (),
        named: bool = False,
    ) -> None:
        folder = Path(artifacts)
        self.named = named
        self.state = CheckpointState.load_checkpoint(folder / f"{prefix}checkpoint")
        self._values = self.state.training_state
        self._share(self.state.lock)
        self._files = (
            folder / f"{prefix}training_model.onnx",
            folder / f"{prefix}optimizer_model.onnx",
            folder / f"{prefix}eval_model.onnx",
        )
        self._metrics = metrics
        self._module = Module(self._files[0], self.state, check_finite=True)
        saved = self._values.optimizer
        self._rate = saved.learning_rate if saved is not None else 0.001
        self._trainer: Trainer | None = None
        self._statistics = [
            name
            for name in self._module.gradient_step.artifact.states
            if self._values.frozen.specs[name].type.code == "F32"
        ]

    # --- what travels ----------------------------------------------------------------------------

    @exclusive
    def arrays(self) -> dict[str, Array]:
        """Copies of everything that training changes."""
        store, frozen = self._values.trainable, self._values.frozen
        statistics = {n: frozen.view(n) for n in self._statistics}
        if self.named:
            return {n: v.copy() for n, v in {**_views(store), **statistics}.items()}
        arrays = {PARAMETERS: _flat(_views(store))}
        if statistics:
            arrays[STATISTICS] = _flat(statistics)
        return arrays

    @exclusive
    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `arrays` of another copy gave; wrong names, sizes or NaN are refused."""
        own = self.arrays()
        check_arrays(arrays, own)
        views = _views(self._values.trainable)
        statistics = {n: self._values.frozen.view(n) for n in self._statistics}
        if self.named:
            for name, view in {**views, **statistics}.items():
                view[...] = arrays[name]
        else:
            _unflat(arrays[PARAMETERS], views)
            if statistics:
                _unflat(arrays[STATISTICS], statistics)

    # --- work ------------------------------------------------------------------------------------

    @exclusive
    def train(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        learning_rate: float | None = None,
        proximal_mu: float = 0.0,
        seed: int = 0,
    ) -> float:
        """Train from the current parameters, with fresh moments; gives the mean loss.

        A loss or a gradient that is NaN or infinite raises `NonFiniteError`; the parameters then
        are those of before that batch.

        Args:
            data: as for `Trainer.fit`.
            epochs: passes over them.
            batch_size: rows per step.
            learning_rate: by default that of the checkpoint.
            proximal_mu: FedProx: μ/2·‖w − w₀‖² is added to the loss, so μ·(w − w₀) to the gradient,
                w₀ being the parameters before.
            seed: from which the order of the rows follows, and masks of Dropout; those continue
                when the same seed comes again.
        """
        module, random = self._module, self._values.random
        if random.seed != seed:
            self.state.seed, random.counter = seed, 0
        optimizer = Optimizer(self._files[1], module, reset=True)
        optimizer.set_learning_rate(self._rate if learning_rate is None else learning_rate)
        check_amount(proximal_mu, "proximal_mu")
        source = make_batches(data, module.input_names(), batch_size, shuffle=True, seed=seed)
        weights = self._values.trainable.buffers["F32"].data
        start = weights.copy() if proximal_mu else None
        total, rows = 0.0, 0
        for epoch in range(epochs):
            for batch, values in enumerate(source.epoch(epoch)):
                module.lazy_reset_grad()
                try:
                    result = module(*values)
                    if start is not None:
                        self._pull_back(weights, start, proximal_mu)
                    optimizer.step()
                except NonFiniteError as error:
                    raise NonFiniteError(
                        f"In epoch {epoch}, batch {batch} of the local training: {error.reason}",
                        "That batch changed nothing, and nothing is sent. Look at the client's "
                        "data and at the learning rate.",
                    ) from error
                loss = result[0] if isinstance(result, tuple) else result
                count = len(values[0])
                total, rows = total + float(np.mean(loss)) * count, rows + count
        if not rows:
            raise InputError("The client's data gave no batch.")
        return total / rows

    def _pull_back(self, weights: Array, start: Array, mu: float) -> None:
        gradients = self._values.need_gradients().buffers["F32"].data
        gradients += np.float32(mu) * (weights - start)

    @exclusive
    def evaluate(self, data: Any, batch_size: int = 256) -> dict[str, float]:
        """Loss and metrics with the current parameters."""
        if self._trainer is None:
            self._trainer = Trainer(
                self._files[0], self._files[1], self.state, self._files[2], metrics=self._metrics
            )
        return self._trainer.evaluate(data, batch_size)

    @exclusive
    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the inference model."""
        outputs = self._eval_outputs()
        module = Module(self._files[0], self.state, self._files[2])
        module.export_model_for_inferencing(path, outputs)

    def _eval_outputs(self) -> list[str]:
        from ..runtime.step.artifact import load_artifact

        return load_artifact(self._files[2], "eval", self._values).model_outputs


def check_arrays(arrays: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Raise unless names, shapes and types are as expected and all values are finite."""
    if list(arrays) != list(expected):
        raise InputError(f"Expected the arrays {list(expected)}, got {list(arrays)}.")
    for name, like in expected.items():
        array = arrays[name]
        if array.shape != like.shape or array.dtype.kind != "f":
            raise InputError(
                f"Array {name!r} must be float of shape {like.shape}, it is {array.dtype} of "
                f"{array.shape}."
            )
        if not np.isfinite(array).all():
            count = int((~np.isfinite(array)).sum())
            raise NonFiniteError(f"Array {name!r} has {count} values that are not finite.")


def _views(store: Any) -> dict[str, Array]:
    return {name: store.view(name) for name in store}


def _flat(views: Mapping[str, Array]) -> Array:
    return np.concatenate([v.reshape(-1) for v in views.values()])


def _unflat(vector: Array, views: Mapping[str, Array]) -> None:
    at = 0
    for view in views.values():
        view[...] = vector[at : at + view.size].reshape(view.shape)
        at += view.size
