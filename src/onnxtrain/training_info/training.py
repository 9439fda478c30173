"""Runs what ``TrainingInfoProto`` describes on the stock onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from ..errors import InputError, NonFiniteError, RunError, StateError
from ..runtime.files.atomic import write_atomically
from ..runtime.loop.batches import ArrayBatches, Batches, make_batches
from ..runtime.session.devices import Device
from .read import Arrays, read, whole_proto

EpochEnd = Callable[[int, Mapping[str, float]], None]
"""Called with the number of an epoch, from 1 on, and its means."""


class Training:
    """A model in training, as its own training information says.

    Args:
        model: the model or its file; it is not changed.
        index: which of its algorithms, if it has several.

    Attributes:
        algorithm: what was read, with standard operators.
        state: the values that steps replace, by name: weights, moments, counts.

    Example:
        >>> training = Training("model.onnx")                       # doctest: +SKIP
        >>> training.step({"x": x, "target": y})["loss"]            # doctest: +SKIP
        >>> training.fit({"x": x, "target": y}, epochs=5)           # doctest: +SKIP
        >>> training.save("trained.onnx")                           # doctest: +SKIP
    """

    def __init__(self, model: onnx.ModelProto | str | os.PathLike[str], index: int = 0) -> None:
        self._model = whole_proto(model)
        self._index = index
        self.algorithm = read(self._model, index)
        self.state: Arrays = dict(self.algorithm.state)
        self._step = Device().session(self.algorithm.step.SerializeToString())

    def initialize(self) -> None:
        """Replace the state by fresh values, as the file says."""
        if self.algorithm.initialization is None:
            raise StateError(
                "The model's training_info has no initialization: training goes on from the "
                "values in the file."
            )
        session = Device().session(self.algorithm.initialization.SerializeToString())
        names = list(self.algorithm.resets.values())
        fresh = dict(zip(names, session.run(names, {})))
        self.state.update((n, fresh[source]) for n, source in self.algorithm.resets.items())

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        check_finite: bool = True,
        on_epoch: EpochEnd | None = None,
    ) -> list[dict[str, float]]:
        """Do a step for every batch of the data, several times.

        Args:
            data: a dict of arrays by name, a tuple in the order of `algorithm.inputs`, or batches.
            epochs: passes over the data.
            batch_size: rows of a step, where the data are arrays; a file that takes batches of one
                size only has the last word.
            shuffle: take the rows of arrays in a new order in every epoch.
            seed: of these orders.
            drop_last: leave out a last, smaller batch.
            check_finite: refuse a step that makes anything NaN or infinite; it changes nothing.
            on_epoch: called after every epoch, to write or to print.

        Returns:
            For each epoch the means of all outputs that are one number: the loss, usually.

        Raises:
            NonFiniteError: a step made something NaN or infinite.
        """
        if epochs < 1:
            raise InputError(f"epochs must be at least 1, not {epochs}.")
        batches = self._batches(data, batch_size, shuffle, seed, drop_last)
        history: list[dict[str, float]] = []
        for epoch in range(epochs):
            numbers: dict[str, list[float]] = {}
            for batch in batches.epoch(epoch):
                feeds = self._named(batch)
                for name, value in self.step(feeds, check_finite=check_finite).items():
                    if value.size == 1 and value.dtype.kind == "f":
                        numbers.setdefault(name, []).append(float(value.item()))
            history.append({n: float(np.mean(v)) for n, v in numbers.items()})
            if on_epoch is not None:
                on_epoch(epoch + 1, history[-1])
        return history

    def _batches(
        self, data: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool
    ) -> Batches:
        fixed = self._fixed_batch()
        batches = make_batches(
            data,
            self.algorithm.inputs,
            batch_size if fixed is None else fixed,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last or fixed is not None,
        )
        if fixed is not None and isinstance(batches, ArrayBatches):
            batches.check_whole(fixed, drop_last=drop_last)
        return batches

    def _fixed_batch(self) -> int | None:
        """The only number of rows that the file takes, if there is one."""
        shapes = (
            value.type.tensor_type.shape.dim
            for value in self.algorithm.step.graph.input
            if value.name in self.algorithm.inputs
        )
        sizes = {shape[0].dim_value for shape in shapes if shape} - {0}
        return sizes.pop() if len(sizes) == 1 else None

    def _named(self, batch: list[Any]) -> dict[str, Any]:
        names = self.algorithm.inputs
        if len(batch) != len(names):
            raise InputError(f"A batch has {len(batch)} arrays: a step takes {names}.")
        return dict(zip(names, batch))

    def step(self, feeds: Mapping[str, Any], *, check_finite: bool = False) -> Arrays:
        """Do one step.

        Args:
            feeds: the network's inputs and the algorithm's, by name.
            check_finite: refuse to go on with anything NaN or infinite.

        Returns:
            The outputs of the network and of the algorithm, from before the update.

        Raises:
            NonFiniteError: with `check_finite`, what the state would become has such numbers; it
                stays as it was.
        """
        missing = [n for n in self.algorithm.inputs if n not in feeds]
        unknown = [n for n in feeds if n not in self.algorithm.inputs]
        if missing or unknown:
            what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unknown"
            raise InputError(f"{what}: a step takes {self.algorithm.inputs}.")
        arrays = {n: np.asarray(v) for n, v in feeds.items()}
        for labels in self.algorithm.labels:
            labels.check(arrays[labels.input])
        updates = self.algorithm.updates
        names = [*self.algorithm.outputs, *dict.fromkeys(updates.values())]
        try:
            values = self._step.run(names, {**arrays, **self.state})
        except Exception as error:  # its errors have no common base class
            described = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in arrays.items())
            raise RunError(
                f"onnxruntime could not run a step with {described}: {error} Do types, sizes and "
                "labels fit the model?"
            ) from error
        results = dict(zip(names, values))
        state = {n: results[source] for n, source in updates.items()}
        if check_finite:
            _check_finite(state)
        self.state.update(state)
        return {n: results[n] for n in self.algorithm.outputs}

    def model(self) -> onnx.ModelProto:
        """The model with the values of now, its training information included."""
        result = onnx.ModelProto()
        result.CopyFrom(self._model)
        for graph in (result.graph, result.training_info[self._index].algorithm):
            for tensor in graph.initializer:
                if tensor.name in self.state:
                    tensor.CopyFrom(
                        onnx.numpy_helper.from_array(self.state[tensor.name], tensor.name)
                    )
        return result

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with the values of now: the old file or the new one, never a part."""
        write_atomically(path, [self.model().SerializeToString()])


def _check_finite(state: Arrays) -> None:
    for name, value in state.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise NonFiniteError(
                f"A step makes {name!r} NaN or infinite",
                "It changed nothing. Look for such numbers in the data; otherwise the learning "
                "rate in the file is too high.",
            )
