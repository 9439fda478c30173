"""Runs what ``TrainingInfoProto`` describes on the stock onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from ..errors import InputError, RunError, StateError
from ..runtime.files.atomic import write_atomically
from ..runtime.session.devices import Device
from .read import Arrays, read, whole_proto


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

    def step(self, feeds: Mapping[str, Any]) -> Arrays:
        """Do one step.

        Args:
            feeds: the network's inputs and the algorithm's, by name.

        Returns:
            The outputs of the network and of the algorithm, from before the update.
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
        self.state.update((n, results[source]) for n, source in updates.items())
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
