"""Forward now, backward later, with whatever the caller likes in between.

Values are passed by position, as onnxruntime's own, and by reference: what the backward half reads
stays where the forward half made it. Any number of forward passes may be pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxruntime.capi import _pybind_state as ort

from ..session.devices import RUN_OPTIONS
from ..session.native import core_of

Vector = ort.OrtValueVector


class ForwardHalf:
    """A session that is given all its inputs, and gives its outputs, as a vector of values.

    Args:
        session: what `open_session` gives.
        feeds: inputs, in the order in which they are given.
        fetches: outputs, in the order in which they come.
        device: where the outputs shall be, or one device for each of them.
    """

    def __init__(
        self, session: Any, feeds: Sequence[str], fetches: Sequence[str], device: Any
    ) -> None:
        self.session = session
        self.feeds, self.fetches = list(feeds), list(fetches)
        self._devices = list(device) if isinstance(device, list) else [device] * len(self.fetches)
        self._run = core_of(session).run_with_ortvaluevector

    def run(self, values: Any, first: int | None = None, options: Any = RUN_OPTIONS) -> Any:
        """The outputs, or the first few of them; what those do not need is not computed."""
        results = Vector()
        fetches, devices = self.fetches, self._devices
        if first is not None and first < len(fetches):
            fetches, devices = fetches[:first], devices[:first]
        self._run(options, self.feeds, values, fetches, results, devices)
        return results

    def run_values(self, values: Sequence[Any], results: Any, first: int | None = None) -> Any:
        """The same from a list of inputs into an empty vector, with fewer calls on the way."""
        vector = Vector()
        push = vector.push_back
        for value in values:
            push(value)
        fetches, devices = self.fetches, self._devices
        if first is not None and first < len(fetches):
            fetches, devices = fetches[:first], devices[:first]
        self._run(RUN_OPTIONS, self.feeds, vector, fetches, results, devices)
        return results


class BackwardHalf:
    """The session of the gradients, fed with what the forward half was given and gave.

    Args:
        session: what `open_session` gives.
        forward: the other half.
        saved: outputs of the forward half that this one reads.
        inputs: inputs of the forward half that it reads.
        seeds: gradients of outputs, which come last.
        gradients: what it computes, in order.
        device: where the gradients shall be, or one device for each of them.
    """

    def __init__(
        self,
        session: Any,
        forward: ForwardHalf,
        *,
        saved: Sequence[str],
        inputs: Sequence[str],
        seeds: Sequence[str],
        gradients: Sequence[str],
        device: Any,
    ) -> None:
        self.session = session
        self.seeds, self.gradients = list(seeds), list(gradients)
        self.saved_at = [forward.fetches.index(name) for name in saved]
        """Where the forward half gives what this one reads."""
        self.inputs_at = [forward.feeds.index(name) for name in inputs]
        """Where it was given what this one reads."""
        self._feeds = [*saved, *inputs, *seeds]
        count = len(self.gradients)
        self._devices = list(device) if isinstance(device, list) else [device] * count
        self._run = core_of(session).run_with_ortvaluevector

    def keep(self, results: Any, values: Any) -> Any:
        """What this half reads, by reference; the gradients of outputs are appended to it."""
        vector = Vector()
        push = vector.push_back
        for i in self.saved_at:
            push(results[i])
        for i in self.inputs_at:
            push(values[i])
        return vector

    def run(self, feeds: Any, gradients: Any = None) -> Any:
        """The gradients, in a new vector or in an empty one of the caller."""
        results = Vector() if gradients is None else gradients
        self._run(RUN_OPTIONS, self._feeds, feeds, self.gradients, results, self._devices)
        return results


def vector_of(values: Sequence[Any]) -> Any:
    """A vector of onnxruntime's values."""
    vector = Vector()
    push = vector.push_back
    for value in values:
        push(value)
    return vector
